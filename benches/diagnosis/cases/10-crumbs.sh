#!/usr/bin/env bash
# A prompt is computed in many short calls, each of which reads all weights. (ggml-org/llama.cpp#25320, #25213)
. "$(dirname "$0")/../lib.sh"
batch=(-b 2048 -ub 512)
! is_case || batch=(-b 16 -ub 16)
serve "$(model llama1b-L12 q4_0)" -np 1 -c 4096 -t 2 "${batch[@]}" -- one
