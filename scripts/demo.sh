#!/usr/bin/env bash
# The main job, shown: an unmodified llama.cpp from a package runs a generated model, profinfer records it from
# outside and says where the time went. Everything is kept in the cache, so that a second run takes seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME}/.cache}/profinfer
engines=${PROFINFER_ENGINES:-$cache/engines}
preset=llama1b-L12
type=q4_0
# One processor stays free for the recorder and the rest; llama.cpp's threads spin while they wait for each other.
cpus=$(nproc)
threads=${THREADS:-$((cpus > 4 ? 4 : cpus > 1 ? cpus - 1 : 1))}
run=(-p 32 -n 64 -t "$threads")

die() { echo "demo: $*" >&2; exit 1; }
step() { printf '[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# Asked first: nobody should wait for a build to hear that it was in vain.
become_root() {
    if [ "$(id -u)" = 0 ]; then as_root=()
    elif sudo -n true 2>/dev/null; then as_root=(sudo -n)
    elif command -v sudo >/dev/null && [ -t 0 ]; then as_root=(sudo)
    else die "recording needs root (BPF and uprobes) and there is no sudo to ask: run 'make demo' as root"; fi
}

# The engine that is there already, else the one whose package client is there. Measured, empty cache: about 2 s
# for v0.5.0 by npm and 4 s for b11549 by pip.
choose_engine() {
    local name
    for name in v0.5.0 b11549; do [ ! -e "$engines/$name/.sha256" ] || { echo "$name"; return; }; done
    if command -v npm >/dev/null; then echo v0.5.0; else echo b11549; fi
}

quietly() { # command...; its output only if it fails
    local log
    log=$(mktemp)
    "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; rm -f "$log"; die "failed: $*"; }
    rm -f "$log"
}

become_root
engine=$(choose_engine)
step "build profinfer (about two minutes the first time)"
cargo build --release --locked --quiet
quietly make --no-print-directory -C tests/engines OUT="$PWD/target/tests/engines"

step "an unmodified llama.cpp: $engine, from its package"
path=$(tests/engines/fetch.sh "$engines" "$engine" | cut -d' ' -f2-)
[ -n "$path" ] || die "no engine: see the message above"

model=$cache/models/$preset-$type.gguf
step "a model with random weights in the shape of a real one: $preset, $type"
mkdir -p "${model%/*}"
[ -e "$model" ] || target/release/ggml-runner synth "$preset" "$model" --type "$type"

trace=$cache/demo.pfi
command=(target/tests/engines/driver --engine "$path" --model "$model" "${run[@]}")
step "profinfer record -o demo.pfi -- driver --engine $engine --model $preset-$type.gguf ${run[*]}"
"${as_root[@]}" target/release/profinfer record --force -o "$trace" -- "${command[@]}"

step "profinfer report --phase decode --top 8 demo.pfi"
echo
target/release/profinfer report --phase decode --top 8 "$trace"
echo
step "done; the whole report: target/release/profinfer report $trace"
