#!/bin/sh
# Installs profinfer as a service on an OpenHarmony board over hdc: copies the binary, which contains the
# configuration and the .cfg, and runs its install command there. init reads the .cfg at the next boot.
#
# usage: install-hdc.sh [--dry-run] [--target KEY] [--conf FILE] [--reboot] [--uninstall] [BINARY]
#   --dry-run     print what would be done; changes nothing on the board except a temporary directory in /data/local/tmp
#   --target KEY  the board, if there are several: see hdc list targets
#   --conf FILE   use this configuration, readable by root alone; the existing one is kept as profinfer.toml.old
#   --reboot      reboot the board when done
#   BINARY        dist/aarch64-unknown-linux-musl/profinfer
# Needs a development board, where hdc shell is root. HDC selects another hdc.
set -eu

usage() { sed -n '/^# usage/,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"; }
die() { printf 'install-hdc.sh: %s\n' "$*" >&2; exit 1; }
misused() { echo "install-hdc.sh: $*" >&2; usage >&2; exit 2; }

dry='' key='' conf='' reboot='' uninstall='' binary=''
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry=--dry-run ;;
    --reboot) reboot=yes ;;
    --uninstall) uninstall=--uninstall ;;
    --target | --conf)
        [ $# -gt 1 ] || misused "$1 needs a value"
        case $1 in --target) key=$2 ;; *) conf=$2 ;; esac
        shift
        ;;
    -h | --help) usage; exit 0 ;;
    -*) misused "unknown option '$1'" ;;
    *) [ -z "$binary" ] || misused "unexpected '$1'"; binary=$1 ;;
    esac
    shift
done
: "${binary:=$(dirname "$0")/../dist/aarch64-unknown-linux-musl/profinfer}"
[ -f "$binary" ] || die "$binary does not exist: run make dist, or name another BINARY"
[ -z "$conf" ] || [ -r "$conf" ] || die "$conf cannot be read"
command -v "${HDC:-hdc}" >/dev/null || die "no ${HDC:-hdc}: it comes with the OpenHarmony SDK (toolchains/hdc)"

board() { "${HDC:-hdc}" ${key:+-t "$key"} "$@"; }
# hdc's own exit code is always 0, so the remote shell prints the command's exit code.
there() { # command
    said=$(board shell "$1; echo code=\$?" | tr -d '\r') || return 1
    rest=${said%code=*}
    [ -z "$rest" ] || printf '%s' "$rest"
    [ "${said##*code=}" = 0 ]
}
copy() { # here, there
    board file send "$1" "$2" >/dev/null || die "$1 could not be sent to $2"
    there "test -f $2" || die "$1 did not arrive at $2: is /data writable? (hdc shell mount -o rw,remount /data)"
}

targets=$("${HDC:-hdc}" list targets | tr -d '\r' | grep -v '^\[Empty\]$' || true)
[ -n "$targets" ] || die "no board: hdc list targets lists none"
[ -n "$key" ] || [ "$(printf '%s\n' "$targets" | wc -l)" = 1 ] || die "several boards, select one with --target: $(printf %s "$targets" | tr "\n" " ")"
[ "$(there 'id -u')" = 0 ] || die "hdc shell is not root on this board: a development board is needed (hdc smode)"

# A name that nobody there can have taken before.
dir=/data/local/tmp/profinfer.$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
there "umask 077; mkdir $dir" || die "cannot create $dir on the board: is /data writable? (hdc shell mount -o rw,remount /data)"
trap 'there "rm -rf $dir" || true' EXIT
# Runs a command in the directory. The user shell can put another directory at its place, but none that is root's.
inside() { # command
    there "cd $dir && [ -O . ] && case \$(ls -ld .) in drwx------*) ;; *) false ;; esac || { echo $dir: no longer the directory that was made; false; } && { $1; }"
}
copy "$binary" "$dir/profinfer"
inside "chmod 700 profinfer && ./profinfer --version" || die "$binary does not run on the board: name a BINARY for its processor"
if [ -z "$dry" ]; then
    # Boards differ in which of the two ways works; creating a file shows whether one did.
    board target mount >/dev/null || true
    there 'mount -o rw,remount / 2>/dev/null; touch /system/etc/init/.profinfer && rm /system/etc/init/.profinfer' ||
        die "/system stays read-only: run hdc target mount and try again; dm-verity must be disabled"
fi
if [ -n "$conf" ] && [ -z "$dry" ]; then
    copy "$conf" "$dir/profinfer.toml"
    to=/system/etc/profinfer/profinfer.toml
    inside "mkdir -p ${to%/*} && { [ ! -f $to ] || mv -f $to $to.old; } && umask 077 && cp profinfer.toml $to && chmod 600 $to" ||
        die "the configuration could not be installed"
fi
inside "./profinfer install --init openharmony $dry $uninstall" || die "profinfer install failed on the board: see above"
[ -z "$dry" ] || exit 0
if [ -n "$reboot" ]; then
    board shell reboot >/dev/null || true
    echo "install-hdc.sh: the board boots now; then: hdc shell profinfer status"
else
    echo "install-hdc.sh: init reads the .cfg at the next boot: hdc shell reboot; then: hdc shell profinfer status"
fi
