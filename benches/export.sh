#!/bin/sh
# See export.py, or export.sh --help.
exec python3 "$(dirname "$0")/export.py" "$@"
