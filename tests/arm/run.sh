#!/usr/bin/env bash
# Tests for AArch64 on any machine, under QEMU: the kernels' unit tests on processors with and without each
# extension; profinfer's own, including the recorder; then the static ggml-runner (cross/dist.sh), whose inner loops
# must stay within their instruction limits and which must generate the same tokens as this machine's build.
#
# Skipped with a message if no Rust for the target is available; with PROFINFER_REQUIRE=1 that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

target=aarch64-unknown-linux-musl
# Processors that QEMU emulates, and the instruction set that must be detected on each.
processors="max:i8mm cortex-a76:dot cortex-a53:neon"

skip() {
    echo "tests/arm: $*" >&2
    [ "${PROFINFER_REQUIRE:-}" = 1 ] || [ "${CI:-}" = true ] && exit 1
    echo "skipped: tests for $target"
    exit 0
}

qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || skip "no qemu-aarch64: install qemu-user-static"
environment=$(cross/std.sh "$target") || skip "no Rust for $target"
eval "$environment"

lint() {
    # Debian's Rust lacks it.
    [ -n "${RUSTC:-}" ] ||
        cargo clippy --quiet --locked --target "$target" --package kernels --all-targets -- -D warnings
}

unit_tests() {
    local processor only=
    for processor in $processors; do
        echo "tests/arm: kernels on ${processor%%:*}, as ${processor##*:}"
        # shellcheck disable=SC2086
        PROFINFER_EXPECT_ISA=${processor##*:} \
            CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER="$qemu -cpu ${processor%%:*}" \
            cross/cargo.sh "$target" test --quiet --locked --package kernels --lib -- $only
        # Code that does not process weights uses the same instructions on all of them.
        only="arm:: tests:: isa::"
    done
}

# Excluded because qemu-user cannot do it: reading another process's memory or state, starting an AArch64 program, and
# a child whose end is not a signal. On real kernels (tests/kernels) all are part of every recording. Also excluded are
# simulations with thousands of runs, the digest of a large file and the command line, pure arithmetic and text, and slow
# here; and hundreds of models with slots for experts, of which same_tokens runs one.
profinfers_tests() {
    local processor=${processors%%:*}
    echo "tests/arm: profinfer on $processor"
    # Optimizing them would take longer than running them.
    CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER="$qemu -cpu $processor" \
        cross/cargo.sh "$target" test --quiet --locked --no-default-features --features profinfer/vendored --lib \
        --package agent --package inspector --package service --package trials --package profinfer --package common --package pfi --package ggml --package runner --package analysis \
        --package render -- \
        --skip self_usage::tests:: --skip polled::tests::what_is_new_or_changed \
        --skip recognise::tests::a_program_without_a_path \
        --skip memory::tests:: --skip perf::snapshot::tests::a_graph_is_read_with_its_sources \
        --skip slots::tests::logits_are --skip slots::tests::what_is_read \
        --skip remote::program::tests:: --skip qos::policy::tests:: --skip diff::judge::tests:: --skip stats::tests:: \
        --skip pool::tests::a_panic_on_a_thread_ends_the_program \
        --skip guard::tests:: --skip tracing::tests::what_does_not_answer
}

build() {
    echo "tests/arm: ggml-runner"
    cross/dist.sh "$target" 2>target/tests/arm/log || { cat target/tests/arm/log >&2; return 1; }
}

tokens() { sed -n 's/.*"tokens":\(\[[0-9,]*\]\).*/\1/p'; }

same_tokens() {
    local type processor model expected got
    local arguments="-p 12 -n 12 -t 2 --no-warmup --no-roofline --json"
    # With the features of this machine's tests, which have built it already.
    env -u RUSTC -u LD_LIBRARY_PATH cargo test --quiet --locked --workspace --no-run --test plain --test runner_alloc
    for type in q4_0 q4_1 q8_0 q4_k q6_k f16; do
        model=target/tests/arm/tiny-$type.gguf
        target/debug/ggml-runner synth tiny "$model" --type "$type" --force >/dev/null
        # shellcheck disable=SC2086
        expected=$(target/debug/ggml-runner run -m "$model" $arguments | tokens)
        for processor in $processors; do
            # shellcheck disable=SC2086
            got=$("$qemu" -cpu "${processor%%:*}" dist/$target/ggml-runner run -m "$model" $arguments | tokens)
            [ -n "$got" ] && [ "$got" = "$expected" ] || {
                echo "tests/arm: $type on ${processor%%:*} generates ${got:-nothing}, expected $expected" >&2
                return 1
            }
        done
    done
    model=target/tests/arm/moe.gguf
    target/debug/ggml-runner synth moe "$model" --type q4_0 --experts 8 --experts-used 2 --expert-width 64 --force >/dev/null
    # shellcheck disable=SC2086
    expected=$(target/debug/ggml-runner run -m "$model" $arguments | tokens)
    # shellcheck disable=SC2086
    got=$("$qemu" dist/$target/ggml-runner run -m "$model" $arguments --expert-slots 3 --expert-policy next | tokens)
    [ -n "$got" ] && [ "$got" = "$expected" ] || {
        echo "tests/arm: a model with slots for experts generates ${got:-nothing}, expected $expected" >&2
        return 1
    }
    echo "same tokens as this machine's build, in six types on three processors"
}

mkdir -p target/tests/arm
lint
unit_tests
profinfers_tests
build
# With the names of all functions, which identify the kernels.
python3 tests/arm/listing.py "target/dist/$target/$target/small/ggml-runner" --limit
same_tokens
