#!/usr/bin/env bash
# Cargo for the tests on AArch64: `tests/arm/cargo.sh test --package kernels`. Nothing but the kernels is optimized: that
# would take longer than running it. All tests share these settings, and what is compiled with them.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/../../cross/cargo.sh" aarch64-unknown-linux-musl "${1:?usage: cargo.sh COMMAND...}" \
    --config profile.dev.opt-level=0 --config profile.dev.package.kernels.opt-level=1 "${@:2}"
