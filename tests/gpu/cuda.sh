#!/usr/bin/env bash
# Makes the engine cuda-v0.5.0: the packaged llama.cpp with its CUDA backend, and a CUDA runtime without a device in
# which kernels do nothing (fake_cuda.c). It shows what the host does, not what a device does. The public headers of the
# runtime are proprietary (see the licence in the package): they are downloaded for tests only and are not kept.
#
# usage: cuda.sh [DIR]     DIR: where fetch.sh puts engines
# Prints "cuda-v0.5.0 PATH". Idempotent. Needs a C compiler, python3 with pip, npm.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=cuda-v0.5.0 base=cuda-npm-v0.5.0
headers=nvidia-cuda-runtime headers_version=13.5.37
headers_sum=df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d

. "$here/install.sh"

include() { # prints the folder of the headers
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: \
        --dest "$tmp/wheel" "$headers==$headers_version" >&2
    local file sum
    file=$(find "$tmp/wheel" -name '*.whl')
    sum=$(sha256sum "$file" | cut -d' ' -f1)
    [ "$sum" = "$headers_sum" ] || die "SHA-256 of $(basename "$file") is $sum, expected $headers_sum"
    python3 -m zipfile -e "$file" "$tmp/wheel/x"
    dirname "$(find "$tmp/wheel/x" -name driver_types.h)"
}

# The functions that the backend imports and fake_cuda.c lacks do nothing and succeed, or fail where the driver's memory
# management is asked for.
rest() { # object backend
    local have f
    have=$(nm --defined-only "$1" | awk '$2 == "T" {print $3}')
    nm -D --undefined-only "$2" | awk '{print $2}' | sed 's/@.*//' | grep -E '^(__cuda|cuda|cublas|cu[A-Z])' | while read -r f; do
        grep -qx "$f" <<<"$have" || echo "int $f(void) { return $([[ $f = cuMem* ]] && echo 1 || echo 0); }"
    done
}

make_engine() {
    local backend=$tmp/out/libggml-cuda.so cc=${CC:-cc} lib
    mkdir "$tmp/crt"
    cp "$engines/$base"/*.so "$tmp/out/"
    # driver_types.h wants this header of NVIDIA's compiler, which is in another package.
    cat >"$tmp/crt/host_defines.h" <<'DEFINES'
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __host__
#define __device__
#define CUDARTAPI
DEFINES
    "$cc" -O1 -Wall -Wextra -Wno-unused-parameter -fPIC -isystem "$tmp" -isystem "$(include)" -c "$here/fake_cuda.c" \
        -o "$tmp/fake.o"
    rest "$tmp/fake.o" "$backend" >"$tmp/rest.c"
    # Each library under its own name: the backend asks for versioned symbols of each.
    for lib in libcudart.so.13 libcublas.so.13 libcuda.so.1; do
        printf '%s { *; };\n' "$lib" >"$tmp/map"
        "$cc" -shared -fPIC -w "-Wl,-soname,$lib" "-Wl,--version-script=$tmp/map" -o "$tmp/out/$lib" \
            "$tmp/fake.o" "$tmp/rest.c"
    done
}

[ "$(uname -sm)" = "Linux x86_64" ] || die "the packaged backend is for Linux x86-64, this is $(uname -sm)"
engines=${1:-${PROFINFER_ENGINES:-${XDG_CACHE_HOME:-${HOME:?set HOME or PROFINFER_ENGINES}/.cache}/profinfer/engines}}
"$here/../engines/fetch.sh" "$engines" "$base" >/dev/null
engines=$(cd "$engines" && pwd)
install_engine fake_cuda.c
