/* Writes each node that the scheduler hands to a backend, through the engine's eval callback.
 *
 * The callback is asked about every node before the run of nodes up to the next wanted one starts.
 * Answering "not wanted" each time shows all nodes in order while the graph still runs in
 * one piece, fused and threaded as usual; that is the default. With `cut` each is wanted, so the
 * engine computes and passes on node by node, as its own eval-callback tool does.
 *
 * One JSON object per line:
 *   {"graph":G,"phase":"prefill|decode","n_tokens":N,"pos":P}               starts a graph
 *   {"g":G,"i":I,"addr":A,"name":..,"op":..,"desc":..,"type":..,"ne":[4],"nb":[4],"flags":F,
 *    "data":A,"view_src":A,"src":[{"addr":A,"name":..,"op":..,"type":..,"ne":[4],"nb":[4],"data":A},..]}
 * Addresses are hexadecimal strings in the target's address space. */
#include "dump.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_SRC = 10,
    TYPE = 0,
    NE = 16,
    NB = 48,
    OP = 80,
    FLAGS = 148
}; /* struct ggml_tensor since 2023-12 */

static FILE *out;
static struct engine *eng;
static bool wanted;
static int graph = -1, node;

void dump_open(const char *path, struct engine *g, bool cut) {
    out = fopen(path, "w");
    if (!out) DIE("cannot write %s", path);
    eng = g;
    wanted = cut;
}

void dump_close(void) {
    if (out && fclose(out)) DIE("cannot write the dump");
    out = NULL;
}

void dump_graph(const char *phase, int n_tokens, int first_pos) {
    if (!out) return;
    graph++;
    node = 0;
    fprintf(out, "{\"graph\":%d,\"phase\":\"%s\",\"n_tokens\":%d,\"pos\":%d}\n", graph, phase, n_tokens,
            first_pos);
}

static const void *field(const void *t, size_t at) { return (const char *)t + at; }

static const void *pointer(const void *t, size_t at) {
    const void *p;
    memcpy(&p, field(t, at), sizeof p);
    return p;
}

static int number(const void *t, size_t at) {
    int v;
    memcpy(&v, field(t, at), sizeof v);
    return v;
}

static void text(const char *key, const char *s) {
    fprintf(out, "\"%s\":\"", key);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(out, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            fprintf(out, "\\u%04x", *s);
        else
            fputc(*s, out);
    }
    fputc('"', out);
}

static void four(const char *key, const void *t, size_t at) {
    int64_t v[4];
    memcpy(v, field(t, at), sizeof v);
    fprintf(out, ",\"%s\":[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", key, v[0], v[1], v[2], v[3]);
}

static void tensor(const void *t) {
    const struct era *e = eng->era;
    fprintf(out, "\"addr\":\"%p\",", t);
    text("name", eng->get_name(t));
    fputc(',', out);
    text("op", eng->op_name(number(t, OP)));
    fputc(',', out);
    text("desc", eng->op_desc(t));
    fputc(',', out);
    text("type", eng->type_name(number(t, TYPE)));
    four("ne", t, NE);
    four("nb", t, NB);
    const void *view = pointer(t, e->view_src);
    fprintf(out, ",\"flags\":%d,\"data\":\"0x%" PRIxPTR "\",\"view_src\":\"0x%" PRIxPTR "\"",
            number(t, FLAGS), (uintptr_t)pointer(t, e->data), (uintptr_t)view);
}

static void check_layout(const void *t) {
    const struct era *e = eng->era;
    if (eng->get_name(t) != field(t, e->tensor_name) || eng->get_data(t) != pointer(t, e->data))
        DIE("struct ggml_tensor is not laid out as in %s", e->name);
}

bool dump_observe(void *t, bool ask, void *user) {
    (void)user;
    if (!out || graph < 0) return false;
    if (!ask) return true; /* computed: continue */
    if (node == 0) check_layout(t);
    fprintf(out, "{\"g\":%d,\"i\":%d,", graph, node++);
    tensor(t);
    fputs(",\"src\":[", out);
    int last = -1;
    for (int i = 0; i < MAX_SRC; i++)
        if (pointer(t, eng->era->src + 8 * (size_t)i)) last = i;
    for (int i = 0; i <= last; i++) {
        const void *s = pointer(t, eng->era->src + 8 * (size_t)i);
        if (i) fputc(',', out);
        if (!s) {
            fputs("null", out); /* a gap: an optional source that is not set */
            continue;
        }
        fputc('{', out);
        tensor(s);
        fputc('}', out);
    }
    fputs("]}\n", out);
    return wanted;
}
