# Shared by the scripts of cross/: messages, the cache, the linker and the target's C library. Sourced; expects $target.

arch=${target%%-*}
machine=$(uname -m)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/profinfer
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

say() { echo "cross: $*" >&2; }
die() { say "$*"; exit 1; }
export_line() { printf 'export %s=%q\n' "$1" "$2"; }

# rust-lld comes with rustup's rustc and needs no C compiler for the target; LLVM's own lld is the same program.
linker() { # an additional place to look
    local sysroot place
    sysroot=$(command -v rustc >/dev/null && rustc --print sysroot) || sysroot=/nowhere
    for place in "$sysroot/lib/rustlib/$machine-unknown-linux-gnu/bin/rust-lld" \
        "$(command -v ld.lld || true)" "$1"/usr/bin/ld.lld "$1"/usr/bin/ld.lld-[0-9]*; do
        [ -x "$place" ] && { echo "$place"; return 0; }
    done
    return 1
}

# Lays out Debian 12 packages, on any machine, as one include/ and one lib/: musl, the kernel's user-space headers,
# and the start files, unwinder and helper functions of gcc.
lay_out_sysroot() { # directory
    local work=$1/work triple=$arch-linux-musl debian=$arch deb root
    case $arch in aarch64) debian=arm64 ;; x86_64) debian=amd64 ;; esac
    mkdir -p "$work" "$1/include" "$1/lib"
    # The suite is given explicitly: otherwise the installed version counts for the machine's own architecture, which
    # may be from another suite.
    (cd "$work" && "$here/apt.sh" bookworm "$debian" \
        apt-get -qq download {musl-dev,linux-libc-dev,libgcc-12-dev}/bookworm >log 2>&1) ||
        { tail -n 5 "$work/log" >&2; return 1; }
    for deb in "$work"/*.deb; do dpkg -x "$deb" "$work/root"; done
    root=$work/root/usr
    cp -R "$root/include/$triple/." "$root"/include/{linux,asm-generic} "$root"/include/*-linux-gnu/asm "$1/include/"
    cp "$root/lib/$triple"/{*.o,libc.a} "$root"/lib/gcc/*/12/{crt*.o,libgcc.a,libgcc_eh.a} "$1/lib/"
    rm -rf "$work"
}

# The target's C library from the distribution's packages, unpacked into the cache. Prints the directory.
sysroot() {
    local home=$cache/musl-$arch new
    if [ ! -d "$home" ]; then
        say "unpacking musl for $arch into $home"
        mkdir -p "$cache"
        new=$(mktemp -d "$cache/new.XXXXXX")
        lay_out_sysroot "$new" || { rm -rf "$new"; return 1; }
        # Another run may have been faster: its directory is equally good.
        mv -T "$new" "$home" 2>/dev/null || rm -rf "$new"
    fi
    echo "$home"
}
