/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Where the dynamic loader tells debuggers that it has mapped something: an empty function that it calls, in r_debug of
 * link.h, which the program's dynamic section points to. glibc, musl and bionic have it.
 */
#ifndef PROFINFER_LOADER_H
#define PROFINFER_LOADER_H

struct r_debug {
	int version;
	void *map;
	__u64 brk;
	int state; /* 0: consistent */
	__u64 base;
};

struct program_header {
	__u32 type, flags;
	__u64 offset, address, physical, file_size, size, align;
};

static const int *loader_state;
static __u64 loader_hook;
static __u64 page_bytes = 4096;

static void find_loader(void)
{
	long fd = system4(SYS_openat, AT_FDCWD, (long)"/proc/self/auxv", O_RDONLY | O_CLOEXEC, 0), got;
	static __u64 auxv[128];
	const struct program_header *header = 0;
	__u64 headers = 0, moved = 0;

	if (failed(fd))
		return;
	got = system3(SYS_read, fd, (long)auxv, sizeof(auxv));
	system1(SYS_close, fd);
	for (long i = 0; !failed(got) && i + 1 < got / 8 && auxv[i] != AT_NULL; i += 2) {
		if (auxv[i] == AT_PHDR)
			header = (void *)auxv[i + 1];
		if (auxv[i] == AT_PHNUM)
			headers = auxv[i + 1];
		if (auxv[i] == AT_PAGESZ && auxv[i + 1])
			page_bytes = auxv[i + 1];
	}
	for (__u64 i = 0; header && i < headers; i++) {
		if (header[i].type == PT_PHDR)
			moved = (__u64)header - header[i].address;
	}
	for (__u64 i = 0; header && i < headers; i++) {
		const __u64 *dynamic = (void *)(header[i].address + moved);

		if (header[i].type != PT_DYNAMIC)
			continue;
		for (; dynamic[0] != DT_NULL; dynamic += 2) {
			const struct r_debug *debug = (void *)dynamic[1];

			if (dynamic[0] != DT_DEBUG || !debug)
				continue;
			loader_hook = debug->brk;
			loader_state = &debug->state;
		}
	}
}

#endif
