#!/usr/bin/env bash
# Links the C compilers of cross/cc.sh under fixed names, for an image that cross builds in.
#
# usage: image.sh DIRECTORY          (DIRECTORY/TARGET-cc for each target)
set -euo pipefail

out=${1:?usage: image.sh DIRECTORY}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The user who builds in the image may not be the one who created it.
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-/opt}
for target in aarch64-unknown-linux-musl x86_64-unknown-linux-musl; do
    variable=CC_${target//-/_}
    compiler=$(unset "$variable" && eval "$("$here/cc.sh" "$target")" && echo "${!variable}")
    mkdir -p "$out"
    ln -sfn "$compiler" "$out/$target-cc"
done
