#!/usr/bin/env bash
# What guests (tests/kernels) run besides dist/:
#   programs   profinfer and ggml-runner, with the profile of development: target/tests/arm64/programs
#   units      the unit tests of profinfer and its crates, unoptimised: target/tests/arm64/units/CRATE
#
# usage: guests.sh programs|units...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

crates="profinfer common pfi ggml runner analysis render tune"
strip=$(command -v llvm-strip || compgen -c llvm-strip- | sort -V | tail -n 1)

# As cross/dist.sh does it: exported names stay. A guest keeps its files in memory.
stripped() { "$strip" --strip-debug --discard-all -o "$2" "$1"; }

# Without optimization the runner's accessors cannot be decoded, and looking for probe points takes ten seconds.
programs() {
    local name
    cross/cargo.sh aarch64-unknown-linux-musl build --locked --no-default-features --features vendored --bins
    for name in profinfer ggml-runner; do
        stripped "${CARGO_TARGET_DIR:-target}/aarch64-unknown-linux-musl/debug/$name" "$out/$name"
    done
}

units() {
    local built program
    # shellcheck disable=SC2046,SC2086
    built=$(tests/arm/cargo.sh test --locked --no-run --no-default-features --features profinfer/vendored --lib \
        $(printf -- '--package %s ' $crates) --message-format json-render-diagnostics | grep -o '"executable":"[^"]*')
    while read -r program; do
        program=${program#*:\"}
        stripped "$program" "$out/$(basename "${program%-*}")"
    done <<<"$built"
}

[ $# -gt 0 ] || { echo "usage: guests.sh programs|units..." >&2; exit 2; }
for what; do
    case $what in programs | units) ;; *) echo "guests.sh: $what: programs or units" >&2; exit 2 ;; esac
    out=target/tests/arm64/$what
    rm -rf "$out"
    mkdir -p "$out"
    "$what"
done
