/* Ground truth of structure: what the engine itself says that it runs. See dump.c. */
#ifndef ENGINE_DUMP_H
#define ENGINE_DUMP_H

#include "abi.h"

/* cut: ask for every node's result, which makes the engine run node by node and fuse nothing. */
void dump_open(const char *path, struct engine *, bool cut);
void dump_graph(const char *phase, int n_tokens, int first_pos); /* before each decode */
void dump_close(void);
bool dump_observe(void *tensor, bool ask, void *user);

#endif
