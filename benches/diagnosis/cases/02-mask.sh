#!/usr/bin/env bash
# Two compute threads may use one CPU. (ggml-org/llama.cpp#10397, #21763)
. "$(dirname "$0")/../lib.sh"
threads=1
! is_case || threads=2
before=(taskset -c 0)
driver v0.5.0 "$(model llama1b-L4 q4_0)" -t $threads -p 8 -n 24
