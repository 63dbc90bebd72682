#!/bin/sh
# Installs missing packages on a Debian-like machine. Quiet and quick when there is nothing to do.
#
# usage: setup.sh [build|deb|demo|dist|fuzz|image|test]
#   build  a C compiler, clang for the BPF programs, libelf and zlib
#   demo   the same, plus a package client to download an engine with (make demo-llama)
#   dist   the same, plus what libelf's sources are configured with (make dist)
#   deb    the packages of dist, and QEMU: a program for another processor prints its own manual pages (make deb)
#   fuzz   the packages of build, and a C++ compiler (make fuzz)
#   image  the same as dist, for a container that has its own Rust (cross/Dockerfile)
#   test   everything that tests and lint use (the default)
# The Rust toolchain is not installed here: install it manually, or with scripts/rust.sh.
set -eu

die() { echo "setup.sh: $*" >&2; exit 1; }

level=${1:-test}
# Needed to build elfutils, and the keys of the packages that provide musl.
static="autoconf automake autopoint gettext flex bison gawk binutils debian-archive-keyring"
wanted="gcc libc6-dev make clang llvm pkg-config libelf-dev zlib1g-dev util-linux coreutils"
case $level in
build) ;;
fuzz) wanted="$wanted g++" ;;
dist) wanted="$wanted $static" ;;
deb) wanted="$wanted $static qemu-user-static" ;;
image) wanted="$wanted $static lld" ;;
# Either npm or pip is enough; pip has a fifth of npm's packages.
demo) command -v npm >/dev/null 2>&1 || wanted="$wanted python3 python3-pip binutils" ;;
test)
    # The service's files are checked with shellcheck, lintian and systemd, manual pages with groff and mandoc, and
    # completions in zsh and fish.
    # Metrics are read by Prometheus.
    # Apache Spark, which asks data sets the questions of docs/SQL.md, needs a Java.
    # The last line is for guests with their own kernels: QEMU, and the tools for two of the kernels. The browser
    # opens pages of `profinfer html`; Mesa provides a Vulkan device in software. The
    # other packages of that line are for what tests/gpu compiles. `record --on` is tested against a real sshd,
    # and requests against a llama-server that debootstrap installs.
    wanted="$wanted $static clang-format python3 python3-pip python3-venv python3-yaml npm gdb chromium-headless-shell
        libvulkan1 libvulkan-dev glslang-tools mesa-vulkan-drivers g++ ocl-icd-libopencl1 ocl-icd-opencl-dev opencl-c-headers
        prometheus default-jre-headless
        shellcheck lintian systemd openssh-client openssh-server groff-base mandoc zsh fish qemu-user-static
        qemu-system-arm device-tree-compiler gcc-aarch64-linux-gnu libc6-dev-arm64-cross bc xz-utils debootstrap"
    ;;
*) die "unknown level '$level': build, deb, demo, dist, fuzz, image or test" ;;
esac

have() { # package
    case $1 in
    # Programs may be installed without a package of the distribution.
    gcc | g++ | make | clang | clang-format | pkg-config | python3 | npm | gdb | automake | autopoint | flex | bison | gawk | bc) command -v "$1" >/dev/null 2>&1 ;;
    libc6-dev) [ -e /usr/include/stdio.h ] ;;
    llvm) command -v llvm-strip >/dev/null 2>&1 || command -v llvm-strip-14 >/dev/null 2>&1 ;;
    binutils) command -v nm >/dev/null 2>&1 && command -v objdump >/dev/null 2>&1 ;;
    autoconf) command -v autoreconf >/dev/null 2>&1 ;;
    gettext) command -v msgfmt >/dev/null 2>&1 ;;
    lld) command -v ld.lld >/dev/null 2>&1 ;;
    systemd) command -v systemd-analyze >/dev/null 2>&1 ;;
    groff-base) command -v groff >/dev/null 2>&1 ;;
    shellcheck | lintian | mandoc | zsh | fish | prometheus) command -v "$1" >/dev/null 2>&1 ;;
    util-linux) command -v flock >/dev/null 2>&1 ;;
    coreutils) command -v sha256sum >/dev/null 2>&1 ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 ;;
    python3-venv) python3 -c 'import ensurepip' 2>/dev/null ;;
    python3-yaml) python3 -c 'import yaml' 2>/dev/null ;;
    openssh-client) command -v ssh >/dev/null 2>&1 && command -v ssh-keygen >/dev/null 2>&1 ;;
    openssh-server) [ -x /usr/sbin/sshd ] ;;
    libelf-dev) [ -e /usr/include/libelf.h ] || [ -e /usr/include/gelf.h ] ;;
    chromium-headless-shell)
        command -v chromium-headless-shell >/dev/null 2>&1 || command -v chromium >/dev/null 2>&1
        ;;
    libvulkan1) ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1 ' ;;
    libvulkan-dev) [ -e /usr/include/vulkan/vulkan.h ] ;;
    glslang-tools) command -v glslangValidator >/dev/null 2>&1 ;;
    ocl-icd-libopencl1) ldconfig -p 2>/dev/null | grep -q 'libOpenCL\.so\.1 ' ;;
    ocl-icd-opencl-dev | opencl-c-headers) [ -e /usr/include/CL/cl.h ] ;;
    mesa-vulkan-drivers) set -- /usr/share/vulkan/icd.d/lvp_icd*.json && [ -e "$1" ] ;;
    qemu-system-arm) command -v qemu-system-aarch64 >/dev/null 2>&1 ;;
    debootstrap) command -v debootstrap >/dev/null 2>&1 || [ -x /usr/sbin/debootstrap ] ;;
    device-tree-compiler) command -v dtc >/dev/null 2>&1 ;;
    debian-archive-keyring) [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] ;;
    gcc-aarch64-linux-gnu) [ "$(uname -m)" = aarch64 ] || command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 ;;
    libc6-dev-arm64-cross) [ "$(uname -m)" = aarch64 ] || [ -e /usr/aarch64-linux-gnu/include/stdio.h ] ;;
    xz-utils) command -v xz >/dev/null 2>&1 ;;
    qemu-user-static) command -v qemu-aarch64-static >/dev/null 2>&1 || command -v qemu-aarch64 >/dev/null 2>&1 ;;
    default-jre-headless) command -v java >/dev/null 2>&1 ;;
    zlib1g-dev) [ -e /usr/include/zlib.h ] ;;
    *) return 1 ;;
    esac
}

rust() {
    PATH=$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
    command -v cargo >/dev/null 2>&1 ||
        die "cargo is missing: install a stable Rust toolchain, $least or newer (https://rustup.rs, or your" \
            "distribution's if it is new enough), and run this again"
    version=$(cargo --version 2>&1) || die "cargo does not run: $version"
    number=${version#cargo }
    number=${number%%[!0-9.]*}
    [ "$(printf '%s\n' "$least" "$number" | sort -V | head -n 1)" = "$least" ] ||
        die "Rust $least or newer is needed, this is $version: run 'rustup update stable'"
    [ "$level" = test ] || return 0
    for part in fmt clippy; do
        cargo "$part" --version >/dev/null 2>&1 && continue
        echo "setup.sh: adding cargo $part"
        case $part in fmt) part=rustfmt ;; esac
        rustup component add "$part" >/dev/null 2>&1 || die "'rustup component add $part' failed: install it by hand"
    done
}

# In a separate directory: a container's image may be set up to delete packages while apt is still installing others.
install() {
    mkdir -p "$debs/partial"
    apt-get install -q -y --no-install-recommends -o "Dir::Cache::archives=$debs" "$@"
}

# If a part of QEMU is already from the backports, the release's version would remove it; then the rest comes from
# there too.
install_all() {
    of_qemu= rest=
    for p in $missing; do
        case $p in qemu-*) of_qemu="$of_qemu $p" ;; *) rest="$rest $p" ;; esac
    done
    # shellcheck disable=SC2086
    [ -z "$rest" ] || install $rest || return 1
    # shellcheck disable=SC2086
    [ -z "$of_qemu" ] || install --no-remove $of_qemu || from_backports $of_qemu
}

from_backports() { # package...
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    "$(dirname "$0")/../cross/apt.sh" "$release $release-backports" "$(dpkg --print-architecture)" \
        apt-get install -q -y --no-install-recommends --no-remove -t "$release-backports" "$@"
}

packages() {
    missing=
    for p in $wanted; do have "$p" || missing="$missing $p"; done
    [ -n "$missing" ] || return 0

    command -v apt-get >/dev/null 2>&1 || die "no apt-get here; install by hand:$missing"
    [ "$(id -u)" = 0 ] || die "not root; run: sudo apt-get install --no-install-recommends$missing"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    debs=$(mktemp -d)
    trap 'rm -rf "$log" "$debs"' EXIT
    echo "setup.sh: installing$missing"
    # shellcheck disable=SC2086
    { apt-get update -q && install_all; } </dev/null >"$log" 2>&1 ||
        { tail -n 15 "$log" >&2; die "apt-get failed to install:$missing"; }
    for p in $missing; do have "$p" || die "$p is installed but still not found"; done
}

least=$(sed -n '/^rust-version = "/{s/^[^"]*"\([^"]*\)".*/\1/p;q;}' "$(dirname "$0")/../Cargo.toml")
[ "$level" = image ] || rust
packages

# Used by tests to decode exported timelines and pushed metrics, in the versions that they were written for.
python_package() { # package, the name of its directories, list of requirements, directory in the cache
    version=$(sed -n "s/^$1==\([0-9.]*\).*/\1/p" "$3")
    dir=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/profinfer/$4
    [ ! -e "$dir/$2-$version.dist-info" ] || return 0
    echo "setup.sh: fetching $1 $version"
    rm -rf "$dir"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-cache-dir \
        --target "$dir" --require-hashes --only-binary :all: -r "$3" ||
        die "pip failed to install $1 $version: its tests are skipped without it (make test needs it)"
}

hashed() { # arguments of pip install
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-cache-dir --no-deps \
        --require-hashes "$@"
}

# DuckDB and Apache Spark, for tests/fleet. Spark comes as source: what builds it is checked like the rest.
fleet() {
    list=$(dirname "$0")/../tests/fleet/requirements.txt
    dir=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/profinfer/fleet
    sum=$(sha256sum <"$list" | cut -c 1-16)
    [ ! -e "$dir/.done-$sum" ] || return 0
    echo "setup.sh: fetching DuckDB and Apache Spark"
    rm -rf "$dir"
    if hashed --target "$dir/build" --only-binary :all: -r "$(dirname "$list")/build.txt" &&
        (export PYTHONPATH="$dir/build" && hashed --target "$dir" --no-build-isolation -r "$list"); then
        touch "$dir/.done-$sum"
    else
        echo "setup.sh: pip failed: the test of docs/SQL.md is skipped without these" >&2
    fi
    rm -rf "$dir/build"
}
[ "$level" != test ] || {
    tests=$(dirname "$0")/../tests
    python_package perfetto perfetto "$tests/perfetto/requirements.txt" perfetto
    python_package opentelemetry-proto opentelemetry_proto "$tests/service/requirements.txt" otlp
    fleet
    "$(dirname "$0")/../tests/perfetto/system.sh" --fetch ||
        echo "setup.sh: without Perfetto's recorder; its test is skipped" >&2
}
