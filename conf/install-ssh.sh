#!/bin/sh
# Installs profinfer as a service on another machine over ssh: copies the binary, which contains the configuration
# and the unit or init script, and runs its install command there. Leaves nothing in the machine's temporary
# directory.
#
# usage: install-ssh.sh [--dry-run] [--init NAME] [--prefix DIR] [--conf FILE] [--no-start] [--uninstall] HOST [BINARY]
#   --dry-run     print what would be done; only copies the binary and removes it again
#   --init NAME   systemd, sysv, procd or none, if the machine's init system cannot be detected
#   --prefix DIR  install the program in DIR/bin (/usr/local)
#   --conf FILE   use this configuration, readable by root alone; the existing one is kept as profinfer.toml.old
#   --no-start    do not start the service
#   BINARY        dist/aarch64-unknown-linux-musl/profinfer, or another for the machine's processor
# Needs root there: log in as root, or as a user with sudo without a password. SSH and SCP select other programs.
set -eu
# Ranges of letters below are those of ASCII.
LC_ALL=C
export LC_ALL

usage() { sed -n '/^# usage/,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"; }
die() { printf 'install-ssh.sh: %s\n' "$*" >&2; exit 1; }
misused() { echo "install-ssh.sh: $*" >&2; usage >&2; exit 2; }

dry='' init='' prefix='' conf='' start=yes uninstall='' host='' binary=''
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry=--dry-run ;;
    --no-start) start= ;;
    --uninstall) uninstall=--uninstall ;;
    --init | --prefix | --conf)
        [ $# -gt 1 ] || misused "$1 needs a value"
        case $1 in --init) init=$2 ;; --prefix) prefix=$2 ;; *) conf=$2 ;; esac
        shift
        ;;
    -h | --help) usage; exit 0 ;;
    -*) misused "unknown option '$1'" ;;
    *) if [ -z "$host" ]; then host=$1; elif [ -z "$binary" ]; then binary=$1; else misused "unexpected '$1'"; fi ;;
    esac
    shift
done
[ -n "$host" ] || misused "HOST is needed"
case $init in '' | systemd | sysv | procd | none) ;; *) misused "--init '$init': systemd, sysv, procd or none" ;; esac
# These values become part of a remote command.
case $prefix in '' | /*) ;; *) misused "--prefix '$prefix': must start with /" ;; esac
case $prefix in *[!A-Za-z0-9/._+-]*) misused "--prefix '$prefix': letters, digits and /._+- only" ;; esac
: "${binary:=$(dirname "$0")/../dist/aarch64-unknown-linux-musl/profinfer}"
[ -f "$binary" ] || die "$binary does not exist: run make dist, or name another BINARY"
[ -z "$conf" ] || [ -r "$conf" ] || die "$conf cannot be read"

there() { "${SSH:-ssh}" "$host" "$1"; }
copy() { "${SCP:-scp}" -q "$1" "$host:$2" || die "$1 could not be copied to $host:$2"; }

dir=$(there 'umask 077; mktemp -d /tmp/profinfer.XXXXXX') || die "$host: cannot log in, or no space in /tmp"
# It becomes part of commands, here and there.
case $dir in
/tmp/profinfer.[A-Za-z0-9][A-Za-z0-9][A-Za-z0-9][A-Za-z0-9][A-Za-z0-9][A-Za-z0-9]) ;;
*) die "$host returned '$dir' instead of a directory name" ;;
esac
trap 'there "rm -rf $dir"' EXIT
copy "$binary" "$dir/profinfer"
there "chmod 700 $dir/profinfer && $dir/profinfer --version" ||
    die "$binary does not run on $host ($(there 'uname -m' || true)): name a BINARY for its processor"
as_root=$(there 'id -u')
if [ "$as_root" = 0 ]; then as_root=; else as_root='sudo -n'; fi
if [ -n "$conf" ] && [ -z "$dry" ]; then
    copy "$conf" "$dir/profinfer.toml"
    there "$as_root sh -c 'set -e; mkdir -p /etc/profinfer; cd /etc/profinfer; [ ! -f profinfer.toml ] || mv -f profinfer.toml profinfer.toml.old; umask 077; cp $dir/profinfer.toml profinfer.toml; chmod 0600 profinfer.toml'" ||
        die "the configuration could not be installed on $host"
fi
there "$as_root $dir/profinfer install $dry $uninstall ${init:+--init $init} ${prefix:+--prefix $prefix}" ||
    die "profinfer install failed on $host: see above"
[ -z "$dry$uninstall" ] && [ -n "$start" ] || exit 0
if there 'test -d /run/systemd/system'; then
    there "$as_root systemctl enable profinfer && $as_root systemctl restart profinfer && systemctl --no-pager --lines 5 status profinfer" ||
        die "the service did not start on $host: see journalctl -u profinfer"
elif there 'test -x /etc/init.d/profinfer'; then
    there "$as_root /etc/init.d/profinfer restart" || die "the service did not start on $host: see /var/log/profinfer.log"
else
    echo "install-ssh.sh: no supported init system on $host: start the service by hand, as printed above"
fi
