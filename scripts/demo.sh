#!/usr/bin/env bash
# The main job, shown without an engine to install: ggml-runner runs a generated model behind GGML's own functions and
# structs, profinfer records it from outside, says where the time went, and how near that is to the runner's own clock.
. "$(dirname "${BASH_SOURCE[0]}")/demo-common.sh"

truth=$cache/demo.tsv
run=(-p 32 -n 128 -t "$threads")

become_root
build
make_model
record "ggml-runner run" target/release/ggml-runner run --model "$model" "${run[@]}" --ground-truth "$truth"
step "profinfer accuracy demo.pfi demo.tsv"
echo
target/release/profinfer accuracy "$trace" "$truth"
echo
report
