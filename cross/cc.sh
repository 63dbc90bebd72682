#!/usr/bin/env bash
# A C compiler for a static musl target: the machine's own clang, with musl from the distribution's packages.
#
# usage: eval "$(cross/cc.sh aarch64-unknown-linux-musl)"
#
# Prints shell assignments for the C code that cargo builds (libbpf, libelf, zlib: feature `vendored`). The compiler
# is one file that needs no arguments, because the makefiles of those libraries only receive its path. A compiler
# that is already set (CC_aarch64_unknown_linux_musl) is kept; it must then provide <argp.h>, like cross/include.
set -euo pipefail

target=${1:?usage: cc.sh TARGET}
# shellcheck source=cross/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tool() { # name: with or without LLVM's version suffix
    local found
    found=$(command -v "$1" || compgen -c "$1-" | grep -x "$1-[0-9]*" | sort -V | tail -n 1) || true
    [ -n "$found" ] || die "no $1: install clang and llvm (scripts/setup.sh dist)"
    command -v "$found"
}

# Outline atomics call functions that neither musl nor Rust provides.
flags() {
    case $arch in aarch64) echo -mno-outline-atomics ;; esac
}

compiler() { # directory of headers and libraries, linker
    local text name home
    text=$(cat <<END
#!/bin/sh
exec $(tool clang) --target=$arch-linux-musl --sysroot=$1 -B$1/lib -L$1/lib -B$home_of_compilers/lld -fuse-ld=lld \\
    -static $(flags) -fno-asynchronous-unwind-tables -nostdlibinc -isystem $1/include -isystem $here/include -ffile-prefix-map="\$PWD"=. \\
    -Wno-unused-command-line-argument "\$@" -Wno-error
END
    )
    # Different content gives a different file name, so that cargo notices the change.
    name=$arch-linux-musl-clang
    home=$home_of_compilers/$(cksum <<<"$text" | cut -d' ' -f1)
    if [ ! -x "$home/$name" ]; then
        mkdir -p "$home"
        echo "$text" >"$home/$name.$$"
        chmod +x "$home/$name.$$"
        mv "$home/$name.$$" "$home/$name"
    fi
    mkdir -p "$home_of_compilers/lld"
    ln -sfn "$2" "$home_of_compilers/lld/ld.lld"
    echo "$home/$name"
}

variable=CC_${target//-/_}
home_of_compilers=$cache/cc
if [ -z "${!variable:-}" ]; then
    root=$(sysroot) || die "no C library for $target: set $variable to a C compiler for it"
    lld=$(linker /nowhere) || die "no linker: install lld"
    export_line "$variable" "$(compiler "$root" "$lld")"
    # The machine's own ar may not index the target's objects; LLVM's handles both.
    export_line AR "$(tool llvm-ar)"
    export_line RANLIB "$(tool llvm-ranlib)"
fi
# elfutils' configure fails if the C library lacks these, although libelf itself uses none of them.
for name in argp_parse fts_close _obstack_free; do export_line "ac_cv_search_$name" "none required"; done
