/* Writes the experts that each layer chose for each token, through the engine's eval callback.
 *
 * Requests the views of the first entries of a sorted row (ARGSORT, in some releases TOP_K) that a MUL_MAT_ID
 * reads: the engine splits its graph after each, and passes it to the callback computed. All other
 * computation is the same, in the same order.
 *
 * One JSON object per tensor of ids: {"call":N,"ids":A,"name":..,"rows":[[ids of a token],..]} */
#include "experts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TYPE = 0, NE = 16, NB = 48, OP = 80 }; /* struct ggml_tensor since 2023-12 */

static FILE *out;
static struct engine *eng;
static int calls = -1;

void experts_open(const char *path, struct engine *g) {
    out = fopen(path, "w");
    if (!out) DIE("cannot write %s", path);
    eng = g;
}

void experts_close(void) {
    if (out && fclose(out)) DIE("cannot write the experts");
    out = NULL;
}

void experts_call(void) { calls++; }

static const void *pointer(const void *t, size_t at) {
    const void *p;
    memcpy(&p, (const char *)t + at, sizeof p);
    return p;
}

static int number(const void *t, size_t at) {
    int v;
    memcpy(&v, (const char *)t + at, sizeof v);
    return v;
}

static bool is(const void *t, const char *op) { return !strcmp(eng->op_name(number(t, OP)), op); }

static bool wanted(const void *t) {
    const void *of = pointer(t, eng->era->src);
    return is(t, "VIEW") && of && (is(of, "ARGSORT") || is(of, "TOP_K")) &&
           !strcmp(eng->type_name(number(t, TYPE)), "i32");
}

bool experts_observe(void *t, bool ask, void *user) {
    (void)user;
    if (!out || calls < 0) return false;
    if (ask) return wanted(t);
    int64_t ne[2];
    size_t nb[2];
    memcpy(ne, (char *)t + NE, sizeof ne);
    memcpy(nb, (char *)t + NB, sizeof nb);
    fprintf(out, "{\"call\":%d,\"ids\":\"%p\",\"name\":\"%s\",\"rows\":[", calls, t, eng->get_name(t));
    for (int64_t token = 0; token < ne[1]; token++) {
        fputs(token ? ",[" : "[", out);
        for (int64_t i = 0; i < ne[0]; i++)
            fprintf(out, i ? ",%d" : "%d",
                    number(eng->get_data(t), (size_t)token * nb[1] + (size_t)i * nb[0]));
        fputc(']', out);
    }
    fputs("]}\n", out);
    return true;
}
