#!/usr/bin/env bash
# The same with OpenMP. (ollama/ollama#17916)
. "$(dirname "$0")/../lib.sh"
! is_case || group cpu 1
debian llama-bench "$(model llama1b-L4 q4_0)" -t 2 -p 0 -n 64 -r 2 -o jsonl
