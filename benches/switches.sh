#!/bin/sh
# See switches.py, or switches.sh --help.
exec python3 "$(dirname "$0")/switches.py" "$@"
