#!/usr/bin/env bash
# Makes the engine opencl-v0.5.0: llama.cpp's OpenCL backend, compiled from its unchanged source in a crate, beside the
# libraries of the packaged engine vulkan-v0.5.0, and Intel's OpenCL runtime for CPUs as its device. The runtime is
# proprietary (see its licence in the package): it is downloaded for tests only and is part of nothing that is built here.
#
# usage: opencl.sh [DIR]     DIR: where fetch.sh has put the engines; the new one is made beside them
# Prints "opencl-v0.5.0 PATH". Idempotent. Needs g++, python3 with pip, cargo, and the OpenCL loader with its headers.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=opencl-v0.5.0 base=vulkan-v0.5.0
# The crate has the backend's source as of ggml 0.24.0, whose plug-in interface is that of v0.5.0.
crate=llama-cpp-sys-2 version=0.1.159 crate_sum=1a96d43d9370ff79293fe9777c9a4bda9d3bacb7100b61ed1e3690df39e9ad9e
# package | version | sha256 of the wheel
WHEELS='
intel-opencl-rt|2026.2.0|6b6215a420598b4999ee01caca6d5cbe106aa4155c46c52377619c5aafce9f67
intel-cmplr-lib-rt|2026.2.0|9f713083073a820d2496a6da8e8d4f3482aba6640f74521d25ea48dcebe72748
tbb|2023.2.0|7d80615b6e970f11671fa05b6eaa9483ac864fbfe525ac280271a78b37870b7c
'

. "$here/install.sh"

check() { # file sum
    local sum
    sum=$(sha256sum "$1" | cut -d' ' -f1)
    [ "$sum" = "$2" ] || die "SHA-256 of $(basename "$1") is $sum, expected $2"
}

# The device: the runtime's libraries in one folder, and where the loader finds it.
runtime() { # folder
    local package wanted sum file
    mkdir -p "$1/runtime" "$1/vendors"
    while IFS='|' read -r package wanted sum; do
        [ -n "$package" ] || continue
        rm -rf "$tmp/wheel" && mkdir "$tmp/wheel"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: \
            --dest "$tmp/wheel" "$package==$wanted" >&2
        file=$(find "$tmp/wheel" -name '*.whl')
        check "$file" "$sum"
        python3 -m zipfile -e "$file" "$tmp/wheel/x"
        find "$tmp/wheel/x" \( -name '*.so*' -o -name '*.rtl' -o -name '*.o' -o -name cl.cfg \) ! -name 'libOpenCL*' \
            -exec cp -a {} "$1/runtime/" \;
    done <<<"$WHEELS"
    echo "$engines/$name/runtime/libintelocl.so" >"$1/vendors/intel.icd"
}

source_of() { # prints the folder of ggml's sources
    mkdir -p "$tmp/crate"
    printf '[package]\nname = "sources"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "lib.rs"\n[dependencies]\n%s = "=%s"\n' \
        "$crate" "$version" >"$tmp/crate/Cargo.toml"
    : >"$tmp/crate/lib.rs"
    local home=${CARGO_HOME:-$HOME/.cargo} file
    (cd "$tmp/crate" && "${CARGO:-cargo}" fetch --quiet)
    file=$(find "$home/registry/cache" -name "$crate-$version.crate" | head -n 1)
    check "$file" "$crate_sum"
    tar -xzf "$file" -C "$tmp/crate"
    echo "$tmp/crate/$crate-$version/llama.cpp/ggml"
}

# The backend with its default options, except that it takes other devices than Adreno; and the same in the folder
# "profiled", with the engine's own profile of kernels (cl_profiling.csv in the current directory).
plugins() { # folder
    local ggml kernel file
    ggml=$(source_of)
    mkdir "$tmp/embedded" "$1/profiled"
    for kernel in "$ggml"/src/ggml-opencl/kernels/*.cl; do
        python3 "$ggml/src/ggml-opencl/kernels/embed_kernel.py" "$kernel" "$tmp/embedded/$(basename "$kernel").h"
    done
    plugin "$1" "$ggml"
    plugin "$1/profiled" "$ggml" -DGGML_OPENCL_PROFILING
    for file in "$1"/*.so; do
        [ -e "$1/profiled/$(basename "$file")" ] || ln -s "../$(basename "$file")" "$1/profiled/"
    done
}

plugin() { # folder ggml flags...
    local out=$1 ggml=$2
    shift 2
    "${CXX:-c++}" "$@" -std=c++17 -O2 -shared -fPIC -w -DNDEBUG -D_GNU_SOURCE -DGGML_BACKEND_DL -DGGML_BACKEND_BUILD \
        -DGGML_BACKEND_SHARED -DGGML_SHARED -DGGML_OPENCL_SOA_Q -DGGML_OPENCL_TARGET_VERSION=300 \
        -DGGML_OPENCL_EMBED_KERNELS -I"$ggml/src" -I"$ggml/include" -I"$tmp/embedded" \
        -o "$out/libggml-opencl.so" "$ggml/src/ggml-opencl/ggml-opencl.cpp" \
        "$ggml/src/ggml-opencl/cl-program-cache.cpp" -L"$engines/$base" -lggml-base -l:libOpenCL.so.1 \
        2>"$tmp/errors" || { cat "$tmp/errors" >&2; return 1; }
}

make_engine() {
    cp "$engines/$base"/*.so "$tmp/out/"
    rm "$tmp/out/libggml-vulkan.so"
    plugins "$tmp/out"
    runtime "$tmp/out"
    "${CC:-cc}" -O2 -Wall -Wextra -shared -fPIC -o "$tmp/out/device_name.so" "$here/device_name.c" -ldl
}

[ "$(uname -sm)" = "Linux x86_64" ] || die "the runtime is for Linux x86-64, this is $(uname -sm)"
engines=${1:-${PROFINFER_ENGINES:-${XDG_CACHE_HOME:-${HOME:?set HOME or PROFINFER_ENGINES}/.cache}/profinfer/engines}}
engines=$(cd "$engines" && pwd) || die "run tests/engines/fetch.sh first"
[ -d "$engines/$base" ] || die "no engine $base in $engines: run tests/engines/fetch.sh"
install_engine device_name.c
