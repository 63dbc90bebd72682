# shellcheck shell=bash
# Shared by what packages the programs: their version and date, and the files of both below a prefix. Sourced by bash.

umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dist=${PROFINFER_DIST:-$root/dist}
layers=(libprofinfer-cl.so libprofinfer-vk.so libprofinfer-cu.so VkLayer_profinfer.json)
epoch=$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/Cargo.toml")
# Also the date of manual pages.
export SOURCE_DATE_EPOCH=$epoch

die() { echo "cross: $*" >&2; exit 1; }

# A value of [workspace.package].
of_workspace() { # key
    sed -n "/^\[workspace.package\]/,/^\[/s/^$1 = \"\(.*\)\"/\1/p" "$root/Cargo.toml"
}

# shellcheck disable=SC2034 # of whoever sources this
number=$(of_workspace version)

# The licences of all that is in the static files, in Debian's format.
copyright() {
    local text
    # Paragraphs of a licence are indented, and a dot represents an empty line.
    text=$(sed 's/^$/./; s/^/ /' "$root/LICENSE-MIT")
    sed -e '/^@MIT@$/{r /dev/stdin' -e 'd}' "$root/conf/debian/copyright" <<<"$text"
}

targets_in_dist() {
    local target
    for target in aarch64-unknown-linux-musl x86_64-unknown-linux-musl; do
        [ ! -f "$dist/$target/profinfer" ] || echo "$target"
    done
}

# Sets `runner` to what runs a program for this target or processor here: nothing, or QEMU (qemu-user-static).
find_runner() { # target or processor
    runner=()
    [ "${1%%-*}" = "$(uname -m)" ] || runner=("$(command -v "qemu-${1%%-*}-static" || command -v "qemu-${1%%-*}")") ||
        die "the programs print their manual pages, and those for $1 do not run here: install qemu-user-static"
}

# Both programs, the layers, manual pages and completions below a prefix.
lay_out() { # directory that has the programs, prefix, target or processor
    local from=$1 to=$2 file program name shell
    for file in profinfer ggml-runner "${layers[@]}"; do
        [ -f "$from/$file" ] || die "$from/$file does not exist: run make dist, or make build for target/release"
    done
    find_runner "$3"
    install -d "$to"/{bin,lib/profinfer,share/man/man1}
    install -m 644 "${layers[@]/#/$from/}" "$to/lib/profinfer/"
    for program in profinfer ggml-runner; do
        install -m 755 "$from/$program" "$to/bin/"
        ours() { "${runner[@]}" "$from/$program" "$@"; }
        page() { ours help --man "${@:2}" | gzip -9n >"$to/share/man/man1/$1.1.gz"; }
        page "$program"
        for name in $(ours --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z-]\+\).*/\1/p'); do
            page "$program-$name" "$name"
        done
        [ -f "$to/share/man/man1/$program-completions.1.gz" ] || die "$from/$program --help lists no subcommands"
        for shell in "bash-completion/completions/$program" "zsh/site-functions/_$program" \
            "fish/vendor_completions.d/$program.fish"; do
            install -d "$to/share/${shell%/*}"
            name=${shell%%/*}
            ours completions "${name%-completion}" >"$to/share/$shell"
        done
    done
}
