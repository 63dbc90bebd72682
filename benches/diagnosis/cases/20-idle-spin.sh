#!/usr/bin/env bash
# Threads spin between requests: an idle server uses a CPU. (ggml-org/llama.cpp#27293)
. "$(dirname "$0")/../lib.sh"
! is_case || before=(env OMP_WAIT_POLICY=active)
serve "$(model llama1b-L4 q4_0)" -c 2048 -t 2 -- rest
