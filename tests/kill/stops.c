#define _GNU_SOURCE
#include "stops.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *const PHASE_NAMES[PHASES] = {"begin", "load", "attach", "record", "detach", "close"};
const char *const CLASS_NAMES[CLASSES] = {"descriptor", "memory", "thread", "bpf",  "probe",
                                          "write",      "sync",   "read",   "wait", "other"};

/* Commands of bpf(2) that matter here, and the perf event requests that attach. */
enum { MAP_CREATE = 0, PROG_LOAD = 5, BTF_LOAD = 18, RAW_TRACEPOINT_OPEN = 17, LINK_CREATE = 28 };
enum { EVENT_ENABLE = 0x2400, EVENT_SET_BPF = 0x40042408 };

static const struct {
    long nr;
    enum class class;
} CALLS[] = {
#ifdef SYS_open
    {SYS_open, DESCRIPTOR},
    {SYS_pipe, DESCRIPTOR},
    {SYS_dup2, DESCRIPTOR},
    {SYS_epoll_create, DESCRIPTOR},
    {SYS_poll, WAIT},
    {SYS_epoll_wait, WAIT},
    {SYS_rename, SYNC},
    {SYS_unlink, SYNC},
    {SYS_mkdir, SYNC},
    {SYS_chmod, SYNC},
    {SYS_readlink, READ},
    {SYS_stat, READ},
    {SYS_lstat, READ},
    {SYS_fork, THREAD},
    {SYS_vfork, THREAD},
#endif
    {SYS_openat, DESCRIPTOR},
    {SYS_socket, DESCRIPTOR},
    {SYS_socketpair, DESCRIPTOR},
    {SYS_accept4, DESCRIPTOR},
    {SYS_pipe2, DESCRIPTOR},
    {SYS_eventfd2, DESCRIPTOR},
    {SYS_memfd_create, DESCRIPTOR},
    {SYS_epoll_create1, DESCRIPTOR},
    {SYS_timerfd_create, DESCRIPTOR},
    {SYS_signalfd4, DESCRIPTOR},
    {SYS_inotify_init1, DESCRIPTOR},
    {SYS_dup, DESCRIPTOR},
    {SYS_dup3, DESCRIPTOR},
    {SYS_fcntl, DESCRIPTOR},
    {434 /* pidfd_open */, DESCRIPTOR},
    {SYS_mmap, MEMORY},
    {SYS_mremap, MEMORY},
    {SYS_mprotect, MEMORY},
    {SYS_madvise, MEMORY},
    {SYS_clone, THREAD},
    {435 /* clone3 */, THREAD},
    {SYS_bpf, BPF},
    {SYS_perf_event_open, PROBE},
    {SYS_ioctl, PROBE},
    {SYS_write, WRITE},
    {SYS_writev, WRITE},
    {SYS_pwrite64, WRITE},
    {SYS_sendto, WRITE},
    {SYS_sendmsg, WRITE},
    {SYS_fsync, SYNC},
    {SYS_fdatasync, SYNC},
    {SYS_ftruncate, SYNC},
    {SYS_renameat, SYNC},
    {SYS_renameat2, SYNC},
    {SYS_unlinkat, SYNC},
    {SYS_mkdirat, SYNC},
    {SYS_flock, SYNC},
    {SYS_fchmod, SYNC},
    {SYS_read, READ},
    {SYS_pread64, READ},
    {SYS_readv, READ},
    {SYS_lseek, READ},
    {SYS_process_vm_readv, READ},
    {SYS_readlinkat, READ},
    {SYS_getdents64, READ},
    {SYS_statx, READ},
    {SYS_fstat, READ},
    {SYS_newfstatat, READ},
    {SYS_recvfrom, READ},
    {SYS_recvmsg, READ},
    {SYS_epoll_ctl, WAIT},
    {SYS_epoll_pwait, WAIT},
    {441 /* epoll_pwait2 */, WAIT},
    {SYS_ppoll, WAIT},
};

enum class class_of(uint64_t nr) {
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) if ((uint64_t)CALLS[i].nr == nr) return CALLS[i]
        .class;
    return OTHER;
}

/* Whether descriptor `fd` of the process has a link that contains this text. */
static bool is(pid_t pid, uint64_t fd, const char *what) {
    char path[64], link[512];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, (int)fd);
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n < 0) return false;
    link[n] = 0;
    return strstr(link, what) != NULL;
}

bool attaches(pid_t pid, uint64_t nr, const uint64_t *args) {
    if (nr == SYS_bpf) return args[0] == LINK_CREATE || args[0] == RAW_TRACEPOINT_OPEN;
    if (nr == SYS_ioctl) return (uint32_t)args[1] == EVENT_ENABLE || (uint32_t)args[1] == EVENT_SET_BPF;
    return nr == SYS_perf_event_open || (nr == SYS_write && is(pid, args[0], "/uprobe_events"));
}

bool begins_main(uint64_t nr, const uint64_t *args) { return nr == SYS_rt_sigaction && args[0] == SIGXFSZ; }

static bool waits(uint64_t nr) {
#ifdef SYS_epoll_wait
    if (nr == SYS_epoll_wait || nr == SYS_poll) return true;
#endif
    return nr == SYS_epoll_pwait || nr == SYS_ppoll;
}

enum phase phase_of(pid_t pid, uint64_t nr, const uint64_t *args, enum phase now) {
    if (attaches(pid, nr, args)) {
        /* Probe events are removed in the same way as they are defined. */
        return nr == SYS_write && now >= RECORD ? DETACH : ATTACH;
    }
    if (nr == SYS_bpf && (args[0] == MAP_CREATE || args[0] == PROG_LOAD || args[0] == BTF_LOAD)) return LOAD;
    if (waits(nr) && (now == ATTACH || now == DETACH)) return RECORD;
    if (nr == SYS_close && (is(pid, args[0], "bpf_link") || is(pid, args[0], "perf_event"))) return DETACH;
    if (nr == SYS_exit_group || (now == DETACH && nr == SYS_close && is(pid, args[0], "bpf-map")))
        return CLOSE;
    return now;
}
