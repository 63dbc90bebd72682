#!/bin/sh
# Installs profinfer and ggml-runner of a release: fetches the archive for this processor, verifies it, and copies its
# files below a prefix. Nothing is copied unless everything was verified.
#
# usage: install.sh [--prefix DIR] [--from URL] [--key KEY]
#   --prefix DIR   where bin/, lib/ and share/ are [default: $PREFIX or /usr/local]
#   --from URL     directory with the release's files [default: $PROFINFER_URL or that of this script's version]
#   --key KEY      a public key of ssh, or a file with one: SHA256SUMS must be signed by it (needs ssh-keygen)
#                  [default: $PROFINFER_KEY]. Without a key, the sums protect from damage, but not from somebody who can
#                  change the release
set -eu
umask 022

# Filled in by cross/release.sh; the copy in the sources installs any version, from the URL given.
repository=@REPOSITORY@
version=@VERSION@
prefix=${PREFIX:-/usr/local}
from=${PROFINFER_URL:-}
key=${PROFINFER_KEY:-}

say() { echo "install.sh: $*"; }
die() { echo "install.sh: $*" >&2; exit 1; }
wrong() { echo "install.sh: $*; see --help" >&2; exit 2; }

fetch() { # name
    if command -v curl >/dev/null; then
        curl -fsSL -o "$work/$1" "$from/$1"
    elif command -v wget >/dev/null; then
        wget -q -t 1 -O "$work/$1" "$from/$1"
    else
        die "neither curl nor wget is installed: nothing can be fetched"
    fi || die "$from/$1 cannot be fetched: nothing was installed"
}

sum_of() { # file
    if command -v sha256sum >/dev/null; then sha256sum "$1"; else openssl dgst -sha256 -r "$1"; fi | cut -d ' ' -f 1
}

check_signature() {
    command -v ssh-keygen >/dev/null || die "no ssh-keygen to verify the signature with: install an ssh client"
    fetch SHA256SUMS.sig
    [ ! -f "$key" ] || key=$(cat "$key")
    # Without the comment of the key.
    signer=$(printf '%s\n' "$key" | awk 'NR == 1 {print $1, $2}')
    printf 'release namespaces="profinfer-release" %s\n' "$signer" >"$work/signers"
    ssh-keygen -Y verify -f "$work/signers" -I release -n profinfer-release -s "$work/SHA256SUMS.sig" \
        <"$work/SHA256SUMS" >/dev/null 2>&1 || die "SHA256SUMS is not signed by the key given: nothing was installed"
}

# A file is replaced as a whole, so that a running program keeps its own.
copy() { # file, name below the prefix
    new=
    mode=644
    [ ! -x "$1" ] || mode=755
    if ! { mkdir -p "$prefix/${2%/*}" && new=$(mktemp "$prefix/$2.XXXXXX") && cp "$1" "$new" && chmod "$mode" "$new" &&
        mv -f "$new" "$prefix/$2"; }; then
        [ -z "$new" ] || rm -f "$new"
        die "$prefix/$2 cannot be written: give another --prefix, or be root"
    fi
}

while [ $# -gt 0 ]; do
    option=${1%%=*}
    case $1 in
    # Read from a pipe it has no file of its own.
    -h | --help)
        if [ -f "$0" ]; then sed -n '/^# Installs/,/^set/s/^# \{0,1\}//p' "$0"; else say "usage: [--prefix DIR] [--from URL] [--key KEY]"; fi
        exit 0
        ;;
    --prefix=* | --from=* | --key=*) value=${1#*=} ;;
    --prefix | --from | --key) [ $# -gt 1 ] || wrong "$1 needs a value" && value=$2 && shift ;;
    *) wrong "unexpected '$1'" ;;
    esac
    shift
    [ -n "$value" ] || wrong "$option needs a value"
    case $option in --prefix) prefix=$value ;; --from) from=$value ;; --key) key=$value ;; esac
done

[ "$(uname -s)" = Linux ] || die "releases are for Linux, and this is $(uname -s)"
case $(uname -m) in
x86_64 | amd64) arch=x86_64 ;;
aarch64 | arm64) arch=aarch64 ;;
*) die "releases are for x86_64 and aarch64, and this is $(uname -m): build from the sources" ;;
esac
case $version in @*) pattern='[0-9][0-9A-Za-z.+~-]*' ;; *) pattern=$(echo "$version" | sed 's/[.]/\\&/g') ;; esac
case $from$repository in @*) die "this copy belongs to no release: say where one is with --from URL" ;; esac
from=${from:-$repository/releases/download/v$version}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
fetch SHA256SUMS
[ -z "$key" ] || check_signature
line=$(grep -x "[0-9a-f]\{64\}  profinfer-$pattern-$arch-linux\.tar\.gz" "$work/SHA256SUMS" || true)
[ "$(echo "$line" | grep -c .)" -eq 1 ] ||
    die "$from/SHA256SUMS does not name one archive for $arch: nothing was installed"
archive=${line#*  }
fetch "$archive"
found=$(sum_of "$work/$archive")
[ "$found" = "${line%%  *}" ] ||
    die "$archive has the SHA-256 $found, not ${line%%  *}: it is damaged or forged; nothing was installed"
top=${archive%.tar.gz}
tar -xzf "$work/$archive" -C "$work" || die "$archive cannot be unpacked: nothing was installed"
[ -z "$(find "$work/$top" ! -type f ! -type d)" ] || die "$archive has more than files: nothing was installed"
said=$("$work/$top/bin/profinfer" --version) || die "profinfer of $archive does not run here: nothing was installed"
(cd "$work/$top" && find . -type f) | sed 's|^\./||' >"$work/files"
while read -r file; do copy "$work/$top/$file" "$file"; done <"$work/files"
say "$said is in $prefix/bin$([ -n "$key" ] || echo '; its sum is verified, its signature is not (--key)')"
