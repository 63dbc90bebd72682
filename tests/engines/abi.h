/* The engines' C API as data: which symbols exist, and the offsets of the fields that the driver
 * sets or reads. Independent of command lines. x86-64 only, like the packaged engines.
 *
 * No engine headers are used: parameter structs change from release to release, so they are
 * opaque buffers here. The few offsets needed are in one table (abi.c), selected by the measured
 * sizes of the structs and checked against the defaults that the engine fills in. */
#ifndef ENGINE_ABI_H
#define ENGINE_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Larger than any parameter struct of any era. Passed by value, it is copied to the stack (class
 * MEMORY); the callee reads the front of it and never sees the rest. */
struct params {
    unsigned char b[512];
};

/* The part of llama_batch that all eras share; the tail covers all_pos_0, all_pos_1 and all_seq_id
 * of the older one (72 bytes). */
struct batch {
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos;
    int32_t *n_seq_id;
    int32_t **seq_id;
    int8_t *logits;
    uint64_t older[2];
};

/* Front of the result of llama_perf_context(), the same in all eras. */
struct perf {
    double t_start_ms, t_load_ms, t_p_eval_ms, t_eval_ms;
    int32_t n_p_eval, n_eval, n_reused, pad[17];
};

/* Offsets in bytes, selected by (context size, model size). */
struct era {
    const char *name;
    size_t context_size, model_size;
    size_t n_gpu_layers;
    size_t n_threads, n_threads_batch, cb_eval, no_perf;
    size_t src, view_src, data, tensor_name; /* struct ggml_tensor */
    size_t flash;                            /* flash_attn_type: -1 auto, 0 off, 1 on; 0: not known here */
    size_t mmap; /* use_mmap, one byte, or load_mode, whose value 1 maps and 0 reads; 0: not known here */
};

struct engine {
    const struct era *era;
    void *model, *context, *batch_ext; /* batch_ext: NULL when llama_decode is used */
    char lib[4096];                    /* file that contains llama_decode */
    char version[64];
    uint32_t n_ctx;
    bool every; /* logits of every token, not only of a batch's last */

    int32_t (*decode)(void *context, struct batch);
    int32_t (*process)(void *context, int type, void *batch_ext);
    void (*ext_clear)(void *);
    int32_t (*ext_add_token)(void *, int32_t seq, int32_t id);
    bool (*ext_set_pos)(void *, int32_t idx, const int32_t *pos);
    bool (*ext_set_output)(void *, int32_t idx, bool);
    void (*synchronize)(void *context);
    void *(*perf_context)(void *hidden, void *context);
    void (*perf_reset)(void *context);
    void (*kv_clear)(void *context);    /* older eras */
    void *(*get_memory)(void *context); /* newer eras */
    void (*memory_clear)(void *memory, bool data);

    const char *(*op_name)(int);
    const char *(*op_desc)(const void *tensor);
    const char *(*type_name)(int);
    const char *(*get_name)(const void *tensor);
    void *(*get_data)(const void *tensor);
};

struct settings {
    const char *engine, *model;
    int threads, n_ctx, n_ubatch;
    int gpu_layers; /* layers to offload to a device */
    bool old_api;   /* llama_decode even where llama_process exists */
    int flash;      /* flash attention: 0 as the engine chooses, 1 off, 2 on */
    bool no_mmap;   /* read the model into memory instead of mapping the file */
    bool verbose;   /* the engine's own log to stderr */
    bool (*observe)(void *tensor, bool ask, void *user);
    void *observe_user;
};

/* All of these exit with one line on stderr on failure. */
void engine_open(struct engine *, const struct settings *); /* libraries, symbols, era */
void engine_load(struct engine *, const struct settings *); /* model and context */
void engine_decode(struct engine *, const int32_t *ids, int n, int first_pos);
void engine_forget(struct engine *); /* empties the KV cache */
void engine_free(struct engine *);   /* the context */
/* Of the token at this place in the last batch, -1 for its last; recent eras. */
const float *engine_logits(struct engine *, int place, int *n);
struct perf engine_perf(struct engine *);

#define DIE(...) die(__VA_ARGS__)
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
