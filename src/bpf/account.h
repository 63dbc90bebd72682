/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Counts of one op: differences of its thread's account (pmc.h). The account belongs to the calling
 * thread, which may be preempted at any point here.
 */
#ifndef PROFINFER_ACCOUNT_H
#define PROFINFER_ACCOUNT_H

#include "base.h"

/* Called, not inlined, to keep the programs small. */
#define CALLED static __attribute__((noinline))

/* Never written: the initial value of a new account. */
struct account fresh_account;

static __always_inline struct account *account_of(__u32 tid)
{
	struct account *a = bpf_map_lookup_elem(&accounts, &tid);

	if (a)
		return a;
	bpf_map_update_elem(&accounts, &tid, &fresh_account, BPF_NOEXIST);
	return bpf_map_lookup_elem(&accounts, &tid);
}

/*
 * Opens an account that is not open on this CPU: it is new, a switch was missed, or counting was
 * off for a while. The counts in progress are then unknown.
 */
CALLED void reopen(struct account *a, __u32 cpu, __u32 epoch)
{
	NO_UNROLL for (__u32 i = 0; i < PMC_MAX; i++)
	{
		struct sum r = {};

		if (i >= k.n_pmc)
			break;
		a->at[i].gaps++;
		read_counter(cpu - 1, i, &r);
		a->at[i].count = -r.count;
		a->at[i].enabled = -r.enabled;
		a->at[i].running = -r.running;
	}
	a->last = cpu;
	a->cpu = cpu;
	a->epoch = epoch;
}

/* Updates the account's `now` to the current counts. */
CALLED void look(struct account *a)
{
	__u32 cpu = bpf_get_smp_processor_id() + 1, epoch = counting(), sched_cost = 0;

	if (a->cpu != cpu || a->epoch != epoch)
		reopen(a, cpu, epoch);
	for (int tries = 0; tries < 2; tries++) {
		sched_cost = *(volatile __u32 *)&a->sched_cost;
		NO_UNROLL for (__u32 i = 0; i < PMC_MAX; i++)
		{
			struct sum *now = &a->now[i], r = {};

			if (i >= k.n_pmc)
				break;
			*now = a->at[i];
			if (read_counter(cpu - 1, i, &r))
				ADD(now, &r, +);
			else
				now->gaps = UNREAD;
		}
		if (sched_cost == *(volatile __u32 *)&a->sched_cost)
			return;
	}
	/* Switched out while reading, twice. */
	NO_UNROLL for (__u32 i = 0; i < PMC_MAX; i++) a->now[i].gaps = UNREAD;
}

/*
 * A counter that gains or loses its slot spends some ten microseconds in the kernel without
 * counting. So its count is accepted if it missed little, or if it ran for at least this long (ns)
 * and a quarter of the time.
 */
#define ENOUGH 1000000

/* Extrapolates a count from the time it ran to the full time. False: it ran too little. */
static __always_inline bool scale(__u64 *count, __u64 enabled, __u64 running)
{
	if (running < enabled - enabled / 16 && (running < ENOUGH || running < enabled / 4))
		return false;
	if (enabled >> 32) {
		enabled >>= 16;
		running >>= 16;
	}
	*count = *count / running * enabled + *count % running * enabled / running;
	return true;
}

/* Counts from the op's start to `now`. */
CALLED void settle(struct account *a, __u64 at)
{
	a->known = a->scaled = 0;
	a->done_at = at;
	NO_UNROLL for (__u32 i = 0; i < PMC_MAX; i++)
	{
		struct sum *now = &a->now[i], *start = &a->start[i];
		__u64 count = now->count - start->count, enabled = now->enabled - start->enabled;
		__u64 running = now->running - start->running;

		if (i >= k.n_pmc)
			break;
		if (now->gaps == UNREAD || now->gaps != start->gaps)
			continue;
		if (!counted_here(i) && running != enabled) {
			if (!scale(&count, enabled, running))
				continue;
			a->scaled |= 1 << i;
		} else if (!counted_here(i) && !running) {
			continue;
		}
		a->done[i] = count;
		a->known |= 1 << i;
	}
}

/* A barrier that may end an op. */
CALLED void count_barrier(__u32 tid, __u64 at)
{
	struct account *a = bpf_map_lookup_elem(&accounts, &tid);

	if (a) {
		look(a);
		settle(a, at);
	}
}

/* Reports what was settled at `end`, if anything was. */
static __always_inline void tell(struct account *a, struct ev_counted *e, __u64 since, __u64 end)
{
	e->since = since;
	e->known = a->done_at == end ? a->known : 0;
	e->scaled = a->scaled & e->known;
	NO_UNROLL for (__u32 i = 0; i < PMC_MAX; i++) e->count[i] = i < k.n_pmc ? a->done[i] : 0;
}

/*
 * The thread starts an op. The previous op started at `since` (0: there is none to report) and
 * ended at `end` (0: now).
 */
CALLED void count_op(__u32 tid, struct ev_counted *e, __u64 since, __u64 end)
{
	struct account *a = account_of(tid);

	if (!a)
		return;
	look(a);
	if (since && !end)
		settle(a, 0);
	if (since)
		tell(a, e, since, end);
	NO_UNROLL for (__u32 i = 0; i < PMC_MAX; i++)
	{
		if (i < k.n_pmc)
			a->start[i] = a->now[i];
	}
}

/*
 * The thread's last op of the graph ended at `end` (0: now). Reported as of `ts`, which is not
 * later than the event that ends the op.
 */
CALLED void count_last(void *ctx, __u64 id, struct thread_state *thread_state, __u64 end, __u64 ts)
{
	__u32 tid = id;
	struct account *a = bpf_map_lookup_elem(&accounts, &tid);
	struct ev_counted e = {};

	if (!a)
		return;
	if (!end) {
		look(a);
		settle(a, 0);
	}
	head(&e.op.h, EV_COUNTS, id);
	e.op.h.ts = ts;
	e.op.h.ith = thread_state->ith;
	e.op.pool = thread_state->pool;
	tell(a, &e, thread_state->start, end);
	send(ctx, &e.op.h, sizeof(e));
}

#endif
