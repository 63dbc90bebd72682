# profinfer: build, show, test, measure. `make` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A fresh shell may not know cargo yet.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
# Where engines are fetched to, and where all tests look for them.
export PROFINFER_ENGINES ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/profinfer/engines

CARGO ?= cargo
FIXTURES := target/tests/fixtures
DRIVER := target/tests/engines
# What may come out otherwise where there is no recorder; the rest is compiled (lint), and run with one.
WITHOUT_AGENT := report_cli report_run runner_cli version_cli
C_OF_TESTS := $(wildcard tests/*/*.[ch])

START := $(shell date +%s)
say = @t=$$(( $$(date +%s) - $(START) )); printf '\n== %d:%02d  %s\n' $$((t / 60)) $$((t % 60)) "$(1)"

.NOTPARALLEL:
.PHONY: check help setup setup-build setup-demo setup-dist build dist demo demo-llama test lint fixtures engines driver unit test-service deb test-dist dist-check test-arm images test-arm64 asan live no-agent proptest setup-fuzz fuzz fuzz-quick kill-points faults clean

##@ Use
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	    /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

build: | setup-build ## the release binaries, target/release/profinfer and ggml-runner
	$(CARGO) build --release --locked

dist: | setup-dist ## static binaries for boards, AArch64 and x86-64, with checksums: dist/*-musl/
	$(call say,static binaries)
	@cross/dist.sh $(TARGETS)

deb: dist ## Debian packages of them: dist/*.deb
	@cross/deb.sh $(TARGETS)

demo: | setup-build ## record ggml-runner on a generated model, and report: no engine to install
	@scripts/demo.sh

demo-llama: | setup-demo ## the same with a real llama.cpp from its package (a few minutes the first time)
	@scripts/demo-llama.sh

##@ Test
test: lint engines unit test-service test-dist test-arm test-arm64 live no-agent ## all of it: lint, unit, test-service, test-dist, test-arm, test-arm64, live, no-agent, with what they need
	$(call say,all tests passed)

check: lint fixtures driver ## lint and all tests that need neither root nor QEMU
	$(call say,tests that need neither root nor QEMU)
	$(CARGO) test --locked --no-fail-fast --lib --test plain

setup: ## install what building and testing need and this machine lacks
	@scripts/setup.sh test
setup-build:
	@scripts/setup.sh build
setup-demo:
	@scripts/setup.sh demo
setup-dist:
	@scripts/setup.sh dist

engines: | setup ## fetch the packaged llama.cpp builds into the cache
	$(call say,engines from packages)
	@tests/engines/fetch.sh || { echo "without all engines: tests on those missing are skipped" >&2; [ "$${PROFINFER_REQUIRE:-}" != 1 ]; }

fixtures: | setup ## build the fake engines
	$(call say,fake engines)
	tests/fixtures/build.sh $(FIXTURES)

driver: | setup ## build the program that runs a model on a packaged engine
	$(MAKE) --no-print-directory -C tests/engines OUT=$(abspath $(DRIVER))

lint: | setup ## rustfmt, clippy, rustdoc, clang-format, the workflow, dependencies; every warning is an error
	$(call say,lint)
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --all-targets --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps
	python3 tests/workflow.py
	python3 tests/imports.py
	python3 tests/supply_chain.py
	rustfmt --check --edition 2024 fuzz/src/main.rs
	clang-format --dry-run -Werror src/bpf/*.[ch] cross/*.c cross/qemu/*.c $(C_OF_TESTS)

unit: fixtures driver ## unit tests and the tests that need no live engine
	$(call say,tests that need no live engine)
	$(CARGO) test --locked --no-fail-fast --lib --test plain --test html_browser --test runner_alloc
	$(CARGO) test --locked --doc

test-service: | setup ## how the service gets onto a machine: unit, init scripts, scripts for boards, Debian package
	$(call say,files of the service)
	$(CARGO) test --locked --no-run --test plain
	python3 tests/service/files.py
	python3 tests/service/installing.py

test-dist: dist | setup ## the static binaries: small, static, of their commit, for their target, and a panic unwinds
	$(call say,tests of the static binaries)
	tests/dist/run.sh
	python3 tests/cross_image.py

dist-check: | setup-dist ## that another directory makes the same static binaries (a whole build more; TARGETS chooses)
	$(call say,the same commit makes the same bytes)
	@tests/dist/same.sh $(TARGETS)

test-arm: | setup ## the kernels and ggml-runner for AArch64, on processors that qemu plays
	$(call say,tests for AArch64)
	tests/arm/run.sh

images: | setup ## fetch or build the kernels for test-arm64 into the cache (the first time takes minutes)
	$(call say,kernels and programs for guests)
	@cross/qemu/images.sh || { echo "without all images: checks on those missing are skipped" >&2; \
	    [ "$${PROFINFER_REQUIRE:-}" != 1 ] && [ "$${CI:-}" != true ]; }

test-arm64: images ## both programs on real arm64 kernels in QEMU, 5.10 to 7.2: one row a kernel
	@$(MAKE) --no-print-directory dist TARGETS=aarch64-unknown-linux-musl
	ARCH=aarch64 tests/fixtures/build.sh target/tests/arm64/fixtures
	$(call say,arm64 kernels)
	python3 tests/kernels/matrix.py

# Rust's sanitizers are for its nightly builds alone.
HOST := $(shell uname -m)-unknown-linux-gnu
asan: ## the kernels' unit tests under AddressSanitizer; needs a nightly Rust
	$(call say,kernels under AddressSanitizer)
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test --locked --target $(HOST) --target-dir target/asan \
	    --package kernels --lib

# They share the kernel's probes and the processors: one test at a time.
live: fixtures driver ## tests on live engines: root and BPF needed
	$(call say,tests on live engines)
	$(CARGO) test --locked --test live -- --test-threads=1

no-agent: ## the build without the recorder, as other systems than Linux have it
	$(call say,build and tests without the recorder)
	$(CARGO) test --locked --no-fail-fast --no-default-features --test plain -- $(WITHOUT_AGENT:%=%::)

CASES ?= 20000
proptest: ## the property tests with CASES cases each (20000), in release mode
	PROPTEST_CASES=$(CASES) $(CARGO) test --locked --release --no-default-features

HOURS ?= 1
JOBS ?= 2
setup-fuzz:
	@scripts/setup.sh fuzz
fuzz: | setup-fuzz ## the fuzz targets with coverage for HOURS (1) in all, JOBS (2) at a time; TARGETS chooses
	$(call say,fuzzing for $(HOURS) h)
	@fuzz/run.sh --minutes $$(awk 'BEGIN {print 60 * $(HOURS)}') --jobs $(JOBS) $(TARGETS)
fuzz-quick: | setup-fuzz ## the same for ten minutes
	@fuzz/run.sh --minutes 10 --jobs $(JOBS) $(TARGETS)

POINTS ?= 2000
FAULTS ?= 0
kill-points: fixtures ## recorders and services killed at POINTS system calls (2000); root and BPF needed
	$(CARGO) build --locked --bin profinfer
	tests/kill/points.py $(POINTS)

faults: fixtures ## each system call of recorders and services refused once, or FAULTS of them; root and BPF needed
	$(CARGO) build --locked --bin profinfer
	tests/kill/faults.py $(FAULTS)

##@ Measure
BENCHES := structure fidelity cost start causes budget size report export diff switches service runner
.PHONY: $(BENCHES:%=bench-%) bench-arm-cost
bench-structure: ## hits and structure against the engine's own dump
bench-fidelity: ## tokens/s and op times against the engine's own figures
bench-cost: ## slow-down of the engine at each level
bench-start: ## how long a recording takes to begin and to end, and a command waits for it
bench-size: ## bytes an op in the trace, and what the recorder itself uses
bench-runner: ## ggml-runner against llama.cpp and the machine's peaks
bench-report: ## speed of report on ten million op slices
bench-export: ## speed, memory and size of export on ten million op slices
bench-diff: ## false alarms of diff between equal runs, and a slow op found
bench-causes: ## what counters, scheduler, experts and kinds of buffer cost
bench-budget: ## whether --budget is kept
bench-switches: ## what a context switch costs with --sched
bench-service: ## what the service costs while it waits, and ten engines a second
$(BENCHES:%=bench-%): bench-%: | setup
	benches/$*.sh
bench-arm-cost: images ## guest instructions of an op's probes on arm64 kernels 5.10 to 7.2, in QEMU
	@$(MAKE) --no-print-directory dist TARGETS=aarch64-unknown-linux-musl
	benches/arm-cost.sh

##@ Tidy
clean: ## remove what was built here (the cache of engines and models stays)
	rm -rf target dist
