/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The memory that a recorded process shares with the recorder, and what both say at the door. ../src/lib.rs mirrors it;
 * everything has a fixed place, so that neither side believes what the other wrote about the layout.
 */
#ifndef PROFINFER_AREA_H
#define PROFINFER_AREA_H

#define AREA_MAGIC 0x3165646973666e69ULL
#define SITES 1024
#define ENGINES 16
#define SHARDS 64

/* A function with a jump to this library. */
struct site {
	__u32 enter; /* 1: its entry program runs */
	__u32 leave; /* 1: its return program runs */
	__u16 enter_program, leave_program, engine, unused;
	__u64 spare[6];
};

struct ring {
	__u64 head; /* bytes reserved by writers */
	__u64 pad[15];
	__u64 tail; /* bytes consumed by the recorder */
	__u64 pad2[15];
};

/* A record's first word: its length in bytes, and what is known of it. Zero: it is being written. */
#define RECORD_DONE (1ULL << 63)
#define RECORD_SKIP (1ULL << 62)

#define COUNTS_AT 0x1000
#define COUNTS_BYTES 1024
#define ENGINES_AT (COUNTS_AT + SHARDS * COUNTS_BYTES)
#define ENGINE_BYTES 512
#define SITES_AT (ENGINES_AT + ENGINES * ENGINE_BYTES)
#define RINGS_AT (SITES_AT + SITES * 64)
#define RING_HEAD 0x1000

struct area {
	__u64 magic;
	__u32 shards;	  /* a power of two */
	__u32 ring_bytes; /* of each shard, a power of two */
	__u64 clock;	  /* address of the vDSO's clock_gettime, 0: none */
	__u64 getcpu;	  /* address of the vDSO's getcpu, 0: none */
	__u32 tgid;	  /* the process as the recorder sees it */
	__u32 forget;	  /* changes when the structure of graphs that were seen must be sent again */
	__u64 proc[3];	  /* struct proc of src/bpf/send.h; no engines: nothing is recorded */
};

/* What the library says first. */
struct hello {
	__u64 magic;
	__u64 key[2]; /* known only to who may read the recorder's copy of the library */
	__u32 why;    /* HELLO_* */
	__u32 tid;
	__u64 thunk;  /* address of what slots of functions call */
	__u64 loaded; /* the function that the loader calls when it has mapped something, 0: not known */
};

enum { HELLO_START = 1, HELLO_LOADED, HELLO_FORKED, HELLO_FULL };

/* What the recorder answers, any number of times; each is answered with 0 or a negative errno. */
#define ORDER_BYTES 4096
struct order {
	__u32 what; /* ORDER_* */
	__u32 length;
	__u64 address;
	__u8 old[16];
	__u8 bytes[ORDER_BYTES];
};

enum {
	ORDER_GO = 1,  /* nothing more */
	ORDER_AREA,    /* map the descriptor that comes along, `length` bytes */
	ORDER_CODE,    /* new executable memory of ORDER_BYTES with these bytes */
	ORDER_PATCH,   /* replace `length` bytes, which must be as in `old` */
	ORDER_FILL,    /* an engine was found: all of the memory will be used */
	ORDER_MEASURE, /* call `address`, and what `old` begins with unless it is 0, `length` times: answered with ns */
};

#endif
