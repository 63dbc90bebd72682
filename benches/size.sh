#!/bin/sh
# See size.py, or size.sh --help.
exec python3 "$(dirname "$0")/size.py" "$@"
