#!/usr/bin/env bash
# The C libraries of static programs: libbpf, libelf and zlib from the sources bundled with crate libbpf-sys, compiled
# once for a target and a compiler into the cache ($XDG_CACHE_HOME/profinfer/clib). The crate's own build script would
# compile them in each target directory and for each profile, and for this machine too, whose build scripts depend on the
# crate with the same features.
#
# usage: clib.sh TARGET      with the variables of cc.sh set; without them, for this machine
#
# Prints options for cargo that take the place of that build script.
set -euo pipefail

target=${1:?usage: clib.sh TARGET}
# shellcheck source=cross/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
compiler=CC_${target//-/_}
export CC=${!compiler:-cc}
# Of a make that called this.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

# The directory of libbpf-sys's sources.
sources() {
    local manifest
    manifest=$("${CARGO:-cargo}" metadata --locked --format-version 1 --filter-platform "$target" \
        --manifest-path "$here/../Cargo.toml" | grep -o '"manifest_path":"[^"]*/libbpf-sys-[^"]*"') || die "no crate libbpf-sys"
    manifest=${manifest#*:\"}
    dirname "${manifest%\"}"
}

# The steps and options of the crate's build script, on copies of its sources: they are configured and compiled in place.
# For size, like the files for boards.
build() { # directory with zlib, elfutils and libbpf
    cd "$1"
    export CFLAGS="$size $pic -ffunction-sections -fdata-sections -ffile-prefix-map=$1=. -I$1/zlib"
    (cd zlib && ./configure --static && make -j"$(nproc)" libz.a)
    (
        cd elfutils
        autoreconf --install --force
        ./configure --enable-maintainer-mode --disable-debuginfod --disable-libdebuginfod --disable-demangler --without-zstd \
            --host="$target" LDFLAGS="-L$1/zlib"
        make -j"$(nproc)" -C lib BUILD_STATIC_ONLY=y
        make -j"$(nproc)" -C libelf BUILD_STATIC_ONLY=y libelf.a
    )
    CFLAGS="$CFLAGS -I$1/elfutils/libelf" make -j"$(nproc)" -C libbpf/src BUILD_STATIC_ONLY=y OBJDIR="$1/made" "$1/made/libbpf.a"
    mv zlib/libz.a elfutils/libelf/libelf.a made/
}

# As rustc's opt-level "z"; not every gcc has it.
case $("$CC" --version) in *clang*) size=-Oz ;; *) size=-Os ;; esac
# Build scripts are position-independent, the static programs are not.
case $target in *-musl) pic= ;; *) pic=-fPIC ;; esac
from=$(sources)
key=$({ cat "$here/clib.sh"; echo "$CC"; "$CC" --version; } | sha256sum | cut -c 1-16)
home=$cache/clib/$(basename "$from")-$target-$key
if [ ! -d "$home" ]; then
    for tool in make autoreconf autopoint flex bison gawk; do
        command -v $tool >/dev/null || die "no $tool: scripts/setup.sh dist installs it"
    done
    say "compiling libbpf, libelf and zlib for $target into $home"
    mkdir -p "$cache/clib"
    new=$(mktemp -d "$cache/clib/new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    cp -R "$from"/{zlib,elfutils,libbpf} "$new/"
    (build "$new") >"$new/log" 2>&1 || { tail -n 20 "$new/log" >&2; die "they do not compile"; }
    mkdir -m 755 "$new/done"
    cp "$new"/made/{libbpf,libelf,libz}.a "$new/done/"
    # Another run may have been faster: its directory is equally good.
    mv -T "$new/done" "$home" 2>/dev/null || [ -d "$home" ]
fi
printf '%s\n' --config "target.$target.bpf.rustc-link-search=['native=$home']" \
    --config "target.$target.bpf.rustc-link-lib=['static=elf','static=z','static=bpf']"
