/* What the fake CUDA runtime tells the fake CUPTI: calls that launch, and kernels that the device executes.
 */
#ifndef FAKE_CUPTI_H
#define FAKE_CUPTI_H

#include <stdint.h>

struct fake_kernel {
    const char *name;
    uint64_t stream;
    /* CLOCK_MONOTONIC, ns. */
    uint64_t queued, started, ended;
    /* 0: not of a graph. */
    uint64_t graph, node;
};

struct fake_cupti {
    /* A call of the runtime begins: its id. Returns the number by which CUPTI knows the call. */
    uint32_t (*begin)(uint32_t cbid, const char *function, const char *symbol);
    void (*end)(uint32_t cbid, const char *function, uint32_t correlation);
    void (*kernel)(uint32_t correlation, const struct fake_kernel *k);
    /* The host has waited for the device. */
    void (*idle)(void);
};

/* The library's only function that CUPTI does not have. */
extern const struct fake_cupti fake_cupti;

#endif
