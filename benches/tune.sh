#!/bin/sh
# See tune.py, or tune.sh --help.
exec python3 "$(dirname "$0")/tune.py" "$@"
