#!/usr/bin/env bash
# Threads sleep at every barrier, and are woken. (ggml-org/llama.cpp#26484)
. "$(dirname "$0")/../lib.sh"
! is_case || before=(env OMP_WAIT_POLICY=passive)
debian llama-bench "$(model llama1b-L4 q4_0)" -t 2 -p 0 -n 64 -r 2 -o jsonl
