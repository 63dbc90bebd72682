/*
 * A backend for a Rockchip NPU, which is not there: it has the guid and the exported functions of ggml-rknn,
 * which is in forks of llama.cpp. Each node is computed by a call of ggml_rk_compute_forward.
 */
#include "../fixtures/fake.h"

#include <stdbool.h>

/* bool ggml_rk_compute_forward(ggml_backend_t, struct ggml_tensor *), in C++. */
bool rk_compute_forward(struct ggml_backend *, struct ggml_tensor *) __asm__(
    "_Z23ggml_rk_compute_forwardP12ggml_backendP11ggml_tensor");

OUTLINE
bool rk_compute_forward(struct ggml_backend *b, struct ggml_tensor *node) {
    (void)b;
    fake_work(node, 0);
    return true;
}

static int graph_compute(struct ggml_backend *b, struct ggml_cgraph *g) {
    COUNT(gpu_graphs);
    for (int i = 0; i < g->n_nodes; i++)
        if (!fake_is_nop(g->nodes[i])) rk_compute_forward(b, g->nodes[i]);
    return 0;
}

/* By this function the library is known to have a device's backend. */
void *ggml_backend_rknn_reg(void) { return 0; }

struct ggml_backend *ggml_backend_rknn_init(void) {
    /* In writable memory, as in the engine: that was touched when the library was loaded, and can be read
     * from BPF. */
    static uint8_t guid[16] = {0xc9, 0xbd, 0xb7, 0x02, 0x49, 0x36, 0x42, 0x12,
                               0xaf, 0x35, 0xa2, 0x87, 0xd8, 0xc9, 0x29, 0x20};
    static struct ggml_backend npu = {.guid = &guid};
    npu.iface[IFACE_GRAPH_COMPUTE] = graph_compute;
    return &npu;
}
