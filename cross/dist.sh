#!/usr/bin/env bash
# The files that are copied to a board: static profinfer and ggml-runner in dist/TARGET/, with checksums.
#
# usage: dist.sh [TARGET...]          (all of the targets below, if none is named)
#
# The same commit gives the same bytes, wherever it is built, by the same compilers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=${*:-aarch64-unknown-linux-musl x86_64-unknown-linux-musl}
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=${PROFINFER_DIST:-dist}

die() { echo "dist: $*" >&2; exit 1; }

# A board records and reports; what is drawn from a trace any other machine can draw.
features() { # target
    case $1 in aarch64-*) echo board ;; *) echo vendored ;; esac
}

# Each target has its own directory: cargo locks the build directory, and linking, most of the time, uses one thread.
compile() { # target
    export CARGO_TARGET_DIR=$built/dist/$1
    local build=(cross/cargo.sh "$1" rustc --locked --profile small --features "$(features "$1")")
    # Functions of the same code become one; not in ggml-runner, where a probe on one would hit the other. Parts of
    # functions stay where they are: the unwinder's tables of such parts are larger than what they save.
    "${build[@]}" --bin profinfer -- -Clink-arg=--icf=all -Cllvm-args=-enable-machine-outliner=never
    # The option behind -- is that of link time: each function keeps what its crate was compiled for (Cargo.toml).
    "${build[@]}" --bin ggml-runner -- -Copt-level=3
}

# profinfer needs no names. In ggml-runner those go that only Rust's own functions have; GGML's, which a profiler looks
# for, are exported and stay.
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
done
(cd "$out" && sha256sum -- */profinfer */ggml-runner >SHA256SUMS)
for target in $targets; do
    for program in profinfer ggml-runner; do check "$out/$target/$program"; done
done
