#!/bin/sh
# See fidelity.py, or fidelity.sh --help.
exec python3 "$(dirname "$0")/fidelity.py" "$@"
