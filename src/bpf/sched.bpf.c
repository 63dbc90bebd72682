// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * When the threads of recorded processes are off-CPU, and why: one event per interval, sent when
 * the thread is switched in again. Uses the fields of the kernel's tracepoints, whose offsets
 * tracefs gives, and the addresses of a few functions: needs no BTF.
 *
 * The kernel reports a thread's switch-out, wakeup and switch-in in order, each with the run queue
 * lock held, so nothing here needs a lock. sched_waking is reported before the wakeup, sometimes
 * even before the switch-out.
 */
#include "mini_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "event.h"
#include "tracepoint.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define IO_PLACES 2

/* A range of kernel code. */
struct place {
	__u64 at;
	__u64 len; /* 0: location unknown */
};

/* Set once between open and load (src/capture/sched.rs). */
const volatile struct sched_constants {
	__u32 pbuf;	  /* 1: perf buffer, 0: ring buffer */
	__u32 wake_bytes; /* as in the probes' object */
	/* Field offsets of sched_switch, sched_wakeup and task_newtask. */
	__u32 prev_state_off, next_pid_off, next_comm_off;
	__u32 pid_off;
	__u32 new_pid_off, clone_flags_off;
	__u32 ran_off;		    /* task_struct.se.sum_exec_runtime, 0: unknown */
	struct place fault;	    /* handle_mm_fault: a thread that waits in it waits in a page fault */
	struct place io[IO_PLACES]; /* io_schedule and io_schedule_timeout */
} k = {};

#include "send.h"

/* Threads of recorded processes, from start to exit. Not an LRU: none may be evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct ev_offcpu);
} threads SEC(".maps");

#define FRAMES 64
struct stack {
	__u64 ip[FRAMES];
};

/* Scratch memory: no other switch interrupts a switch on the same CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack);
} stacks SEC(".maps");

/*
 * prev_state as the tracepoint reports it, the same in all kernels since 4.14
 * (include/linux/sched.h, TASK_REPORT).
 */
#define STATE_UNINTERRUPTIBLE 2
#define STATE_DEAD 0x30
#define STATE_PREEMPTED 0x100 /* and above */
#define CLONE_THREAD 0x10000  /* include/uapi/linux/sched.h */

static __always_inline __u32 u32_at(void *ctx, __u32 off)
{
	__u32 v = 0;

	bpf_probe_read_kernel(&v, sizeof(v), ctx + off);
	return v;
}

/*
 * A thread was switched in without having been switched out, or vice versa, and the time of the
 * missing switch is unknown.
 */
static __always_inline void missed(void)
{
	struct count *c = count_of(EV_OFFCPU);

	if (c) {
		__sync_fetch_and_add(&c->seen, 1);
		__sync_fetch_and_add(&c->lost, 1);
	}
}

/* 1 if a < b, for b below 2^63. No branch: for each one in a loop, the verifier would walk the rest of the loop again. */
static __always_inline __u64 below(__u64 a, __u64 b)
{
	return ((a - b) & ~a) >> 63;
}

static __always_inline __u64 within(__u64 ip, const volatile struct place *p)
{
	return below(ip - p->at, p->len);
}

/* What the kernel was doing for the thread that goes to sleep, from its call stack. */
static __always_inline void reason(void *ctx, struct ev_offcpu *t)
{
	__u32 zero = 0;
	struct stack *s = bpf_map_lookup_elem(&stacks, &zero);
	__u64 fault = 0, io = 0;
	long n;

	if (!s)
		return;
	n = bpf_get_stack(ctx, s->ip, sizeof(s->ip), 0);
	if (n <= 0)
		return;
	/* What is behind the n bytes is of an earlier stack. */
	for (__u64 i = 0; i < FRAMES; i++) {
		__u64 read = below(i * 8, n);

		fault |= read & within(s->ip[i], &k.fault);
		io |= read & (within(s->ip[i], &k.io[0]) | within(s->ip[i], &k.io[1]));
	}
	/* Functions not found may be beyond the frames read; io_schedule is never far. */
	if (k.fault.len && (fault || n < sizeof(s->ip)))
		t->fault = fault ? ANSWER_YES : ANSWER_NO;
	if (k.io[0].len)
		t->io = io ? ANSWER_YES : ANSWER_NO;
}

/* How long the calling thread has run, ns. The scheduler updates it just before a switch. */
static __always_inline __u64 ran(void)
{
	__u64 ns = 0;

	if (k.ran_off)
		bpf_probe_read_kernel(&ns, sizeof(ns), (void *)bpf_get_current_task() + k.ran_off);
	return ns;
}

/*
 * Sends an interval once an engine was found in the process: until then there are no operators
 * whose time it could explain, and a service that needs long to find them would fill the buffer.
 */
static __always_inline void tell(void *ctx, struct ev_offcpu *t)
{
	__u32 tgid = t->h.tgid;
	struct proc *p = bpf_map_lookup_elem(&targets, &tgid);

	if (p && p->engines)
		send(ctx, &t->h, sizeof(*t));
}

/*
 * The calling thread is switched out, but its switch-in was not seen: the kernel skips our programs
 * where it interrupts BPF's own work, and may hide a task from tracing. The switch-in was as long
 * ago as the thread has run since it was last switched out.
 */
static __always_inline void came_unseen(void *ctx, struct ev_offcpu *t, __u64 now, __u64 ran)
{
	__u64 since = ran - t->ran;

	/* A new thread has not run yet. */
	if (!k.ran_off || (!t->ran && t->state != STATE_NEW)) {
		missed();
		return;
	}
	/* The two clocks differ, so a short off-CPU time may come out negative. */
	t->h.ts = now - (since < now - t->out ? since : now - t->out);
	t->from = 0;
	t->to_cpu = bpf_get_smp_processor_id();
	tell(ctx, t);
	t->waker = 0;
}

static __always_inline void leaves(void *ctx, struct ev_offcpu *t, __u64 id, __u32 next)
{
	__u64 state = 0, now = bpf_ktime_get_ns(), so_far = ran();
	__u32 tid = id;

	bpf_probe_read_kernel(&state, sizeof(state), ctx + k.prev_state_off);
	/*
	 * Another thread with this id; the exit of the followed one was not seen (an exec by a
	 * thread other than the first).
	 */
	if (t->h.tgid != id >> 32) {
		bpf_map_delete_elem(&threads, &tid);
		return;
	}
	if (t->phase == PHASE_OFFCPU)
		came_unseen(ctx, t, now, so_far);
	if (state & STATE_DEAD) {
		bpf_map_delete_elem(&threads, &tid);
		return;
	}
	t->out = now;
	t->ran = so_far;
	t->woken = 0;
	t->by = next;
	t->cpu = bpf_get_smp_processor_id();
	t->state = state < STATE_PREEMPTED ? state : 0;
	t->phase = PHASE_OFFCPU;
	bpf_probe_read_kernel(t->by_comm, sizeof(t->by_comm), ctx + k.next_comm_off);
	t->io = t->fault = ANSWER_NO;
	if (t->state == STATE_UNINTERRUPTIBLE) {
		t->io = t->fault = ANSWER_UNKNOWN;
		reason(ctx, t);
	}
}

static __always_inline void comes(void *ctx, struct ev_offcpu *t, __u32 prev)
{
	if (t->phase == PHASE_OFFCPU) {
		t->h.ts = bpf_ktime_get_ns();
		t->from = prev;
		t->to_cpu = bpf_get_smp_processor_id();
		bpf_get_current_comm(t->from_comm, sizeof(t->from_comm));
		tell(ctx, t);
	} else if (t->phase == PHASE_ON || t->phase == PHASE_UNBORN) {
		missed();
	}
	t->phase = PHASE_ON;
	t->waker = 0;
}

SEC("tracepoint/sched/sched_switch")
int switches(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 prev = id, next = u32_at(ctx, k.next_pid_off);
	struct ev_offcpu *t;

	t = prev ? bpf_map_lookup_elem(&threads, &prev) : 0;
	if (t)
		leaves(ctx, t, id, next);
	t = next ? bpf_map_lookup_elem(&threads, &next) : 0;
	if (t)
		comes(ctx, t, prev);
	return PASS;
}

/* Runs in the waker's context; the wakeup itself often does not. */
SEC("tracepoint/sched/sched_waking")
int waking(void *ctx)
{
	__u32 tid = u32_at(ctx, k.pid_off);
	struct ev_offcpu *t = bpf_map_lookup_elem(&threads, &tid);

	if (!t)
		return PASS;
	t->waker = bpf_get_current_pid_tgid();
	bpf_get_current_comm(t->waker_comm, sizeof(t->waker_comm));
	return PASS;
}

SEC("tracepoint/sched/sched_wakeup")
int wakes(void *ctx)
{
	__u32 tid = u32_at(ctx, k.pid_off);
	struct ev_offcpu *t = bpf_map_lookup_elem(&threads, &tid);

	if (!t)
		return PASS;
	if (t->phase == PHASE_OFFCPU && !t->woken)
		t->woken = bpf_ktime_get_ns();
	/* Woken before it slept. */
	if (t->phase == PHASE_ON)
		t->waker = 0;
	return PASS;
}

SEC("tracepoint/task/task_newtask")
int begins(void *ctx)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32, tid;
	struct ev_offcpu fresh = { .phase = PHASE_UNBORN };
	__u64 flags = 0;

	if (!bpf_map_lookup_elem(&targets, &tgid))
		return PASS;
	tid = u32_at(ctx, k.new_pid_off);
	bpf_probe_read_kernel(&flags, sizeof(flags), ctx + k.clone_flags_off);
	fresh.h.kind = EV_OFFCPU;
	fresh.h.tid = tid;
	fresh.h.tgid = flags & CLONE_THREAD ? tgid : tid;
	if (bpf_map_update_elem(&threads, &tid, &fresh, BPF_ANY))
		bump(EV_KINDS + CNT_UNFOLLOWED);
	return PASS;
}

/* A new thread becomes runnable. By now its process is in `targets` if it is recorded. */
SEC("tracepoint/sched/sched_wakeup_new")
int wakes_new(void *ctx)
{
	__u32 tid = u32_at(ctx, k.pid_off), tgid;
	struct ev_offcpu *t = bpf_map_lookup_elem(&threads, &tid);

	if (!t || t->phase != PHASE_UNBORN)
		return PASS;
	tgid = t->h.tgid;
	if (!bpf_map_lookup_elem(&targets, &tgid)) {
		bpf_map_delete_elem(&threads, &tid);
		return PASS;
	}
	t->out = t->woken = bpf_ktime_get_ns();
	t->cpu = bpf_get_smp_processor_id();
	t->waker = bpf_get_current_pid_tgid();
	bpf_get_current_comm(t->waker_comm, sizeof(t->waker_comm));
	t->state = STATE_NEW;
	t->io = t->fault = ANSWER_NO;
	t->phase = PHASE_OFFCPU;
	return PASS;
}
