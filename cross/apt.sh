#!/usr/bin/env bash
# Runs an apt command with private package lists, so that packages of another release or architecture can be fetched
# without changing the system's lists, sources or dpkg database.
#
# usage: apt.sh "SUITE..." ARCHITECTURE COMMAND...
#   apt.sh trixie arm64 apt-get download busybox-static
#
# For the machine's own architecture, installed packages count as installed; for another one, none do, so that
# --download-only fetches a package with all its dependencies. The mirror is the one that the machine itself uses, or
# PROFINFER_DEBIAN_MIRROR.
set -euo pipefail

suites=${1:?usage: apt.sh '"SUITE..." ARCHITECTURE COMMAND...'} architecture=${2:?architecture}
shift 2
home=${XDG_CACHE_HOME:-$HOME/.cache}/profinfer/qemu/apt/${suites// /+}-$architecture
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

die() { echo "cross/apt.sh: $*" >&2; exit 1; }

mirror() {
    if [ -n "${PROFINFER_DEBIAN_MIRROR:-}" ]; then echo "$PROFINFER_DEBIAN_MIRROR"; return; fi
    command -v apt-get >/dev/null || die "no apt-get: this needs Debian or a derivative"
    # shellcheck disable=SC1091
    local release found
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # shellcheck disable=SC2016
    found=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Identifier: Packages')
    awk -v release="$release" '$1 == release && $2 == "main" && !found { found = 1; print $3 }' <<<"$found"
}

configure() {
    local uri suite
    uri=$(mirror)
    [ -n "$uri" ] || die "which Debian mirror? This machine's sources name none: set PROFINFER_DEBIAN_MIRROR to its URL"
    [ -e "$keyring" ] || die "$keyring is missing: install debian-archive-keyring"
    mkdir -p "$home/lists/partial" "$home/cache/archives/partial"
    for suite in $suites; do
        echo "deb [signed-by=$keyring arch=$architecture] $uri $suite main"
    done >"$home/sources.list"
    {
        echo "Dir::Etc::SourceList \"$home/sources.list\";"
        echo 'Dir::Etc::SourceParts "-";'
        echo "Dir::State::Lists \"$home/lists\";"
        echo "Dir::Cache \"$home/cache\";"
        echo 'APT::Sandbox::User "root";'
        if [ "$architecture" != "$(dpkg --print-architecture)" ]; then
            : >"$home/status"
            echo "Dir::State::Status \"$home/status\";"
            echo "APT::Architecture \"$architecture\";"
            echo "APT::Architectures { \"$architecture\"; };"
        fi
    } >"$home/apt.conf"
}

configure
export APT_CONFIG=$home/apt.conf
# Lists fetched today are new enough: a package that has since been removed from the mirror shows as a failed
# download.
if [ -z "$(find "$home/fresh" -mtime -1 2>/dev/null)" ]; then
    # Without the option an unresponsive mirror is only a warning.
    apt-get -q -o APT::Update::Error-Mode=any update >"$home/log" 2>&1 || {
        tail -n 5 "$home/log" >&2
        die "no package lists for $suites ($architecture): is the mirror correct and reachable? PROFINFER_DEBIAN_MIRROR sets another"
    }
    touch "$home/fresh"
fi
exec "$@"
