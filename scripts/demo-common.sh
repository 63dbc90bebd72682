# Shared by the demos; sourced. Sets $cache, $model, $threads and $trace, and changes to the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME}/.cache}/profinfer
preset=llama1b-L4
type=q4_0
model=$cache/models/$preset-$type.gguf
trace=$cache/demo.pfi
# One CPU stays free for the recorder and other processes: an engine's threads wait for the slowest of them.
cpus=$(nproc)
threads=${THREADS:-$((cpus > 4 ? 4 : cpus > 1 ? cpus - 1 : 1))}

die() { echo "demo: $*" >&2; exit 1; }
step() { printf '[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# As root, or where sudo asks for nothing, by the kernel's probes; otherwise, and where a container forbids them, from
# inside the program's own process: record says which.
become_root() {
    as_root=()
    [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || as_root=(sudo -n)
}

quietly() { # command...; its output only if it fails
    local log
    log=$(mktemp)
    "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; rm -f "$log"; die "failed: $*"; }
    rm -f "$log"
}

build() {
    step "build profinfer and ggml-runner (a few minutes the first time)"
    cargo build --release --locked --quiet
}

make_model() {
    step "a model with random weights in the shape of a real one: $preset, $type"
    mkdir -p "${model%/*}"
    [ -e "$model" ] || target/release/ggml-runner synth "$preset" "$model" --type "$type"
}

record() { # label of the program, command...
    local shown=$1
    shift
    step "profinfer record -o demo.pfi -- $shown --model $preset-$type.gguf ${run[*]}"
    "${as_root[@]}" target/release/profinfer record --force -o "$trace" -- "$@"
}

# Measured once per machine: the verdict compares with it. Not by a demo of a few seconds on a machine with many cores.
measure_peaks() {
    [ "$cpus" -le 8 ] && [ ! -e /var/cache/profinfer/peaks.json ] || return 0
    step "profinfer doctor --peaks: what this machine reaches, measured once"
    quietly "${as_root[@]}" target/release/profinfer doctor --peaks
}

report() {
    step "profinfer report --by op --phase decode --top 6 demo.pfi"
    target/release/profinfer report --by op --phase decode --top 6 "$trace"
    echo
    step "done; the whole report: target/release/profinfer report --all $trace"
}
