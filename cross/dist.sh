#!/usr/bin/env bash
# The files that are copied to a board: static profinfer and ggml-runner in dist/TARGET/, with checksums.
#
# usage: dist.sh [TARGET...]          (all of the targets below, if none is named)
#
# The same commit gives the same bytes, wherever it is built, by the same compilers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=${*:-aarch64-unknown-linux-musl x86_64-unknown-linux-musl}
built=${CARGO_TARGET_DIR:-target}
out=${PROFINFER_DIST:-dist}

die() { echo "dist: $*" >&2; exit 1; }

# Bytes that a file may have.
most() {
    case $1 in
    */profinfer) echo 2400000 ;;
    aarch64*/ggml-runner) echo 1200000 ;;
    # Kernels for three instruction sets in place of two.
    */ggml-runner) echo 1500000 ;;
    esac
}

# Paths of this machine have no place in a file for others, and would make each build different.
flags() {
    local sources
    cargo fetch --quiet --locked --target "$1" >&2
    for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do
        echo "--remap-path-prefix=${sources%/}="
    done
    echo "--remap-path-prefix=$(mkdir -p "$built" && cd "$built" && pwd)=/target"
    # Names that tell a generic function's types, for the listing that tests/arm reads.
    echo "-Csymbol-mangling-version=v0"
    # No relocation to do at the start, and a quarter less in tables.
    echo "-Crelocation-model=static"
}

compile() { # target
    local name=CARGO_TARGET_${1//-/_}
    local variable=${name^^}_RUSTFLAGS
    export "$variable=$(flags "$1" | tr '\n' ' ')"
    local build=(cross/cargo.sh "$1" rustc --locked --profile small --features vendored)
    "${build[@]}" --bin profinfer
    # The option behind -- is that of link time: each function keeps what its crate was compiled for (Cargo.toml).
    "${build[@]}" --bin ggml-runner -- -Copt-level=3
}

# Of the names those go that only Rust's own functions have; GGML's, which a profiler looks for, are exported and stay.
strip() { # from, to
    local tool
    tool=$(command -v llvm-strip || compgen -c llvm-strip- | sort -V | tail -n 1) || die "no llvm-strip: install llvm"
    "$tool" --strip-debug --discard-all -o "$2" "$1"
}

check() { # file
    local headers bytes
    headers=$(readelf -lWd "$1")
    ! grep -E 'INTERP|NEEDED' <<<"$headers" >&2 || die "$1 is not static"
    bytes=$(stat -c %s "$1")
    [ "$bytes" -le "$(most "$1")" ] || die "$1 has $bytes bytes, $(most "$1") at most"
    case $1 in
    */ggml-runner) grep -q ' T ggml_graph_compute$' <<<"$(nm "$1")" || die "$1 has lost the names that probes need" ;;
    esac
    echo "$bytes bytes, static: $1"
}

for target in $targets; do
    compile "$target"
    mkdir -p "$out/$target"
    for program in profinfer ggml-runner; do
        strip "$built/$target/small/$program" "$out/$target/$program"
    done
done
(cd "$out" && sha256sum -- */profinfer */ggml-runner >SHA256SUMS)
for target in $targets; do
    for program in profinfer ggml-runner; do check "$out/$target/$program"; done
done
