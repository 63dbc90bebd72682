#!/bin/sh
# Installs what a Debian-like machine lacks for building profinfer and running its tests. Quiet when
# there is nothing to do. The Rust toolchain is not installed here: take it as you like.
set -eu

die() { echo "setup.sh: $*" >&2; exit 1; }

# What the build needs (clang compiles the BPF programs), then what the tests need beyond it.
wanted="gcc make clang llvm clang-format pkg-config libelf-dev zlib1g-dev binutils
        python3 python3-pip npm util-linux coreutils gdb"

command -v cargo >/dev/null 2>&1 || [ -x "${HOME:-/root}/.cargo/bin/cargo" ] ||
    die "cargo is missing: install a stable Rust toolchain (rustup or your distribution's) and run this again"

have() { # package
    case $1 in
    # Programs may come from elsewhere than the distribution's packages.
    gcc | make | clang | clang-format | pkg-config | python3 | npm | gdb) command -v "$1" >/dev/null 2>&1 ;;
    llvm) command -v llvm-strip >/dev/null 2>&1 || command -v llvm-strip-14 >/dev/null 2>&1 ;;
    binutils) command -v nm >/dev/null 2>&1 && command -v objdump >/dev/null 2>&1 ;;
    util-linux) command -v flock >/dev/null 2>&1 ;;
    coreutils) command -v sha256sum >/dev/null 2>&1 ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 ;;
    libelf-dev) [ -e /usr/include/libelf.h ] || [ -e /usr/include/gelf.h ] ;;
    zlib1g-dev) [ -e /usr/include/zlib.h ] ;;
    *) return 1 ;;
    esac
}

missing=
for p in $wanted; do have "$p" || missing="$missing $p"; done
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null 2>&1 || die "no apt-get here; install by hand:$missing"
[ "$(id -u)" = 0 ] || die "not root; run: sudo apt-get install --no-install-recommends$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "setup.sh: installing$missing"
# shellcheck disable=SC2086
{ apt-get update -q && apt-get install -q -y --no-install-recommends $missing; } >"$log" 2>&1 ||
    { tail -n 15 "$log" >&2; die "apt-get failed to install:$missing"; }
for p in $missing; do have "$p" || die "$p is installed but still not found"; done
