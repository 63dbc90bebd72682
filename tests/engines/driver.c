/* Runs a model on an unmodified engine through its C API: fixed tokens, known times, and the
 * engine's own figures, for comparison with a recording. See README.md for options and output. */
#define _GNU_SOURCE
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "dump.h"
#include "experts.h"
#include "phases.h"

struct options {
    struct settings set;
    int n_prompt, n_decode, repeat, warmup;
    double hold, pause;
    const char *wait_for, *dump, *experts, *per_token, *logits, *every, *draft;
    int32_t *ids; /* our own prompt, n_prompt long */
    bool cut, json, control, free, exit, callers;
};

struct span {
    int64_t wall_ns, cpu_ns;
    int n;
};

static struct options opt;
static struct engine eng;
static FILE *tokens_out;
static int pos; /* tokens in the KV cache */

/* As in speculative decoding: a second model in its own context proposes tokens, which the first
 * decodes in one batch. No token is ever rejected here, so the amount of work is known in
 * advance. */
enum { PROPOSED = 4 };
static struct engine draft;

static int64_t now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_seconds(double s) {
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static void wait_for(const char *path) {
    while (access(path, F_OK)) sleep_seconds(0.01);
}

/* Fixed, within the vocabulary of every generated model, and varied enough to activate several
 * experts. */
static int32_t token_at(int i) { return 3 + (int32_t)((unsigned)i * 37u % 250u); }

struct call {
    const int32_t *ids;
    int n;
};

static void *called(void *of) {
    struct call *c = of;
    engine_decode(&eng, c->ids, c->n, pos);
    return NULL;
}

/* With --callers from a thread made for this call, as programs with a pool of callers do. */
static void call(const int32_t *ids, int n) {
    struct call c = {ids, n};
    pthread_t thread;
    if (!opt.callers) {
        called(&c);
        return;
    }
    if (pthread_create(&thread, NULL, called, &c) || pthread_join(thread, NULL)) DIE("no thread for a call");
}

static struct span decode(const char *phase, int n) {
    int32_t ids[n];
    for (int i = 0; i < n; i++) ids[i] = token_at(pos + i);
    dump_graph(phase, n, pos);
    experts_call();
    int64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    call(ids, n);
    struct span s = {now(CLOCK_MONOTONIC) - wall, now(CLOCK_PROCESS_CPUTIME_ID) - cpu, n};
    pos += n;
    return s;
}

static void draft_decode(int n) {
    int32_t ids[n];
    for (int i = 0; i < n; i++) ids[i] = token_at(pos + i);
    engine_decode(&draft, ids, n, pos);
}

/* Both decode the prompt. Then, in each round, the draft decodes PROPOSED tokens one by one and
 * the target model decodes the same tokens in one batch. */
static void speculate(int rounds) {
    draft_decode(opt.n_prompt);
    decode("prefill", opt.n_prompt);
    /* A draft is checked by the logits of all its tokens. */
    eng.every = true;
    for (int i = 0; i < rounds; i++) {
        int first = pos;
        for (int k = 0; k < PROPOSED; k++, pos++) draft_decode(1);
        pos = first;
        decode("decode", PROPOSED);
    }
    printf("{\"prompt\":%d,\"rounds\":%d,\"proposed\":%d}\n", opt.n_prompt, rounds, PROPOSED);
}

static void forget(void) {
    engine_forget(&eng);
    pos = 0;
}

static struct span prefill(int n) {
    forget();
    if (n < 1) return (struct span){0, 0, 0};
    return decode("prefill", n);
}

/* When the context is full, it starts again after a prefill of the same width, outside the
 * measured time. */
static struct span run(int n, const char *label) {
    struct span sum = {0, 0, 0};
    for (int i = 0; i < n; i++) {
        if (pos >= (int)eng.n_ctx) prefill(opt.n_prompt);
        int64_t start = now(CLOCK_MONOTONIC);
        struct span s = decode("decode", 1);
        if (tokens_out)
            fprintf(tokens_out, "%lld %lld %lld %s\n", (long long)start, (long long)s.wall_ns,
                    (long long)s.cpu_ns, label);
        sum.wall_ns += s.wall_ns;
        sum.cpu_ns += s.cpu_ns;
        sum.n++;
    }
    if (tokens_out) fflush(tokens_out);
    return sum;
}

static double rate(int n, double ms) { return ms > 0 ? n * 1e3 / ms : 0; }

static void print_span_json(const char *key, struct span s) {
    double ms = (double)s.wall_ns / 1e6;
    printf("\"%s\":{\"n\":%d,\"wall_ms\":%.6f,\"cpu_ms\":%.6f,\"tok_s\":%.6f}", key, s.n, ms,
           (double)s.cpu_ns / 1e6, rate(s.n, ms));
}

/* tok_s is from our clock around each call, perf.decode_tok_s from the engine's own. */
static void print_result(int repetition, struct span pre, struct span dec) {
    struct perf p = engine_perf(&eng);
    if (!opt.json) {
        printf("pid %d  engine %s %s  prefill %d in %.3f ms  decode %d: %.2f tok/s (engine: %.2f tok/s)\n",
               getpid(), eng.era->name, eng.version, pre.n, (double)pre.wall_ns / 1e6, dec.n,
               rate(dec.n, (double)dec.wall_ns / 1e6), rate(p.n_eval, p.t_eval_ms));
        return;
    }
    printf("{\"pid\":%d,\"engine\":\"%s\",\"version\":\"%s\",\"lib\":\"%s\",\"api\":\"%s\",\"threads\":%d,"
           "\"repeat\":%d,",
           getpid(), eng.era->name, eng.version, eng.lib, eng.process ? "llama_process" : "llama_decode",
           opt.set.threads, repetition);
    print_span_json("prefill", pre);
    putchar(',');
    print_span_json("decode", dec);
    printf(",\"perf\":{\"t_load_ms\":%.6f,\"t_p_eval_ms\":%.6f,\"n_p_eval\":%d,\"t_eval_ms\":%.6f,\"n_eval\":"
           "%d,\"decode_tok_s\":%.6f}}\n",
           p.t_load_ms, p.t_p_eval_ms, p.n_p_eval, p.t_eval_ms, p.n_eval, rate(p.n_eval, p.t_eval_ms));
}

static void measured_runs(void) {
    for (int r = 0; r < opt.repeat; r++) {
        eng.perf_reset(eng.context);
        struct span pre = prefill(opt.n_prompt);
        struct span dec = run(opt.n_decode, "run");
        print_result(r, pre, dec);
        fflush(stdout);
    }
}

/* Lock-step with the process on stdin: a line in, work done, a line out. This lets windows with
 * probes on and off alternate within one process. */
static void control(void) {
    char line[256], label[128];
    int n;
    printf("{\"ready\":true,\"pid\":%d,\"engine\":\"%s\",\"lib\":\"%s\"}\n", getpid(), eng.era->name,
           eng.lib);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        strcpy(label, "run");
        if (sscanf(line, "run %d %127s", &n, label) >= 1 && n > 0) {
            struct span s = run(n, label);
            printf("{\"label\":\"%s\",", label);
            print_span_json("decode", s);
            printf(",\"pos\":%d}\n", pos);
        } else if (sscanf(line, "prefill %d", &n) == 1 && n > 0 && n <= (int)eng.n_ctx) {
            putchar('{');
            print_span_json("prefill", prefill(n));
            printf(",\"pos\":%d}\n", pos);
        } else if (sscanf(line, "phases %d", &n) == 1 && n > 0 && pos > 0) {
            phases(&eng, n);
            printf("{\"phases\":%d}\n", n);
        } else if (!strcmp(line, "perf\n")) {
            struct perf p = engine_perf(&eng);
            printf("{\"t_p_eval_ms\":%.6f,\"n_p_eval\":%d,\"t_eval_ms\":%.6f,\"n_eval\":%d}\n", p.t_p_eval_ms,
                   p.n_p_eval, p.t_eval_ms, p.n_eval);
            eng.perf_reset(eng.context);
        } else if (!strcmp(line, "quit\n")) {
            return;
        } else {
            DIE("unknown control line: %s", line);
        }
        fflush(stdout);
    }
}

static int32_t largest(void) {
    int n, best = 0;
    const float *logits = engine_logits(&eng, -1, &n);
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Of this many tokens at the end of the last batch. */
static void write_logits(const char *path, int tokens) {
    FILE *f = fopen(path, "w");
    if (!f) DIE("cannot write %s", path);
    for (int i = -tokens; i < 0; i++) {
        int n;
        const float *logits = engine_logits(&eng, i, &n);
        if (fwrite(logits, sizeof *logits, (size_t)n, f) != (size_t)n) DIE("cannot write %s", path);
    }
    if (fclose(f)) DIE("cannot write %s", path);
}

/* The model's output for a given prompt, for comparison with another engine. */
static void greedy(void) {
    eng.every = opt.every != NULL;
    engine_decode(&eng, opt.ids, opt.n_prompt, 0);
    pos = opt.n_prompt;
    if (opt.logits) write_logits(opt.logits, 1);
    if (opt.every) write_logits(opt.every, opt.n_prompt);
    eng.every = false;
    printf("{\"engine\":\"%s\",\"version\":\"%s\",\"tokens\":[", eng.era->name, eng.version);
    for (int i = 0; i < opt.n_decode; i++) {
        int32_t id = largest();
        printf(i ? ",%d" : "%d", id);
        if (i + 1 < opt.n_decode) engine_decode(&eng, &id, 1, pos++);
    }
    puts("]}");
}

static void usage(FILE *f) {
    fputs("usage: driver --engine DIR|FILE --model GGUF [-p N] [-n N] [-t N] [--repeat R] [--json]\n"
          "  -p N --prompt     tokens of prefill (32)        --warmup N      decodes before it all (0)\n"
          "  -n N --decode     tokens of decode (16)         --ctx N         context size (what is needed)\n"
          "  -t N --threads    threads (1)                   --old-api       llama_decode in any case\n"
          "  --repeat R        repetitions (1)               --verbose       the engine's log\n"
          "  --wait-for FILE   wait for FILE before the libraries are loaded\n"
          "  --hold S          wait S seconds between model load and first decode\n"
          "  --pause S         wait S seconds between opening the engine and loading the model\n"
          "  --per-token FILE  a line per decode: start_ns wall_ns cpu_ns label\n"
          "  --dump FILE       what the engine runs, as JSON lines; --cut: node by node\n"
          "  --experts FILE    experts chosen, as JSON lines; cuts the graph behind each choice\n"
          "  --ids 1,2,3       this prompt instead, then -n tokens greedily: prints their ids\n"
          "  --logits FILE     with --ids: the logits of the prompt's last token, as floats\n"
          "  --every FILE      with --ids: the same of all tokens of the prompt, one after the other\n"
          "  --gpu-layers N    layers that a device computes (0)\n"
          "  --flash 0|1       flash attention off or on, instead of as the engine chooses\n"
          "  --no-mmap         read the model into memory instead of mapping its file\n"
          "  --ubatch N        tokens of a micro-batch (all of a prompt)\n"
          "  --callers         make each call from a new thread\n"
          "  --draft GGUF      a second model proposes 4 tokens each of -n times, the first decodes them at "
          "once\n"
          "  --free            free the context at the end, for what an engine writes only then\n"
          "  --exit            end as programs do, with the libraries' own teardown\n"
          "  --control         commands on stdin: run N [LABEL], prefill N, phases N, perf, quit\n",
          f);
}

static int int_arg(const char *text, int least) {
    char *end;
    long v = strtol(text, &end, 10);
    if (*end || end == text || v < least || v > 1000000) DIE("not a usable number: %s", text);
    return (int)v;
}

static void read_ids(char *text) {
    size_t most = strlen(text) / 2 + 1;
    opt.ids = calloc(most, sizeof *opt.ids);
    if (!opt.ids) DIE("no memory");
    opt.n_prompt = 0;
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ","))
        opt.ids[opt.n_prompt++] = int_arg(word, 0);
    if (!opt.n_prompt) DIE("--ids needs ids");
}

enum {
    ENGINE = 256,
    MODEL,
    REPEAT,
    WARMUP,
    CTX,
    OLD_API,
    VERBOSE,
    WAIT_FOR,
    HOLD,
    PAUSE,
    PER_TOKEN,
    DUMP,
    CUT,
    EXPERTS,
    CONTROL,
    IDS,
    LOGITS,
    EVERY,
    GPU_LAYERS,
    FLASH,
    NO_MMAP,
    UBATCH,
    CALLERS,
    DRAFT,
    FREE,
    EXIT,
    JSON,
    HELP
};

static const struct option LONG[] = {
    {"engine", 1, 0, ENGINE},     {"model", 1, 0, MODEL},
    {"prompt", 1, 0, 'p'},        {"decode", 1, 0, 'n'},
    {"threads", 1, 0, 't'},       {"repeat", 1, 0, REPEAT},
    {"warmup", 1, 0, WARMUP},     {"ctx", 1, 0, CTX},
    {"old-api", 0, 0, OLD_API},   {"verbose", 0, 0, VERBOSE},
    {"wait-for", 1, 0, WAIT_FOR}, {"hold", 1, 0, HOLD},
    {"pause", 1, 0, PAUSE},       {"per-token", 1, 0, PER_TOKEN},
    {"dump", 1, 0, DUMP},         {"experts", 1, 0, EXPERTS},
    {"cut", 0, 0, CUT},           {"control", 0, 0, CONTROL},
    {"ids", 1, 0, IDS},           {"logits", 1, 0, LOGITS},
    {"every", 1, 0, EVERY},       {"gpu-layers", 1, 0, GPU_LAYERS},
    {"flash", 1, 0, FLASH},       {"no-mmap", 0, 0, NO_MMAP},
    {"ubatch", 1, 0, UBATCH},     {"callers", 0, 0, CALLERS},
    {"draft", 1, 0, DRAFT},       {"free", 0, 0, FREE},
    {"exit", 0, 0, EXIT},         {"json", 0, 0, JSON},
    {"help", 0, 0, HELP},         {0, 0, 0, 0},
};

static void parse(int argc, char **argv) {
    opt = (struct options){.set = {.threads = 1}, .n_prompt = 32, .n_decode = 16, .repeat = 1};
    for (int c; (c = getopt_long(argc, argv, "p:n:t:", LONG, NULL)) != -1;) {
        switch (c) {
        case ENGINE: opt.set.engine = optarg; break;
        case MODEL: opt.set.model = optarg; break;
        case 'p': opt.n_prompt = int_arg(optarg, 0); break;
        case 'n': opt.n_decode = int_arg(optarg, 0); break;
        case 't': opt.set.threads = int_arg(optarg, 1); break;
        case REPEAT: opt.repeat = int_arg(optarg, 1); break;
        case WARMUP: opt.warmup = int_arg(optarg, 0); break;
        case CTX: opt.set.n_ctx = int_arg(optarg, 1); break;
        case OLD_API: opt.set.old_api = true; break;
        case VERBOSE: opt.set.verbose = true; break;
        case WAIT_FOR: opt.wait_for = optarg; break;
        case HOLD: opt.hold = atof(optarg); break;
        case PAUSE: opt.pause = atof(optarg); break;
        case PER_TOKEN: opt.per_token = optarg; break;
        case DUMP: opt.dump = optarg; break;
        case CUT: opt.cut = true; break;
        case EXPERTS: opt.experts = optarg; break;
        case CONTROL: opt.control = true; break;
        case IDS: read_ids(optarg); break;
        case LOGITS: opt.logits = optarg; break;
        case EVERY: opt.every = optarg; break;
        case GPU_LAYERS: opt.set.gpu_layers = int_arg(optarg, 0); break;
        case FLASH: opt.set.flash = int_arg(optarg, 0) ? 2 : 1; break;
        case NO_MMAP: opt.set.no_mmap = true; break;
        case UBATCH: opt.set.n_ubatch = int_arg(optarg, 1); break;
        case CALLERS: opt.callers = true; break;
        case DRAFT: opt.draft = optarg; break;
        case FREE: opt.free = true; break;
        case EXIT: opt.exit = true; break;
        case JSON: opt.json = true; break;
        case HELP: usage(stdout); exit(0);
        default: usage(stderr); exit(2);
        }
    }
    if (!opt.set.engine || !opt.set.model || optind != argc) usage(stderr), exit(2);
    if (!opt.set.n_ctx)
        opt.set.n_ctx = opt.control ? 2048 : (opt.n_prompt + opt.n_decode + opt.warmup + 255) / 256 * 256;
    if (opt.draft && (opt.n_prompt < 1 || opt.n_prompt + opt.n_decode * PROPOSED > opt.set.n_ctx))
        DIE("--draft needs a prompt, and a --ctx of at least the prompt and %d tokens each time", PROPOSED);
    if (opt.n_prompt > opt.set.n_ctx) DIE("the prompt does not fit a context of %d", opt.set.n_ctx);
    /* One micro-batch per call, so that one decode is one graph. */
    if (!opt.set.n_ubatch) opt.set.n_ubatch = opt.n_prompt > 512 ? opt.set.n_ctx : 512;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    if (opt.wait_for) wait_for(opt.wait_for);
    if (opt.dump && opt.experts) DIE("--dump and --experts need a callback each: give one of them");
    if (opt.dump) opt.set.observe = dump_observe;
    if (opt.experts) opt.set.observe = experts_observe;
    engine_open(&eng, &opt.set);
    if (opt.pause > 0) sleep_seconds(opt.pause);
    if (opt.dump) dump_open(opt.dump, &eng, opt.cut);
    if (opt.experts) experts_open(opt.experts, &eng);
    if (opt.per_token && !(tokens_out = fopen(opt.per_token, "w"))) DIE("cannot write %s", opt.per_token);
    engine_load(&eng, &opt.set);
    if (opt.draft) {
        struct settings other = opt.set;
        other.model = opt.draft;
        draft = eng;
        engine_load(&draft, &other);
    }
    if (opt.hold > 0) sleep_seconds(opt.hold);
    run(opt.warmup, "warmup");
    forget();
    if (opt.ids)
        greedy();
    else if (opt.draft)
        speculate(opt.n_decode);
    else if (opt.control)
        control();
    else
        measured_runs();
    if (opt.free) engine_free(&eng);
    dump_close();
    experts_close();
    if (tokens_out && fclose(tokens_out)) DIE("cannot write %s", opt.per_token);
    /* The libraries' own teardown is not under test, and some eras crash in it. */
    if (opt.exit) exit(0);
    fflush(stdout);
    _exit(0);
}
