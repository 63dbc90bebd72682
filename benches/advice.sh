#!/bin/sh
# See advice.py, or advice.sh --help.
exec python3 "$(dirname "$0")/advice.py" "$@"
