#!/bin/sh
# See start.py, or start.sh --help.
exec python3 "$(dirname "$0")/start.py" "$@"
