#!/usr/bin/env bash
# Cargo for another machine: `cross/cargo.sh TARGET build ...` builds static programs with the Rust of cross/std.sh.
set -euo pipefail

target=${1:?usage: cargo.sh TARGET ARGUMENTS OF CARGO}
shift
environment=$("$(dirname "${BASH_SOURCE[0]}")/std.sh" "$target")
eval "$environment"
command=${1:?usage: cargo.sh TARGET ARGUMENTS OF CARGO}
shift
exec "${CARGO:-cargo}" "$command" --target "$target" "$@"
