/*
 * What GCC 12's unwinder (libgcc_eh) needs and musl lacks: the unwind tables of a code address, here by walking the
 * loaded objects. The layout of the answer is that of <dlfcn.h> in glibc 2.35.
 */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>

struct answer {
	unsigned long long flags;
	void *map_start, *map_end, *link_map, *eh_frame;
	unsigned long long reserved[7];
};

struct question {
	ElfW(Addr) pc;
	struct answer *answer;
};

/* libgcc_eh refers to these only weakly: unless something pulls them in, it calls address 0. */
__attribute__((used)) static void *const pulled_in[] = {
	(void *)pthread_once,	     (void *)pthread_mutex_lock,  (void *)pthread_mutex_unlock,
	(void *)pthread_getspecific, (void *)pthread_setspecific, (void *)pthread_key_create,
};

static int look(struct dl_phdr_info *object, size_t size, void *context)
{
	struct question *q = context;
	const ElfW(Phdr) *tables = 0, *code = 0;

	(void)size;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];

		if (part->p_type == PT_LOAD && q->pc - (object->dlpi_addr + part->p_vaddr) < part->p_memsz)
			code = part;
		if (part->p_type == PT_GNU_EH_FRAME)
			tables = part;
	}
	if (!code || !tables)
		return 0;
	q->answer->flags = 0;
	q->answer->map_start = (void *)(object->dlpi_addr + code->p_vaddr);
	q->answer->map_end = (char *)q->answer->map_start + code->p_memsz;
	q->answer->link_map = 0;
	q->answer->eh_frame = (void *)(object->dlpi_addr + tables->p_vaddr);
	return 1;
}

int _dl_find_object(void *pc, struct answer *answer)
{
	struct question q = { (ElfW(Addr))pc, answer };

	return dl_iterate_phdr(look, &q) == 1 ? 0 : -1;
}
