#!/usr/bin/env bash
# Makes the engine cuda-v0.5.0: the packaged llama.cpp with its CUDA backend, a CUDA runtime without a device in which
# kernels do nothing (fake_cuda.c), and a CUPTI for it (fake_cupti.c). It shows what the host does, not what a device does.
# The public headers of both are proprietary (see the licences in the packages): they are downloaded for tests only and
# are not kept. The layouts that profinfer reads of CUPTI's records are compared with them.
#
# usage: cuda.sh [DIR]     DIR: where fetch.sh puts engines
# Prints "cuda-v0.5.0 PATH". Idempotent. Needs a C compiler, python3 with pip, npm.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=cuda-v0.5.0 base=cuda-npm-v0.5.0
runtime=(nvidia-cuda-runtime 13.5.37 df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d)
cupti=(nvidia-cuda-cupti 13.5.25 9dcca41c12a734192b14e7128ae116bc9ce1b9da686e2ebf48ae7a4415f76650)
layer=../../crates/layers/cuda/src

. "$here/install.sh"

include() { # package, version, sum, header: prints the folder of the headers
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: \
        --dest "$tmp/$1" "$1==$2" >&2
    local file sum
    file=$(find "$tmp/$1" -name '*.whl')
    sum=$(sha256sum "$file" | cut -d' ' -f1)
    [ "$sum" = "$3" ] || die "SHA-256 of $(basename "$file") is $sum, expected $3"
    python3 -m zipfile -e "$file" "$tmp/$1/x"
    dirname "$(find "$tmp/$1/x" -name "$4")"
}

# What profinfer reads of CUPTI's records is where the headers say: its numbers become the compiler's.
same_layouts() { # compiler and its headers...
    local numbers ids
    mapfile -t numbers < <(
        sed -n 's/^ *pub const \([A-Z_]*\): usize = \([0-9]*\);.*/-DAT_\1=\2/p' "$here/$layer/records.rs"
        sed -n 's/.*size: \([0-9]*\) }.*CUpti_ActivityKernel\([0-9]*\):.*/-DSIZE_\2=\1/p' "$here/$layer/records.rs"
    )
    ids=$(sed -n 's|^ *(\([A-Z]*\), \([0-9]*\)), *// \([A-Za-z_0-9]*\)$|\1(\3, \2);|p' "$here/$layer/api.rs" | tr '\n' ' ')
    [ "${#numbers[@]}" = 21 ] && [ "$(grep -o ';' <<<"$ids" | wc -l)" = 25 ] ||
        die "records.rs or api.rs do not have the form that this script reads"
    "$@" -fsyntax-only "${numbers[@]}" "-DIDS=$ids" "$here/cupti_layout.c"
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
    local compile
    compile=("$cc" -O1 -Wall -Wextra -Wno-unused-parameter -fPIC -isystem "$tmp"
        -isystem "$(include "${runtime[@]}" driver_types.h)" -isystem "$(include "${cupti[@]}" cupti.h)")
    same_layouts "${compile[@]}"
    "${compile[@]}" -c "$here/fake_cuda.c" -o "$tmp/fake.o"
    "${compile[@]}" -shared -Wl,-soname,libcupti.so.13 -o "$tmp/out/libcupti.so.13" "$here/fake_cupti.c"
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
install_engine fake_cuda.c fake_cupti.c fake_cupti.h cupti_layout.c "$layer/records.rs" "$layer/api.rs"
