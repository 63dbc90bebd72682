#!/bin/sh
# See arm_instructions.py, or arm-instructions.sh --help.
exec python3 "$(dirname "$0")/arm_instructions.py" "$@"
