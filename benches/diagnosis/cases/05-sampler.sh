#!/usr/bin/env bash
# The sampler sorts the vocabulary for each token. (ggml-org/llama.cpp#15223, #13171, #8988)
. "$(dirname "$0")/../lib.sh"
top_k=40
! is_case || top_k=0
completion "$(model llama1b-L12 q4_0)" -t 2 -p "$(prompt 16)" -n 100 --top-k $top_k --top-p 0.95 --temp 0.8 --seed 1
