/* See phases.c. */
#ifndef ENGINE_PHASES_H
#define ENGINE_PHASES_H

#include "abi.h"

/* After a decode: tokenizes n texts, detokenizes 3 n tokens, and samples n tokens through a
 * chain. */
void phases(struct engine *, int n);

#endif
