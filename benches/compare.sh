#!/bin/sh
# See compare.py, or compare.sh --help.
exec python3 "$(dirname "$0")/compare.py" "$@"
