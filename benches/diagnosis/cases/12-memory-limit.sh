#!/usr/bin/env bash
# A control group may use less memory than the mapped model. (ggml-org/llama.cpp#12531)
. "$(dirname "$0")/../lib.sh"
file=$(model llama1b-L4 q8_0)
tokens=48
if is_case; then
    cold "$file"
    tokens=6
    group memory $(($(stat -c %s "$file") * 8 / 10))
fi
driver v0.5.0 "$file" -t 2 -p 8 -n $tokens
