#!/usr/bin/env bash
# Downloads the engines that tests and benchmarks run against, as packages, with the regular clients (npm, pip), and
# checks every download against a pinned SHA-256.
#
# usage: fetch.sh [DIR] [NAME...]     all engines, or those named, into DIR
#        fetch.sh --list              the names, one per line
# DIR: default $PROFINFER_ENGINES, else ${XDG_CACHE_HOME:-$HOME/.cache}/profinfer/engines.
# Prints one line "NAME PATH" per engine; PATH is what driver --engine takes.
# Idempotent; safe to run several times concurrently. Exits 1 if an engine is not available.
set -euo pipefail

# name | client | package | version | sha256 of the package file
ENGINES='
b3889|npm|@node-llama-cpp/linux-x64|3.1.1|c0e5ba681bcfea012ff21ad26413378428b9d98342615c0c967313d011d2fbe5
b4753|npm|@node-llama-cpp/linux-x64|3.6.0|a0b520ae0ca97facb19c63e2634e983f319acd82085a90bd21055cfa71847fd4
b8121|npm|@node-llama-cpp/linux-x64|3.16.2|1af355c655ee313a3d17a5de295e2155145c3e9538baf1d8e78380974ff7f8b2
v0.5.0|npm|@node-llama-cpp/linux-x64|3.22.1|0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0
vulkan-b3889|npm|@node-llama-cpp/linux-x64-vulkan|3.1.1|278c5b348bb553ed9066065b1cf8fa7e9d2025110c4a32742335a21d5d68fb78
vulkan-b4600|npm|@node-llama-cpp/linux-x64-vulkan|3.5.0|36d80ba51223f39a04a48ff4dfc7dbcb58be776096bc1a20484c8e9265617104
vulkan-b5640|npm|@node-llama-cpp/linux-x64-vulkan|3.10.0|69d79272fa999ebf6a7a64075833b7bbf452e077f9f7810d9edbda4b418dbadb
vulkan-b7347|npm|@node-llama-cpp/linux-x64-vulkan|3.14.5|bb09ff8c87e9c2aaf83ee547738efa110c22f3f868a5ccb9f0a2e49a70860251
vulkan-b8390|npm|@node-llama-cpp/linux-x64-vulkan|3.18.1|9d8e0453cbd77cc19016d19feeae61bbb277543ae9f6076589dd79751a8b85a9
vulkan-v0.5.0|npm|@node-llama-cpp/linux-x64-vulkan|3.22.1|e10577190fc4bd1649d3b655588e5c7a85fc6b6dbf7136fee596cbe9e25521e7
cuda-npm-v0.5.0|npm|@node-llama-cpp/linux-x64-cuda|3.22.1|d6cd3ff39a43b024816952e0bc6452d6711608d26256ff6eb0fe8cf7ff55bb2c
b11549|pip|xllamacpp|2026.10.11549|c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261
'

die() { echo "fetch.sh: $*" >&2; exit 1; }
names() { sed -n 's/|.*//p' <<<"$ENGINES"; }

if [ "${1:-}" = --list ]; then names; exit 0; fi
[ "$(uname -sm)" = "Linux x86_64" ] || die "the packaged engines are for Linux x86-64, this is $(uname -sm)"

default=${PROFINFER_ENGINES:-${XDG_CACHE_HOME:-${HOME:?set HOME or PROFINFER_ENGINES}/.cache}/profinfer/engines}
dir=$default
if [ $# -gt 0 ]; then [ -z "$1" ] || dir=$1; shift; fi
wanted=${*:-$(names)}
mkdir -p "$dir" || die "cannot create $dir"
dir=$(cd "$dir" && pwd)

download() { # client package version destination
    case $1 in
    npm)
        command -v npm >/dev/null || { echo "npm is missing: install nodejs/npm" >&2; return 1; }
        (cd "$4" && npm pack --silent --cache "$4/npm" --pack-destination "$4" "$2@$3" >/dev/null) ;;
    pip)
        # The wheel is abi3: the Python version named here need not be the one installed.
        python3 -m pip --version >/dev/null 2>&1 || { echo "pip is missing: install python3-pip" >&2; return 1; }
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
            --only-binary :all: --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
            --python-version 3.12 --dest "$4" "$2==$3" >&2 ;;
    esac
}

# An extension module needs an interpreter's symbols at load time. Its C API never calls them, so a library of empty
# definitions lets a plain C program load it.
python_stubs() { # module output
    local syms
    syms=$(nm -D --undefined-only "$1" | awk '$2 ~ /^_?Py/ {print $2}')
    [ -n "$syms" ] || return 0
    { for s in $syms; do echo "char $s[512];"; done; } |
        "${CC:-cc}" -shared -fPIC -fno-builtin -w -x c - -o "$2"
}

install() { # name client package version sum
    local tmp file sum
    tmp=$(mktemp -d "$dir/.tmp.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$tmp'" EXIT
    mkdir "$tmp/dl" "$tmp/out"
    download "$2" "$3" "$4" "$tmp/dl" || { echo "fetch.sh: $1: download of $3 $4 failed" >&2; return 1; }
    file=$(find "$tmp/dl" -maxdepth 1 -type f \( -name '*.tgz' -o -name '*.whl' \) | head -n 1)
    [ -n "$file" ] || { echo "fetch.sh: $1: the client left no package file" >&2; return 1; }
    sum=$(sha256sum "$file" | cut -d' ' -f1)
    [ "$sum" = "$5" ] || { echo "fetch.sh: $1: SHA-256 of $3 $4 is $sum, expected $5" >&2; return 1; }
    # The caller tests this function's status, so `set -e` has no effect here: chain explicitly.
    mkdir "$tmp/x" && unpack "$2" "$3" "$file" "$tmp" && echo "$5" >"$tmp/out/.sha256" &&
        rm -rf "${dir:?}/$1" && mv -T "$tmp/out" "$dir/$1" ||
        { echo "fetch.sh: $1: unpacking $file failed" >&2; return 1; }
}

unpack() { # client package file tmp
    case $1 in
    npm) tar -xzf "$3" -C "$4/x" && cp "$4"/x/package/bins/*/*.so* "$4"/x/package/bins/*/*.node "$4/out/" ;;
    pip) python3 -m zipfile -e "$3" "$4/x" && cp "$4"/x/"$2"/*.so "$4/out/" &&
         python_stubs "$4/out/$2.abi3.so" "$4/out/pystubs.so" ;;
    esac
}

# An older copy of an npm engine may lack its addon.
is_there() { # name client sum
    [ "$(cat "$dir/$1/.sha256" 2>/dev/null)" = "$3" ] && { [ "$2" != npm ] || compgen -G "$dir/$1/*.node" >/dev/null; }
}

path_of() { # name package
    if [ -f "$dir/$1/pystubs.so" ]; then echo "$dir/$1/$2.abi3.so"; else echo "$dir/$1"; fi
}

failed=0
for name in $wanted; do
    line=$(grep "^$name|" <<<"$ENGINES") || die "no engine '$name'; available: $(names | tr '\n' ' ')"
    IFS='|' read -r _ client package version sum <<<"$line"
    # One lock per engine: a second run waits, then finds the engine installed.
    if (
        flock 9
        is_there "$name" "$client" "$sum" || install "$name" "$client" "$package" "$version" "$sum"
    ) 9>"$dir/.$name.lock"; then
        echo "$name $(path_of "$name" "$package")"
    else
        failed=1
    fi
done
exit $failed
