// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The library in an engine's process: the programs of src/bpf, called by jumps at the entries of the engine's functions
 * instead of by the kernel's probes. It uses no C library, allocates nothing and takes no lock; on the path of a hit
 * it makes no system call, except once for each page it reads and for each thread's number.
 *
 * It does nothing by itself. At its start, and when the loader has mapped something, it asks the recorder at its door,
 * an abstract socket, which says what memory to share and what to change (area.h). Nobody there: nothing is done.
 */
#include "mini_vmlinux.h"
#include "area.h"
#include "system.h"
#include "loader.h"

struct ops_constants;
static __thread const struct ops_constants *inside_constants __attribute__((tls_model("initial-exec")));

#include "../../../src/bpf/ops.bpf.c"

_Static_assert(sizeof(struct ops_constants) <= ENGINE_BYTES, "an engine's constants have a fixed room");
_Static_assert((EV_KINDS + CNT_COUNTERS) * sizeof(struct count) <= COUNTS_BYTES, "so have a shard's counts");
_Static_assert(sizeof(struct site) == 64, "the thunks know it");
_Static_assert(sizeof(struct proc) == 24, "area.h has room for it");

/* The recorder writes the name of its socket here, into its own copy of this file, and a key. */
#define DOOR_MARK "profinfer's door is not open here"
__attribute__((used, section(".data.door"), aligned(8))) static volatile struct {
	char name[112];
	__u64 key[2];
} door = { DOOR_MARK, { 0, 0 } };

extern char inside_thunk[];

static struct area *area;
/* The thunks read it: the table of sites, or one that is empty. */
struct site *inside_sites;
/* 1 in the process that made it; a child by fork finds 0. */
static volatile __u32 *alive;

/* What is known of the calling thread. */
static __thread struct {
	__u32 tid;
	__u32 shard;
} me __attribute__((tls_model("initial-exec")));

__u64 inside_now(void)
{
	struct timespec t = { 0, 0 };
	long (*clock)(long, struct timespec *) = (void *)area->clock;

	if (!clock || clock(CLOCK_MONOTONIC, &t))
		system2(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

__u64 inside_id(void)
{
	return (__u64)area->tgid << 32 | me.tid;
}

/* Where the C library has told the kernel to write the thread's CPU (glibc 2.35, rseq(2)), if it has. */
#define OF_LIBC __attribute__((weak, visibility("default")))
extern const long __rseq_offset OF_LIBC;
extern const __u32 __rseq_size OF_LIBC;

__u32 inside_cpu(void)
{
	long (*getcpu)(__u32 *, void *, void *) = (void *)area->getcpu;
	__u32 cpu = -1;

	/* cpu_id, behind cpu_id_start; not registered: negative. */
	if (&__rseq_offset && &__rseq_size && __rseq_size)
		return *(volatile __u32 *)(thread_pointer() + __rseq_offset + 4);
	if (getcpu)
		getcpu(&cpu, 0, 0);
	return cpu;
}

/* Pages that could be read once. A page is asked for with a call that only looks whether its memory can be read. */
#define PAGES 4096
static __u64 pages[PAGES];

static bool readable(__u64 page)
{
	__u64 *seen = &pages[(page ^ page >> 12) % PAGES];

	if (__atomic_load_n(seen, __ATOMIC_RELAXED) == page + 1)
		return true;
	/* An unknown `how`: the set is read, and then it is refused. */
	if (system4(SYS_rt_sigprocmask, -1, page << 12, 0, 8) != -EINVAL)
		return false;
	__atomic_store_n(seen, page + 1, __ATOMIC_RELAXED);
	return true;
}

bool inside_read(void *to, __u32 size, __u64 from)
{
	/* Not the lowest page, nor the kernel's half. */
	if (!size)
		return true;
	if (from < 4096 || from >> 56 || size > 4096)
		return false;
	for (__u64 page = from >> 12; page <= (from + size - 1) >> 12; page++) {
		if (!readable(page))
			return false;
	}
	memcpy(to, (const void *)from, size);
	return true;
}

/* An entry of a hash: the key, then the value. Entries are looked for in a few places behind the key's own. */
#define WINDOW 8

static __u64 key_of(const void *key, __u32 size)
{
	/* Of an address in a process, the address: there is but one process. */
	return size == 4 ? (__u64) * (const __u32 *)key : *(const __u64 *)key;
}

static __u64 *entry(void *slots, __u32 entries, __u32 value_size, __u64 key, __u32 i)
{
	__u64 hash = key * 0x9e3779b97f4a7c15ULL >> 32, at = (hash * entries >> 32) + i;

	if (at >= entries)
		at -= entries;
	return (void *)((char *)slots + at * (8 + ((value_size + 7) & ~7U)));
}

void *inside_lookup(void *slots, __u32 kind, __u32 entries, __u32 key_size, __u32 value_size, const void *key)
{
	__u64 wanted = key_of(key, key_size);

	if (kind == BPF_MAP_TYPE_PERCPU_ARRAY)
		return (char *)area + COUNTS_AT + me.shard * COUNTS_BYTES + wanted * value_size;
	/* Of the table of processes, the one. */
	if (kind == BPF_MAP_TYPE_HASH)
		return wanted == area->tgid ? area->proc : 0;
	if (kind == BPF_MAP_TYPE_ARRAY)
		return wanted < entries ? (char *)slots + wanted * value_size : 0;
	for (__u32 i = 0; i < WINDOW; i++) {
		__u64 *e = entry(slots, entries, value_size, wanted, i);

		if (__atomic_load_n(e, __ATOMIC_RELAXED) == wanted)
			return e + 1;
	}
	return 0;
}

long inside_update(void *slots, __u32 kind, __u32 entries, __u32 key_size, __u32 value_size, const void *key,
		   const void *value, __u64 flags)
{
	__u64 wanted = key_of(key, key_size), *to = inside_lookup(slots, kind, entries, key_size, value_size, key);

	if (to && flags == BPF_NOEXIST)
		return -EEXIST;
	for (__u32 i = 0; !to && i < WINDOW; i++) {
		__u64 *e = entry(slots, entries, value_size, wanted, i), none = 0;

		if (__atomic_compare_exchange_n(e, &none, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			to = e + 1;
	}
	if (!to) {
		/* No room: another key is forgotten, as in the kernel's table. */
		__u64 *e = entry(slots, entries, value_size, wanted, wanted % WINDOW);

		__atomic_store_n(e, wanted, __ATOMIC_RELAXED);
		to = e + 1;
	}
	memcpy(to, value, value_size);
	return 0;
}

long inside_delete(void *slots, __u32 kind, __u32 entries, __u32 key_size, __u32 value_size, const void *key)
{
	__u64 *value = inside_lookup(slots, kind, entries, key_size, value_size, key);

	if (value)
		__atomic_store_n(value - 1, 0, __ATOMIC_RELAXED);
	return 0;
}

static long full(void);

/* Writers reserve by a compare and exchange: any number of threads, and handlers of signals within them. */
long inside_send(const void *event, __u64 size)
{
	struct ring *ring = (void *)((char *)area + RINGS_AT + me.shard * (RING_HEAD + (__u64)area->ring_bytes));
	char *data = (char *)ring + RING_HEAD;
	__u64 bytes = area->ring_bytes, length = (size + 7) & ~7ULL, need = 8 + length;
	__u64 head = __atomic_load_n(&ring->head, __ATOMIC_RELAXED), at, skip;

	do {
		at = head & (bytes - 1);
		skip = need > bytes - at ? bytes - at : 0;
		if (head + skip + need - __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) > bytes)
			return full();
	} while (!__atomic_compare_exchange_n(&ring->head, &head, head + skip + need, true, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	if (skip) {
		__atomic_store_n((__u64 *)(data + at), skip | RECORD_SKIP | RECORD_DONE, __ATOMIC_RELEASE);
		at = 0;
	}
	memcpy(data + at + 8, event, size);
	__atomic_store_n((__u64 *)(data + at), need | RECORD_DONE, __ATOMIC_RELEASE);
	return 0;
}

typedef int program(struct pt_regs *);

/* By number, in the order of `Prog::ALL` (crates/engine/src/probes.rs). */
static program *const programs[] = {
	token_process,	token_decode,	token_encode,	 token_exit,	  sched_enter,	    sched_exit,
	split_enter,	split_exit,	node_enter,	 node_tensor1,	  node_tensor2,	    node_tensor3,
	node_tensor4,	node_exit,	kernels_enter,	 dispatch_kernel, dispatch_graph,   batch_write,
	batch_written,	batch_read,	batch_answered,	 graph_enter,	  graph_exit,	    op_enter,
	fused_enter,	op_exit,	barrier_enter,	 phase_tokenize,  phase_detokenize, phase_sampling,
	sampler_apply,	sampler_accept, phase_load,	 phase_exit,	  wait_backend,	    wait_sched,
	wait_context,	wait_read,	wait_exit,	 ubatch_enter,	  memory_clear,	    memory_remove,
	memory_copy,	memory_keep,	memory_shift,	 memory_divide,	  state_save,	    state_load,
	state_seq_save, state_seq_load, state_file_save, state_file_load, task_post,	    task_post_all,
	task_result,
};
#define PROGRAMS (sizeof(programs) / sizeof(*programs))
/* Not a program: the loader has mapped something. */
#define LOADED 0xffff

static void ask(__u32 why);
/* A thread asks. */
static __u32 asking;

/* Calls of the table's functions pass on at once. */
static struct site no_sites[SITES];

/*
 * This is a child of the process that had the memory: it asks for its own, once, and until then nothing of it is
 * recorded.
 */
static bool forked(void)
{
	static __u32 asked;

	if (!__atomic_exchange_n(&asked, 1, __ATOMIC_RELAXED)) {
		inside_sites = no_sites;
		asking = 0;
		me.tid = 0;
		ask(HELLO_FORKED);
		asked = 0;
	}
	return *alive;
}

/* The last `forget` of the area that was followed. */
static __u32 forgotten;

/* The recorder wants the structure of graphs again, which it did not follow for a while. */
static void forget_graphs(void)
{
	__u64 step = 8 + ((sizeof(*graphs.value) + 7) & ~7ULL);
	char *slots = graphs.value_slots;

	__atomic_store_n(&forgotten, __atomic_load_n(&area->forget, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	for (__u64 i = 0; i < MAP_ENTRIES(&graphs); i++) {
		__u64 *key = (void *)(slots + i * step);

		if (__atomic_load_n(key, __ATOMIC_RELAXED))
			__atomic_store_n(key, 0, __ATOMIC_RELAXED);
	}
}

static void run(struct pt_regs *regs, const struct site *site, __u32 number)
{
	if (number == LOADED) {
		/* RT_CONSISTENT of link.h: all of it. */
		if (loader_state && !*loader_state)
			ask(HELLO_LOADED);
		return;
	}
	if (!*alive && !forked())
		return;
	if (number >= PROGRAMS || site->engine >= ENGINES)
		return;
	if (!me.tid) {
		static __u32 threads;

		me.shard = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED) & (area->shards - 1) & (SHARDS - 1);
		me.tid = system0(SYS_gettid);
	}
	if (__atomic_load_n(&area->forget, __ATOMIC_RELAXED) != __atomic_load_n(&forgotten, __ATOMIC_RELAXED))
		forget_graphs();
	inside_constants = (void *)((char *)area + ENGINES_AT + site->engine * ENGINE_BYTES);
	programs[number](regs);
}

/* Called by the thunks. */
void inside_enter(struct pt_regs *regs, const struct site *site)
{
	if (site->enter)
		run(regs, site, site->enter_program);
}

void inside_leave(struct pt_regs *regs, const struct site *site)
{
	run(regs, site, site->leave_program);
}

/* Memory of the programs' maps; zero until it is written. */
#define MAP(m)                                                                                                         \
	do {                                                                                                           \
		if (base)                                                                                              \
			(m).value_slots = base + at;                                                                   \
		at += (MAP_ENTRIES(&(m)) * (16 + sizeof(*(m).value)) + 63) & ~63ULL;                                   \
	} while (0)

static __u64 maps_at(char *base)
{
	__u64 at = 0;

	MAP(thread_states);
	MAP(known);
	MAP(graphs);
	MAP(scratches);
	MAP(zero);
	MAP(searches);
	MAP(no_search);
	MAP(dispatches);
	MAP(batch_calls);
	MAP(walks);
	MAP(no_walk);
	MAP(phases);
	MAP(samplers);
	MAP(no_samplers);
	MAP(waits);
	MAP(settings);
	MAP(accounts);
	return at;
}

static long use_area(long fd, __u64 length)
{
	long at = system6(SYS_mmap, 0, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), maps, page;
	struct area *fresh = (void *)at;

	if (failed(at))
		return at;
	if (length < RINGS_AT || fresh->magic != AREA_MAGIC || !fresh->shards || fresh->shards > SHARDS ||
	    fresh->shards & (fresh->shards - 1) ||
	    RINGS_AT + fresh->shards * (RING_HEAD + (__u64)fresh->ring_bytes) > length)
		return -EINVAL;
	maps = system6(SYS_mmap, 0, maps_at(0), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		       0);
	page = system6(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (failed(maps) || failed(page))
		return -ENOMEM;
	system3(SYS_madvise, page, 4096, MADV_WIPEONFORK);
	maps_at((char *)maps);
	alive = (void *)page;
	*alive = 1;
	area = fresh;
	inside_sites = (void *)((char *)fresh + SITES_AT);
	return 0;
}

static long use_code(const struct order *order)
{
	long at = system6(SYS_mmap, order->address, ORDER_BYTES, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (failed(at))
		return at;
	if ((__u64)at != order->address) {
		system2(SYS_munmap, at, ORDER_BYTES);
		return -EEXIST;
	}
	memcpy((void *)at, order->bytes, ORDER_BYTES);
	synchronize((void *)at, ORDER_BYTES);
	return system3(SYS_mprotect, at, ORDER_BYTES, PROT_READ | PROT_EXEC);
}

/* The kernel writes to memory that is only executable for the process itself, unless it was built to refuse that. */
static bool write_by_kernel(const struct order *order)
{
	long fd = system4(SYS_openat, AT_FDCWD, (long)"/proc/self/mem", O_RDWR | O_CLOEXEC, 0), done;

	if (failed(fd))
		return false;
	done = system4(SYS_pwrite64, fd, (long)order->bytes, order->length, order->address);
	system1(SYS_close, fd);
	return done == order->length;
}

/* Nothing of these functions runs yet, but others of the same page may. */
static long write_directly(const struct order *order)
{
	__u64 from = order->address & -page_bytes, end = order->address + order->length;
	long done = system3(SYS_mprotect, from, end - from, PROT_READ | PROT_WRITE | PROT_EXEC);

	if (failed(done))
		return done;
	memcpy((void *)order->address, order->bytes, order->length);
	return system3(SYS_mprotect, from, end - from, PROT_READ | PROT_EXEC);
}

static long use_patch(const struct order *order)
{
	long done = 0;

	if (order->length > sizeof(order->old))
		return -EINVAL;
	for (__u32 i = 0; i < order->length; i++) {
		if (((const volatile __u8 *)order->address)[i] != order->old[i])
			return -ESTALE;
	}
	if (!write_by_kernel(order))
		done = write_directly(order);
	synchronize((void *)order->address, order->length);
	return done;
}

/* Maps all of the shared memory now, so that no hit has to wait for a page. Kernels before 5.14 do not. */
static long fill(void)
{
	__u64 rings = area->shards * (RING_HEAD + (__u64)area->ring_bytes);

	system3(SYS_madvise, (long)area, RINGS_AT + rings, MADV_POPULATE_WRITE);
	return 0;
}

static long measure(const struct order *order)
{
	typedef void function(void *, void *, void *);
	static __u64 params[64], tensor[64];
	function *first = (function *)order->address, *second = *(function *const *)order->old;
	__u64 begin = inside_now();

	for (__u32 i = 0; i < order->length; i++) {
		first(params, tensor, 0);
		if (second)
			second(0, 0, 0);
	}
	return inside_now() - begin;
}

/* Asks at the door and does what it says. Nobody there, or not in time: all goes on as it is. */
static void ask(__u32 why)
{
	static struct order order;
	struct sockaddr_un to = { AF_UNIX, { 0 } };
	struct timeval patience = { 60, 0 };
	struct hello hello = {
		.magic = AREA_MAGIC,
		.key = { door.key[0], door.key[1] },
		.why = why,
		.tid = system0(SYS_gettid),
		.thunk = (__u64)inside_thunk,
		.loaded = loader_hook,
	};
	long fd, length = 0;

	/* The loader's lock is held by the thread that asks; another door is never open at the same time. */
	if (__atomic_exchange_n(&asking, 1, __ATOMIC_ACQUIRE))
		return;
	while (length < (long)sizeof(to.path) - 1 && door.name[length + 1]) {
		to.path[length + 1] = door.name[length + 1];
		length++;
	}
	fd = system3(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (failed(fd))
		goto done;
	system5(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, (long)&patience, sizeof(patience));
	if (failed(system3(SYS_connect, fd, (long)&to, 2 + 1 + length))) {
		/* The recorder is gone. */
		inside_sites = no_sites;
		goto close;
	}
	if (failed(system6(SYS_sendto, fd, (long)&hello, sizeof(hello), MSG_NOSIGNAL, 0, 0)))
		goto close;
	for (;;) {
		long passed = -1, answer = receive(fd, &order, sizeof(order), &passed);

		if (answer != sizeof(order) || order.what == ORDER_GO)
			break;
		answer = order.what == ORDER_AREA    ? use_area(passed, order.length | (__u64)order.address << 32)
			 : order.what == ORDER_CODE  ? use_code(&order)
			 : order.what == ORDER_PATCH ? use_patch(&order)
			 : order.what == ORDER_MEASURE && area ? measure(&order)
			 : order.what == ORDER_FILL && area    ? fill()
							       : -EINVAL;
		if (passed >= 0)
			system1(SYS_close, passed);
		if (failed(system6(SYS_sendto, fd, (long)&answer, sizeof(answer), MSG_NOSIGNAL, 0, 0)))
			break;
	}
close:
	system1(SYS_close, fd);
done:
	__atomic_store_n(&asking, 0, __ATOMIC_RELEASE);
}

/* A ring is full: from time to time it is asked whether anybody still reads it. */
static long full(void)
{
	static __u32 times;

	if (__atomic_fetch_add(&times, 1, __ATOMIC_RELAXED) % 4096 == 4095)
		ask(HELLO_FULL);
	return -EAGAIN;
}

/*
 * The second door: an engine that loads its backends while it runs loads the library that GGML_BACKEND_PATH names too, and
 * asks it how well it suits this processor. Not at all: the engine leaves it alone, and nothing of the engine's interfaces,
 * which change, is needed. The library stays loaded (-z nodelete).
 */
__attribute__((visibility("default"))) int ggml_backend_score(void)
{
	return 0;
}

__attribute__((constructor)) static void start(void)
{
	inside_sites = no_sites;
	if (door.name[0])
		return;
	find_loader();
	ask(HELLO_START);
}
