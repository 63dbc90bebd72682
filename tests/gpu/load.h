/*
 * What the two loads share: a kernel whose result the host can compute, clocks, arguments, the answer, and
 * the engine: a scenario is what the fake engine's device (tests/fixtures) does for its split of one token.
 */
#include "../fixtures/fake.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Each item takes `steps` steps of this generator. */
#define FACTOR  1664525u
#define ADDEND  1013904223u
#define ITEMS   1024
#define BYTES   (ITEMS * sizeof(uint32_t))
#define MOST    4096 /* kernels of one run */
#define WARM_UP 3

/* What a run did. */
struct done {
    const char *scenario;
    unsigned kernels;   /* that the device has executed, in the batch from `begin` to `end` */
    unsigned others;    /* executed before it */
    unsigned failed;    /* that have no times, by design of the scenario */
    uint64_t device_ns; /* of the batch, by the program's own profiling; 0: it has none */
    uint64_t span_ns;   /* by the same, from the start of its first kernel to the end of its last */
    uint64_t begin, end;
    int right; /* every result is as computed by the host */
};

static inline uint64_t now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static inline void check(int good, const char *what, long code) {
    if (good) return;
    fprintf(stderr, "%s: %ld\n", what, code);
    exit(2);
}

/* The value of an item after this many steps: steps are affine maps, which are composed by squaring. */
static inline uint32_t after(uint32_t value, uint64_t steps) {
    for (uint32_t a = FACTOR, b = ADDEND; steps; steps >>= 1) {
        if (steps & 1) value = a * value + b;
        b = a * b + b;
        a = a * a;
    }
    return value;
}

static inline void first_values(uint32_t *values) {
    for (uint32_t i = 0; i < ITEMS; i++) values[i] = i;
}

static inline int all_right(const uint32_t *values, uint64_t steps) {
    int right = 1;

    for (uint32_t i = 0; i < ITEMS; i++) right &= values[i] == after(i, steps);
    return right;
}

static inline int answer(const struct done *d) {
    printf("{\"scenario\": \"%s\", \"kernels\": %u, \"others\": %u, \"failed\": %u, ", d->scenario,
           d->kernels, d->others, d->failed);
    printf("\"device_ns\": %llu, \"span_ns\": %llu, ", (unsigned long long)d->device_ns,
           (unsigned long long)d->span_ns);
    printf("\"begin\": %llu, \"end\": %llu, \"right\": %s}\n", (unsigned long long)d->begin,
           (unsigned long long)d->end, d->right ? "true" : "false");
    return d->right ? 0 : 1;
}

struct scenario {
    const char *name;
    void (*run)(struct done *);
};

static struct done done;
static const struct scenario *scenario;

static int compute(struct ggml_backend *backend, struct ggml_cgraph *graph) {
    (void)backend, (void)graph;
    scenario->run(&done);
    return 0;
}

/* Decodes one token with a scenario of a list. */
static inline int run(const char *name, const struct scenario *list, unsigned n) {
    static struct llama_context context;
    struct ggml_backend *device = fake_gpu_init();

    for (unsigned i = 0; i < n; i++)
        if (!strcmp(list[i].name, name)) scenario = &list[i];
    check(scenario != NULL, name, 0);
    done.scenario = name;
    device->iface[IFACE_GRAPH_COMPUTE] = compute;
    fake_config = (struct fake_config){.threads = 1, .layers = 1, .split = 1, .kv_step = 8};
    context.sched.backends[0] = ggml_backend_cpu_init();
    context.sched.backends[1] = device;
    context.sched.n_backends = 2;
    fake_build(&context, 1);
    llama_decode(&context, (struct llama_batch){.n_tokens = 1});
    return answer(&done);
}
