#!/usr/bin/env bash
# A control group may use one CPU, and two threads spin at their barriers. (ollama/ollama#17916)
. "$(dirname "$0")/../lib.sh"
! is_case || group cpu 1
driver v0.5.0 "$(model llama1b-L4 q4_0)" -t 2 -p 8 -n 48
