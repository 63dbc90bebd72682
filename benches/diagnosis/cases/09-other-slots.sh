#!/usr/bin/env bash
# Attention runs over the cells of all slots. (ggml-org/llama.cpp#7802, #10860)
. "$(dirname "$0")/../lib.sh"
client=alone
! is_case || client=slots
serve "$(model llama1b-L4 q4_0)" -np 4 --kv-unified --no-cache-idle-slots -fa off -c 16384 -t 2 -- $client
