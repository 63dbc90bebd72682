#!/bin/sh
# See service.py. Without arguments: what the service costs while it waits, and while other programs start, and a minute of ten engines a second.
here=$(dirname "$0")
[ $# -gt 0 ] && exec python3 "$here/service.py" "$@"
cd "$here/.." && cargo build --release --locked --bin profinfer && tests/fixtures/build.sh target/tests/fixtures || exit 2
python3 benches/service.py idle 60 && python3 benches/service.py finder 10 && python3 benches/service.py churn 60
