#!/bin/sh
# See inside.py, or inside.sh --help.
exec python3 "$(dirname "$0")/inside.py" "$@"
