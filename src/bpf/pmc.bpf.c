// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Closes the account of a recorded thread that is switched out and opens the account of one that is
 * switched in, so that other threads' counts are not attributed to it. Needs no BTF: tracefs gives
 * the offset of the tracepoint's field.
 */
#include "mini_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "event.h"
#include "tracepoint.h"

/* Set once between open and load (src/capture/pmc/follow.rs). */
const volatile struct pmc_constants {
	__u32 n_pmc;	      /* number of counters */
	__u32 pmc_switches;   /* those that count switches, one bit each; not a kernel event */
	__u32 pmc_migrations; /* likewise, migrations to another CPU */
	__u32 next_off;	      /* offset of sched_switch's next_pid */
} k = {};

#include "pmc.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* A thread is switched out or in. An account in an unexpected state has missed a switch. */
static __always_inline void turn(__u32 tid, __u32 cpu, bool leaves)
{
	struct account *a = tid ? bpf_map_lookup_elem(&accounts, &tid) : 0;
	__u32 moved;

	if (!a)
		return;
	moved = a->last != cpu;
	NO_UNROLL for (__u32 i = 0; i < PMC_MAX; i++)
	{
		struct sum *at = &a->at[i], r = {};

		if (i >= k.n_pmc)
			break;
		if (!read_counter(cpu - 1, i, &r) || a->cpu != (leaves ? cpu : 0))
			at->gaps++;
		if (leaves) {
			ADD(at, &r, +);
			at->count += k.pmc_switches >> i & 1;
		} else {
			ADD(at, &r, -);
			at->count += k.pmc_migrations >> i & moved;
		}
	}
	a->sched_cost++;
	a->cpu = leaves ? 0 : cpu;
	a->last = cpu;
}

SEC("tracepoint/sched/sched_switch")
int switched(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id() + 1, next = 0;

	if (bpf_probe_read_kernel(&next, 4, ctx + k.next_off))
		return PASS;
	turn(bpf_get_current_pid_tgid(), cpu, true);
	turn(next, cpu, false);
	return PASS;
}
