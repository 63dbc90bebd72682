#!/bin/busybox sh
# PID 1 of a guest: mounts the usual file systems of a board, loads the requested modules, runs /job/run as root in
# /out and forwards its output, then passes /out, the kernel log and the exit code to the host, and ends QEMU.
# If /job/first names another program, that one becomes PID 1 and must run `/init job` for everything after the
# mounts.
# The file `status` is the only sign of a completed run: a guest that dies or hangs never writes it.
export PATH=/job:/bin:/sbin:/usr/bin:/usr/sbin HOME=/root OUT=/out

mounts() {
    /bin/busybox mkdir -p /bin /sbin /proc /sys /dev /tmp /out /root /usr/bin /usr/sbin
    /bin/busybox --install -s /bin
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    mount -t devtmpfs devtmpfs /dev
    mount -t tmpfs tmpfs /tmp
    mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
    # Not every kernel has these.
    mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
    mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
    mount -t bpf bpf /sys/fs/bpf 2>/dev/null
    echo 4 >/proc/sys/kernel/printk

    for module in $(cat /job/modules 2>/dev/null); do
        insmod "$module" || echo "init: $module was not loaded"
    done
    # The address to which QEMU forwards ports.
    [ ! -e /sys/class/net/eth0 ] || ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
}

if [ "$1" != job ]; then
    mounts
    [ ! -s /job/first ] || exec "$(cat /job/first)"
fi

mkfifo /tmp/out /tmp/err
host out </tmp/out & relays=$!
host err </tmp/err & relays="$relays $!"
(cd /out && exec setsid sh /job/run) </dev/null >/tmp/out 2>/tmp/err
code=$?
# The relays end with the last writer; they do not wait for one that stays alive.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    running=
    for relay in $relays; do kill -0 "$relay" 2>/dev/null && running=yes; done
    [ -n "$running" ] || break
    usleep 50000
done

tar c -C /out . | host put out.tar
dmesg | host put dmesg.txt
echo "$code" | host put status
host exit
