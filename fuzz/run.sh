#!/usr/bin/env bash
# Builds the fuzz targets with coverage, on stable Rust, and runs each for its share of the time.
#
# usage: run.sh [--minutes N] [--jobs N] [TARGET...]      default: 10 minutes in total, 2 at a time, all targets
#        run.sh --build                                   only builds the program, and prints its path
#        run.sh TARGET FILE                               runs a target on one input, such as a crash file
# New inputs stay in $FUZZ_DIR (target/fuzz/corpus), in addition to fuzz/corpus; failing inputs go to
# target/fuzz/found. Exits 1 if there are any.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
out=$root/target/fuzz
learnt=${FUZZ_DIR:-$out/corpus}
host=$(rustc -vV | sed -n 's/^host: //p')
program=$out/$host/release/profinfer-fuzz

die() { echo "fuzz/run.sh: $*" >&2; exit 2; }

build() {
    command -v c++ >/dev/null || die "no C++ compiler, needed to build libFuzzer: apt-get install g++"
    local flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
    flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
    flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares --cfg=fuzzing"
    # With an explicit target, build scripts are built without coverage. The commit does not matter here: a new one
    # needs no rebuild.
    (cd "$here" && PROFINFER_COMMIT=fuzz RUSTFLAGS=$flags "${CARGO:-cargo}" build --release --locked --target "$host" --target-dir "$out")
}

# Limits per input: 10 s, 2 GiB in total, 512 MiB per allocation.
limits=(-timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512)

share() { # target seconds: its log is target/fuzz/TARGET.log
    local corpus=$learnt/$1
    mkdir -p "$corpus" "$out/found"
    FUZZ_TARGET=$1 "$program" "${limits[@]}" -max_total_time="$2" -print_final_stats=1 -max_len=65536 \
        -artifact_prefix="$out/found/$1-" "$corpus" "$here/corpus/$1" >"$out/$1.log" 2>&1
}

report() { # target: a line of the table
    local log=$out/$1.log
    awk -v target="$1" '
        /^#[0-9]+/ { runs = substr($1, 2); for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1); if ($i == "corp:") files = $(i + 1); if ($i == "exec/s:") speed = $(i + 1) } }
        /^stat::number_of_executed_units:/ { runs = $2 }
        /^stat::average_exec_per_sec:/ { speed = $2 }
        /INITED/ { for (i = 1; i < NF; i++) if ($i == "cov:") first = $(i + 1) }
        /Test unit written to/ { found++; file = $NF }
        END { sub("/.*", "", files); printf "%-8s %10d runs %7d/s  coverage %6d (%d at first)  corpus %5d  %s\n",
              target, runs, speed, cov, first, files, found ? "FOUND " file : "nothing found" }' "$log"
}

[ "${1:-}" != --build ] || { build; echo "$program"; exit 0; }
minutes=10 jobs=2
while [ $# -gt 0 ]; do
    case $1 in
    --minutes) minutes=${2:?}; shift 2 ;;
    --jobs) jobs=${2:?}; shift 2 ;;
    -*) die "unknown option $1" ;;
    *) break ;;
    esac
done
build
if [ $# -eq 2 ] && [ -f "$2" ]; then
    FUZZ_TARGET=$1 exec "$program" "${limits[@]}" "$2"
fi
if [ $# -eq 0 ]; then set -- "$here"/corpus/*; set -- "${@##*/}"; fi
for target; do [ -d "$here/corpus/$target" ] || die "no target '$target'"; done
seconds=$(awk -v m="$minutes" -v j="$jobs" -v n=$# 'BEGIN { s = int(m * 60 * (n < j ? n : j) / n); print s < 1 ? 1 : s }')
echo "== $# targets, $jobs at a time, $seconds s each"
mkdir -p "$out"
export -f share
export learnt out here program
failed=0
running=0
for target; do
    if [ $running -ge "$jobs" ]; then wait -n || failed=1; running=$((running - 1)); fi
    share "$target" "$seconds" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do wait -n || failed=1; running=$((running - 1)); done
for target; do report "$target"; done
[ $failed = 0 ] || {
    echo "found: run 'fuzz/run.sh TARGET FILE' with a file from $out/found (its name begins with TARGET);"
    echo "the output is in $out/TARGET.log. Once fixed, add the file to fuzz/corpus/TARGET if it is small, or to a test."
} >&2
exit $failed
