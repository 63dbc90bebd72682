#!/bin/sh
# See arm_cost.py, or arm-cost.sh --help.
exec python3 "$(dirname "$0")/arm_cost.py" "$@"
