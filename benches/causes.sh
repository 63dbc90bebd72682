#!/bin/sh
# See causes.py, or causes.sh --help.
exec python3 "$(dirname "$0")/causes.py" "$@"
