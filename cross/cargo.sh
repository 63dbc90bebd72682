#!/usr/bin/env bash
# Cargo for another machine: `cross/cargo.sh TARGET build ...` builds static programs with the Rust of cross/std.sh
# and, for bundled C code (feature `vendored`), the compiler of cross/cc.sh. With `--profile small`, the profile of
# the files for boards, the standard library is compiled too, and for size, like the rest of the program.
set -euo pipefail

target=${1:?usage: cargo.sh TARGET ARGUMENTS OF CARGO}
command=${2:?usage: cargo.sh TARGET ARGUMENTS OF CARGO}
shift 2
# shellcheck source=cross/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
environment=$("$here/std.sh" "$target" && "$here/cc.sh" "$target")
eval "$environment"

# libbpf-sys keeps objects made by another compiler, whatever cargo requests.
forget_objects_of_another_compiler() {
    local place=$built/$target compiler=CC_${target//-/_}
    if [ "$(cat "$place/compiler" 2>/dev/null)" != "${!compiler}" ]; then
        rm -rf "$place"/*/build/libbpf-sys-*
        mkdir -p "$place"
        echo "${!compiler}" >"$place/compiler"
    fi
}

# It compiles zlib and libelf inside cargo's copy of its sources and cleans up afterwards. An interrupted build
# leaves objects there, possibly of another target; they are removed unless a running build holds the lock.
forget_objects_of_a_build_cut_short() {
    local sources
    for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/libbpf-sys-*/{zlib,elfutils}; do
        [ -e "$sources/README" ] || continue
        flock --nonblock "$sources/README" find "$sources" \( -name '*.o' -o -name '*.lo' -o -name '*.a' \) -delete || true
    done
}

# Local paths do not belong in distributed files, and would make builds differ.
no_paths() {
    local sources
    "${CARGO:-cargo}" fetch --quiet --locked --target "$target"
    for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do echo "--remap-path-prefix=${sources%/}="; done
    echo "--remap-path-prefix=$(realpath -m "$built")=/target"
    echo "--remap-path-prefix=$("${RUSTC:-rustc}" --print sysroot)/lib/rustlib/src/rust=/rust"
}

# A panic prints its location and aborts. Backtraces are omitted: they need symbol names, which the files for boards
# lack, and a tenth of profinfer would be code for printing them.
small_std() {
    echo -Zbuild-std=std,panic_abort
    echo -Zbuild-std-features=optimize_for_size
}

rust_flags() {
    no_paths
    # Mangled names that include generic arguments, for the listing that tests/arm reads.
    echo "-Csymbol-mangling-version=v0"
    # No relocations at startup, and smaller.
    echo "-Crelocation-model=static"
    # For AArch64 they are on by default, also where a panic aborts.
    case " $* " in *" --profile small "*) echo "-Cforce-unwind-tables=no" ;; esac
}

built=${CARGO_TARGET_DIR:-$here/../target}
flags=$(rust_flags "$@")
# Separates flags, because they may contain spaces, as paths may.
export CARGO_ENCODED_RUSTFLAGS=${flags//$'\n'/$'\x1f'}
forget_objects_of_another_compiler
forget_objects_of_a_build_cut_short
std=()
case " $* " in *" --profile small "*)
    mapfile -t std < <(small_std)
    # Allows a stable cargo to compile the standard library that comes with it.
    export RUSTC_BOOTSTRAP=1
    ;;
esac
exec "${CARGO:-cargo}" "$command" --target "$target" "${std[@]}" "$@"
