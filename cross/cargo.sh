#!/usr/bin/env bash
# Cargo for another machine: `cross/cargo.sh TARGET build ...` builds static programs with the Rust of cross/std.sh and,
# for the C that comes along (feature `vendored`), the compiler of cross/cc.sh. With `--profile small`, that of the files
# for boards, the standard library is compiled along with the program and for size, like the rest of it.
set -euo pipefail

target=${1:?usage: cargo.sh TARGET ARGUMENTS OF CARGO}
command=${2:?usage: cargo.sh TARGET ARGUMENTS OF CARGO}
shift 2
# shellcheck source=cross/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
environment=$("$here/std.sh" "$target" && "$here/cc.sh" "$target")
eval "$environment"

# libbpf-sys keeps the objects that another compiler made, whatever cargo tells it.
forget_objects_of_another_compiler() {
    local place=$built/$target compiler=CC_${target//-/_}
    if [ "$(cat "$place/compiler" 2>/dev/null)" != "${!compiler}" ]; then
        rm -rf "$place"/*/build/libbpf-sys-*
        mkdir -p "$place"
        echo "${!compiler}" >"$place/compiler"
    fi
}

# It compiles zlib and libelf inside cargo's copy of its sources and tidies up afterwards. Where a build was cut short
# objects are left there, perhaps of another target; they go, unless a build that runs now holds the lock.
forget_objects_of_a_build_cut_short() {
    local sources
    for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/libbpf-sys-*/{zlib,elfutils}; do
        [ -e "$sources/README" ] || continue
        flock --nonblock "$sources/README" find "$sources" \( -name '*.o' -o -name '*.lo' -o -name '*.a' \) -delete || true
    done
}

# Paths of this machine have no place in a file for others, and would make each build another file.
no_paths() {
    local sources
    "${CARGO:-cargo}" fetch --quiet --locked --target "$target"
    for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do echo "--remap-path-prefix=${sources%/}="; done
    echo "--remap-path-prefix=$(realpath -m "$built")=/target"
    echo "--remap-path-prefix=$("${RUSTC:-rustc}" --print sysroot)/lib/rustlib/src/rust=/rust"
}

# A panic prints its place and is unwound. The list of functions on the way is left out: it needs names, which the files
# for boards have lost, and a tenth of profinfer would be there to print it.
small_std() {
    echo -Zbuild-std=std,panic_unwind
    echo -Zbuild-std-features=panic-unwind,optimize_for_size
}

rust_flags() {
    no_paths
    # Names that tell a generic function's types, for the listing that tests/arm reads.
    echo "-Csymbol-mangling-version=v0"
    # Nothing to relocate at the start, and smaller.
    echo "-Crelocation-model=static"
}

built=${CARGO_TARGET_DIR:-$here/../target}
flags=$(rust_flags)
# Flags with blanks in them, as paths may have, are parted by this character.
export CARGO_ENCODED_RUSTFLAGS=${flags//$'\n'/$'\x1f'}
forget_objects_of_another_compiler
forget_objects_of_a_build_cut_short
std=()
case " $* " in *" --profile small "*)
    mapfile -t std < <(small_std)
    # What lets a stable cargo compile the standard library that comes with it.
    export RUSTC_BOOTSTRAP=1
    ;;
esac
exec "${CARGO:-cargo}" "$command" --target "$target" "${std[@]}" "$@"
