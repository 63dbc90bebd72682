#!/bin/sh
# See build.py, or build.sh --help.
exec python3 "$(dirname "$0")/build.py" "$@"
