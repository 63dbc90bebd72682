# What the scripts of cross/ share: messages, the cache, the linker and the target's C library. Sourced; expects $target.
# shellcheck shell=bash

arch=${target%%-*}
machine=$(uname -m)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/profinfer
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

say() { echo "cross: $*" >&2; }
die() { say "$*"; exit 1; }
export_line() { printf 'export %s=%q\n' "$1" "$2"; }

# rust-lld comes with rustup's rustc and needs no C compiler of the target; LLVM's own lld is the same program.
linker() { # where to look for one more
    local sysroot place
    sysroot=$(command -v rustc >/dev/null && rustc --print sysroot) || sysroot=/nowhere
    for place in "$sysroot/lib/rustlib/$machine-unknown-linux-gnu/bin/rust-lld" \
        "$(command -v ld.lld || true)" "$1"/usr/bin/ld.lld "$1"/usr/bin/ld.lld-[0-9]*; do
        [ -x "$place" ] && { echo "$place"; return 0; }
    done
    return 1
}

# apt-get or apt-cache for the target's architecture, with package lists of their own: the machine's lists need not know
# the architecture, and nothing of the machine changes.
apt_of_target() { # directory, program, arguments
    local lists=$1 program=$2 debian=$arch
    shift 2
    case $arch in aarch64) debian=arm64 ;; x86_64) debian=amd64 ;; esac
    "$program" -q -o APT::Architecture="$debian" -o APT::Architectures="$debian" -o APT::Sandbox::User=root \
        -o Dir::State::lists="$lists/state" -o Dir::State::status="$lists/status" -o Dir::Cache="$lists/cache" "$@"
}

# Lays out the distribution's packages as one include/ and one lib/: musl, the kernel's headers for programs, and the
# start files and helper functions of gcc.
lay_out_sysroot() { # directory
    local work=$1/work deb gcc triple=$arch-linux-musl
    mkdir -p "$work/state/partial" "$work/cache/archives/partial" "$work/debs" "$1/include" "$1/lib"
    : >"$work/status"
    apt_of_target "$work" apt-get update >&2
    gcc=$(apt_of_target "$work" apt-cache pkgnames libgcc- | sed -n 's/^libgcc-\([0-9]*\)-dev$/\1/p' | sort -n | tail -n 1)
    (cd "$work/debs" &&
        apt_of_target "$work" apt-get download musl-dev linux-libc-dev "libgcc-${gcc:?no gcc packaged}-dev" >&2)
    for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root"; done
    cp -R "$work/root/usr/include/$triple/." "$1/include/"
    cp -R "$work"/root/usr/include/{linux,asm-generic} "$work"/root/usr/include/*-linux-gnu/asm "$1/include/"
    cp "$work/root/usr/lib/$triple"/{*.o,libc.a} "$work"/root/usr/lib/gcc/*/"$gcc"/{crt*.o,libgcc.a,libgcc_eh.a} "$1/lib/"
    rm -rf "$work"
}

# The target's C library from the distribution's packages, unpacked into the cache. Prints the directory.
sysroot() {
    local home=$cache/musl-$arch new tool
    if [ ! -d "$home" ]; then
        for tool in apt-get dpkg; do
            command -v "$tool" >/dev/null || { say "musl for $arch is taken from Debian's packages, which needs $tool"; return 1; }
        done
        say "unpacking musl for $arch into $home"
        mkdir -p "$cache"
        new=$(mktemp -d "$cache/new.XXXXXX")
        lay_out_sysroot "$new" || { rm -rf "$new"; return 1; }
        # Another run may have been first: its directory is as good.
        mv -T "$new" "$home" 2>/dev/null || rm -rf "$new"
    fi
    echo "$home"
}
