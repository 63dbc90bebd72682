#!/usr/bin/env bash
# Attention without the fused operator, or with it, whichever is slower for prompts here. (ggml-org/llama.cpp#27086)
. "$(dirname "$0")/../lib.sh"
fa=1
! is_case || fa=0
debian llama-bench "$(model llama1b-L4 q4_0)" -t 2 -p 2048 -n 0 -fa $fa -r 2 -o jsonl
