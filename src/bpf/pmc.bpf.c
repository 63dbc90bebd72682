// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Closes the account of a recorded thread that leaves a CPU and opens that of one that comes to it, so that what others
 * count there is not taken for theirs. Needs no BTF: the tracepoint's field is where tracefs says.
 */
#include "mini_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "event.h"

/* Set once between open and load (agent/pmc/follow.rs). */
const volatile struct knobs {
	__u32 n_pmc;	    /* counters */
	__u32 pmc_switches; /* of them, those that count switches, a bit each: counted here, no event of the kernel's */
	__u32 pmc_migrations; /* likewise, arrivals on another CPU */
	__u32 next_off;	      /* offset of sched_switch's next_pid */
} k = {};

#include "pmc.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* A thread leaves this CPU, or comes to it. An account that is not as it must be has missed a switch. */
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
	a->turns++;
	a->cpu = leaves ? 0 : cpu;
	a->last = cpu;
}

SEC("tracepoint/sched/sched_switch")
int switched(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id() + 1, next = 0;

	if (bpf_probe_read_kernel(&next, 4, ctx + k.next_off))
		return 0;
	turn(bpf_get_current_pid_tgid(), cpu, true);
	turn(next, cpu, false);
	return 0;
}
