#!/usr/bin/env bash
# The files of a release, of the static programs in dist/ (make dist), in dist/release/:
#   profinfer-VERSION-ARCH-linux.tar.gz        both programs, the layers, manual pages, completions and licences, as they
#                                              are below a prefix; the library for recording from inside is part of profinfer
#   profinfer-VERSION-ARCH-linux.spdx.json     what is linked into them (cross/sbom.py)
#   profinfer_VERSION_ARCH.deb                 the same as the archive, and the service (cross/deb.sh)
#   install.sh                                 fetches and verifies an archive of this version (scripts/install.sh)
#   SHA256SUMS, SHA256SUMS.sig                 sums of all, and their signature
# The same programs give the same bytes.
#
# usage: release.sh [TARGET...]      default: all in dist/
# PROFINFER_DIST sets another dist/. PROFINFER_SIGNING_KEY names the file of a private key of ssh; without it nothing is
# signed. By ssh, because its public key is one line, ssh-keygen is on most machines and verifies without a keyring, and
# the signature has no date: the same sums give the same one.
set -euo pipefail
# shellcheck source=cross/package.sh
. "$(dirname "${BASH_SOURCE[0]}")/package.sh"

# The program must be that of this commit.
is_current() { # target
    local said expected
    find_runner "$1"
    said=$("${runner[@]}" "$dist/$1/profinfer" --version)
    expected="profinfer $number ($(git -C "$root" rev-parse --short=12 HEAD))"
    [ "$said" = "$expected" ] || die "$dist/$1/profinfer is '$said', not '$expected': commit, then run make dist"
}

package() { # target
    local name=profinfer-$number-${1%%-*}-linux top deb
    top=$work/$name
    is_current "$1"
    lay_out "$dist/$1" "$top" "$1"
    install -d "$top/share/doc/profinfer"
    install -m 644 "$root"/{README,CHANGELOG}.md "$root"/LICENSE-* "$top/share/doc/profinfer/"
    copyright >"$top/share/doc/profinfer/copyright"
    tar --create --directory "$work" --format ustar --sort name --mtime "@$epoch" --owner 0 --group 0 --numeric-owner \
        "$name" | gzip -9n >"$out/$name.tar.gz"
    python3 "$root/cross/sbom.py" "$1" "$top" >"$out/$name.spdx.json"
    deb=$(PROFINFER_VERSION=$number "$root/cross/deb.sh" "$1")
    mv "$deb" "$out/"
}

installer() {
    sed -e "s|@REPOSITORY@|$(of_workspace repository)|" -e "s|@VERSION@|$number|" "$root/scripts/install.sh" >"$out/install.sh"
    chmod 755 "$out/install.sh"
}

# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(targets_in_dist)
[ $# -gt 0 ] || die "nothing in $dist: run make dist"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$dist/release
rm -rf "$out"
mkdir -p "$out"
for target; do package "$target"; done
installer
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
if [ -n "${PROFINFER_SIGNING_KEY:-}" ]; then
    ssh-keygen -q -Y sign -n profinfer-release -f "$PROFINFER_SIGNING_KEY" "$out/SHA256SUMS" ||
        die "SHA256SUMS is not signed: PROFINFER_SIGNING_KEY names a private key of ssh that needs no passphrase"
fi
ls -l "$out"
