#!/bin/sh
# See adapt.py, or adapt.sh --help.
exec python3 "$(dirname "$0")/adapt.py" "$@"
