#!/usr/bin/env bash
# Installs Debian's llama-server (unstable) into a directory of its own in the cache, with the packages it needs, and
# prints the directory. Idempotent; safe to run several times concurrently. Needs root and debootstrap.
#
# usage: setup.sh [DIR]     default: ${XDG_CACHE_HOME:-$HOME/.cache}/profinfer/debian-sid
set -euo pipefail

die() { echo "setup.sh: $*" >&2; exit 1; }

root=${1:-${PROFINFER_DEBIAN:-${XDG_CACHE_HOME:-${HOME:?set HOME or PROFINFER_DEBIAN}/.cache}/profinfer/debian-sid}}
mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock 9
if [ ! -x "$root/usr/bin/llama-server" ]; then
    [ "$(uname -sm)" = "Linux x86_64" ] || die "Debian's build is taken for Linux x86-64, this is $(uname -sm)"
    [ "$(id -u)" = 0 ] || die "debootstrap needs root"
    command -v debootstrap >/dev/null || die "debootstrap is missing: scripts/setup.sh test installs it"
    rm -rf "$root"
    part=$root.part.$$
    trap 'rm -rf "$part"' EXIT
    debootstrap --variant=minbase --include=llama.cpp-tools sid "$part" http://deb.debian.org/debian >"$root.log" 2>&1 ||
        { tail -n 5 "$root.log" >&2; die "debootstrap failed: see $root.log"; }
    rm -rf "$part"/var/cache/apt/archives/*.deb "$part"/usr/share/doc "$part"/usr/share/man
    mv -T "$part" "$root"
fi
echo "$root"
