#!/usr/bin/env bash
# Records the system's scheduler with Perfetto's own recorder while a command runs: input for `profinfer export
# --merge`. Needs root, and Debian's package perfetto, which is downloaded into the cache with the libraries that it
# needs and run from there, on any release.
#
# usage: system.sh OUT COMMAND...    OUT is Perfetto's trace; exits like COMMAND, or with 3 if it cannot run here
#        system.sh --fetch           only downloads
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=${XDG_CACHE_HOME:-$HOME/.cache}/profinfer/perfetto-system
# The first release that has the package.
suite=forky

cannot() { echo "system.sh: $*" >&2; exit 3; }

# In a subshell, which holds the lock.
fetch() (
    [ ! -e "$tree/usr/bin/perfetto" ] || exit 0
    architecture=$(dpkg --print-architecture 2>/dev/null) || cannot "no dpkg here: this needs Debian or a relative of it"
    mkdir -p "$(dirname "$tree")"
    exec 9>"$tree.lock"
    flock 9
    [ ! -e "$tree/usr/bin/perfetto" ] || exit 0
    new=$(mktemp -d "$tree.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    (cd "$new" && "$here/../../cross/apt.sh" $suite "$architecture" apt-get -qq download perfetto libc6 libstdc++6 libgcc-s1 \
        zlib1g >log 2>&1) || { tail -n 3 "$new/log" >&2; cannot "package perfetto of Debian $suite could not be downloaded"; }
    for deb in "$new"/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar x -C "$new" --exclude='./usr/share/*' --exclude='*/gconv/*'
        rm "$deb"
    done
    rm "$new/log"
    chmod 755 "$new"
    rm -rf "$tree"
    mv "$new" "$tree"
)

config() {
    cat <<'EOF'
buffers { size_kb: 65536 }
data_sources { config { name: "linux.ftrace" ftrace_config {
    ftrace_events: "sched/sched_switch"
    ftrace_events: "sched/sched_waking"
} } }
data_sources { config { name: "linux.process_stats" process_stats_config { scan_all_processes_on_start: true } } }
EOF
}

wait_for() { # socket
    for _ in $(seq 200); do
        [ ! -S "$1" ] || return 0
        sleep 0.05
    done
    cat "$work"/*.log >&2
    cannot "traced does not come up"
}

record() { # out command...
    local out=$1 ld clock status=0
    shift
    ld=("$(ls "$tree"/usr/lib*/ld-linux-*.so.* | head -n 1)" --library-path "$(echo "$tree"/usr/lib/*-linux-gnu):$tree/usr/lib/perfetto")
    work=$(mktemp -d)
    clock=/sys/kernel/tracing/trace_clock
    [ -w $clock ] || cannot "not root, or no tracefs in /sys/kernel/tracing"
    # Perfetto does not restore the trace clock.
    before=$(sed 's/.*\[\(.*\)\].*/\1/' $clock)
    trap 'kill $(jobs -p) 2>/dev/null; wait; echo "$before" >/sys/kernel/tracing/trace_clock; rm -rf "$work"' EXIT
    export PERFETTO_PRODUCER_SOCK_NAME=$work/producer PERFETTO_CONSUMER_SOCK_NAME=$work/consumer
    "${ld[@]}" "$tree/usr/sbin/traced" >"$work/traced.log" 2>&1 &
    wait_for "$work/consumer"
    "${ld[@]}" "$tree/usr/sbin/traced_probes" >"$work/probes.log" 2>&1 &
    mkfifo "$work/ready"
    config >"$work/config"
    "${ld[@]}" "$tree/usr/bin/perfetto" --txt -c "$work/config" -o "$out" --notify-fd 7 7>"$work/ready" >"$work/perfetto.log" 2>&1 &
    local perfetto=$!
    # A zero byte arrives once all sources are running.
    [ "$(od -An -tu1 "$work/ready" | tr -d ' ')" = 0 ] || { cat "$work"/*.log >&2; cannot "perfetto does not record here"; }
    "$@" || status=$?
    kill -TERM $perfetto
    wait $perfetto || { cat "$work/perfetto.log" >&2; cannot "perfetto did not end its recording"; }
    return $status
}

fetch
[ "${1:-}" = --fetch ] || record "$@"
