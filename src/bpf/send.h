/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The maps that all objects of a recording share, and the functions that send an event through
 * them. Files that include this one define constants `k` with `pbuf` and `wake_bytes`.
 */
#ifndef PROFINFER_SEND_H
#define PROFINFER_SEND_H

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} perf_events SEC(".maps");

struct count {
	__u64 seen;
	__u64 lost;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EV_KINDS + CNT_COUNTERS);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

/* A recorded process. The return addresses of ggml_barrier are learned: see barrier_enter. */
struct proc {
	__u64 loop_ra;
	__u64 final_ra;
	__u32 engines; /* one bit per engine found in it; other engines' programs skip it */
	__u32 phase;   /* see phase.h */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct proc);
} targets SEC(".maps");

/* What a thread is doing. Only for threads of recorded processes: a hit needs no other lookup. */
struct thread_state {
	__u64 params; /* ggml_compute_params from which ith and pool were read, in graph `epoch` */
	__u64 epoch;
	__u64 pool;   /* with ith: which worker of which graph */
	__u64 tensor; /* current op, 0: none */
	__u64 start;
	__u64 end; /* its end, 0: not seen yet */
	__u64 last_ra;
	__u64 last_ts;
	__u64 loop_ra; /* its process's, 0: unknown here */
	__u64 ids;     /* thread 0: expert ids last sent in this graph */
	__u32 tgid;
	__u16 hits;
	__u16 nth; /* threads of its graph, by `params`; 0: not known */
	__u16 ith;
	__u8 in_graph; /* thread 0: between entry and return of ggml_graph_compute */
	__u8 describe; /* thread 0: this graph may have changed, read its tensors */
	__u32 engines; /* its process's */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct thread_state);
} thread_states SEC(".maps");

static __always_inline struct count *count_of(__u32 i)
{
	return bpf_map_lookup_elem(&counts, &i);
}

static __always_inline void bump(__u32 i)
{
	struct count *c = count_of(i);

	if (c)
		__sync_fetch_and_add(&c->seen, 1);
}

static __always_inline void tally(__u16 kind, long err)
{
	struct count *c = count_of(kind);

	if (c) {
		__sync_fetch_and_add(&c->seen, 1);
		if (err)
			__sync_fetch_and_add(&c->lost, 1);
	}
}

/*
 * Sends an event, and wakes the reader when enough data is waiting. Checks how much is waiting only
 * if `ask`.
 */
static __always_inline void pass(void *ctx, struct ev_hdr *h, __u32 size, bool ask)
{
	long err;

	if (k.pbuf) {
		err = bpf_perf_event_output(ctx, &perf_events, BPF_F_CURRENT_CPU, h, size);
	} else {
		__u64 flags = BPF_RB_NO_WAKEUP;

		if (ask && bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= k.wake_bytes)
			flags = BPF_RB_FORCE_WAKEUP;
		err = bpf_ringbuf_output(&events, h, size, flags);
	}
	tally(h->kind, err);
}

static __always_inline void send(void *ctx, struct ev_hdr *h, __u32 size)
{
	pass(ctx, h, size, true);
}

/* Wakes the reader immediately. For a fork: the child's probes depend on it. For a change of phase. */
static __always_inline void send_now(void *ctx, struct ev_hdr *h, __u32 size)
{
	long err;

	if (k.pbuf)
		err = bpf_perf_event_output(ctx, &perf_events, BPF_F_CURRENT_CPU, h, size);
	else
		err = bpf_ringbuf_output(&events, h, size, BPF_RB_FORCE_WAKEUP);
	tally(h->kind, err);
}

static __always_inline void stamp(struct ev_hdr *h, __u16 kind, __u64 id)
{
	h->ts = bpf_ktime_get_ns();
	h->tgid = id >> 32;
	h->tid = id;
	h->kind = kind;
}

#endif
