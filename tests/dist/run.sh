#!/usr/bin/env bash
# Tests of the output of `make dist`: the programs are small, run and report their version, contain no local paths
# and no probes for another processor's registers, and a panic in a program built the same way is printed and aborts.
#
# usage: run.sh [TARGET...]          (default: all in dist/)
#
# Tests that cannot run here are skipped with a message; with CI=true or PROFINFER_REQUIRE=1 that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out=${PROFINFER_DIST:-dist}
work=target/tests/dist
failed=0

fail() { echo "tests/dist: $*" >&2; failed=1; }
skip() {
    echo "skipped: $*"
    if [ "${PROFINFER_REQUIRE:-}" = 1 ] || [ "${CI:-}" = true ]; then failed=1; fi
}
llvm() { "$(command -v "llvm-$1" || compgen -c "llvm-$1-" | sort -V | tail -n 1)" "${@:2}"; }

# Sets `runner` to the command that runs a program of the target; fails if there is none.
find_runner() { # target
    runner=()
    case $1 in
    "$(uname -m)"-*) ;;
    aarch64-*)
        local qemu
        qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || return 1
        runner=("$qemu")
        ;;
    *) return 1 ;;
    esac
}

sums() { (cd "$out" && sha256sum --check --quiet SHA256SUMS) || fail "$out/SHA256SUMS does not match the files"; }

# Maximum size in bytes.
most() { # target, program
    case $2-$1 in
    profinfer-aarch64-*) echo 3701000 ;;
    # Contains the code that renders traces, including pages.
    profinfer-*) echo 5262000 ;;
    ggml-runner-aarch64-*) echo 1234000 ;;
    # Kernels for three instruction sets instead of two.
    ggml-runner-*) echo 1562000 ;;
    esac
}

# A layer runs with every C library: it needs none, and uses only what all of them have.
layer_is_free() { # target, file
    local file=$out/$1/$2 bytes
    bytes=$(stat -c %s "$file")
    [ "$bytes" -le 40000 ] || fail "$file has $bytes bytes, 40000 at most"
    ! readelf -d "$file" | grep NEEDED || fail "$file needs a library"
    # CUDA's loads CUPTI, says why it cannot, and flushes it at the end.
    local more=
    [[ $2 != libprofinfer-cu.so ]] || more='|__cxa_atexit|dl_iterate_phdr|dlopen|dlsym|write'
    ! nm -D --undefined-only "$file" | grep -vE " (bcmp|clock_gettime|getauxval|madvise|mem(cpy|move|set|cmp)|mmap|nanosleep|sched_yield|strlen|syscall$more)\$" ||
        fail "$file uses other functions"
}

is_small() { # target, program
    local bytes
    bytes=$(stat -c %s "$out/$1/$2")
    [ "$bytes" -le "$(most "$1" "$2")" ] || fail "$1/$2 has $bytes bytes, $(most "$1" "$2") at most"
}

says_its_version() { # target, program
    local said expected
    expected="$2 $(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"
    # The commit is that of the sources, which may have changed since the build: only the format is checked.
    said=$("${runner[@]}" "$out/$1/$2" --version)
    [[ $said =~ ^"$expected"(" ("[^()]+")")?$ ]] || fail "$1/$2 --version says '$said'"
    "${runner[@]}" "$out/$1/$2" --help >/dev/null || fail "$1/$2 --help fails"
}

# Rendering is left out for boards, with a message.
draws() { # target
    local said status=0
    said=$("${runner[@]}" "$out/$1/profinfer" export 2>&1) || status=$?
    case $1 in aarch64-*) [[ $said = *"for boards does not include 'export'"* ]] ;; *) [[ $said = *FILE* ]] ;; esac &&
        [ "$status" = 2 ] || fail "$1/profinfer export says '$said' ($status)"
}

# The built-in configuration is the one that is distributed.
configures() { # target
    "${runner[@]}" "$out/$1/profinfer" config --print --default | cmp --quiet - conf/profinfer.toml ||
        fail "$1/profinfer config --print --default is not conf/profinfer.toml"
}

# A pipe without a writer instead of a library. The linked C library decides how a path is opened.
opens_no_pipe() { # target
    local said status=0
    rm -f "$work/pipe"
    mkfifo "$work/pipe"
    said=$(timeout 30 "${runner[@]}" "$out/$1/profinfer" doctor --no-probe "$work/pipe" 2>&1) || status=$?
    [ "$status" = 1 ] && [[ $said = *"no GGML in"* ]] ||
        fail "$1/profinfer doctor on a pipe says '$said' ($status)"
}

holds_no_path() { # target, program
    local found
    found=$(strings -a "$out/$1/$2" | grep -F -e "$PWD" -e "${CARGO_HOME:-$HOME/.cargo}" -e "${XDG_CACHE_HOME:-$HOME/.cache}") || return 0
    fail "$1/$2 contains paths of this machine: $(head -n 3 <<<"$found")"
}

# The target's kernel defines where the arguments of a probed function are: x0 and x1 at offsets 0 and 8 of its
# registers, rdi and rsi at 112 and 104. The probe `sched_enter` reads both first.
probes_fit() { # target
    local read expected objects=$work/$1.bpf
    llvm objcopy --dump-section .bpf.objs="$objects" "$out/$1/profinfer" "$work/unused"
    # The packed objects are stored one after another.
    rm -f "$objects".[0-9]*
    python3 -c 'import sys, zlib
rest, i = open(sys.argv[1], "rb").read().lstrip(b"\0"), 0
while rest:
    stream = zlib.decompressobj()
    open(f"{sys.argv[1]}.{i}", "wb").write(stream.decompress(rest))
    rest, i = stream.unused_data.lstrip(b"\0"), i + 1' "$objects"
    read=$(llvm objdump -d --disassemble-symbols=sched_enter "$objects".[0-9]* 2>/dev/null |
        sed -n 's/.* = \*(u64 \*)(r[0-9] + \([0-9]*\)).*/\1/p' | sed -n 1,2p | sort -n | xargs)
    case $1 in aarch64-*) expected="0 8" ;; x86_64-*) expected="104 112" ;; esac
    [ "$read" = "$expected" ] || fail "$1: its probes read registers at '$read', not at '$expected'"
}

# In the target directory of the programs, whose standard library it shares.
panics() { # target
    local built=${CARGO_TARGET_DIR:-target}/dist/$1
    local program=$built/$1/small/panic
    CARGO_TARGET_DIR=$built cross/cargo.sh "$1" build --quiet --locked --package panic --profile small 2>"$work/log" || { cat "$work/log" >&2; fail "$1: the program that panics does not build"; return 0; }
    local said status=0
    # In a shell of its own, whose word about the abort goes to the log.
    said=$(bash -c '"$@"' - "${runner[@]}" "$program" 2>"$work/log") || status=$?
    [ "$status" = 134 ] && [ -z "$said" ] || fail "$1: a panic in a thread did not abort (exit code $status): $said"
    grep -q 'panicked at tests/dist/panic/src/lib.rs:' "$work/log" && grep -q 'index out of bounds' "$work/log" ||
        { cat "$work/log" >&2; fail "$1: a panic was not printed"; }
}

mkdir -p "$work"
sums
for target in ${*:-$(cd "$out" && echo *-musl)}; do
    if ! find_runner "$target"; then
        skip "tests for $target: its programs cannot run here"
        continue
    fi
    for program in profinfer ggml-runner; do
        is_small "$target" "$program"
        says_its_version "$target" "$program"
        holds_no_path "$target" "$program"
    done
    for layer in libprofinfer-cl.so libprofinfer-vk.so libprofinfer-cu.so; do layer_is_free "$target" "$layer"; done
    draws "$target"
    configures "$target"
    opens_no_pipe "$target"
    probes_fit "$target"
    panics "$target"
    [ "$failed" = 1 ] || echo "$target: runs, reports its version, contains no local path, reads the right registers, aborts on a panic"
done
exit "$failed"
