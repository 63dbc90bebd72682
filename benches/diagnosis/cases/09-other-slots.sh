#!/usr/bin/env bash
# Attention runs over the cells of all slots. (ggml-org/llama.cpp#7802, #10860)
. "$(dirname "$0")/../lib.sh"
cells=--no-kv-unified
! is_case || cells=--kv-unified
serve "$(model llama1b-L4 q4_0)" -np 4 $cells --no-cache-idle-slots -fa off -c 16384 -t 2 -- slots
