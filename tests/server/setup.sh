#!/usr/bin/env bash
# Installs Debian's llama.cpp (unstable) into a directory of its own in the cache, with the packages it needs, and prints
# the directory. Idempotent; safe to run several times concurrently. Needs root and debootstrap.
#
# usage: setup.sh [server|vulkan]
#   server  llama-server and the other tools, on the CPU (the default): $PROFINFER_DEBIAN, else
#           ${XDG_CACHE_HOME:-$HOME/.cache}/profinfer/debian-sid
#   vulkan  with the Vulkan backend, its loader and a device in software: the same with "-vulkan" at the end
set -euo pipefail

die() { echo "setup.sh: $*" >&2; exit 1; }

root=${PROFINFER_DEBIAN:-${XDG_CACHE_HOME:-${HOME:?set HOME or PROFINFER_DEBIAN}/.cache}/profinfer/debian-sid}
packages=llama.cpp-tools
there=usr/bin/llama-server
case ${1:-server} in
server) ;;
vulkan)
    root=$root-vulkan
    packages=$packages,libggml0-backend-vulkan,libvulkan1,mesa-vulkan-drivers
    there=usr/share/vulkan/icd.d/lvp_icd.json
    ;;
*) die "unknown kind '$1': server or vulkan" ;;
esac
mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock 9
if [ ! -e "$root/$there" ]; then
    [ "$(uname -sm)" = "Linux x86_64" ] || die "Debian's build is taken for Linux x86-64, this is $(uname -sm)"
    [ "$(id -u)" = 0 ] || die "debootstrap needs root"
    command -v debootstrap >/dev/null || die "debootstrap is missing: scripts/setup.sh test installs it"
    rm -rf "$root"
    part=$root.part.$$
    trap 'rm -rf "$part"' EXIT
    debootstrap --variant=minbase --include="$packages" sid "$part" http://deb.debian.org/debian >"$root.log" 2>&1 ||
        { tail -n 5 "$root.log" >&2; die "debootstrap failed: see $root.log"; }
    rm -rf "$part"/var/cache/apt/archives/*.deb "$part"/usr/share/doc "$part"/usr/share/man
    mv -T "$part" "$root"
fi
echo "$root"
