#!/usr/bin/env bash
# The layers for another machine: `cross/layers.sh TARGET DIR` puts them into DIR. They are linked without any library
# and without startup files, so that one file runs with every C library.
set -euo pipefail

target=${1:?usage: layers.sh TARGET DIR}
out=$(realpath -m "${2:?usage: layers.sh TARGET DIR}")
# shellcheck source=cross/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
environment=$("$here/std.sh" "$target")
eval "$environment"

built=$(realpath -m "${CARGO_TARGET_DIR:-$here/../target}/layers")
cd "$here/../crates/layers"
# The linker that comes with Rust. Local paths do not belong in distributed files.
flags=(-Ctarget-feature=-crt-static -Clink-self-contained=no -Clinker=rust-lld -Clinker-flavor=ld.lld
    "--remap-path-prefix=$PWD=/layers" -Crelocation-model=pic)
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f'; echo "${flags[*]}")
export CARGO_ENCODED_RUSTFLAGS
"${CARGO:-cargo}" build --quiet --locked --release --target "$target" --target-dir "$built"
mkdir -p "$out"
for layer in cl vk cu; do
    cp "$built/$target/release/libprofinfer_$layer.so" "$out/libprofinfer-$layer.so"
    ! readelf -d "$out/libprofinfer-$layer.so" | grep NEEDED >&2 || { echo "layers: libprofinfer-$layer.so needs a library" >&2; exit 1; }
done
cp vulkan/VkLayer_profinfer.json "$out/"
