/*
 * For tests only: CUPTI's functions that profinfer's library uses, for kernels that fake_cuda.c tells it of.
 * The records have the layout of CUPTI's own headers. As CUPTI does, it fills buffers that it asks for, gives
 * a full one back once its kernels have ended, and the rest when it is told to flush.
 *
 * FAKE_CUPTI_VERSION: what cuptiGetVersion says; without it, the version of the headers.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cupti.h>

#include "fake_cupti.h"

/* CUPTI's clock, minus CLOCK_MONOTONIC: any difference will do. */
#define AHEAD     1234567890123456789ULL
#define NS        1000000000ULL
#define ALIGNMENT 8

typedef CUpti_ActivityKernel13 Record;

#define MOST_BUFFERS 64
static struct {
    uint8_t *bytes;
    size_t size, used;
    uint64_t ended;
} filled[MOST_BUFFERS];
static int n_filled;
static size_t dropped;

static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static CUpti_CallbackFunc callback;
static void *callback_data;
static uint8_t wanted[4][1024];
static int kernels_on, latency_on, period;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * NS + t.tv_nsec;
}

CUptiResult CUPTIAPI cuptiGetVersion(uint32_t *version) {
    const char *other = getenv("FAKE_CUPTI_VERSION");
    *version = other ? strtoul(other, NULL, 10) : CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetTimestamp(uint64_t *time) {
    *time = now() + AHEAD;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc function,
                                    void *data) {
    if (callback) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    *subscriber = (CUpti_SubscriberHandle)&callback;
    callback = function;
    callback_data = data;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
    (void)subscriber;
    callback = NULL;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                         CUpti_CallbackDomain domain, CUpti_CallbackId id) {
    if (subscriber != (CUpti_SubscriberHandle)&callback || domain >= 4 || id >= 1024)
        return CUPTI_ERROR_INVALID_PARAMETER;
    wanted[domain][id] = enable;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                                    CUpti_BuffersCallbackCompleteFunc completed) {
    request = requested;
    complete = completed;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnableLatencyTimestamps(uint8_t enable) {
    latency_on = enable;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
    if (!request) return CUPTI_ERROR_INVALID_OPERATION;
    kernels_on |= kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityFlushPeriod(uint32_t time) {
    period = time;
    return CUPTI_SUCCESS;
}

/* Gives back the first buffer. */
static void give_back(void) {
    uint8_t *bytes = filled[0].bytes;
    size_t size = filled[0].size, used = filled[0].used;
    memmove(&filled[0], &filled[1], --n_filled * sizeof(filled[0]));
    complete(NULL, 0, bytes, size, used);
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t flag) {
    while (n_filled && (filled[0].ended <= now() || flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED)) give_back();
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record) {
    size_t next = *record ? (size_t)((uint8_t *)*record - buffer) + sizeof(Record) : 0;
    if (next >= valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)(buffer + next);
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *n) {
    (void)context;
    (void)stream;
    *n = dropped;
    dropped = 0;
    return CUPTI_SUCCESS;
}

static uint32_t correlation;

static void call(CUpti_ApiCallbackSite site, uint32_t cbid, const char *function, const char *symbol,
                 uint32_t number) {
    CUpti_CallbackData data = {
        .callbackSite = site, .functionName = function, .symbolName = symbol, .correlationId = number};
    if (callback && wanted[CUPTI_CB_DOMAIN_RUNTIME_API][cbid])
        callback(callback_data, CUPTI_CB_DOMAIN_RUNTIME_API, cbid, &data);
}

static uint32_t begin(uint32_t cbid, const char *function, const char *symbol) {
    /* Calls that launch nothing have numbers too. */
    correlation += 3;
    call(CUPTI_API_ENTER, cbid, function, symbol, correlation);
    return correlation;
}

static void end(uint32_t cbid, const char *function, uint32_t number) {
    call(CUPTI_API_EXIT, cbid, function, NULL, number);
}

/* The next record's place; none: there is no buffer. */
static Record *place(void) {
    int last = n_filled - 1;
    size_t most = 0;
    if (last < 0 || filled[last].used + sizeof(Record) > filled[last].size) {
        if (n_filled == MOST_BUFFERS) return NULL;
        last++;
        memset(&filled[last], 0, sizeof(filled[last]));
        request(&filled[last].bytes, &filled[last].size, &most);
        if (!filled[last].bytes || filled[last].size < sizeof(Record)) return NULL;
        if ((uintptr_t)filled[last].bytes % ALIGNMENT) abort();
        n_filled++;
    }
    Record *r = (Record *)(filled[last].bytes + filled[last].used);
    filled[last].used += sizeof(Record);
    memset(r, 0, sizeof(*r));
    return r;
}

static void kernel(uint32_t number, const struct fake_kernel *k) {
    if (!kernels_on) return;
    Record *r = place();
    if (!r) {
        dropped++;
        return;
    }
    filled[n_filled - 1].ended = k->ended;
    r->kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    r->start = k->started + AHEAD;
    r->end = r->completed = k->ended + AHEAD;
    r->contextId = 1;
    r->streamId = k->stream;
    r->correlationId = number;
    r->name = k->name;
    r->graphId = k->graph;
    r->graphNodeId = k->node;
    r->queued = latency_on && !k->graph ? k->queued + AHEAD : CUPTI_TIMESTAMP_UNKNOWN;
    r->submitted = latency_on && !k->graph ? k->queued + 1 + AHEAD : CUPTI_TIMESTAMP_UNKNOWN;
}

/* What CUPTI's own thread does now and then. */
static void idle(void) {
    while (n_filled > 1 && period && filled[0].ended <= now()) give_back();
}

const struct fake_cupti fake_cupti = {begin, end, kernel, idle};
