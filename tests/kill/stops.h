/* The purpose of the recorder's system calls: the classes and phases by which kill points and
 * injected errors are counted. */
#ifndef STOPS_H
#define STOPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A phase begins with a call that only it makes, and lasts until the next one begins. */
enum phase { BEGIN, LOAD, ATTACH, RECORD, DETACH, CLOSE, PHASES };

/* The kind of request to the kernel. */
enum class { DESCRIPTOR, MEMORY, THREAD, BPF, PROBE, WRITE, SYNC, READ, WAIT, OTHER, CLASSES };

extern const char *const PHASE_NAMES[PHASES], *const CLASS_NAMES[CLASSES];

enum class class_of(uint64_t nr);

/* The phase that this call of process `pid` starts, otherwise `now`. */
enum phase phase_of(pid_t pid, uint64_t nr, const uint64_t *args, enum phase now);

/* Whether this call is the first of the program's own main(), which ignores the signal for large files. */
bool begins_main(uint64_t nr, const uint64_t *args);

/* Whether process `pid` is about to make or enable a probe. */
bool attaches(pid_t pid, uint64_t nr, const uint64_t *args);

#endif
