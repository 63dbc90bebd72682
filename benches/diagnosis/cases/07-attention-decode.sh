#!/usr/bin/env bash
# The fused attention of this build is slower than separate products for long contexts. (mozilla-ai/llamafile#975)
. "$(dirname "$0")/../lib.sh"
fa=0
! is_case || fa=1
debian llama-bench "$(model llama1b-L4 q4_0)" -t 2 -p 0 -n 64 -d 3000 -fa $fa -r 1 -o jsonl
