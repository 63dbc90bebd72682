#!/bin/sh
# Installs profinfer as a service on an OpenHarmony board over hdc: copies the binary, which brings configuration and .cfg along,
# and has it install itself there. init reads the .cfg at the next boot.
#
# usage: install-hdc.sh [--dry-run] [--target KEY] [--conf FILE] [--reboot] [--uninstall] [BINARY]
#   --dry-run     say what would be done; nothing is changed on the board but a file in /data/local/tmp, which goes again
#   --target KEY  the board, where there are several: see hdc list targets
#   --conf FILE   this configuration; the board's present one is kept beside it as profinfer.toml.old
#   --reboot      boot the board when all is in place
#   BINARY        dist/aarch64-unknown-linux-musl/profinfer
# A development board is needed: hdc shell is root there. HDC names another hdc.
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
[ -f "$binary" ] || die "$binary is not there: make dist makes it, or name another BINARY"
[ -z "$conf" ] || [ -r "$conf" ] || die "$conf cannot be read"
command -v "${HDC:-hdc}" >/dev/null || die "no ${HDC:-hdc}: it comes with the OpenHarmony SDK (toolchains/hdc)"

board() { "${HDC:-hdc}" ${key:+-t "$key"} "$@"; }
# hdc's own exit code is 0 whatever a command's was: the board is asked to tell it.
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
[ -n "$key" ] || [ "$(printf '%s\n' "$targets" | wc -l)" = 1 ] || die "several boards, choose one with --target: $(printf %s "$targets" | tr "\n" " ")"
[ "$(there 'id -u')" = 0 ] || die "hdc shell is not root on this board: a development board is needed (hdc smode)"

dir=/data/local/tmp
trap 'there "rm -f $dir/profinfer.new $dir/profinfer.toml.new" || true' EXIT
copy "$binary" "$dir/profinfer.new"
there "chmod 700 $dir/profinfer.new && $dir/profinfer.new --version" || die "$binary does not run on the board: name a BINARY for its processor"
if [ -z "$dry" ]; then
    # Where the one way is refused the other one goes; whether it did, a file tells.
    board target mount >/dev/null || true
    there 'mount -o rw,remount / 2>/dev/null; touch /system/etc/init/.profinfer && rm /system/etc/init/.profinfer' ||
        die "/system stays read-only: hdc target mount, then once more; a board with dm-verity has to have it off"
fi
if [ -n "$conf" ] && [ -z "$dry" ]; then
    copy "$conf" "$dir/profinfer.toml.new"
    there "mkdir -p /system/etc/profinfer && cd /system/etc/profinfer && { [ ! -f profinfer.toml ] || mv -f profinfer.toml profinfer.toml.old; } && cp $dir/profinfer.toml.new profinfer.toml && chmod 644 profinfer.toml" ||
        die "the configuration could not be put in place"
fi
there "$dir/profinfer.new install --init openharmony $dry $uninstall" || die "profinfer install failed on the board: see above"
[ -z "$dry" ] || exit 0
if [ -n "$reboot" ]; then
    board shell reboot >/dev/null || true
    echo "install-hdc.sh: the board boots; then: hdc shell profinfer status"
else
    echo "install-hdc.sh: init reads the .cfg at the next boot: hdc shell reboot; then: hdc shell profinfer status"
fi
