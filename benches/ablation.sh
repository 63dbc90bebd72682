#!/bin/sh
# See ablation.py, or ablation.sh --help.
exec python3 "$(dirname "$0")/ablation.py" "$@"
