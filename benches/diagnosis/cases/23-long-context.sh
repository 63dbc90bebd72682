#!/usr/bin/env bash
# Nothing is wrong: attention reads a cache that grows. (ggml-org/llama.cpp#28734)
. "$(dirname "$0")/../lib.sh"
depth=0
! is_case || depth=3000
debian llama-bench "$(model llama1b-L4 q4_0)" -t 2 -p 0 -n 48 -d $depth -fa 0 -r 1 -o jsonl
