#!/usr/bin/env bash
# Tests for AArch64 on any machine: the kernels' unit tests on processors with and without each extension, under qemu.
#
# Skipped, and says so, where no Rust for the target can be had; with PROFINFER_REQUIRE=1 that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

target=aarch64-unknown-linux-musl
# Processors that qemu plays, and the instruction set that must be found on each.
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
    # Debian's Rust comes without.
    [ -n "${RUSTC:-}" ] ||
        cargo clippy --quiet --locked --target "$target" --no-default-features --all-targets -- -D warnings
}

unit_tests() {
    local processor
    for processor in $processors; do
        echo "tests/arm: kernels on ${processor%%:*}, as ${processor##*:}"
        PROFINFER_EXPECT_ISA=${processor##*:} \
            CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER="$qemu -cpu ${processor%%:*}" \
            "${CARGO:-cargo}" test --quiet --locked --target "$target" --no-default-features --lib runner::kernels::
    done
}

lint
unit_tests
