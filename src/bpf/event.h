/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Events that the BPF programs send, the only source of truth for their layout:
 * src/capture/event.rs mirrors it, and a test compares both through the object's own BTF.
 */
#ifndef PROFINFER_EVENT_H
#define PROFINFER_EVENT_H

enum ev_kind {
	EV_TOKEN_ENTER,
	EV_TOKEN_EXIT,
	EV_SCHED_ENTER,
	EV_SCHED_EXIT,
	EV_SPLIT_ENTER,
	EV_SPLIT_EXIT,
	EV_GRAPH_ENTER,
	EV_GRAPH_EXIT,
	EV_OP,
	EV_THREAD_END,
	EV_TENSOR,
	EV_NODES,
	EV_FORK,
	EV_EXIT,
	EV_EXPERTS,
	EV_OFFCPU,
	EV_PHASE,
	EV_COUNTS,
	EV_WAIT,
	EV_TENSORS,
	EV_NODE,
	EV_KERNELS,
	EV_BATCH,
	EV_UBATCH,
	EV_MEMORY,
	EV_TASK,
	EV_SAMPLER,
	EV_CONTENT,
	EV_KINDS,
};

/* Counters in addition to the events' own: index EV_KINDS + x. */
enum ev_counter {
	CNT_BARRIER,
	CNT_ORPHAN,
	CNT_READ_ERROR,
	CNT_OP_RETURN,
	CNT_UNFOLLOWED,
	CNT_COUNTERS,
};

/* ev_experts.why: why there are no ids */
enum ev_experts_why {
	EXPERTS_TOLD,
	EXPERTS_UNREAD,	 /* the tensor or its data cannot be read from here */
	EXPERTS_ODD,	 /* not a tensor of ids, or too many experts in a row */
	EXPERTS_NOWHERE, /* it has no data */
};

/* ev_call.n of a PHASE */
enum ev_what {
	DOES_TOKENIZE,
	DOES_DETOKENIZE,
	DOES_SAMPLING,
	DOES_LOAD,
	DOES_KINDS,
};

/* ev_call.n of a WAIT: what it waits for */
enum ev_waits {
	WAITS_BACKEND,
	WAITS_SCHED,
	WAITS_CONTEXT,
	WAITS_READ, /* until a tensor's data is available */
	WAITS_KINDS,
};

/* ev_hdr.flags */
#define EVF_FUSED 1
#define EVF_CUT 2     /* OFFCPU: the thread is still off-CPU; set by the recorder */
#define EVF_COUNTED 4 /* EV_OP: the event is an ev_counted */
/* EV_OP: the bits from here on are the CPU on which the op started, plus 1; 0: not known, or above 8190 */
#define EVF_CPU_SHIFT 3

struct ev_hdr {
	__u64 ts; /* CLOCK_MONOTONIC, ns */
	__u32 tgid;
	__u32 tid;
	__u16 kind;
	__u16 engine;
	__u16 ith;
	__u16 flags;
};

/*
 * TOKEN_*: a = llama_context, n = tokens in the batch or -1, b = entry (0 process, 1 decode, 2
 * encode), first word of guid = the context's memory (0: not known).
 * SCHED_*: a = scheduler, b = cgraph. SPLIT_*: a = backend, b = cgraph, guid.
 * GRAPH_ENTER: a = cgraph, b = uid (0: none). GRAPH_EXIT: a = end of thread 0's last op (0: not
 * seen), threads = those that took part (0: not known), which may be fewer than planned.
 * WAIT: n = what it waits for, a = its start, h.ts its end, b = the object waited for; guid for a
 * backend.
 * NODE: b = an enum node_event.
 * FORK: a = child's pid. PHASE: n = which; a = its start, h.ts its end; a = 0: it starts at h.ts.
 */
/* What an EV_NODE says in `b`. */
enum node_event {
	NODE_AT,     /* the node with index `n`; `a` is the graph, or the node itself */
	NODE_TENSOR, /* the node at address `a` */
	NODE_DONE,   /* the thread's last node is enqueued */
};

struct ev_call {
	struct ev_hdr h;
	__u64 a;
	__u64 b;
	__s32 n;       /* n_nodes, n_tokens */
	__u32 threads; /* cplan->n_threads */
	__u32 width;   /* nodes[0]->ne[1] */
	__u32 nodes_changed;
	__u32 kernels;	/* SPLIT_*, NODE: that the thread has given to a device so far; see dispatch.h */
	__u32 launches; /* likewise graphs of kernels */
	__u8 guid[16];
};

/* Kernels of a device, as a layer hands them over (crates/layers/handover). */
#define KERNELS_CHUNK 4

struct gpu_kernel {
	__u64 host;
	__u64 queued;
	__u64 submitted;
	__u64 started;
	__u64 ended;
	__u64 name; /* address */
	__u64 queue;
	__u32 tid;
	__u32 error_ns;
};

struct ev_kernels {
	struct ev_hdr h;
	__u32 n;
	__u32 lost;   /* kernels before these whose times the layer could not get */
	__u64 source; /* the layer */
	struct gpu_kernel kernel[KERNELS_CHUNK];
};

/*
 * Lengths of the responses of ggml-hexagon's NPU library, by which their layouts are known; those of
 * other lengths say nothing.
 */
enum batch_layout {
	/* htp-ops.h, htp_opbatch_rsp: id, status, three counts, pad; no time */
	BATCH_PLAIN = 24,
	/* htp-msg.h (llama.cpp f8bdccd9), htp_general_rsp: op, status, prof_usecs, ...; one op each */
	BATCH_ONE_OP = 64,
	/* htp-ops.h (llama.cpp 022744fa): id, status, three counts, n_traces[11], pad; no time */
	BATCH_TRACED = 72,
	/* htp-ops.h, later: the same up to n_traces, then usecs, pad, two u64 of cycles */
	BATCH_TIMED = 88,
};

/* A batch was written to a queue, or its response was read, at h.ts. */
struct ev_batch {
	struct ev_hdr h;
	__u64 queue;
	__u64 start;  /* of the call */
	__u32 id;     /* first word of the message */
	__u32 answer; /* 1: a response */
	__u32 length; /* bytes of the response */
	__u32 usecs;  /* that the NPU took; 0: it does not say */
};

/* ev_ubatch.what */
#define CHUNKS_OF_BATCH 1 /* of a llama_batch, which may be computed in parts; else of a ubatch */
#define CHUNKS_ODD 2	  /* a ubatch of an unknown layout */

/* Consecutive tokens of one sequence, in one event. */
#define CHUNKS 8
struct chunk {
	__s32 seq;
	__s32 pos; /* of the first; -1: not known */
	__u32 tokens;
	__u32 outputs; /* tokens whose logits or embeddings are wanted */
	__u64 hash;    /* of the only token; 0: it has more, which EV_CONTENT has, or it was not read */
};

/* Tokens are compared by blocks of so many positions. */
#define CONTENT_BLOCK 16
#define CONTENT_BLOCKS 64

/* Consecutive tokens of a sequence: for each block that they touch, the sum of their hashes; 0: they were not read. */
struct ev_content {
	struct ev_hdr h;
	__s32 seq;
	__s32 pos;
	__u32 tokens;
	__u32 n;
	__u64 hash[CONTENT_BLOCKS];
};

/* The tokens of a batch or of a part of it. */
struct ev_ubatch {
	struct ev_hdr h;
	__u32 tokens; /* 0: the event continues the one before */
	__u32 n;      /* chunks in this event */
	__u32 unread; /* tokens after these that were not read */
	__u32 what;
	struct chunk chunk[CHUNKS];
};

enum memory_what {
	MEMORY_CLEAR,
	MEMORY_REMOVE,
	MEMORY_COPY,
	MEMORY_KEEP,
	MEMORY_SHIFT,
	MEMORY_SAVE,
	MEMORY_LOAD,
	MEMORY_DIVIDE,
};

/* A change of a context's memory. */
struct ev_memory {
	struct ev_hdr h;
	__u64 object; /* the memory, or its context */
	__u32 what;
	__s32 seq;   /* -1: all */
	__s32 to;    /* the sequence copied to; by how much positions are shifted, or their divisor */
	__s32 from;  /* first position; negative: 0 */
	__s32 until; /* after the last; negative: the end */
	__u32 unused;
};

/* A server takes in requests, with slot TASK_ARRIVES, or has a result of one. */
#define TASK_ARRIVES -2
struct ev_task {
	struct ev_hdr h;
	__u64 bytes; /* of the array of requests, or 0: it is one */
	__s32 task;  /* number of the (first) request */
	__s32 slot;
};

/* ev_sampler.does */
#define SAMPLER_APPLIED 0  /* llama_sampler_apply: it changes the candidates, or chooses one */
#define SAMPLER_ACCEPTED 1 /* llama_sampler_accept: takes the chosen token */

/* A call of a sampler ended at h.ts, within one that is the phase `sampling`. */
struct ev_sampler {
	struct ev_hdr h;
	__u64 start;
	__u64 table;  /* address of its functions, by which its kind is known; 0: not read */
	__u64 within; /* ns in calls of other samplers that it made */
	__u32 does;
	__u32 unused;
};

/*
 * An op starts. prev_end: the barrier entry that ended this thread's previous op, 0 if not seen.
 * THREAD_END: the thread's last op of the graph ended at h.ts.
 */
struct ev_op {
	struct ev_hdr h;
	__u64 tensor;
	__u64 tensor2; /* second node of a fused op */
	__u64 pool;    /* params->threadpool: distinguishes the threads of different graphs */
	__u64 prev_end;
};

/* Maximum number of counters in use. */
#define PMC_MAX 8

/*
 * An op starts, with the counters of the thread's previous op; or (COUNTS) the counters of its last
 * op of the graph, whose end is reported by the next event.
 */
struct ev_counted {
	struct ev_op op;
	__u64 since;  /* when the counted op started, 0: no op is counted */
	__u32 known;  /* counters with a count, one bit each */
	__u32 scaled; /* those of them that had no slot for part of the time */
	__u64 count[PMC_MAX];
};

#define TENSOR_RAW 448
struct ev_tensor {
	struct ev_hdr h;
	__u64 addr;
	__u8 raw[TENSOR_RAW]; /* struct ggml_tensor up to and including its name */
};

/* Tensors of a graph for a backend other than the CPU's: the first n of the array. */
#define TENSORS_CHUNK 8
struct ev_tensors {
	struct ev_hdr h;
	__u32 n;
	__u32 unused;
	struct raw_tensor {
		__u64 addr;
		__u8 raw[TENSOR_RAW];
	} tensor[TENSORS_CHUNK];
};

#define NODES_CHUNK 48
/* node_info: the node's op, its COMPUTE flag, whether a dim is 0, whether it could not be read */
#define NODE_OP 0xffff
#define NODE_COMPUTE 0x10000
#define NODE_EMPTY 0x20000
#define NODE_UNREAD 0x40000
struct ev_nodes {
	struct ev_hdr h;
	__u64 cgraph;
	__u32 first;
	__u32 total;
	__u64 node[NODES_CHUNK];
	__u32 info[NODES_CHUNK];
};

/* Expert ids: rows [first, first + rows) of `tokens` tokens, `used` ids per row. */
#define EXPERTS_CHUNK 64
struct ev_experts {
	struct ev_hdr h;
	__u64 ids;     /* the tensor that holds them */
	__u64 weights; /* source 0 of the op */
	__u64 data;    /* address of the ids */
	__u32 used;
	__u32 tokens;
	__u32 first;
	__u32 rows;
	__u32 why;
	__u32 unused;
	__s32 id[EXPERTS_CHUNK];
};

/* ev_offcpu.state of a thread that has not run yet; else prev_state below 256, 0: runnable. */
#define STATE_NEW 255
enum ev_answer {
	ANSWER_UNKNOWN,
	ANSWER_NO,
	ANSWER_YES,
};
/* ev_offcpu.phase: what is known about whether the thread is on a CPU */
enum ev_phase {
	PHASE_UNKNOWN,
	PHASE_UNBORN,
	PHASE_ON,
	PHASE_OFFCPU,
};

/* A thread was switched in at h.ts. In the map `threads`: what is known of its off-CPU time. */
struct ev_offcpu {
	struct ev_hdr h;
	__u64 out;   /* when it was switched out */
	__u64 woken; /* 0: not seen, or it did not sleep */
	__u64 ran;   /* the thread's run time when it was switched out, as accounted by the kernel */
	__u32 by;    /* the thread that replaced it on its CPU */
	__u32 from;  /* the thread that ran before it on the CPU it was switched in on */
	__u32 waker;
	__u16 cpu;
	__u16 to_cpu;
	__u8 state;
	__u8 io;
	__u8 fault;
	__u8 phase;
	__u32 unused;
	__u8 by_comm[16];
	__u8 from_comm[16];
	__u8 waker_comm[16];
};

#endif
