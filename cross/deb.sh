#!/usr/bin/env bash
# Debian packages of the static programs, without dependencies: dist/profinfer_VERSION_ARCHITECTURE.deb. Built by
# dpkg-deb; the same commit gives the same bytes. What both programs bring: cross/package.sh.
#
# usage: deb.sh [TARGET...]      aarch64-unknown-linux-musl, x86_64-unknown-linux-musl; default: all in dist/
# PROFINFER_DIST sets another dist/, PROFINFER_VERSION another version than that of Cargo.toml and the commit.
set -euo pipefail
# shellcheck source=cross/package.sh
. "$(dirname "${BASH_SOURCE[0]}")/package.sh"

version() {
    local commit
    commit=$(git -C "$root" rev-parse --short=7 HEAD 2>/dev/null || true)
    if [ -z "$commit" ] || git -C "$root" describe --exact-match --match "v$number" >/dev/null 2>&1; then
        echo "$number"
    else
        echo "$number+git$(date -u -d "@$epoch" +%Y%m%d%H%M%S).$commit"
    fi
}

architecture() { # target
    case $1 in
    aarch64-*) echo arm64 ;;
    x86_64-*) echo amd64 ;;
    *) die "no Debian architecture is known for $1" ;;
    esac
}

control() { # architecture
    cat <<EOF
Package: profinfer
Version: $version
Architecture: $1
Section: devel
Priority: optional
Maintainer: ${DEBFULLNAME:-profinfer} <${DEBEMAIL:-profinfer@localhost.localdomain}>
Installed-Size: $(du -k -s "$tree" | cut -f 1)
Homepage: $(of_workspace repository)
Description: operator-level profiler for llama.cpp and GGML programs
 It says which operator, layer, thread or expert costs the time in a running
 llama.cpp, or in any other program built on GGML, and whether it was
 computing, waiting, preempted, asleep or paging. It watches from outside with
 eBPF probes: programs are neither rebuilt nor restarted nor patched.
 .
 As a service it waits for engines and records each within its budget.
 .
 The package also has ggml-runner, a small engine that runs and generates GGUF
 models: something to record where there is no other engine.
EOF
}

package() { # target
    local arch deb target=$1
    arch=$(architecture "$1")
    [ -f "$dist/$1/profinfer" ] || die "$dist/$1/profinfer does not exist: run make dist"
    rm -rf "$tree"
    lay_out "$dist/$1" "$tree/usr" "$1"
    mv "$tree"/usr/share/zsh/{site-functions,vendor-completions}
    install -D -m 644 "$root/conf/systemd/profinfer.service" "$tree/usr/lib/systemd/system/profinfer.service"
    install -D -m 755 "$root/conf/sysv/profinfer" "$tree/etc/init.d/profinfer"
    # It may hold secrets: headers of [otlp].
    install -D -m 600 "$root/conf/profinfer.toml" "$tree/etc/profinfer/profinfer.toml"
    install -d "$tree/usr/share/doc/profinfer" "$tree/DEBIAN"
    install -m 644 "$root"/docs/{SERVICE,INSTALL,RUNS,EVENTS,METRICS,CONFIG}.md "$root/CHANGELOG.md" "$tree/usr/share/doc/profinfer/"
    copyright >"$tree/usr/share/doc/profinfer/copyright"
    printf 'profinfer (%s) unstable; urgency=medium\n\n  * CHANGELOG.md beside this file says what changed.\n\n -- %s  %s\n' \
        "$version" "${DEBFULLNAME:-profinfer} <${DEBEMAIL:-profinfer@localhost.localdomain}>" "$(date -u -R -d "@$epoch")" |
        gzip -9n >"$tree/usr/share/doc/profinfer/changelog.gz"
    printf '%s\n' /etc/init.d/profinfer /etc/profinfer/profinfer.toml >"$tree/DEBIAN/conffiles"
    install -m 755 "$root"/conf/debian/{postinst,prerm,postrm} "$tree/DEBIAN/"
    control "$arch" >"$tree/DEBIAN/control"
    (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    deb=$dist/profinfer_${version}_$arch.deb
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$deb" >/dev/null
    echo "$deb"
}

command -v dpkg-deb >/dev/null || die "no dpkg-deb: this needs Debian or a derivative, or the package dpkg"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
version=${PROFINFER_VERSION:-$(version)}
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(targets_in_dist)
[ $# -gt 0 ] || die "nothing in $dist: run make dist"
for target; do package "$target"; done
