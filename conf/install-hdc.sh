#!/bin/sh
# Installs profinfer as a service on an OpenHarmony board over hdc: copies the binary, which contains the
# configuration and the .cfg, and runs its install command there. init reads the .cfg at the next boot.
#
# usage: install-hdc.sh [--dry-run] [--target KEY] [--conf FILE] [--reboot] [--uninstall] [BINARY]
#   --dry-run     print what would be done; changes nothing on the board except a temporary file in /data/local/tmp
#   --target KEY  the board, if there are several: see hdc list targets
#   --conf FILE   use this configuration; the existing one is kept as profinfer.toml.old
#   --reboot      reboot the board when done
#   BINARY        dist/aarch64-unknown-linux-musl/profinfer
# Needs a development board, where hdc shell is root. HDC selects another hdc.
set -eu

usage() { sed -n '/^# usage/,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"; }
die() { echo "install-hdc.sh: $*" >&2; exit 1; }
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

dir=/data/local/tmp
trap 'there "rm -f $dir/profinfer.new $dir/profinfer.toml.new" || true' EXIT
copy "$binary" "$dir/profinfer.new"
there "chmod 700 $dir/profinfer.new && $dir/profinfer.new --version" || die "$binary does not run on the board: name a BINARY for its processor"
if [ -z "$dry" ]; then
    # Boards differ in which of the two ways works; creating a file shows whether one did.
    board target mount >/dev/null || true
    there 'mount -o rw,remount / 2>/dev/null; touch /system/etc/init/.profinfer && rm /system/etc/init/.profinfer' ||
        die "/system stays read-only: run hdc target mount and try again; dm-verity must be disabled"
fi
if [ -n "$conf" ] && [ -z "$dry" ]; then
    copy "$conf" "$dir/profinfer.toml.new"
    there "mkdir -p /system/etc/profinfer && cd /system/etc/profinfer && { [ ! -f profinfer.toml ] || mv -f profinfer.toml profinfer.toml.old; } && cp $dir/profinfer.toml.new profinfer.toml && chmod 644 profinfer.toml" ||
        die "the configuration could not be installed"
fi
there "$dir/profinfer.new install --init openharmony $dry $uninstall" || die "profinfer install failed on the board: see above"
[ -z "$dry" ] || exit 0
if [ -n "$reboot" ]; then
    board shell reboot >/dev/null || true
    echo "install-hdc.sh: the board boots now; then: hdc shell profinfer status"
else
    echo "install-hdc.sh: init reads the .cfg at the next boot: hdc shell reboot; then: hdc shell profinfer status"
fi
