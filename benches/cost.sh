#!/bin/sh
# See cost.py, or cost.sh --help.
exec python3 "$(dirname "$0")/cost.py" "$@"
