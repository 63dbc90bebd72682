/* Ground truth for experts: the ones that the engine itself chose. See experts.c. */
#ifndef ENGINE_EXPERTS_H
#define ENGINE_EXPERTS_H

#include "abi.h"

void experts_open(const char *path, struct engine *);
void experts_call(void); /* before each decode */
void experts_close(void);
bool experts_observe(void *tensor, bool ask, void *user);

#endif
