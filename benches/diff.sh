#!/bin/sh
# See diff.py, or diff.sh --help.
exec python3 "$(dirname "$0")/diff.py" "$@"
