#!/bin/sh
# See predict.py, or predict.sh --help.
exec python3 "$(dirname "$0")/predict.py" "$@"
