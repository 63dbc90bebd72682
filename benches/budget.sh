#!/bin/sh
# See budget.py, or budget.sh --help.
exec python3 "$(dirname "$0")/budget.py" "$@"
