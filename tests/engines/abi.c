/* See abi.h. */
#define _GNU_SOURCE
#include "abi.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#if !defined(__x86_64__)
#error "the driver relies on how x86-64 passes and returns large structs"
#endif

/* Taken from llama_context_default_params and llama_model_default_params of each engine, and
 * from the public llama.h of the release. */
static const struct era ERAS[] = {
    {"b3889", 120, 64, 0, 16, 20, 72, 100, 160, 240, 256, 264, 0, 0},
    {"b4753", 120, 64, 8, 16, 20, 72, 100, 152, 232, 248, 256, 0, 0},
    {"b5640", 120, 72, 16, 16, 20, 72, 115, 152, 232, 248, 256, 0, 0},
    {"b8121", 136, 72, 16, 16, 20, 72, 114, 152, 232, 248, 256, 36, 65},
    {"v0.5.0", 160, 80, 16, 28, 32, 88, 130, 152, 232, 248, 256, 52, 28},
    {"b11549", 168, 80, 16, 28, 32, 88, 138, 152, 232, 248, 256, 0, 0},
};
enum { N_CTX = 0, N_BATCH = 4, N_UBATCH = 8 }; /* llama_context_params, all eras */

void die(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    fputs("driver: ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

static uint32_t get_u32(const struct params *p, size_t at) {
    uint32_t v;
    memcpy(&v, p->b + at, sizeof v);
    return v;
}

static void put_u32(struct params *p, size_t at, uint32_t v) { memcpy(p->b + at, &v, sizeof v); }
static void put_ptr(struct params *p, size_t at, const void *v) { memcpy(p->b + at, &v, sizeof v); }

static void *need(const char *name) {
    void *f = dlsym(RTLD_DEFAULT, name);
    if (!f) DIE("the engine has no symbol %s", name);
    return f;
}

/* The first of two names that exists: functions were renamed over time. */
static void *either(const char *newer, const char *older) {
    void *f = dlsym(RTLD_DEFAULT, newer);
    return f ? f : need(older);
}

/* A function that returns a large struct takes a pointer to the result as its first argument. It
 * is called on two different fill patterns; the bytes that come out equal belong to the struct,
 * which gives its size. */
static size_t defaults(const char *symbol, struct params *out) {
    void *(*f)(void *) = need(symbol);
    struct params other;
    memset(out, 0xA5, sizeof *out);
    memset(&other, 0x5A, sizeof other);
    f(out);
    f(&other);
    size_t end = 0;
    for (size_t i = 0; i < sizeof other; i++)
        if (out->b[i] == other.b[i]) end = i + 1;
    memset(out->b + end, 0, sizeof out->b - end);
    return (end + 7) & ~(size_t)7;
}

static void open_library(const char *path) {
    /* Lazy: an extension module calls an interpreter that is not loaded. */
    if (!dlopen(path, RTLD_LAZY | RTLD_GLOBAL)) DIE("%s", dlerror());
}

static int open_matching(const char *dir, const char *pattern) {
    char path[4096];
    glob_t g;
    snprintf(path, sizeof path, "%s/%s", dir, pattern);
    if (glob(path, 0, NULL, &g)) return 0;
    int n = (int)g.gl_pathc;
    for (int i = 0; i < n; i++) open_library(g.gl_pathv[i]);
    globfree(&g);
    return n;
}

/* In dependency order and by full path: the packages' own search paths refer to the build
 * machine. */
static void open_directory(const char *dir) {
    open_matching(dir, "libggml-base.so");
    open_matching(dir, "libggml-cpu.so");
    if (!open_matching(dir, "libggml.so") && !open_matching(dir, "libggml.*.so"))
        DIE("no libggml in %s; run fetch.sh", dir);
    if (!open_matching(dir, "libllama.so") && !open_matching(dir, "libllama.*.so"))
        DIE("no libllama in %s; run fetch.sh", dir);
}

static void open_file(const char *path) {
    char stubs[4096];
    const char *slash = strrchr(path, '/');
    snprintf(stubs, sizeof stubs, "%.*s/pystubs.so", slash ? (int)(slash - path) : 1, slash ? path : ".");
    dlopen(stubs, RTLD_NOW | RTLD_GLOBAL); /* absent with an ordinary library */
    open_library(path);
}

static const struct era *find_era(size_t context_size, size_t model_size) {
    /* Two eras have the same sizes; the newer one has the newer name of the loader. */
    bool newer_loader = dlsym(RTLD_DEFAULT, "llama_model_load_from_file") != NULL;
    for (size_t i = 0; i < sizeof ERAS / sizeof *ERAS; i++) {
        const struct era *e = &ERAS[i];
        if (e->context_size != context_size || e->model_size != model_size) continue;
        if (!newer_loader || e->n_gpu_layers != 0) return e;
    }
    DIE("unknown engine: context parameters are %zu bytes, model parameters %zu; add a row to ERAS in abi.c",
        context_size, model_size);
}

static void check(bool ok, const struct era *e, const char *what) {
    if (!ok) DIE("the engine's defaults do not fit the layout of %s: %s", e->name, what);
}

static void check_defaults(const struct era *e, const struct params *c) {
    check(get_u32(c, N_CTX) == 512, e, "n_ctx is not 512");
    check(get_u32(c, N_BATCH) == 2048, e, "n_batch is not 2048");
    check(get_u32(c, N_UBATCH) == 512, e, "n_ubatch is not 512");
    check(get_u32(c, e->n_threads) == 4, e, "n_threads is not 4");
    check(get_u32(c, e->n_threads_batch) == 4, e, "n_threads_batch is not 4");
    check(get_u32(c, e->cb_eval) == 0 && get_u32(c, e->cb_eval + 12) == 0, e, "cb_eval is not null");
    check(get_u32(c, e->cb_eval + 16) == 1 && get_u32(c, e->cb_eval + 20) == 1, e,
          "type_k, type_v are not F16");
    check(c->b[e->no_perf] == 1 && c->b[e->no_perf - 1] <= 1, e, "no_perf is not true");
}

static void silent(int level, const char *text, void *user) { (void)level, (void)text, (void)user; }

static void resolve(struct engine *g, bool old_api) {
    g->decode = need("llama_decode");
    if (!old_api) g->process = dlsym(RTLD_DEFAULT, "llama_process");
    if (g->process) {
        g->ext_clear = need("llama_batch_ext_clear");
        g->ext_add_token = need("llama_batch_ext_add_token");
        g->ext_set_pos = need("llama_batch_ext_set_pos");
        g->ext_set_output = need("llama_batch_ext_set_output_logits");
    }
    g->synchronize = need("llama_synchronize");
    g->perf_context = need("llama_perf_context");
    g->perf_reset = need("llama_perf_context_reset");
    g->memory_clear = dlsym(RTLD_DEFAULT, "llama_memory_clear");
    if (g->memory_clear)
        g->get_memory = need("llama_get_memory");
    else
        g->kv_clear = need("llama_kv_cache_clear");
    g->op_name = need("ggml_op_name");
    g->op_desc = need("ggml_op_desc");
    g->type_name = need("ggml_type_name");
    g->get_name = need("ggml_get_name");
    g->get_data = need("ggml_get_data");
    const char *(*version)(void) = dlsym(RTLD_DEFAULT, "ggml_version");
    snprintf(g->version, sizeof g->version, "%s", version ? version() : "");
    Dl_info info;
    if (dladdr((void *)g->decode, &info)) snprintf(g->lib, sizeof g->lib, "%s", info.dli_fname);
}

void engine_open(struct engine *g, const struct settings *s) {
    struct stat st;
    memset(g, 0, sizeof *g);
    setenv("GGML_NO_BACKTRACE", "1", 0); /* an engine that aborts would start a debugger */
    if (stat(s->engine, &st)) DIE("%s: no such engine; run fetch.sh", s->engine);
    bool is_dir = S_ISDIR(st.st_mode);
    if (is_dir)
        open_directory(s->engine);
    else
        open_file(s->engine);
    resolve(g, s->old_api);
    struct params context, model;
    size_t context_size = defaults("llama_context_default_params", &context);
    size_t model_size = defaults("llama_model_default_params", &model);
    g->era = find_era(context_size, model_size);
    check_defaults(g->era, &context);
    if (!s->verbose) ((void (*)(void *, void *))need("llama_log_set"))((void *)silent, NULL);
    /* In builds whose CPU code is a set of plugins, one per microarchitecture, nothing runs
     * before this. */
    void (*load_all)(const char *) = dlsym(RTLD_DEFAULT, "ggml_backend_load_all_from_path");
    if (is_dir && load_all) load_all(s->engine);
    ((void (*)(void))need("llama_backend_init"))();
}

void engine_load(struct engine *g, const struct settings *s) {
    const struct era *e = g->era;
    struct params p;
    defaults("llama_model_default_params", &p);
    put_u32(&p, e->n_gpu_layers, (uint32_t)s->gpu_layers);
    if (s->no_mmap) {
        check(e->mmap && p.b[e->mmap] == 1, e, "mapping the model is not its default, or not in this table");
        p.b[e->mmap] = 0;
    }
    void *(*load)(const char *, struct params) =
        either("llama_model_load_from_file", "llama_load_model_from_file");
    g->model = load(s->model, p);
    if (!g->model) DIE("%s: the engine cannot load this model (try --verbose)", s->model);

    defaults("llama_context_default_params", &p);
    put_u32(&p, N_CTX, (uint32_t)s->n_ctx);
    put_u32(&p, N_BATCH, (uint32_t)s->n_ctx);
    put_u32(&p, N_UBATCH, (uint32_t)s->n_ubatch);
    put_u32(&p, e->n_threads, (uint32_t)s->threads);
    put_u32(&p, e->n_threads_batch, (uint32_t)s->threads);
    p.b[e->no_perf] = 0;
    if (s->flash) {
        check(e->flash && get_u32(&p, e->flash) == UINT32_MAX, e,
              "flash attention is not chosen by itself, or not in this table");
        put_u32(&p, e->flash, (uint32_t)s->flash - 1);
    }
    if (s->observe) {
        put_ptr(&p, e->cb_eval, (void *)s->observe);
        put_ptr(&p, e->cb_eval + 8, s->observe_user);
    }
    void *(*init)(void *, struct params) = either("llama_init_from_model", "llama_new_context_with_model");
    g->context = init(g->model, p);
    if (!g->context) DIE("the engine cannot make a context (try --verbose)");
    uint32_t (*n_ctx)(void *) = need("llama_n_ctx");
    int32_t (*n_threads)(void *) = need("llama_n_threads");
    g->n_ctx = n_ctx(g->context);
    check(n_threads(g->context) == s->threads, e, "n_threads was not taken over");
    if (g->process) {
        void *(*ext_init)(void *) = need("llama_batch_ext_init");
        g->batch_ext = ext_init(g->context);
    }
}

static int32_t decode_old(struct engine *g, const int32_t *ids, int n, int first_pos) {
    int32_t pos[n], n_seq[n], zero = 0, *seq[n];
    int8_t logits[n];
    for (int i = 0; i < n; i++) {
        pos[i] = first_pos + i;
        n_seq[i] = 1;
        seq[i] = &zero;
        logits[i] = g->every || i == n - 1;
    }
    struct batch b = {.n_tokens = n,
                      .token = (int32_t *)ids,
                      .pos = pos,
                      .n_seq_id = n_seq,
                      .seq_id = seq,
                      .logits = logits};
    return g->decode(g->context, b);
}

static int32_t decode_ext(struct engine *g, const int32_t *ids, int n, int first_pos) {
    g->ext_clear(g->batch_ext);
    for (int i = 0; i < n; i++) {
        int32_t pos = first_pos + i, at = g->ext_add_token(g->batch_ext, 0, ids[i]);
        if (at != i) DIE("llama_batch_ext_add_token answers %d for token %d", at, i);
        if (!g->ext_set_pos(g->batch_ext, at, &pos)) DIE("llama_batch_ext_set_pos fails at token %d", i);
        if (g->every || i == n - 1) g->ext_set_output(g->batch_ext, at, true);
    }
    return g->process(g->context, 1 /* decode */, g->batch_ext);
}

void engine_decode(struct engine *g, const int32_t *ids, int n, int first_pos) {
    int32_t rc = g->process ? decode_ext(g, ids, n, first_pos) : decode_old(g, ids, n, first_pos);
    if (rc) DIE("decoding %d token(s) at position %d: the engine answers %d", n, first_pos, rc);
    g->synchronize(g->context);
}

void engine_forget(struct engine *g) {
    if (g->memory_clear)
        g->memory_clear(g->get_memory(g->context), false);
    else
        g->kv_clear(g->context);
}

void engine_free(struct engine *g) {
    void (*release)(void *) = need("llama_free");
    release(g->context);
    g->context = NULL;
}

const float *engine_logits(struct engine *g, int place, int *n) {
    const void *(*vocab)(void *) = need("llama_model_get_vocab");
    int32_t (*n_tokens)(const void *) = need("llama_vocab_n_tokens");
    const float *(*logits)(void *, int32_t) = need("llama_get_logits_ith");
    *n = n_tokens(vocab(g->model));
    const float *row = logits(g->context, place);
    if (!row) DIE("the engine has no logits");
    return row;
}

struct perf engine_perf(struct engine *g) {
    struct perf p;
    memset(&p, 0, sizeof p);
    g->perf_context(&p, g->context);
    return p;
}
