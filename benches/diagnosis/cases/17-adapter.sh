#!/usr/bin/env bash
# A tiny adapter adds hundreds of tiny operators. (ggml-org/llama.cpp#27093)
. "$(dirname "$0")/../lib.sh"
file=$(model llama1b-L4 q4_0)
adapter=()
if is_case; then
    [ -e "$models/adapter.gguf" ] || python3 "$here/adapter.py" "$file" "$models/adapter.gguf"
    adapter=(--lora "$(inside "$models/adapter.gguf")")
fi
completion "$file" -t 2 -p "$(prompt 16)" -n 64 --temp 0 ${adapter[@]+"${adapter[@]}"}
