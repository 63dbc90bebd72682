#!/usr/bin/env bash
# The same commit gives the same bytes: builds the current checkout, and a clone of it in another directory with
# another target directory, cargo home, home and cache, and compares.
#
# usage: same.sh [TARGET...]          (default: AArch64)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export PROFINFER_SIGNING_KEY=''
targets=${*:-aarch64-unknown-linux-musl}
[ -z "$(git status --porcelain)" ] || { echo "tests/dist: commit first: the test builds a commit twice" >&2; exit 1; }
cargo_home=${CARGO_HOME:-$HOME/.cargo}
cache=${XDG_CACHE_HOME:-$HOME/.cache}
other=$(mktemp -d)
trap 'rm -rf "$other"' EXIT

# Downloads are shared, through another path; the C libraries are compiled again.
elsewhere() {
    mkdir -p "$other/home/cargo" "$other/built" "$other/cache/profinfer"
    ln -s "$cargo_home"/* "$other/home/cargo/"
    ln -s "$cache"/profinfer/* "$other/cache/profinfer/"
    rm -f "$other/cache/profinfer"/{cc,clib}
    git clone --quiet --no-hardlinks . "$other/sources"
    (
        cd "$other/sources"
        export RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} XDG_CACHE_HOME=$other/cache
        export CARGO_HOME="$other/home/cargo" CARGO_TARGET_DIR="$other/built" HOME="$other/home"
        # shellcheck disable=SC2086
        cross/dist.sh $targets
        # shellcheck disable=SC2086
        cross/release.sh $targets
    )
}

# shellcheck disable=SC2086
cross/dist.sh $targets
# shellcheck disable=SC2086
cross/release.sh $targets
elsewhere
diff --recursive --brief dist/release "$other/sources/dist/release" || different=1
for target in $targets; do
    for program in profinfer ggml-runner libprofinfer-cl.so libprofinfer-vk.so libprofinfer-cu.so; do
        cmp "dist/$target/$program" "$other/sources/dist/$target/$program" || different=1
    done
done
[ -z "${different:-}" ] || { echo "tests/dist: two builds of a commit differ" >&2; exit 1; }
echo "two builds of $(git rev-parse --short HEAD) give the same bytes"
