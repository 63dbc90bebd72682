#!/usr/bin/env bash
# Products run on the plain layout of the weights. (ggml-org/llama.cpp#14990, #19932)
. "$(dirname "$0")/../lib.sh"
repack=1
! is_case || repack=0
debian llama-bench "$(model llama1b-L4 q4_0)" -t 2 -p 512 -n 0 --repack $repack -r 2 -o jsonl
