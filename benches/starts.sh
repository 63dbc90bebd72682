#!/bin/sh
# See starts.py, or starts.sh --help.
exec python3 "$(dirname "$0")/starts.py" "$@"
