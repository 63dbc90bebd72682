#!/usr/bin/env bash
# A second thread that only prompts need spins beside generation, on a CPU that another program needs.
. "$(dirname "$0")/../lib.sh"
batch=1
! is_case || batch=2
before=(env OMP_WAIT_POLICY=active taskset -c 0,1)
beside taskset -c 1 nice -n 10 python3 "$here/ask.py" busy 1
completion "$(model llama1b-L4 q4_0)" -t 1 -tb $batch -p "$(prompt 200)" -n 128 --temp 0
