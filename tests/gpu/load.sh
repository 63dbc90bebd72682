#!/usr/bin/env bash
# Builds the loads for tests of the layers into DIR: load (OpenCL), vk_load (Vulkan) and a layer for below. The loads are
# linked with the fake engine in ENGINE (tests/fixtures), so that a recorder finds an engine in them.
#
# usage: load.sh DIR ENGINE
# Needs gcc, glslangValidator, and the headers and loaders of OpenCL and Vulkan.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd) engine=$(cd "$2" && pwd)
tmp=$(mktemp -d "$out/.tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

build() { # name libraries...
    local name=$1
    shift
    "${CC:-gcc}" -O2 -std=gnu11 -Wall -Wextra -pthread -I"$tmp" -o "$tmp/$name" "$here/$name.c" \
        -Wl,--no-as-needed -L"$engine" -lfakeggml -Wl,-rpath,"$engine" "$@"
    mv "$tmp/$name" "$out/"
}

build load -l:libOpenCL.so.1
glslangValidator --quiet -V --target-env vulkan1.1 --vn load_spv -o "$tmp/load_spv.h" "$here/load.comp"
build vk_load -lvulkan
"${CC:-gcc}" -O2 -std=gnu11 -Wall -Wextra -shared -fPIC -o "$tmp/vk_stub.so" "$here/vk_stub.c"
mv "$tmp/vk_stub.so" "$out/"
cat >"$out/vk_stub.json" <<END
{"file_format_version": "1.2.0", "layer": {"name": "VK_LAYER_TEST_stub", "type": "GLOBAL", "library_path": "./vk_stub.so",
 "api_version": "1.3.0", "implementation_version": "1", "description": "Devices that are not here"}}
END
