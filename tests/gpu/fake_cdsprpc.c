/*
 * libcdsprpc without a device: the two functions of its queues that ggml-hexagon uses, with the signatures of
 * dspqueue.h and responses of the layouts in ggml-hexagon's htp-msg.h and htp-ops.h. An NPU that takes a
 * while for each message, in order. The first attempt to read a response finds none, as with a timeout of 0.
 *
 * FAKE_HTP_RESPONSE: bytes of a response. GGML_HEXAGON_PROFILE=1: it says how long it took, if its layout
 * can. FAKE_CDSPRPC_LOG: a file with the sums so far: messages written, responses read, ns from the start of
 * a write to the end of the read (as seen from inside), and the microseconds in the responses.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SHOWN __attribute__((visibility("default"), noinline))
enum { MESSAGES = 4096, WOULD_BLOCK = 0x48 };

static struct message {
    uint32_t id;
    uint64_t start;
} queued[MESSAGES];
static unsigned long written, answered, tries;
static unsigned long long rpc_ns, usecs;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void log_sums(void) {
    static FILE *out;
    const char *path = getenv("FAKE_CDSPRPC_LOG");
    if (path && !out) out = fopen(path, "w");
    if (!out) return;
    rewind(out);
    fprintf(out, "%lu %lu %llu %llu\n", written, answered, rpc_ns, usecs);
    fflush(out);
}

SHOWN int dspqueue_write(void *queue, uint32_t flags, uint32_t n_buffers, void *buffers, uint32_t length,
                         const uint8_t *message, uint32_t timeout_us) {
    struct message *m = &queued[written % MESSAGES];
    (void)queue, (void)flags, (void)n_buffers, (void)buffers, (void)timeout_us;
    if (length < 4 || written - answered == MESSAGES) return 1;
    m->start = now();
    memcpy(&m->id, message, 4);
    written++;
    log_sums();
    return 0;
}

static void put(uint8_t *response, int at, uint32_t value) { memcpy(response + at, &value, 4); }

SHOWN int dspqueue_read(void *queue, uint32_t *flags, uint32_t max_buffers, uint32_t *n_buffers,
                        void *buffers, uint32_t max_length, uint32_t *length, uint8_t *message,
                        uint32_t timeout_us) {
    const char *size = getenv("FAKE_HTP_RESPONSE"), *profile = getenv("GGML_HEXAGON_PROFILE");
    uint32_t bytes = size ? (uint32_t)atoi(size) : 88, took;
    (void)queue, (void)max_buffers, (void)buffers, (void)timeout_us;
    if (answered == written || bytes > max_length || tries++ % 2 == 0) return WOULD_BLOCK;
    struct message *m = &queued[answered % MESSAGES];
    took = 20 + (uint32_t)(answered % 7);
    struct timespec pause = {0, took * 1000};
    nanosleep(&pause, NULL);
    took = profile && atoi(profile) ? took : 0;
    memset(message, 0, bytes);
    put(message, 0, m->id);
    if (bytes == 64) put(message, 8, took);
    if (bytes == 88) put(message, 64, took);
    if (bytes == 64 || bytes == 88) usecs += took;
    *flags = 0;
    *n_buffers = 1;
    *length = bytes;
    answered++;
    log_sums();
    rpc_ns += now() - m->start;
    return 0;
}
/* The last one's time. */
__attribute__((destructor)) static void end(void) { log_sums(); }
