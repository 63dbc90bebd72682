#!/usr/bin/env bash
# Downloads the components of guests into the cache ($XDG_CACHE_HOME/profinfer/qemu); existing ones are kept.
#
# usage: images.sh [NAME...]     default: all of them
#   5.10 6.1 6.12 7.2        kernels from Debian's arm64 packages, unmodified
#   5.10-nobtf 5.10-nobpf    kernels as on some boards, built from source by kernels.sh
#   busybox                  the guests' shell and tools, static
#   llama                    Debian's own llama.cpp for arm64 with all its libraries
#   systemd                  Debian 12's systemd, for guests that boot it as the first process
#   dropbear                 Debian 12's dropbear, for guests that are reached by ssh
# Needs a Debian mirror (see cross/apt.sh), but not root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/profinfer/qemu
all="busybox 5.10 6.1 6.12 7.2 llama systemd dropbear 5.10-nobtf 5.10-nobpf"
# What checks load, and what that depends on: all of a kernel's modules take hundreds of megabytes. A kernel fetched
# with another list is fetched again.
modules="cpufreq-dt virtio virtio_ring virtio_mmio virtio_net net_failover failover
    drm drm_kms_helper drm_shmem_helper drm_exec gpu-sched panfrost v3d"

die() { echo "cross/qemu/images.sh: $*" >&2; exit 1; }
say() { echo "cross/qemu/images.sh: $*" >&2; }

apt() { "$here/../apt.sh" "$1" arm64 "${@:2}"; }

download() { # suite package..., into the current directory
    apt "$1" apt-get -qq download "${@:2}" >log 2>&1 && return
    # The lists may be older than the mirror.
    rm -f "$cache/apt/$1-arm64/fresh"
    apt "$1" apt-get -qq download "${@:2}" >log 2>&1 || { tail -n 5 log >&2; return 1; }
}

# For a release's newest kernel: the package, or since 7.x its two parts.
kernel_packages() { # suite
    local depends image
    depends=$(apt "$1" apt-cache depends linux-image-arm64) || return 1
    image=$(sed -n 's/.*Depends: \(linux-image-[0-9][^: ]*\).*/\1/p' <<<"$depends" | head -n 1)
    [ -n "$image" ] || { say "no kernel package in $1"; return 1; }
    if [ -n "$(apt "$1" apt-cache pkgnames "linux-binary-${image#linux-image-}")" ]; then
        echo "linux-binary-${image#linux-image-} linux-modules-${image#linux-image-}"
    else
        echo "$image"
    fi
}

fetch_kernel() { # name suite
    local packages deb module
    local wanted=('./boot/vmlinuz-*' '*/vmlinuz')
    for module in $modules; do wanted+=("*/$module.ko*"); done
    packages=$(kernel_packages "$2") || return 1
    # shellcheck disable=SC2086
    download "$2" $packages || return 1
    mkdir -p made/modules tree
    for deb in ./*.deb; do
        # tar fails if one is missing: it may be built in, or be in the other package.
        dpkg-deb --fsys-tarfile "$deb" | tar x -C tree --wildcards "${wanted[@]}" 2>/dev/null || true
    done
    find tree -name 'vmlinuz*' -type f -exec cp {} made/Image \;
    find tree -name '*.ko*' -exec cp {} made/modules/ \;
    [ -s made/Image ] || { say "no vmlinuz in $packages"; return 1; }
    echo "$modules" >made/modules/wanted
    say "$1: $packages"
}

fetch_busybox() {
    download bookworm busybox-static || return 1
    dpkg-deb --fsys-tarfile busybox-static_*.deb | tar xO ./bin/busybox >made
    [ -s made ] && chmod 755 made
}

# The packages with all their dependencies; none of their code is run.
fetch_tree() { # suite package...
    local archives deb name
    archives=$cache/apt/$1-arm64/cache/archives
    apt "$1" apt-get -qq -y --no-install-recommends --download-only install "${@:2}" >log 2>&1 || { tail -n 5 log >&2; return 1; }
    mkdir -p made/usr/{bin,sbin,lib}
    for deb in "$archives"/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar x -C made --exclude='./usr/share/*' --exclude='./var/*' --exclude='*/gconv/*'
    done
    # The guest's /lib is a link to /usr/lib, which a directory of that name would replace.
    for name in bin sbin lib; do
        [ ! -d "made/$name" ] || [ -L "made/$name" ] || cp -a "made/$name/." "made/usr/$name/"
        rm -rf "made/${name:?}"
    done
    rm -f "$archives"/*.deb
    [ -e made/usr/lib/ld-linux-aarch64.so.1 ] || { say "no C library among what ${*:2} needs"; return 1; }
}

place_of() { # name
    case $1 in
    busybox | llama | systemd | dropbear) echo "$cache/$1" ;;
    *) echo "$cache/kernels/$1" ;;
    esac
}

make_one() { # name; leaves `made` in the current directory
    case $1 in
    5.10) fetch_kernel "$1" bullseye ;;
    6.1) fetch_kernel "$1" bookworm ;;
    6.12) fetch_kernel "$1" trixie ;;
    7.2) fetch_kernel "$1" forky ;;
    busybox) fetch_busybox ;;
    llama) fetch_tree sid llama.cpp-tools ;;
    systemd) fetch_tree bookworm systemd ;;
    dropbear) fetch_tree bookworm dropbear-bin ;;
    esac
}

is_current() { # place
    case $1 in
    */kernels/*) [ "$(cat "$1/modules/wanted" 2>/dev/null)" = "$modules" ] ;;
    *) [ -e "$1" ] ;;
    esac
}

provide() { # name
    local place new
    place=$(place_of "$1")
    case $1 in 5.10-no*) "$here/kernels.sh" || return 1; return ;; esac
    ! is_current "$place" || return 0
    new=$(mktemp -d "$cache/new.XXXXXX")
    if (cd "$new" && make_one "$1"); then
        mkdir -p "$(dirname "$place")"
        [ ! -e "$place" ] || mv -T "$place" "$new/old"
        mv -T "$new/made" "$place"
        rm -rf "$new"
    else
        rm -rf "$new"
        say "$1 could not be fetched: see above; without the mirror put it at $place by hand"
        return 1
    fi
}

for tool in dpkg-deb flock; do command -v $tool >/dev/null || die "no $tool: this needs Debian or a derivative"; done
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
failed=
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $all
for name; do
    case " $all " in *" $name "*) ;; *) die "no image '$name'; available: $all" ;; esac
done
for name; do provide "$name" || failed="$failed $name"; done
[ -z "$failed" ] || die "missing:$failed"
# Package lists are needed only until everything is fetched, and are larger than the packages.
rm -rf "$cache/apt"
