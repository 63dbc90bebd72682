/* See phases.c. */
#ifndef ENGINE_PHASES_H
#define ENGINE_PHASES_H

#include "abi.h"

/* n texts tokenized, 3 n tokens turned into text, n tokens sampled through a chain; after a decode. */
void phases(struct engine *, int n);

#endif
