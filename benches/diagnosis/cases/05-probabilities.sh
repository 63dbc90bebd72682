#!/usr/bin/env bash
# The client asks for the probabilities of many tokens. (ggml-org/llama.cpp#15297)
. "$(dirname "$0")/../lib.sh"
client=alone
! is_case || client=probabilities
serve "$(model llama1b-L12 q4_0)" -np 4 -c 8192 -t 2 -- $client
