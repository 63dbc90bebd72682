/* Runs a program and counts its system calls over all its threads; kills it at a given one, or makes that
 * call fail. Processes that it starts are not followed.
 *
 * usage: kill_at [OPTIONS] -o FILE -- PROGRAM [ARGS]
 *
 * - -k NAME:K:HOW: kill it at call K (from 1) of NAME: "all", a phase or a class (stops.c). HOW is "entry"
 * (the call is not made), "exit" (it was made) or "inside" (a moment after it began)
 * - -r NAME:K:ERRNO: make that call fail instead
 * - -c NAME: instead of the program's calls, count those of the first forked process that sets this name
 * (PR_SET_NAME), from then on
 * - -s SIGNAL: send this signal there instead of killing it
 * - -i SIGNAL:SECONDS: send the program a signal this long after its first probe
 * - -t SECONDS: kill a program that takes longer
 *
 * The results are written to FILE as one JSON object. The exit code is 0 if that succeeded, regardless of how
 * the program ended.
 */
#define _GNU_SOURCE
#include "stops.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __aarch64__
#include <elf.h>
#include <asm/ptrace.h>
#else
#include <stddef.h>
#include <sys/user.h>
#endif

enum how { NOTHING, ENTRY, EXIT, INSIDE, REFUSE };
enum { THREADS = 4096, NAME = 16 };
static const long OPTIONS = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;

static struct {
    enum how how;
    char name[NAME];
    long k, error;
    const char *child;
    int there, signal;
    double after, limit;
    FILE *out;
} asked = {.limit = 60, .there = SIGKILL};

static pid_t program, counted; /* counted: the process whose calls count, once it exists */
static pid_t unnamed[THREADS]; /* forked processes that have not set their name yet */
static int n_unnamed;
static enum phase phase;
static long all, phases[PHASES], classes[CLASSES];
static pid_t threads[THREADS];
static int n_threads;
static double first_probe, last_probe, detaching; /* detaching: start of that phase, reset by a probe */
static pid_t attaching[THREADS];                  /* threads in an attaching call, which may take seconds */
static int n_attaching;
static struct __ptrace_syscall_info at;
static pid_t chosen; /* the thread stopped at the requested call until the call is finished */
static enum phase at_phase;
static double killed;
static char held[65536];
static double sent;  /* when the requested signal was sent; 0: it was not */
static bool in_main; /* always true in a forked child */

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static long number(const char *text) {
    char *end;
    long v = strtol(text, &end, 10);
    if (*end || v < 0) errno = EINVAL, fail(text);
    return v;
}

/* NAME:K:REST */
static void parse_place(char *text) {
    char *k = strchr(text, ':'), *rest = k ? strchr(k + 1, ':') : NULL;
    if (!rest || k - text >= NAME) errno = EINVAL, fail(text);
    *k = *rest = 0;
    strcpy(asked.name, text);
    asked.k = number(k + 1);
    if (asked.how == REFUSE) {
        asked.error = number(rest + 1);
        return;
    }
    const char *hows[] = {"", "entry", "exit", "inside"};
    for (int i = ENTRY; i <= INSIDE; i++)
        if (!strcmp(rest + 1, hows[i])) asked.how = (enum how)i;
    if (asked.how == NOTHING) errno = EINVAL, fail(rest + 1);
}

static void parse(int argc, char **argv) {
    for (int c; (c = getopt(argc, argv, "+k:r:c:s:i:t:o:")) != -1;) {
        char *colon;
        switch (c) {
        case 'r': asked.how = REFUSE; /* fallthrough */
        case 'k': parse_place(optarg); break;
        case 'c': asked.child = optarg; break;
        case 's': asked.there = (int)number(optarg); break;
        case 'i':
            colon = strchr(optarg, ':');
            if (!colon) errno = EINVAL, fail(optarg);
            asked.after = atof(colon + 1);
            *colon = 0;
            asked.signal = (int)number(optarg);
            break;
        case 't': asked.limit = atof(optarg); break;
        case 'o': asked.out = fopen(optarg, "w"); break;
        default: exit(2);
        }
    }
    if (!asked.out || optind >= argc) errno = EINVAL, fail("-o FILE -- PROGRAM");
}

/* Starts once the tracer follows it. */
static void start(char **argv) {
    int gate[2];
    char byte = 0;
    if (pipe2(gate, O_CLOEXEC)) fail("pipe");
    program = fork();
    if (program < 0) fail("fork");
    if (program == 0) {
        close(gate[1]);
        if (read(gate[0], &byte, 1) == 1) execvp(argv[0], argv);
        _exit(127);
    }
    long options = OPTIONS | (asked.child ? PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK : 0);
    if (ptrace(PTRACE_SEIZE, program, NULL, options)) fail("PTRACE_SEIZE");
    if (write(gate[1], &byte, 1) != 1) fail("write");
    close(gate[0]), close(gate[1]);
}

/* The process that a thread belongs to. */
static pid_t process_of(pid_t tid) {
    char path[64], line[128];
    pid_t tgid = 0;
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Tgid: %d", &tgid) == 1) break;
    if (f) fclose(f);
    return tgid;
}

static void know(pid_t tid) {
    for (int i = 0; i < n_threads; i++)
        if (threads[i] == tid) return;
    if (n_threads < THREADS) threads[n_threads++] = tid;
}

static bool counts(pid_t tid) {
    if (!counted) return false;
    for (int i = 0; i < n_threads; i++)
        if (threads[i] == tid) return true;
    return false;
}

/* The BPF objects held by the process, as JSON. */
static void note_held(void) {
    char path[300], line[256];
    size_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/fdinfo", counted);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/%d/fdinfo/%s", counted, e->d_name);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f)) {
            char kind[16];
            unsigned id;
            if (sscanf(line, "%15[a-z]_id: %u", kind, &id) != 2 || n + 64 > sizeof held) continue;
            if (!strcmp(kind, "prog") || !strcmp(kind, "map") || !strcmp(kind, "link"))
                n += (size_t)sprintf(held + n, "%s[\"%s\",%u]", n ? "," : "", kind, id);
        }
        if (f) fclose(f);
    }
    if (dir) closedir(dir);
}

static void finish_off(void) {
    note_held();
    killed = now();
    kill(counted, asked.there);
}

static bool is_asked(enum class class) {
    if (asked.how == NOTHING || killed || chosen) return false;
    for (int i = 0; i < PHASES; i++)
        if (!strcmp(asked.name, PHASE_NAMES[i])) return phase == (enum phase)i && phases[i] == asked.k;
    for (int i = 0; i < CLASSES; i++)
        if (!strcmp(asked.name, CLASS_NAMES[i]))
            return in_main && class == (enum class)i && classes[i] == asked.k;
    return all == asked.k;
}

static void skip_call(pid_t tid) {
#ifdef __aarch64__
    int none = -1;
    struct iovec v = {&none, sizeof none};
    ptrace(PTRACE_SETREGSET, tid, NT_ARM_SYSTEM_CALL, &v);
#else
    ptrace(PTRACE_POKEUSER, tid, offsetof(struct user, regs.orig_rax), -1L);
#endif
}

static void answer(pid_t tid, long value) {
#ifdef __aarch64__
    struct user_pt_regs regs;
    struct iovec v = {&regs, sizeof regs};
    ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &v);
    regs.regs[0] = (uint64_t)value;
    ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &v);
#else
    ptrace(PTRACE_POKEUSER, tid, offsetof(struct user, regs.rax), value);
#endif
}

static void on_entry(pid_t tid, const struct __ptrace_syscall_info *info) {
    uint64_t nr = info->entry.nr;
    const uint64_t *args = (const uint64_t *)info->entry.args;
    enum class class = class_of(nr);
    phase = phase_of(counted, nr, args, phase);
    if (attaches(counted, nr, args)) {
        last_probe = now(), detaching = 0;
        if (!first_probe) first_probe = last_probe;
        if (n_attaching < THREADS) attaching[n_attaching++] = tid;
    }
    if (phase == DETACH && !detaching) detaching = now();
    all++, phases[phase]++;
    /* Errors given to the dynamic loader are beyond the program's control. */
    in_main = in_main || asked.child || begins_main(nr, args);
    if (in_main) classes[class]++;
    if (!is_asked(class)) return;
    at = *info, at_phase = phase;
    if (asked.how == ENTRY)
        finish_off();
    else if (asked.how == REFUSE)
        skip_call(tid), chosen = tid;
    else
        chosen = tid;
}

static void on_exit_of(pid_t tid) {
    for (int i = 0; i < n_attaching; i++)
        if (attaching[i] == tid) attaching[i] = attaching[--n_attaching], last_probe = now();
    if (tid != chosen || killed) return;
    if (asked.how == EXIT)
        finish_off();
    else if (asked.how == REFUSE && asked.error)
        answer(tid, -asked.error), asked.error = 0;
}

static bool is_unnamed(pid_t pid) {
    for (int i = 0; i < n_unnamed; i++)
        if (unnamed[i] == pid) return true;
    return false;
}

/* The name a process has set for itself. */
static void name_of(pid_t pid, char name[32]) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%31s", name) != 1) *name = 0;
    if (f) fclose(f);
}

/* Whether a process has set its name; the calls of the requested one count from then on. */
static void learn_name(pid_t pid) {
    char name[32], first[32];
    name_of(pid, name), name_of(program, first);
    if (!strcmp(name, first)) return;
    for (int i = 0; i < n_unnamed; i++)
        if (unnamed[i] == pid) unnamed[i--] = unnamed[--n_unnamed];
    if (!counted && !strcmp(name, asked.child)) counted = pid, know(pid);
}

/* A thread is stopped at a system call. */
static void on_call(pid_t tid) {
    struct __ptrace_syscall_info info;
    if (is_unnamed(tid)) {
        learn_name(tid);
        return;
    }
    if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) < 0) return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
        on_entry(tid, &info);
    else if (info.op == PTRACE_SYSCALL_INFO_EXIT)
        on_exit_of(tid);
}

/* A new thread or process. */
static void on_birth(pid_t parent, int event) {
    unsigned long born = 0;
    if (ptrace(PTRACE_GETEVENTMSG, parent, NULL, &born)) return;
    bool ours = counted && process_of((pid_t)born) == counted;
    if (event == PTRACE_EVENT_CLONE && ours) know((pid_t)born);
    if (event == PTRACE_EVENT_FORK && asked.child && !counted && n_unnamed < THREADS)
        unnamed[n_unnamed++] = (pid_t)born;
}

/* Resumes a stopped thread. */
static void go_on(pid_t tid, int signal) {
    bool calls = counts(tid);
    ptrace(calls || is_unnamed(tid) ? PTRACE_SYSCALL : PTRACE_CONT, tid, NULL, (long)signal);
    if (calls && tid == chosen && asked.how == INSIDE && !killed) {
        /* A call that returns immediately has no "inside"; the kernel's waits take tens of
         * milliseconds. */
        nanosleep(&(struct timespec){0, 300000}, NULL);
        finish_off();
    }
}

/* Handles one event; returns false when everything has ended. */
static bool take(pid_t tid, int status, int *ended) {
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
        if (tid == (counted ? counted : program)) *ended = status;
        return tid != (asked.child && counted ? counted : program);
    }
    int signal = WSTOPSIG(status), event = status >> 16, given = 0;
    if (signal == (SIGTRAP | 0x80) && !event)
        on_call(tid);
    else if (event == PTRACE_EVENT_EXEC && !asked.child && !counted)
        counted = tid, know(tid);
    else if (event == PTRACE_EVENT_CLONE || event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK)
        on_birth(tid, event);
    else if (!event)
        given = signal;
    /* Other processes made by clone are not followed. */
    go_on(tid, given);
    return true;
}

/* Actions due by time; returns true if the program was killed for taking too long. */
static bool clocked(double begin) {
    if (asked.signal && !sent && first_probe && now() > first_probe + asked.after) {
        sent = now();
        kill(program, asked.signal);
    }
    if (now() < begin + asked.limit) return false;
    kill(counted ? counted : program, SIGKILL);
    return true;
}

static void tell(int ended, bool slow) {
    FILE *f = asked.out;
    const char *end = slow ? "slow" : killed ? "killed" : "ended";
    fprintf(f, "{\"end\":\"%s\",\"code\":%d,\"signal\":%d,\"pid\":%d,\"program\":%d,\"all\":%ld", end,
            WIFEXITED(ended) ? WEXITSTATUS(ended) : -1, WIFSIGNALED(ended) ? WTERMSIG(ended) : 0, counted,
            program, all);
    for (int i = 0; i < PHASES; i++) fprintf(f, ",\"%s\":%ld", PHASE_NAMES[i], phases[i]);
    for (int i = 0; i < CLASSES; i++) fprintf(f, ",\"%s\":%ld", CLASS_NAMES[i], classes[i]);
    fprintf(f, ",\"first_probe\":%.6f,\"last_probe\":%.6f,\"detaching\":%.6f,\"killed\":%.6f,\"over\":%.6f",
            first_probe, last_probe, detaching, killed, now());
    if (at.op == PTRACE_SYSCALL_INFO_ENTRY)
        fprintf(f, ",\"at\":{\"call\":%llu,\"first\":%llu,\"second\":%llu,\"phase\":\"%s\"}",
                (unsigned long long)at.entry.nr, (unsigned long long)at.entry.args[0],
                (unsigned long long)at.entry.args[1], PHASE_NAMES[at_phase]);
    fprintf(f, ",\"sent\":%.6f,\"held\":[%s],\"threads\":[", sent, held);
    for (int i = 0; i < n_threads; i++) fprintf(f, "%s%d", i ? "," : "", threads[i]);
    fprintf(f, "]}\n");
    if (fclose(f)) fail("the state");
}

static void wake(int signal) { (void)signal; }

int main(int argc, char **argv) {
    parse(argc, argv);
    /* Interrupts the wait for the program regularly, to check the time. */
    struct sigaction action = {.sa_handler = wake};
    sigaction(SIGALRM, &action, NULL);
    timer_t timer;
    struct itimerspec often = {{0, 20000000}, {0, 20000000}};
    if (timer_create(CLOCK_MONOTONIC, NULL, &timer) || timer_settime(timer, 0, &often, NULL)) fail("timer");
    double begin = now();
    start(argv + optind);
    int status = 0, ended = 0;
    bool slow = false;
    for (;;) {
        pid_t tid = waitpid(-1, &status, __WALL);
        slow = slow || clocked(begin);
        if (tid < 0 && errno == EINTR) continue;
        if (tid < 0 || !take(tid, status, &ended)) break;
    }
    tell(ended, slow);
    return 0;
}
