#!/usr/bin/env bash
# Cargo for another machine: `cross/cargo.sh TARGET build ...` builds static programs with the Rust of cross/std.sh
# and, for bundled C code (feature `vendored`), the compiler of cross/cc.sh and its output in the cache (cross/clib.sh).
# With `--profile small`, the profile of the files for boards, the standard library is compiled too, and for size, like
# the rest of the program.
set -euo pipefail

target=${1:?usage: cargo.sh TARGET ARGUMENTS OF CARGO}
command=${2:?usage: cargo.sh TARGET ARGUMENTS OF CARGO}
shift 2
# shellcheck source=cross/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
environment=$("$here/std.sh" "$target" && "$here/cc.sh" "$target")
eval "$environment"

# Local paths do not belong in distributed files, and would make builds differ.
no_paths() {
    local sources
    "${CARGO:-cargo}" fetch --quiet --locked --target "$target"
    for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do echo "--remap-path-prefix=${sources%/}="; done
    echo "--remap-path-prefix=$(realpath -m "$built")=/target"
    echo "--remap-path-prefix=$("${RUSTC:-rustc}" --print sysroot)/lib/rustlib/src/rust=/rust"
}

# A panic prints its location and aborts. Backtraces are omitted: they need symbol names, which the files for boards
# lack, and a tenth of profinfer would be code for printing them.
small_std() {
    echo -Zbuild-std=std,panic_abort
    echo -Zbuild-std-features=optimize_for_size
}

rust_flags() {
    # What only tests run does not depend on where it is built, so that compiled dependencies can be kept.
    case " $* " in *" --profile "* | *" --release "*) no_paths ;; esac
    # Mangled names that include generic arguments, for the listing that tests/arm reads.
    echo "-Csymbol-mangling-version=v0"
    # No relocations at startup, and smaller.
    echo "-Crelocation-model=static"
    # For AArch64 they are on by default, also where a panic aborts.
    case " $* " in *" --profile small "*) echo "-Cforce-unwind-tables=no" ;; esac
}

built=${CARGO_TARGET_DIR:-$here/../target}
flags=$(rust_flags "$@")
# Separates flags, because they may contain spaces, as paths may.
export CARGO_ENCODED_RUSTFLAGS=${flags//$'\n'/$'\x1f'}
c_libraries=()
case " $* " in *[\ ,/]vendored* | *[\ ,/]board*)
    # Build scripts run on this machine.
    options=$("$here/clib.sh" "$target" && "$here/clib.sh" "$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p')")
    mapfile -t c_libraries <<<"$options"
    ;;
esac
std=()
case " $* " in *" --profile small "*)
    mapfile -t std < <(small_std)
    # Allows a stable cargo to compile the standard library that comes with it.
    export RUSTC_BOOTSTRAP=1
    ;;
esac
exec "${CARGO:-cargo}" "$command" --target "$target" "${std[@]}" "${c_libraries[@]}" "$@"
