/* Structural ground truth: the nodes that the engine itself reports running. See dump.c. */
#ifndef ENGINE_DUMP_H
#define ENGINE_DUMP_H

#include "abi.h"

/* cut: ask for every node's result, which makes the engine run node by node without fusion. */
void dump_open(const char *path, struct engine *, bool cut);
void dump_graph(const char *phase, int n_tokens, int first_pos); /* before each decode */
void dump_close(void);
bool dump_observe(void *tensor, bool ask, void *user);

#endif
