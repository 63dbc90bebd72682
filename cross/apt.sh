#!/usr/bin/env bash
# Runs a command of apt with package lists of its own, so that another release's or architecture's packages can be had
# without a trace in the system's lists, sources or dpkg's books.
#
# usage: apt.sh "SUITE..." ARCHITECTURE COMMAND...
#   apt.sh trixie arm64 apt-get download busybox-static
#
# With the machine's own architecture what is installed counts as it does for the system; with another one nothing counts
# as installed, so that --download-only fetches a package with all that it needs. The mirror is the one that the machine
# itself uses, or PROFINFER_DEBIAN_MIRROR.
set -euo pipefail

suites=${1:?usage: apt.sh '"SUITE..." ARCHITECTURE COMMAND...'} architecture=${2:?architecture}
shift 2
home=${XDG_CACHE_HOME:-$HOME/.cache}/profinfer/qemu/apt/${suites// /+}-$architecture
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

die() { echo "cross/apt.sh: $*" >&2; exit 1; }

mirror() {
    if [ -n "${PROFINFER_DEBIAN_MIRROR:-}" ]; then echo "$PROFINFER_DEBIAN_MIRROR"; return; fi
    command -v apt-get >/dev/null || die "no apt-get: this needs Debian or a relative of it"
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
# Lists of today are new enough: a package that has gone from the mirror since shows as a failed download.
if [ -z "$(find "$home/fresh" -mtime -1 2>/dev/null)" ]; then
    # Without the option a mirror that does not answer is but a warning.
    apt-get -q -o APT::Update::Error-Mode=any update >"$home/log" 2>&1 || {
        tail -n 5 "$home/log" >&2
        die "no package lists for $suites ($architecture): is the mirror right and within reach? PROFINFER_DEBIAN_MIRROR sets another"
    }
    touch "$home/fresh"
fi
exec "$@"
