#!/bin/sh
# See experts.py, or experts.sh --help.
exec python3 "$(dirname "$0")/experts.py" "$@"
