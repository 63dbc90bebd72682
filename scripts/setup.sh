#!/bin/sh
# Installs what is missing: says first what and why, is quick when there is nothing to do. Where apt is not, or without root,
# it prints the command that installs the packages and goes on with what is there: tests that lack something are skipped.
#
# usage: setup.sh [build|deb|demo|dist|fuzz|image|test]
#   build  a C compiler, clang for the BPF programs, libelf and zlib
#   demo   the same, plus a package client to download an engine with (make demo-llama)
#   dist   the same, plus what libelf's sources are configured with (make dist)
#   deb    the packages of dist, and QEMU: a program for another processor prints its own manual pages (make deb)
#   fuzz   the packages of build, and a C++ compiler (make fuzz)
#   image  the same as dist, for a container that has its own Rust (cross/Dockerfile)
#   test   everything that tests and lint use (the default)
# The packages are in packages.tsv. Exits with 1 if something is missing without which nothing builds or, at a level other
# than test or with CI=true or PROFINFER_REQUIRE=1, anything at all. The Rust toolchain is not installed here: install it
# manually, or with scripts/rust.sh.
set -eu

say() { echo "setup.sh: $*"; }
die() { echo "setup.sh: $*" >&2; exit 1; }

level=${1:-test}
here=$(cd "$(dirname "$0")" && pwd)
tab=$(printf '\t')
# For an ordinary user, who may look for sshd and debootstrap, too.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
case $level in
build | deb | demo | dist | fuzz | image | test) ;;
*) die "unknown level '$level': build, deb, demo, dist, fuzz, image or test" ;;
esac

# Something for tests could not be had.
without() { # what
    say "$*" >&2
    case ${CI:-}/${PROFINFER_REQUIRE:-} in true/* | */1) die "and tests may not be skipped here" ;; esac
}

# Whether the column `seen` of the table holds.
seen() {
    case $1 in
    *"|"*) seen "${1%%|*}" || seen "${1#*|}" ;;
    *,*) seen "${1%%,*}" && seen "${1#*,}" ;;
    python:*) python3 -c "import ${1#python:}" ;;
    machine:*) [ "$(uname -m)" = "${1#machine:}" ] ;;
    /*)
        # shellcheck disable=SC2086
        set -- $1 && [ -e "$1" ]
        ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

rust() {
    PATH=$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
    least=$(sed -n '/^rust-version = "/{s/^[^"]*"\([^"]*\)".*/\1/p;q;}' "$here/../Cargo.toml")
    command -v cargo >/dev/null 2>&1 ||
        die "cargo is missing: install a stable Rust toolchain, $least or newer (https://rustup.rs, or your" \
            "distribution's if it is new enough), and run this again"
    version=$(cargo --version 2>&1) || die "cargo does not run: $version"
    number=${version#cargo }
    number=${number%%[!0-9.]*}
    [ "$(printf '%s\n' "$least" "$number" | sort -V | head -n 1)" = "$least" ] ||
        die "Rust $least or newer is needed, this is $version: run 'rustup update stable'"
    [ "$level" = test ] || return 0
    for part in fmt clippy; do
        cargo "$part" --version >/dev/null 2>&1 && continue
        say "adding cargo $part"
        case $part in fmt) part=rustfmt ;; esac
        rustup component add "$part" >/dev/null 2>&1 ||
            without "no $part, which lint needs: 'rustup component add $part' failed"
    done
}

family() {
    # shellcheck disable=SC1090
    for id in $(. "${PROFINFER_OS_RELEASE:-/etc/os-release}" && echo "${ID:-} ${ID_LIKE:-}"); do
        case $id in
        debian | ubuntu) echo debian && return ;;
        fedora | rhel | centos) echo fedora && return ;;
        alpine | arch) echo "$id" && return ;;
        esac
    done
    echo other
}

# The first of the alternatives `a|b` that this release has; nothing if it has none.
packaged() {
    lists=$(find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | head -n 1)
    case $family$lists in debian/*) ;; *) echo "${1%%|*}" | sed 's/^-$//' && return ;; esac
    rest="$1|"
    while [ -n "$rest" ]; do
        all=yes
        for p in ${rest%%|*}; do
            LC_ALL=C apt-cache policy "$p" 2>/dev/null | grep -q '^ *Candidate: [^(]' || all=no
        done
        [ $all = no ] || { echo "${rest%%|*}"; return; }
        rest=${rest#*|}
    done
}

# Sets `lacking`, a line `NEED<tab>LEVELS<tab>NAMES<tab>FOR` for each row of the table that is not there.
look() {
    lacking=
    while IFS=$tab read -r need how levels debian fedora alpine arch purpose; do
        case $need in "#"*) continue ;; esac
        case ,$levels, in *,build,* | *",$level,"*) ;; *) continue ;; esac
        # Either npm or pip is enough; pip has a fifth of npm's packages.
        [ "$level" != demo ] || [ "$levels" = build ] || ! command -v npm >/dev/null 2>&1 || continue
        ! seen "$how" || continue
        case $family in fedora) names=$fedora ;; alpine) names=$alpine ;; arch) names=$arch ;; *) names=$debian ;; esac
        lacking="$lacking$need$tab$levels$tab$names$tab$purpose
"
    done <"$here/packages.tsv"
}

# Replaces alternatives in `lacking` by names of this release, and sets `packages`.
resolve() {
    table=
    while IFS=$tab read -r need levels names purpose; do
        [ -z "$need" ] || table="$table$need$tab$levels$tab$(packaged "$names")$tab$purpose
"
    done <<END
$lacking
END
    packages=$(printf %s "$table" | cut -f 3 | tr ' ' '\n' | sort -u | tr '\n' ' ')
    packages=${packages# } packages=${packages% }
}

# Prints the packages with what they are for.
list() { printf %s "$table" | awk -F '\t' '{printf "    %-24s %s\n", $3 == "" ? $1 ": not packaged" : $3, $4}'; }

# In a separate directory: a container's image may be set up to delete packages while apt is still installing others.
install() {
    mkdir -p "$debs/partial"
    apt-get install -q -y --no-install-recommends -o "Dir::Cache::archives=$debs" "$@"
}

# If a part of QEMU is already from the backports, the release's version would remove it; then the rest comes from
# there too.
install_all() { # package...
    of_qemu='' rest=''
    for p; do case $p in qemu-*) of_qemu="$of_qemu $p" ;; *) rest="$rest $p" ;; esac done
    # shellcheck disable=SC2086
    [ -z "$rest" ] || install $rest || return 1
    # shellcheck disable=SC2086
    [ -z "$of_qemu" ] || install --no-remove $of_qemu || from_backports $of_qemu
}

from_backports() { # package...
    # shellcheck disable=SC1091
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    "$here/../cross/apt.sh" "$release $release-backports" "$(dpkg --print-architecture)" \
        apt-get install -q -y --no-install-recommends --no-remove -t "$release-backports" "$@"
}

with_apt() {
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    debs=$(mktemp -d)
    trap 'rm -rf "$log" "$debs"' EXIT
    apt-get update -q </dev/null >"$log" 2>&1 || { say "apt-get update failed:" && tail -n 3 "$log"; } >&2
    resolve
    [ -n "$packages" ] || return 0
    say "installing these packages:"
    list
    # shellcheck disable=SC2086
    LC_ALL=C apt-get install --assume-no --no-install-recommends $packages 2>/dev/null </dev/null |
        sed -n '/^Need to get\|^After this operation/s/^/    /p'
    # shellcheck disable=SC2086
    install_all $packages </dev/null >"$log" 2>&1 && return
    tail -n 5 "$log" >&2
    # Unless packages cannot be fetched at all: one that cannot be installed does not keep the others away.
    ! grep -q 'Failed to fetch\|Unable to fetch' "$log" || return 0
    for p in $packages; do install_all "$p" </dev/null >"$log" 2>&1 || say "apt-get does not install $p" >&2; done
}

by_hand() {
    resolve
    say "these packages are missing:"
    list
    root=
    [ "$(id -u)" = 0 ] || root="sudo "
    case $family in
    debian) say "run: ${root}apt-get install --no-install-recommends $packages" ;;
    fedora) say "run: ${root}dnf install $packages" ;;
    alpine) say "run: ${root}apk add $packages" ;;
    arch) say "run: ${root}pacman -S --needed $packages" ;;
    *) say "these are Debian's names of them: install what your distribution has" ;;
    esac
}

needs() { cut -f 1 | tr '\n' , | sed 's/,$//; s/,/, /g'; }

packages() {
    family=$(family)
    look
    [ -n "$lacking" ] || return 0
    if [ "$family" = debian ] && [ "$(id -u)" = 0 ]; then with_apt; look; else by_hand; fi
    essential=$lacking
    [ "$level" != test ] || essential=$(printf %s "$lacking" | awk -F '\t' '$2 == "build"')
    [ -z "$essential" ] || die "nothing builds without: $(printf '%s\n' "$essential" | needs)"
    [ -z "$lacking" ] || without "tests that need these are skipped: $(printf %s "$lacking" | needs)"
}

[ "$level" = image ] || rust
packages
# shellcheck disable=SC1091
[ "$level" != test ] || . "$here/setup-tests.sh"
