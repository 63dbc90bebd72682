# profinfer: build, demo, test, benchmark. `make` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A fresh shell may not have cargo in its PATH yet.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
# Where engines are downloaded to, and where all tests look for them.
export PROFINFER_ENGINES ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/profinfer/engines

CARGO ?= cargo
FIXTURES := target/tests/fixtures
DRIVER := target/tests/engines
# Tests whose results may differ without the recorder; the rest is compiled (lint), and run with the recorder.
WITHOUT_AGENT := report_cli report_run runner_cli version_cli
C_OF_TESTS := $(wildcard tests/*/*.[ch])
# Suites of tests/live that are not part of `make live`: devices, and kills at system calls.
DEVICES := cuda device hexagon layers opencl vulkan
RUST := python3 tests/suite/rust.py
PARTS := python3 tests/suite/run.py

START := $(shell date +%s)
say = @t=$$(( $$(date +%s) - $(START) )); printf '\n== %d:%02d  %s\n' $$((t / 60)) $$((t % 60)) "$(1)"

.NOTPARALLEL:
.PHONY: layers score check help setup setup-build setup-demo setup-dist setup-deb build install dist demo demo-llama test \
    test-all test-change lint rebuild-check rustdoc fixtures engines driver unit test-docs docs test-service deb packages \
    release test-dist test-cross dist-check test-arm images guests-short guests boards test-arm64 asan live devices server \
    browser spark kill containers no-agent flaky proptest setup-fuzz fuzz fuzz-quick kill-points faults clean

##@ Use
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	    /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

build: | setup-build ## build the release binaries: target/release/profinfer and ggml-runner
	$(CARGO) build --release --locked
	@$(MAKE) --no-print-directory layers

layers: | setup-build ## build the layers that record device times (record --gpu kernel), beside the programs
	$(CARGO) build --quiet --locked --release --manifest-path crates/layers/Cargo.toml --target-dir target/layers
	mkdir -p target/debug target/release
	for to in debug release; do \
	    cp target/layers/release/libprofinfer_cl.so target/$$to/libprofinfer-cl.so && \
	    cp target/layers/release/libprofinfer_vk.so target/$$to/libprofinfer-vk.so && \
	    cp target/layers/release/libprofinfer_cu.so target/$$to/libprofinfer-cu.so && \
	    cp crates/layers/vulkan/VkLayer_profinfer.json target/$$to/; \
	done

PREFIX ?= /usr/local
FROM ?= target/release
install: ## copy what `make build` built below PREFIX (/usr/local): programs, layers, manual pages, completions
	@. cross/package.sh && lay_out "$(FROM)" "$(DESTDIR)$(PREFIX)" "$$(uname -m)"

dist: | setup-dist ## build static binaries for boards, AArch64 and x86-64, with checksums: dist/*-musl/
	$(call say,static binaries)
	@cross/dist.sh $(TARGETS)

deb: dist | setup-deb ## build Debian packages of the static binaries: dist/*.deb
	@cross/deb.sh $(TARGETS)

packages: dist | setup-deb ## build the files of a release, with sums and lists of what is linked: dist/release/
	@cross/release.sh $(TARGETS)

release: ## tag this commit with the version, if it is tested, clean and in CHANGELOG.md
	@python3 tests/release.py --tag

demo: | setup-build ## record ggml-runner on a generated model and report; needs no installed engine
	@scripts/demo.sh

demo-llama: | setup-demo ## the same with a real llama.cpp from its package (a few minutes the first time)
	@scripts/demo-llama.sh

score: build ## score four quantizations of a generated model by perplexity and speed (docs/SCORE.md)
	@scripts/score.sh

##@ Test
test: | setup ## run what a change needs: lint, unit tests, live engines, the service, two arm64 kernels
	@$(PARTS) test

test-all: | setup ## run everything: also all kernels, AArch64, static files, devices in software, a browser, Spark
	@$(PARTS) all

test-change: | setup ## run `make test`, the further parts that the last change can touch, and one more in turn (.ci/run)
	@$(PARTS) change

N ?= 20
SUITE ?= live
flaky: fixtures driver layers ## run a test program N (20) times beside load, and print what failed how often: SUITE="live reach::"
	@python3 tests/suite/flaky.py $(N) $(SUITE)

check: lint unit ## run lint and all tests that need neither root nor QEMU

setup: ## install missing packages for building and testing
	@scripts/setup.sh test
setup-build:
	@scripts/setup.sh build
setup-demo:
	@scripts/setup.sh demo
setup-dist:
	@scripts/setup.sh dist
setup-deb:
	@scripts/setup.sh deb

engines: | setup ## download the packaged llama.cpp builds into the cache
	$(call say,engines from packages)
	@{ tests/engines/fetch.sh && tests/gpu/opencl.sh && tests/gpu/cuda.sh; } || { echo "some engines are missing: tests on them are skipped" >&2; [ "$${PROFINFER_REQUIRE:-}" != 1 ]; }

fixtures: $(FIXTURES)/.built ## build the fake engines
$(FIXTURES)/.built: $(wildcard tests/fixtures/*) | setup
	$(call say,fake engines)
	tests/fixtures/build.sh $(FIXTURES)
	@touch $@

driver: | setup ## build the program that runs a model on a packaged engine
	$(MAKE) --no-print-directory -C tests/engines OUT=$(abspath $(DRIVER))

lint: | setup ## rustfmt, clippy, clang-format, the workflow, dependencies, waits in tests, links, what is compiled again
	$(call say,lint)
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	cd crates/layers && $(CARGO) fmt --all --check && $(CARGO) clippy --locked --target-dir ../../target/layers -- -D warnings
	python3 tests/suite/rebuild.py
	python3 tests/suite/selftest.py
	python3 tests/suite/waits.py
	python3 tests/setup_table.py
	python3 tests/workflow.py
	python3 tests/imports.py
	python3 tests/release.py
	python3 tests/supply_chain.py
	python3 tests/docs/selftest.py
	python3 tests/docs/links.py
	rustfmt --check --edition 2024 fuzz/src/main.rs
	clang-format --dry-run -Werror src/bpf/*.[ch] crates/inside/lib/*.[ch] crates/inside/lib/shim/bpf/*.h cross/*.c cross/qemu/*.c $(C_OF_TESTS)

rebuild-check: ## check that nothing is compiled again after no change, and nothing below a program after a change of it
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	python3 tests/suite/rebuild.py

rustdoc: | setup ## check the documentation comments: links, and code in them
	$(call say,documentation comments)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --workspace
	$(CARGO) test --locked --workspace --doc

unit: engines fixtures driver ## run unit tests and the tests that need no live engine
	$(call say,tests that need no live engine)
	$(RUST) lib plain runner_alloc -- --skip dataset_sql::spark
	python3 tests/python_reader.py
	cd crates/layers && $(CARGO) test --locked --target-dir ../../target/layers --package handover --package profinfer-cu

test-docs: | setup ## run the commands of README.md and docs/ as they are written (tests/docs/not_run.tsv: those that are not)
	$(call say,commands of the pages)
	$(CARGO) build --locked --bins
	python3 tests/docs/commands.py

docs: ## build the pages of docs/ as a book with a search, by mdBook: target/book/html/index.html
	python3 tests/docs/links.py
	@python3 tests/docs/book.py

browser: | setup ## test pages in a browser
	$(call say,pages in a browser)
	$(RUST) html_browser

spark: | setup ## ask the questions of docs/SQL.md in Apache Spark
	$(call say,Apache Spark)
	$(RUST) plain -- dataset_sql::spark

test-service: layers | setup ## test files of the service, packages, releases, metrics and dashboards with Prometheus, files for Kubernetes
	$(call say,files of the service)
	$(RUST) lib plain -- metrics::tests::samples_for_other_programs
	python3 tests/service/files.py
	python3 tests/service/installing.py
	python3 tests/service/releasing.py
	python3 tests/service/metrics.py
	python3 tests/service/dashboards.py
	python3 tests/containers/charts.py

test-dist: dist | setup ## test the static binaries: size, static linking, commit, target, and abort on panic
	$(call say,tests of the static binaries)
	tests/dist/run.sh
	python3 tests/cross_image.py

containers: | setup ## test recording in containers of podman, and the service in one, as docs/CONTAINERS.md says
	$(call say,containers)
	$(CARGO) build --locked
	python3 tests/containers/recipes.py

test-cross: | setup ## build with cross as docs/BUILDING.md says, in a container of podman (minutes the first time)
	$(call say,cross in a container)
	python3 tests/cross_build.py

dist-check: | setup-deb ## check that static builds are reproducible in another directory (one more full build; TARGETS selects)
	$(call say,reproducible builds)
	@tests/dist/same.sh $(TARGETS)

test-arm: | setup ## test the kernels and ggml-runner for AArch64 on processors emulated by QEMU
	$(call say,tests for AArch64)
	tests/arm/run.sh

images: | setup ## download or build the kernels for test-arm64 into the cache (takes minutes the first time)
	$(call say,kernels and programs for guests)
	@cross/qemu/images.sh $(IMAGES) || { echo "some images are missing: checks that need them are skipped" >&2; \
	    [ "$${PROFINFER_REQUIRE:-}" != 1 ] && [ "$${CI:-}" != true ]; }

# Not the static files, whose link-time optimization takes minutes: `make test-arm64` has those.
ARM64 := target/aarch64-unknown-linux-musl/debug
define build-arm64
	$(call say,programs for arm64)
	CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=true cross/cargo.sh aarch64-unknown-linux-musl build --locked \
	    --no-default-features --features board --bins
endef

guests-short: | setup ## record and doctor on one old and one new arm64 kernel in QEMU
	@$(MAKE) --no-print-directory images IMAGES="busybox 5.10 7.2"
	$(build-arm64)
	$(call say,two arm64 kernels)
	python3 tests/kernels/matrix.py --short --binaries $(ARM64)

guests: images ## probes and events on arm64 kernels in QEMU, 5.10 to 7.2
	$(build-arm64)
	ARCH=aarch64 tests/fixtures/build.sh target/tests/arm64/fixtures
	$(call say,arm64 kernels)
	python3 tests/kernels/matrix.py --not-boards --binaries $(ARM64)

boards: images ## services, devices, clusters and tuning on arm64 kernels in QEMU
	$(build-arm64)
	$(call say,boards)
	python3 tests/kernels/matrix.py --boards --binaries $(ARM64)

test-arm64: images ## guests and boards with the static files: both programs on real arm64 kernels in QEMU, 5.10 to 7.2
	@$(MAKE) --no-print-directory dist TARGETS=aarch64-unknown-linux-musl
	ARCH=aarch64 tests/fixtures/build.sh target/tests/arm64/fixtures
	$(call say,arm64 kernels)
	python3 tests/kernels/matrix.py

# Rust's sanitizers need a nightly toolchain.
HOST := $(shell uname -m)-unknown-linux-gnu
asan: ## run the kernels' unit tests under AddressSanitizer; needs a nightly Rust
	$(call say,kernels under AddressSanitizer)
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test --locked --target $(HOST) --target-dir target/asan \
	    --package kernels --lib

# Tests that record share the kernel's probes and the CPUs: they take turns (tests/common/mod.rs).
live: engines fixtures driver layers ## run the tests on live engines; needs root and BPF
	$(call say,tests on live engines)
	$(RUST) --turns live -- --skip kill:: $(DEVICES:%=--skip %::)
	python3 tests/ci/compare.py

devices: engines fixtures driver layers ## run the tests on devices in software: Vulkan, OpenCL, CUDA's and Hexagon's interfaces
	$(call say,devices in software)
	$(RUST) --turns live -- $(DEVICES:%=%::)

kill: fixtures driver layers ## kill recorders and services at some system calls, and refuse some (kill-points and faults do more)
	$(call say,kills and refusals)
	$(RUST) --turns live -- kill::

server: fixtures driver layers ## record a distribution's own llama-server and its Vulkan build
	$(call say,engines of a distribution)
	$(RUST) live --build
	python3 tests/server/requests.py || [ $$? = 77 ]
	python3 tests/server/causes.py || [ $$? = 77 ]
	python3 tests/gpu/debian_vulkan.py || [ $$? = 77 ]

no-agent: engines ## build and test without the recorder, as on systems other than Linux
	$(call say,build and tests without the recorder)
	$(CARGO) clippy --locked --all-targets --no-default-features -- -D warnings
	$(RUST) --without-agent plain -- $(WITHOUT_AGENT:%=%::)

CASES ?= 20000
proptest: ## run the property tests with CASES cases each (20000), in release mode
	PROPTEST_CASES=$(CASES) $(CARGO) test --locked --release --workspace

HOURS ?= 1
JOBS ?= 2
setup-fuzz:
	@scripts/setup.sh fuzz
fuzz: | setup-fuzz ## run the fuzz targets with coverage for HOURS (1) in total, JOBS (2) at a time; TARGETS selects
	$(call say,fuzzing for $(HOURS) h)
	@fuzz/run.sh --minutes $$(awk 'BEGIN {print 60 * $(HOURS)}') --jobs $(JOBS) $(TARGETS)
fuzz-quick: | setup-fuzz ## the same for ten minutes
	@fuzz/run.sh --minutes 10 --jobs $(JOBS) $(TARGETS)

POINTS ?= 2000
FAULTS ?= 0
kill-points: fixtures ## kill recorders and services at POINTS system calls (2000); needs root and BPF
	$(CARGO) build --locked --bin profinfer
	tests/kill/points.py $(POINTS)

faults: fixtures ## make each system call of recorders and services fail once, or FAULTS of them; needs root and BPF
	$(CARGO) build --locked --bin profinfer
	tests/kill/faults.py $(FAULTS)

##@ Measure
BENCHES := build structure fidelity cost inside start causes budget size report export diff switches service runner ablation gpu advice predict tune adapt experts
.PHONY: $(BENCHES:%=bench-%) bench-compare bench-arm-cost bench-arm-instructions bench-dataset
bench-build: ## seconds of a warm build after an edit in a subcommand, the recorder, render and pfi
bench-structure: ## hits and structure compared with the engine's own dump
bench-fidelity: ## tokens/s and op times compared with the engine's own figures
bench-cost: ## slowdown of the engine at each level
bench-inside: ## slowdown of the engine recorded from inside its process, beside BPF
bench-start: ## startup and shutdown time of a recording, and delay of the command
bench-size: ## trace bytes per op, and the recorder's own resource use
bench-runner: ## ggml-runner compared with llama.cpp and the machine's peaks
bench-ablation: ## what each part of ggml-runner gains
bench-report: ## speed of report on ten million op slices
bench-export: ## speed, memory and size of export on ten million op slices
bench-dataset: build | setup ## simulate a fleet of 200 boards with 50 runs each, and compare its answers with docs/SQL.md
	$(call say,a fleet of 10 000 runs)
	PROFINFER=$(CURDIR)/target/release/profinfer PROFINFER_FLEET=200x50 $(CARGO) test --locked --test plain -- \
	    --nocapture dataset_sql::spark
bench-diff: ## false positives of diff between equal runs, and detection of a slow op
bench-causes: ## cost of counters, scheduler, experts and buffer types
bench-budget: ## check that --budget is met
bench-advice: ## check that advice names a planted cause and keeps its promise
bench-gpu: ## cost of recording a device: nodes, and kernels by the layers
bench-switches: ## cost of a context switch with --sched
bench-predict: ## predictions of predict compared with measured speeds
bench-tune: ## check that the search of tune finds the best CPUs and threads on boards whose best set is known
bench-adapt: ## tokens/s of an engine under a changing load, with and without a controller that reads watch
bench-experts: ## caches of experts that experts predicts, compared with what ggml-runner then has
bench-service: ## cost of the idle service, and of ten engines per second
$(BENCHES:%=bench-%): bench-%: | setup
	benches/$*.sh
OLD ?= HEAD~1
NEW ?= HEAD
bench-compare: | setup ## two builds beside each other, OLD (HEAD~1) and NEW (HEAD): commits or directories of programs
	benches/compare.sh $(OLD) $(NEW)
bench-arm-cost: images ## guest instructions per op probe on arm64 kernels 5.10 to 7.2, in QEMU
	@$(MAKE) --no-print-directory dist TARGETS=aarch64-unknown-linux-musl
	benches/arm-cost.sh
bench-arm-instructions: ## instructions of ggml-runner per token on AArch64, under QEMU
	@$(MAKE) --no-print-directory dist TARGETS=aarch64-unknown-linux-musl
	benches/arm-instructions.sh

##@ Tidy
clean: ## remove build outputs (keeps the cache of engines and models)
	rm -rf target dist
