/* tokenize --engine PATH --model M.gguf: an engine's own tokenizer on texts from stdin, one per line in
 * hexadecimal digits. Prints a line for each text: its ids with begin token and control tokens parsed, a bar,
 * its ids without either, a bar, the bytes of the first list's tokens as the engine prints them, in
 * hexadecimal. */
#define _GNU_SOURCE
#include "abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 14 };

static int32_t (*tokenize)(const void *, const char *, int32_t, int32_t *, int32_t, bool, bool);
static int32_t (*piece)(const void *, int32_t, char *, int32_t, int32_t, bool);

static void *need(const char *name) {
    void *f = dlsym(RTLD_DEFAULT, name);
    if (!f) DIE("the engine has no symbol %s", name);
    return f;
}

static int32_t ids(const void *vocab, const char *text, int32_t length, int32_t *out, bool special) {
    int32_t n = tokenize(vocab, text, length, out, MOST, special, special);
    if (n < 0) DIE("a text of more than %d tokens", MOST);
    for (int32_t i = 0; i < n; i++) printf(i ? " %d" : "%d", out[i]);
    printf("|");
    return n;
}

static void line(const void *vocab, char *hex) {
    static char text[MOST];
    static int32_t with[MOST], without[MOST];
    int32_t length = 0;
    unsigned byte;
    for (; length < MOST && sscanf(hex + 2 * length, "%2x", &byte) == 1; length++) text[length] = (char)byte;
    int32_t n = ids(vocab, text, length, with, true);
    ids(vocab, text, length, without, false);
    for (int32_t i = 0; i < n; i++) {
        char buffer[1024];
        int32_t size = piece(vocab, with[i], buffer, sizeof buffer, 0, false);
        for (int32_t k = 0; k < size; k++) printf("%02x", (unsigned char)buffer[k]);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    struct settings s = {.threads = 1, .n_ctx = 64, .n_ubatch = 64};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--engine")) s.engine = argv[i + 1];
        if (!strcmp(argv[i], "--model")) s.model = argv[i + 1];
    }
    if (!s.engine || !s.model) DIE("usage: tokenize --engine PATH --model M.gguf");
    struct engine g;
    engine_open(&g, &s);
    engine_load(&g, &s);
    tokenize = need("llama_tokenize");
    piece = need("llama_token_to_piece");
    const void *(*get_vocab)(const void *) = need("llama_model_get_vocab");
    const void *vocab = get_vocab(g.model);
    char *hex = NULL;
    size_t room = 0;
    while (getline(&hex, &room, stdin) > 0) line(vocab, hex);
    free(hex);
    return 0;
}
