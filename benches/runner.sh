#!/bin/sh
# See runner.py, or runner.sh --help.
exec python3 "$(dirname "$0")/runner.py" "$@"
