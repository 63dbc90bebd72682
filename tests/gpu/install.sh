# Sourced by the scripts beside it: what they do the same way. They set `here`, `engines`, `base` and `name`, and define
# `make_engine`, which makes the engine in the folder $tmp/out.

die() { echo "$(basename "$0"): $*" >&2; exit 1; }

install_engine() { # files of $here that it is made of...
    local made_of
    made_of=$(cd "$here" && cat "$(basename "$0")" install.sh "$@" "$engines/$base/.sha256" | sha256sum)
    exec 9>"$engines/.$name.lock"
    flock 9
    if [ "$(cat "$engines/$name/.made_of" 2>/dev/null)" != "$made_of" ]; then
        tmp=$(mktemp -d "$engines/.tmp.XXXXXX")
        trap 'rm -rf "$tmp"' EXIT
        mkdir "$tmp/out"
        make_engine
        printf '%s\n' "$made_of" >"$tmp/out/.made_of"
        rm -rf "${engines:?}/$name"
        mv -T "$tmp/out" "$engines/$name"
    fi
    echo "$name $engines/$name"
}
