#!/usr/bin/env bash
# Scores quantizations of a generated model: makes each type, records it, computes its perplexity, and prints the table of
# `profinfer score`. Weights are random, so that its perplexities show the arithmetic only.
#
# usage: score.sh [PRESET]   PRESET: of `ggml-runner synth --list` [llama1b-L4]
#        TEXT=FILE           for the perplexity [README.md]
#        PROGRAMS=DIR        profinfer and ggml-runner [target/release]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-llama1b-L4}
programs=$(realpath "${PROGRAMS:-target/release}")
text=$(realpath "${TEXT:-README.md}")
types=(f16 q8_0 q4_k q4_0)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

traces=() figures=()
for type in "${types[@]}"; do
    model=$type.gguf
    "$programs/ggml-runner" synth "$preset" "$model" --type "$type" >said 2>&1 || { cat said >&2; exit 1; }
    "$programs/profinfer" record --force -o "$type.pfi" -- \
        "$programs/ggml-runner" run --no-roofline -m "$model" -p 64 -n 64 -t 1 >said 2>&1 || { cat said >&2; exit 1; }
    "$programs/ggml-runner" perplexity -m "$model" -f "$text" -c 256 --json >"$type.json"
    rm "$model"
    traces+=("$type.pfi") figures+=("$type.json")
done
"$programs/profinfer" score "${traces[@]}" --perplexity "$(IFS=,; echo "${figures[*]}")"
