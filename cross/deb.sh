#!/usr/bin/env bash
# Debian packages of the static recorder, without dependencies: dist/profinfer_VERSION_ARCHITECTURE.deb. Built by
# dpkg-deb; the same commit gives the same bytes. The program prints its own manual pages and completions: for another
# architecture, QEMU runs it (qemu-user-static).
#
# usage: deb.sh [TARGET...]      aarch64-unknown-linux-musl, x86_64-unknown-linux-musl; default: all in dist/
# PROFINFER_DIST sets another dist/, PROFINFER_VERSION another version than that of Cargo.toml and the commit.
set -euo pipefail
umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dist=${PROFINFER_DIST:-$root/dist}

die() { echo "cross/deb.sh: $*" >&2; exit 1; }

epoch=$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/Cargo.toml")
export SOURCE_DATE_EPOCH=$epoch

version() {
    local number commit
    number=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
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

copyright() {
    # Paragraphs of a licence are indented, and a dot represents an empty line.
    sed 's/^$/./; s/^/ /' "$root/LICENSE-MIT" >"$tree.mit"
    sed -e "/^@MIT@\$/{r $tree.mit" -e 'd}' "$root/conf/debian/copyright"
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
Description: operator-level profiler for llama.cpp and GGML programs
 It says which operator, layer, thread or expert costs the time in a running
 llama.cpp, or in any other program built on GGML, and whether it was
 computing, waiting, preempted, asleep or paging. It watches from outside with
 eBPF probes: programs are neither rebuilt nor restarted nor patched.
 .
 As a service it waits for engines and records each within its budget.
EOF
}

# Manual pages and completions, printed by the program itself: pages of other builds have other subcommands.
pages() { # target
    local runner=() name shell
    if [ "${1%%-*}" != "$(uname -m)" ]; then
        runner=("$(command -v "qemu-${1%%-*}-static" || command -v "qemu-${1%%-*}")") ||
            die "manual pages are printed by the program, and $1 does not run here: install qemu-user-static"
    fi
    ours() { "${runner[@]}" "$dist/$target/profinfer" "$@"; }
    install -d "$tree/usr/share/man/man1"
    page() { ours help --man "${@:2}" | gzip -9n >"$tree/usr/share/man/man1/$1.1.gz"; }
    page profinfer
    for name in $(ours --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z-]\+\).*/\1/p'); do page "profinfer-$name" "$name"; done
    [ -f "$tree/usr/share/man/man1/profinfer-completions.1.gz" ] || die "$1: --help lists no subcommands"
    for shell in bash-completion/completions/profinfer zsh/vendor-completions/_profinfer fish/vendor_completions.d/profinfer.fish; do
        install -d "$tree/usr/share/${shell%/*}"
        name=${shell%%/*}
        ours completions "${name%-completion}" >"$tree/usr/share/$shell"
    done
}

package() { # target
    local arch deb target=$1
    arch=$(architecture "$1")
    [ -f "$dist/$1/profinfer" ] || die "$dist/$1/profinfer does not exist: run make dist"
    rm -rf "$tree"
    install -D -m 755 "$dist/$1/profinfer" "$tree/usr/bin/profinfer"
    for file in libprofinfer-cl.so libprofinfer-vk.so libprofinfer-cu.so VkLayer_profinfer.json; do
        install -D -m 644 "$dist/$1/$file" "$tree/usr/lib/profinfer/$file"
    done
    install -D -m 644 "$root/conf/systemd/profinfer.service" "$tree/usr/lib/systemd/system/profinfer.service"
    install -D -m 755 "$root/conf/sysv/profinfer" "$tree/etc/init.d/profinfer"
    # It may hold secrets: headers of [otlp].
    install -D -m 600 "$root/conf/profinfer.toml" "$tree/etc/profinfer/profinfer.toml"
    install -d "$tree/usr/share/doc/profinfer" "$tree/DEBIAN"
    install -m 644 "$root"/docs/{SERVICE,CONFIG}.md "$tree/usr/share/doc/profinfer/"
    pages "$1"
    copyright >"$tree/usr/share/doc/profinfer/copyright"
    printf 'profinfer (%s) unstable; urgency=medium\n\n  * See the project for what changed.\n\n -- %s  %s\n' "$version" \
        "${DEBFULLNAME:-profinfer} <${DEBEMAIL:-profinfer@localhost.localdomain}>" "$(date -u -R -d "@$epoch")" |
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
if [ $# -eq 0 ]; then
    for target in aarch64-unknown-linux-musl x86_64-unknown-linux-musl; do
        [ ! -f "$dist/$target/profinfer" ] || set -- "$@" "$target"
    done
fi
[ $# -gt 0 ] || die "nothing in $dist: run make dist"
for target; do package "$target"; done
