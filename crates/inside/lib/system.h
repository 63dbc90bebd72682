/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* System calls without a C library, and what its headers would say of them (the kernel's UAPI, which never changes). */
#ifndef PROFINFER_SYSTEM_H
#define PROFINFER_SYSTEM_H

enum { EAGAIN = 11, ENOMEM = 12, EEXIST = 17, EINVAL = 22, ESTALE = 116, EIO = 5, EINTR = 4 };
enum { AT_FDCWD = -100, O_RDONLY = 0, O_RDWR = 2, O_CLOEXEC = 02000000 };
enum { PROT_READ = 1, PROT_WRITE = 2, PROT_EXEC = 4 };
enum { MAP_SHARED = 1, MAP_PRIVATE = 2, MAP_ANONYMOUS = 0x20, MAP_NORESERVE = 0x4000, MAP_FIXED_NOREPLACE = 0x100000 };
enum { MADV_WIPEONFORK = 18, MADV_POPULATE_WRITE = 23, CLOCK_MONOTONIC = 1 };
enum { AF_UNIX = 1, SOCK_SEQPACKET = 5, SOCK_CLOEXEC = 02000000, SOL_SOCKET = 1, SO_RCVTIMEO = 20, SCM_RIGHTS = 1 };
enum { MSG_NOSIGNAL = 0x4000, MSG_CMSG_CLOEXEC = 0x40000000 };
enum { AT_NULL = 0, AT_PHDR = 3, AT_PHNUM = 5, AT_PAGESZ = 6, PT_DYNAMIC = 2, PT_PHDR = 6, DT_NULL = 0, DT_DEBUG = 21 };

struct timespec {
	long tv_sec, tv_nsec;
};
struct timeval {
	long tv_sec, tv_usec;
};
struct sockaddr_un {
	__u16 family;
	char path[108];
};

#if defined(__TARGET_ARCH_x86)
enum {
	SYS_read = 0,
	SYS_close = 3,
	SYS_mmap = 9,
	SYS_mprotect = 10,
	SYS_munmap = 11,
	SYS_rt_sigprocmask = 14,
	SYS_pwrite64 = 18,
	SYS_madvise = 28,
	SYS_socket = 41,
	SYS_connect = 42,
	SYS_sendto = 44,
	SYS_recvmsg = 47,
	SYS_setsockopt = 54,
	SYS_gettid = 186,
	SYS_clock_gettime = 228,
	SYS_openat = 257,
};

static inline long system6(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
	long result;

	asm volatile("syscall"
		     : "=a"(result)
		     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		     : "rcx", "r11", "memory");
	return result;
}

static inline char *thread_pointer(void)
{
	char *at;

	asm("movq %%fs:0, %0" : "=r"(at));
	return at;
}

/* The processor sees by itself that instructions were written. */
static inline void synchronize(void *from, __u64 length)
{
}
#else
enum {
	SYS_openat = 56,
	SYS_close = 57,
	SYS_read = 63,
	SYS_pwrite64 = 68,
	SYS_clock_gettime = 113,
	SYS_rt_sigprocmask = 135,
	SYS_gettid = 178,
	SYS_socket = 198,
	SYS_connect = 203,
	SYS_sendto = 206,
	SYS_setsockopt = 208,
	SYS_recvmsg = 212,
	SYS_munmap = 215,
	SYS_mmap = 222,
	SYS_mprotect = 226,
	SYS_madvise = 233,
};

static inline long system6(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 asm("x8") = n, x0 asm("x0") = a, x1 asm("x1") = b, x2 asm("x2") = c;
	register long x3 asm("x3") = d, x4 asm("x4") = e, x5 asm("x5") = f;

	asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}

static inline char *thread_pointer(void)
{
	char *at;

	asm("mrs %0, tpidr_el0" : "=r"(at));
	return at;
}

/* Makes instructions that were written visible to fetches (Arm ARM, B2.4.4). */
static inline void synchronize(void *from, __u64 length)
{
	__u64 ctr, line, at;

	asm volatile("mrs %0, ctr_el0" : "=r"(ctr));
	line = 4UL << (ctr >> 16 & 15);
	for (at = (__u64)from & -line; at < (__u64)from + length; at += line)
		asm volatile("dc cvau, %0" ::"r"(at) : "memory");
	asm volatile("dsb ish" ::: "memory");
	line = 4UL << (ctr & 15);
	for (at = (__u64)from & -line; at < (__u64)from + length; at += line)
		asm volatile("ic ivau, %0" ::"r"(at) : "memory");
	asm volatile("dsb ish\nisb" ::: "memory");
}
#endif

#define system5(n, a, b, c, d, e) system6(n, a, b, c, d, e, 0)
#define system4(n, a, b, c, d) system6(n, a, b, c, d, 0, 0)
#define system3(n, a, b, c) system6(n, a, b, c, 0, 0, 0)
#define system2(n, a, b) system6(n, a, b, 0, 0, 0, 0)
#define system1(n, a) system6(n, a, 0, 0, 0, 0, 0)
#define system0(n) system6(n, 0, 0, 0, 0, 0, 0)

static inline bool failed(long result)
{
	return (unsigned long)result >= -4095UL;
}

/* The compiler calls these. */
__attribute__((no_builtin("memcpy"))) void *memcpy(void *to, const void *from, unsigned long n)
{
#if defined(__TARGET_ARCH_x86)
	void *at = to;

	if (n <= 256) {
		__u64 *t = to;
		const __u64 *f = from;

		for (; n >= 8; n -= 8)
			*t++ = *f++;
		at = t;
		from = f;
	}
	asm volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(n)::"memory");
#else
	__u64 *t = to;
	const __u64 *f = from;

	for (; n >= 8; n -= 8)
		*t++ = *f++;
	for (__u64 i = 0; i < n; i++)
		((volatile char *)t)[i] = ((const char *)f)[i];
#endif
	return to;
}

__attribute__((no_builtin("memset"))) void *memset(void *to, int value, unsigned long n)
{
	for (unsigned long i = 0; i < n; i++)
		((volatile char *)to)[i] = value;
	return to;
}

/* One message, and the descriptor that came with it. */
static inline long receive(long fd, void *to, __u64 room, long *passed)
{
	struct {
		void *base;
		__u64 length;
	} part = { to, room };
	struct {
		__u64 length;
		__s32 level, type;
		__s32 fd, pad;
	} control = { 0, 0, 0, -1, 0 };
	struct {
		void *name;
		__u32 name_length, pad;
		void *parts;
		__u64 n;
		void *control;
		__u64 control_length;
		__s32 flags, pad2;
	} message = { 0, 0, 0, &part, 1, &control, sizeof(control), 0, 0 };
	long got;

	do {
		got = system3(SYS_recvmsg, fd, (long)&message, MSG_CMSG_CLOEXEC);
	} while (got == -EINTR);
	if (!failed(got) && message.control_length >= 20 && control.level == SOL_SOCKET && control.type == SCM_RIGHTS)
		*passed = control.fd;
	return got;
}

#endif
