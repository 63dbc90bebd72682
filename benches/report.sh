#!/bin/sh
# See report.py, or report.sh --help.
exec python3 "$(dirname "$0")/report.py" "$@"
