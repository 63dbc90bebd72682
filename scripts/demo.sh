#!/usr/bin/env bash
# The main use case without installing an engine: ggml-runner runs a generated model with GGML's own function names
# and structs; profinfer records it from outside and reports where the time went, and how close that is to the
# runner's own clock.
. "$(dirname "${BASH_SOURCE[0]}")/demo-common.sh"

truth=$cache/demo.tsv
run=(-p 32 -n 128 -t "$threads")

become_root
build
make_model
measure_peaks
record "ggml-runner run" target/release/ggml-runner run --model "$model" "${run[@]}" --force --ground-truth "$truth"
step "profinfer accuracy demo.pfi demo.tsv"
echo
target/release/profinfer accuracy "$trace" "$truth"
echo
report
