/* Calls the engine functions that a profiler treats as phases, a known number of times each. */
#define _GNU_SOURCE
#include "phases.h"

#include <dlfcn.h>
#include <string.h>

static void *need(const char *name) {
    void *f = dlsym(RTLD_DEFAULT, name);
    if (!f) DIE("the engine has no symbol %s", name);
    return f;
}

/* Before 2025-01 the model was also the vocabulary. */
static const void *vocabulary(const struct engine *g) {
    const void *(*of)(const void *) = dlsym(RTLD_DEFAULT, "llama_model_get_vocab");
    return of ? of(g->model) : g->model;
}

void phases(struct engine *g, int n) {
    int32_t (*tokenize)(const void *, const char *, int32_t, int32_t *, int32_t, bool, bool) =
        need("llama_tokenize");
    int32_t (*piece)(const void *, int32_t, char *, int32_t, int32_t, bool) = need("llama_token_to_piece");
    /* A struct of one bool is passed by value like a bool. */
    void *(*chain_init)(bool no_perf) = need("llama_sampler_chain_init");
    void (*add)(void *, void *) = need("llama_sampler_chain_add");
    void *(*top_k)(int32_t) = need("llama_sampler_init_top_k");
    void *(*top_p)(float, size_t) = need("llama_sampler_init_top_p");
    void *(*temp)(float) = need("llama_sampler_init_temp");
    void *(*dist)(uint32_t) = need("llama_sampler_init_dist");
    int32_t (*sample)(void *, void *, int32_t) = need("llama_sampler_sample");
    const void *vocab = vocabulary(g);
    const char *text = "the quick brown fox";
    void *chain = chain_init(true);
    add(chain, top_k(40));
    add(chain, top_p(0.9f, 1));
    add(chain, temp(0.8f));
    add(chain, dist(1));
    for (int i = 0; i < n; i++) {
        int32_t ids[256];
        char buffer[256];
        if (tokenize(vocab, text, (int32_t)strlen(text), ids, 256, true, true) < 1) DIE("no tokens");
        for (int k = 0; k < 3; k++)
            if (piece(vocab, ids[0], buffer, sizeof buffer, 0, true) < 0) DIE("no piece");
        if (sample(chain, g->context, -1) < 0) DIE("no sample");
    }
}
