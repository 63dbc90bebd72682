/* What a system call of the recorder is for: the classes and the phases by which kill points and refusals are
 * counted. */
#ifndef STOPS_H
#define STOPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A phase begins with a call that only it makes, and lasts until another begins. */
enum phase { BEGIN, LOAD, ATTACH, RECORD, DETACH, CLOSE, PHASES };

/* What a call asks the kernel for. */
enum class { DESCRIPTOR, MEMORY, THREAD, BPF, PROBE, WRITE, SYNC, READ, WAIT, OTHER, CLASSES };

extern const char *const PHASE_NAMES[PHASES], *const CLASS_NAMES[CLASSES];

enum class class_of(uint64_t nr);

/* The phase that this call of process `pid` begins, or `now`. */
enum phase phase_of(pid_t pid, uint64_t nr, const uint64_t *args, enum phase now);

/* Whether this call is the first of the program's own main(), which ignores the signal for large files. */
bool begins_main(uint64_t nr, const uint64_t *args);

/* Whether process `pid` is about to make or enable a probe. */
bool attaches(pid_t pid, uint64_t nr, const uint64_t *args);

#endif
