#!/usr/bin/env bash
# A Rust that builds for a static musl target, with or without access to rustup's servers.
#
# usage: eval "$(cross/std.sh aarch64-unknown-linux-musl)"
#
# Prints shell assignments (PATH, where needed RUSTC, CARGO and LD_LIBRARY_PATH, and the target's linker) and reports
# on stderr which source was used. Two sources, the first that works:
#   rustup   the target's std and its sources, installed or downloaded by rustup
#   debian   the distribution's rustc-web, with a std built from its sources and its musl: unpacked into the cache
#            ($XDG_CACHE_HOME/profinfer/rust-debian), nothing is installed, root is not needed
# PROFINFER_STD=rustup or debian allows only that source. Results are cached, so later runs take no time.
set -euo pipefail

target=${1:?usage: std.sh TARGET}
# shellcheck source=cross/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
home_of_rust=$cache/rust-debian

print_environment() { # prefix of the unpacked packages, or nothing
    local upper=${target//-/_} lld
    lld=$(linker "${1:-/nowhere}") || die "no linker: install lld"
    if [ -n "${1:-}" ]; then
        export_line RUSTC "$1/usr/bin/rustc"
        export_line CARGO "$1/usr/bin/cargo"
        export_line LD_LIBRARY_PATH "$1/usr/lib/$machine-linux-gnu"
        # rustup's proxy would select its own compiler again.
        echo 'unset RUSTUP_TOOLCHAIN'
    fi
    export_line PATH "$PATH"
    export_line "CARGO_TARGET_${upper^^}_LINKER" "$lld"
}

by_rustup() {
    command -v rustc >/dev/null || return 1
    local there
    there=$(rustc --print sysroot)/lib/rustlib/$target/lib
    if ! compgen -G "$there/libstd-*.rlib" >/dev/null; then
        command -v rustup >/dev/null || return 1
        timeout 300 rustup target add "$target" >/dev/null 2>&1 || return 1
        compgen -G "$there/libstd-*.rlib" >/dev/null || return 1
    fi
    # For the files for boards, std is recompiled (cargo.sh).
    if [ ! -e "${there%/$target/lib}/src/rust/library/Cargo.lock" ]; then
        command -v rustup >/dev/null || return 1
        timeout 300 rustup component add rust-src >/dev/null 2>&1 || return 1
    fi
    say "std for $target: $(rustc --version) from rustup"
    print_environment
}

# Everything that Debian's Rust needs and this machine lacks, unpacked into one directory.
unpack_rust() { # directory
    local debs=$1/debs wanted="rustc-web cargo-web rust-web-src" deb
    linker /nowhere >/dev/null || wanted="$wanted lld"
    mkdir -p "$debs/archives/partial"
    # shellcheck disable=SC2086
    apt-get -q -y -o Dir::Cache="$debs" -o Debug::NoLocking=true install --reinstall --download-only \
        --no-install-recommends $wanted >&2
    for deb in "$debs"/archives/*.deb; do dpkg -x "$deb" "$1/rust"; done
    rm -rf "$debs"
}

# Lays out lib/rustlib/TARGET like rustup's component: std's rlibs, and in self-contained/ musl and start files.
build_std() { # directory
    local rust=$1/rust/usr root
    root=$(sysroot)
    local out=$rust/lib/rustlib/$target/lib
    export LD_LIBRARY_PATH=$rust/lib/$machine-linux-gnu RUSTC=$rust/bin/rustc
    # Local paths are removed, as from the programs (cargo.sh).
    local no_paths="--remap-path-prefix=$rust/lib/rustlib/src/rust=/rust"
    no_paths="$no_paths --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src="
    # The library's own profile: bitcode for link-time optimization, and panic_abort compiled as required.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zforce-unstable-if-unmarked -Cembed-bitcode=yes $no_paths" \
        "$rust/bin/cargo" build -q --locked --manifest-path "$rust/lib/rustlib/src/rust/library/sysroot/Cargo.toml" \
        --profile dist --target "$target" --target-dir "$1/build" --features "panic-unwind backtrace" >&2
    mkdir -p "$out/self-contained"
    cp "$1/build/$target/dist/deps/"*.rlib "$out/"
    cp "$root"/lib/{crt1,Scrt1,rcrt1,crti,crtn,crtbegin,crtbeginS,crtend,crtendS}.o "$root/lib/libc.a" "$out/self-contained/"
    # gcc's unwinder asks glibc for the unwind tables of an address; musl lacks that function, so it is added here.
    cp "$root/lib/libgcc_eh.a" "$out/self-contained/libunwind.a"
    clang --target="$arch-linux-musl" -O2 -fPIC -nostdinc -isystem "$root/include" \
        -c "$here/dl_find_object.c" -o "$1/dl_find_object.o" >&2
    ar r "$out/self-contained/libunwind.a" "$1/dl_find_object.o" 2>/dev/null
    rm -rf "$1/build"
}

by_debian() {
    local tool version home new
    for tool in apt-get dpkg clang ar; do
        command -v "$tool" >/dev/null || { say "building Debian's std needs $tool"; return 1; }
    done
    version=$(apt-cache policy rust-web-src | sed -n 's/^ *Candidate: *//p')
    [ -n "$version" ] && [ "$version" != "(none)" ] || { say "no package rust-web-src here"; return 1; }
    # Any change of this script gives another directory.
    home=$home_of_rust/$version-$target-$(cksum <"$here/std.sh" | cut -d" " -f1)
    if [ ! -d "$home" ]; then
        say "building std for $target with Debian's rustc-web $version (a minute or two)"
        mkdir -p "$home_of_rust"
        new=$(mktemp -d "$home_of_rust/new.XXXXXX")
        # shellcheck disable=SC2064
        trap "rm -rf $(printf %q "$new")" EXIT
        unpack_rust "$new"
        build_std "$new"
        mv -T "$new" "$home"
    fi
    say "std for $target: Debian's rustc-web $version, in $home"
    print_environment "$home/rust"
}

case ${PROFINFER_STD:-} in
rustup) by_rustup || die "rustup has no std for $target, or lacks its sources (component rust-src)" ;;
debian) by_debian || die "no std for $target from Debian's sources" ;;
"")
    by_rustup || {
        say "no std for $target by rustup; trying Debian's"
        by_debian || die "no std for $target: 'rustup target add $target' and 'rustup component add rust-src', or Debian's rustc-web and rust-web-src"
    }
    ;;
*) die "PROFINFER_STD is '$PROFINFER_STD': rustup or debian" ;;
esac
