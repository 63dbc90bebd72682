/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Per-thread counts from the counters of the CPUs that the thread runs on. An account is open while
 * its thread is on a CPU: the count is then the CPU's reading plus `at`. When the thread is
 * switched out (pmc.bpf.c) the reading is added to `at`; when it is switched in, the reading is
 * subtracted. Files that include this one define constants `k` with `n_pmc`, `pmc_switches` and
 * `pmc_migrations`.
 */
#ifndef PROFINFER_PMC_H
#define PROFINFER_PMC_H

/* The events: index is CPU times n_pmc, plus the counter. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} pmcs SEC(".maps");

/*
 * Settings that may change while programs run, written by the recorder (src/capture/pmc/follow.rs).
 */
struct settings {
	__u32 counting; /* 0: ops are not counted; otherwise how many times counting has started */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

#define NO_UNROLL _Pragma("clang loop unroll(disable)")

#define UNREAD (~0ULL)

/* Starts like struct bpf_perf_event_value. */
struct sum {
	__u64 count, enabled, running;
	__u64 gaps; /* times the counter lost track of the thread; UNREAD: it could not be read just now */
};

struct account {
	__u32 cpu;	  /* 1 + the CPU on which it is open, 0: closed */
	__u32 last;	  /* 1 + the CPU on which it was last open */
	__u32 sched_cost; /* times the thread was switched in or out */
	__u32 known, scaled;
	__u32 epoch;   /* `counting` when it was last read: an older account has missed switches */
	__u64 done_at; /* time of the barrier at which `done` was settled */
	struct sum at[PMC_MAX];
	struct sum now[PMC_MAX];
	struct sum start[PMC_MAX]; /* when the current op started */
	__u64 done[PMC_MAX];	   /* counts of an op, those in `known` */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct account);
} accounts SEC(".maps");

static __always_inline __u32 counting(void)
{
	__u32 zero = 0;
	struct settings *s = k.n_pmc ? bpf_map_lookup_elem(&settings, &zero) : 0;

	return s ? s->counting : 0;
}

static __always_inline bool counted_here(__u32 i)
{
	return (k.pmc_switches | k.pmc_migrations) >> i & 1;
}

/* Reads counter i of this CPU. False: there is none, or it cannot be read. */
static __always_inline bool read_counter(__u32 cpu, __u32 i, struct sum *r)
{
	return counted_here(i) || !bpf_perf_event_read_value(&pmcs, cpu * k.n_pmc + i, (void *)r, 24);
}

#define ADD(to, what, sign)                                                                                            \
	((to)->count += sign(what)->count, (to)->enabled += sign(what)->enabled, (to)->running += sign(what)->running)

#endif
