#!/usr/bin/env bash
# Cargo for another machine: `cross/cargo.sh TARGET build ...` builds static programs with the Rust of cross/std.sh and,
# for the C that comes along (feature `vendored`), the compiler of cross/cc.sh.
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
    local built=${CARGO_TARGET_DIR:-$here/../target}/$target compiler=CC_${target//-/_}
    if [ "$(cat "$built/compiler" 2>/dev/null)" != "${!compiler}" ]; then
        rm -rf "$built"/*/build/libbpf-sys-*
        mkdir -p "$built"
        echo "${!compiler}" >"$built/compiler"
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

forget_objects_of_another_compiler
forget_objects_of_a_build_cut_short
exec "${CARGO:-cargo}" "$command" --target "$target" "$@"
