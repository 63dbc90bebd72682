#!/usr/bin/env bash
# The main use case: runs an unmodified, packaged llama.cpp on a generated model; profinfer records it from outside
# and reports where the time went. Everything is kept in the cache, so that a second run takes seconds.
. "$(dirname "${BASH_SOURCE[0]}")/demo-common.sh"

engines=${PROFINFER_ENGINES:-$cache/engines}
run=(-p 32 -n 128 -t "$threads")

# An engine that is already installed, otherwise one whose package client is available. Measured with an empty cache:
# about 2 s for v0.5.0 by npm and 4 s for b11549 by pip.
choose_engine() {
    local name
    for name in v0.5.0 b11549; do [ ! -e "$engines/$name/.sha256" ] || { echo "$name"; return; }; done
    if command -v npm >/dev/null; then echo v0.5.0; else echo b11549; fi
}

become_root
engine=$(choose_engine)
build
quietly make --no-print-directory -C tests/engines OUT="$PWD/target/tests/engines"

step "an unmodified llama.cpp: $engine, from its package"
path=$(tests/engines/fetch.sh "$engines" "$engine" | cut -d' ' -f2-)
[ -n "$path" ] || die "no engine: see the message above"

make_model
measure_peaks

command=(target/tests/engines/driver --engine "$path" --model "$model" "${run[@]}")
record "driver --engine $engine" "${command[@]}"
report
