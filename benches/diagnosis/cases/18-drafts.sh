#!/usr/bin/env bash
# Hardly any drafted token is accepted. (ggml-org/llama.cpp#25908)
. "$(dirname "$0")/../lib.sh"
draft=()
if is_case; then
    draft=(-md "$(inside "$(model llama1b-L12 q4_0 --seed 7)")" --spec-type draft-simple --spec-draft-n-max 8)
fi
serve "$(model llama1b-L12 q4_0)" -np 1 -c 4096 -t 2 ${draft[@]+"${draft[@]}"} -- drafts
