#!/usr/bin/env bash
# The server keeps the state of every finished prompt, and uses none again. (ollama/ollama#18264)
. "$(dirname "$0")/../lib.sh"
kept=0
! is_case || kept=8192
serve "$(model llama1b-L4 q4_0)" -np 1 -c 8192 -t 2 --cache-ram $kept -- many
