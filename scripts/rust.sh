#!/bin/sh
# Installs the Rust toolchain for the tests on a machine without one, such as a CI runner. The installer runs only if its
# SHA-256 matches the one below; it verifies its own downloads against the checksums in the release's signed manifest.
#
# usage: rust.sh
set -eu

# From https://static.rust-lang.org/rustup/archive/VERSION/HOST/rustup-init.sha256.
rustup=1.28.2
toolchain=1.95.0
case $(uname -sm) in
"Linux x86_64") host=x86_64-unknown-linux-gnu sum=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c ;;
"Linux aarch64") host=aarch64-unknown-linux-gnu sum=e3853c5a252fca15252d07cb23a1bdd9377a8c6f3efa01531109281ae47f841c ;;
*) echo "rust.sh: no installer is known for $(uname -sm)" >&2; exit 1 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
file=$work/rustup-init
curl --proto '=https' --tlsv1.2 -sSf -o "$file" "https://static.rust-lang.org/rustup/archive/$rustup/$host/rustup-init"
found=$(sha256sum "$file" | cut -d ' ' -f 1)
[ "$found" = "$sum" ] || { echo "rust.sh: SHA-256 of rustup-init $rustup is $found, expected $sum: not run" >&2; exit 1; }
chmod +x "$file"
"$file" -y --profile minimal --default-toolchain "$toolchain"
