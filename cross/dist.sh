#!/usr/bin/env bash
# The files to copy to a board: static profinfer and ggml-runner in dist/TARGET/, and the layers for device times, with
# checksums.
#
# usage: dist.sh [TARGET...]          (default: all of the targets below)
#
# The same commit gives the same bytes on any machine, given the same compilers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=${*:-aarch64-unknown-linux-musl x86_64-unknown-linux-musl}
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=${PROFINFER_DIST:-dist}

die() { echo "dist: $*" >&2; exit 1; }

# A board records and reports; traces can be rendered on another machine. None has Parquet: the crates for it are as
# large as the rest, and are not under a licence that goes with libelf's.
features() { # target
    case $1 in aarch64-*) echo board ;; *) echo vendored ;; esac
}

# Each target has its own directory: cargo locks the build directory, and linking, which takes most of the time, uses
# one thread. Both programs in one call: each crate, and the standard library, is compiled once for both.
compile() { # target
    export CARGO_TARGET_DIR=$built/dist/$1
    # Of profinfer alone: identical functions are merged (PROFINFER_MERGE, programs/version.rs). Equal parts of functions
    # are not made functions of their own: that saves 7 % of it, for more calls in its loops.
    local own='["-Cllvm-args=-enable-machine-outliner=never"]'
    PROFINFER_MERGE=1 cross/cargo.sh "$1" build --locked --profile small --package profinfer --package ggml-runner --bins \
        -Zprofile-rustflags --config "profile.small.package.profinfer.rustflags=$own" \
        --no-default-features --features "profinfer/$(features "$1")"
    cross/layers.sh "$1" "$CARGO_TARGET_DIR/made"
}

# profinfer needs no symbol names. ggml-runner loses those of Rust functions; GGML's, which a profiler looks for, are
# exported and stay.
strip() { # from, to
    local tool
    tool=$(command -v llvm-strip || compgen -c llvm-strip- | sort -V | tail -n 1) || die "no llvm-strip: install llvm"
    case $2 in
    */profinfer) "$tool" --strip-all -o "$2" "$1" ;;
    *) "$tool" --strip-debug --discard-all -o "$2" "$1" ;;
    esac
}

check() { # file
    local headers
    headers=$(readelf -lWd "$1")
    ! grep -E 'INTERP|NEEDED' <<<"$headers" >&2 || die "$1 is not static"
    case $1 in
    */ggml-runner) grep -q ' T ggml_graph_compute$' <<<"$(nm "$1")" || die "$1 has lost the names that probes need" ;;
    esac
    echo "$(stat -c %s "$1") bytes, static: $1"
}

# A script's background jobs ignore Ctrl-C.
trap 'trap - INT TERM; kill 0' INT TERM
builds=()
for target in $targets; do
    (compile "$target") &
    builds+=($!)
done
failed=0
for build in "${builds[@]}"; do wait "$build" || failed=1; done
[ "$failed" = 0 ] || die "a build failed: see above"

for target in $targets; do
    mkdir -p "$out/$target"
    for program in profinfer ggml-runner; do
        strip "$built/dist/$target/$target/small/$program" "$out/$target/$program"
    done
    cp "$built/dist/$target"/made/{libprofinfer-cl.so,libprofinfer-vk.so,libprofinfer-cu.so,VkLayer_profinfer.json} "$out/$target/"
done
(cd "$out" && sha256sum -- */profinfer */ggml-runner */*.so */*.json >SHA256SUMS)
for target in $targets; do
    for program in profinfer ggml-runner; do check "$out/$target/$program"; done
done
