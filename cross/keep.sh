#!/usr/bin/env bash
# Compiles what clang compiles, the BPF programs and the library for recording from inside, for both processors into
# the sources: src/bpf/kept and crates/inside/kept, which builds without clang take (crates/inside/kept.rs). For a
# release: after a change of their sources they are refused.
#
# usage: keep.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

# They compile for any processor: cargo tells them for which.
scripts=$("${CARGO:-cargo}" check --quiet --locked --package agent --package inside --message-format json |
    grep -F '"kind":["custom-build"]' | grep -o '"filenames":\["[^"]*/\(agent\|inside\)-[^"/]*/build-script-build"')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf src/bpf/kept crates/inside/kept
HOST=$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p')
export HOST PROFINFER_KEEP=1 OUT_DIR=$work
for found in $scripts; do
    script=${found#*'["'}
    script=${script%'"'}
    case $script in */inside-*) cd "$root/crates/inside" ;; *) cd "$root" ;; esac
    for arch in aarch64 x86_64; do CARGO_CFG_TARGET_ARCH=$arch "$script" >"$work/log"; done
done
cd "$root"
du --apparent-size -b src/bpf/kept/*/* crates/inside/kept/*/*
