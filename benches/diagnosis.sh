#!/bin/sh
# See diagnosis/run.py, or diagnosis.sh --help.
exec python3 "$(dirname "$0")/diagnosis/run.py" "$@"
