#!/bin/sh
# See gpu.py, or gpu.sh --help.
exec python3 "$(dirname "$0")/gpu.py" "$@"
