# What the cases share: engines, models, limits, company and clients. A case is
#
#     cases/NAME.sh case|control [TOOL...]
#
# TOOL is put before the engine's command, such as `perf record -g -o perf.data --`. What the engine and its client say is
# appended to $DIAGNOSIS_LOG (default: /dev/null). Needs root: Debian's llama.cpp runs in a root directory of its own.
set -euo pipefail

kind=${1:?usage: $(basename "$0") case|control [TOOL...]}
shift
case $kind in case | control) ;; *) echo "$0: '$kind' is neither case nor control" >&2; exit 2 ;; esac
tool=("$@")
# Put between the tool and the engine.
before=()
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
log=${DIAGNOSIS_LOG:-/dev/null}
cache=${PROFINFER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/profinfer}
models=${PROFINFER_MODELS:-$cache/models}
runner=${GGML_RUNNER:-$top/target/release/ggml-runner}
driver=${PROFINFER_DRIVER:-$top/target/tests/engines/driver}
is_case() { [ "$kind" = case ]; }

at_end=()
finish() {
    for one in ${at_end[@]+"${at_end[@]}"}; do eval "$one" || true; done
}
trap finish EXIT

# model PRESET TYPE [SYNTH ARGS...]: the path of a generated model.
model() {
    local path=$models/$1-$2${3:+-$(printf %s "${*:3}" | tr -c 'a-zA-Z0-9\n' -)}.gguf
    if [ ! -e "$path" ]; then
        mkdir -p "$models"
        "$runner" synth "$1" "$path.$$" --type "$2" "${@:3}" --force >&2
        mv "$path.$$" "$path"
    fi
    echo "$path"
}

# driver ENGINE MODEL ARGS...: llama.cpp of tests/engines/fetch.sh, with its own thread pool (v0.5.0) or OpenMP (b11549).
driver() {
    local engine
    engine=$("$top/tests/engines/fetch.sh" "${PROFINFER_ENGINES:-$cache/engines}" "$1")
    ${tool[@]+"${tool[@]}"} ${before[@]+"${before[@]}"} "$driver" --engine "${engine#* }" --model "$2" "${@:3}" --json >>"$log" 2>&1
}

# In a mount namespace of its own, so that nothing stays mounted.
enter='root=$1; shift; for what in proc sys dev; do mount --rbind /$what "$root/$what" || exit 125; done; exec chroot "$root" "$@"'

# The root directory of Debian's llama.cpp, made at its first use.
root=
need_root() {
    [ -n "$root" ] || root=$("$top/tests/server/setup.sh" server | tail -n 1)
}

# debian PROGRAM MODEL ARGS...: a program of Debian's llama.cpp (OpenMP). Other files that it reads: `inside FILE`.
debian() {
    need_root
    ${tool[@]+"${tool[@]}"} ${before[@]+"${before[@]}"} unshare --mount sh -c "$enter" sh "$root" "/usr/bin/$1" -m "$(inside "$2")" "${@:3}" \
        >>"$log" 2>&1 </dev/null
}

# inside FILE: its path in the root directory.
inside() {
    need_root
    local to=/models/$(basename "$1")
    mkdir -p "$root/models"
    [ "$root$to" -nt "$1" ] || { cp "$1" "$root$to.$$"; mv "$root$to.$$" "$root$to"; }
    echo "$to"
}

# completion MODEL ARGS...: text of a model of random weights, that ends by number only.
completion() {
    debian llama-completion "$1" -no-cnv --simple-io --ignore-eos --no-display-prompt --no-warmup "${@:2}"
}

# prompt N: a text of some N tokens of the generated models' vocabularies.
prompt() {
    python3 "$here/ask.py" words "$1"
}

# group cpu CPUS | memory BYTES | disk BYTES_PER_SECOND FILE: the engine runs in a control group with this limit; `disk` is
# of reads from the device with FILE.
group() {
    local kind=$1 limit=$2 name=profinfer-diagnosis-$$ device group
    [ "$kind" != disk ] || device=$(lsblk -no MAJ:MIN "$(df --output=source "$3" | tail -n 1)" | tr -d ' ')
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        group=/sys/fs/cgroup/$name
        echo "+${kind/disk/io}" >/sys/fs/cgroup/cgroup.subtree_control
        mkdir -p "$group"
        case $kind in
        cpu) echo "$(awk "BEGIN { print int($limit * 100000) }") 100000" >"$group/cpu.max" ;;
        memory) echo "$limit" >"$group/memory.max" && echo 0 >"$group/memory.swap.max" ;;
        disk) echo "$device rbps=$limit" >"$group/io.max" ;;
        esac
    else
        group=/sys/fs/cgroup/${kind/disk/blkio}/$name
        mkdir -p "$group"
        case $kind in
        cpu) echo "$(awk "BEGIN { print int($limit * 100000) }")" >"$group/cpu.cfs_quota_us" ;;
        memory) echo "$limit" >"$group/memory.limit_in_bytes" ;;
        disk) echo "$device $limit" >"$group/blkio.throttle.read_bps_device" ;;
        esac
    fi
    before+=(sh -c "echo \$\$ >$group/cgroup.procs; exec \"\$@\"" sh)
    at_end+=("for _ in \$(seq 100); do rmdir $group && break; sleep 0.05; done 2>/dev/null")
}

# beside CMD...: runs it meanwhile.
beside() {
    "$@" >/dev/null 2>&1 &
    at_end+=("kill $!; wait $! 2>/dev/null")
}

# busy CPU [SHARE]: a program that uses this share of a CPU.
busy() {
    beside taskset -c "$1" python3 "$here/ask.py" busy "${2:-1}"
}

# cold FILE: no page of it is in memory.
cold() {
    sync
    python3 "$here/ask.py" cold "$1"
}

# serve MODEL ARGS... -- CLIENT...: llama-server, asked by `ask.py CLIENT`, and ended by Ctrl-C.
serve() {
    local args=() port server
    while [ "$1" != -- ]; do
        args+=("$1")
        shift
    done
    shift
    port=$(python3 "$here/ask.py" port)
    debian llama-server "${args[0]}" --host 127.0.0.1 --port "$port" --no-webui "${args[@]:1}" &
    server=$!
    local failed=0
    python3 "$here/ask.py" --port "$port" "$@" >>"$log" || failed=$?
    python3 "$here/ask.py" --port "$port" stop
    wait "$server" || true
    return "$failed"
}
