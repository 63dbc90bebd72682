#!/usr/bin/env bash
# The weights are read from storage as they are touched first: one slow call, and nothing afterwards. (ggml-org/llama.cpp#711)
. "$(dirname "$0")/../lib.sh"
file=$(model llama1b-L4 f16)
group disk 300000000 "$file"
! is_case || cold "$file"
driver v0.5.0 "$file" -t 2 -p 8 -n 64
