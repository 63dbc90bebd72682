#!/bin/sh
# See structure.py, or structure.sh --help.
exec python3 "$(dirname "$0")/structure.py" "$@"
