#!/usr/bin/env bash
# Builds two 5.10 kernels for arm64 from Debian's source, as small as the tests allow, into the cache:
#   5.10-nobtf   board.config: like an OpenHarmony board, BPF with JIT but no BTF
#   5.10-nobpf   the same without bpf() and kprobes: uprobes, tracefs and perf alone
# They are built again when this script or the configuration changes. The second build starts with the first one's
# object files.
set -euo pipefail
export LC_ALL=C ARCH=arm64
# Of a make that called this.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/profinfer/qemu
suite=bullseye
package=linux-source-5.10

die() { echo "cross/qemu/kernels.sh: $*" >&2; exit 1; }
say() { echo "cross/qemu/kernels.sh: $*" >&2; }

# The source without what no such kernel is built from, which is most of it.
unpack() {
    "$here/../apt.sh" $suite arm64 apt-get -qq download $package >log 2>&1 || { tail -n 5 log >&2; die "no $package"; }
    mkdir linux
    dpkg-deb --fsys-tarfile ./*.deb | tar xO --wildcards "*/$package.tar.xz" | xz -dc |
        tar x -C linux --strip-components=1 --wildcards --exclude='*/Documentation/[a-z]*' --exclude='*.dts*' \
            --exclude='*/arch/[b-z]*/*.[chS]' --exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/net/*/*.[ch]' \
            --exclude='*/drivers/media/*.[ch]' --exclude='*/sound/*.[ch]'
}

configured() { # options file
    local line
    make -s -C linux O=../built KCONFIG_ALLCONFIG="../$1" allnoconfig
    while read -r line; do
        grep -qxF "$line" built/.config || die "$line of $1 is not in the configuration"
    done < <(grep = "$1")
}

build() { # name options
    local began=$SECONDS
    configured "$2"
    make -s -C linux O=../built -j"$(nproc)" Image >"$1.log" 2>&1 || { tail -n 20 "$1.log" >&2; die "$1 does not build"; }
    mkdir "$1"
    cp built/arch/arm64/boot/Image built/.config "$1"
    echo "$key" >"$1/key"
    say "$1 built in $((SECONDS - began)) s"
}

key=$(cat "$here/kernels.sh" "$here/board.config" | sha256sum)
current=yes
for name in 5.10-nobtf 5.10-nobpf; do
    [ "$(cat "$cache/kernels/$name/key" 2>/dev/null)" = "$key" ] || current=
done
[ -z "$current" ] || exit 0

for tool in flex bison bc xz; do command -v $tool >/dev/null || die "no $tool: scripts/setup.sh installs it"; done
if [ "$(uname -m)" != aarch64 ]; then
    export CROSS_COMPILE=aarch64-linux-gnu-
    command -v ${CROSS_COMPILE}gcc >/dev/null || die "no ${CROSS_COMPILE}gcc: scripts/setup.sh installs it"
fi
say "building two kernels from $package (some minutes)"
work=$(mktemp -d "$cache/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
unpack
cp "$here/board.config" nobtf.config
sed -E '/BPF|KPROBE/d' nobtf.config >nobpf.config
build 5.10-nobtf nobtf.config
build 5.10-nobpf nobpf.config
mkdir -p "$cache/kernels"
for name in 5.10-nobtf 5.10-nobpf; do
    rm -rf "$cache/kernels/$name"
    mv -T "$name" "$cache/kernels/$name"
done
