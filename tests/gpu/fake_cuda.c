/*
 * For tests only: a CUDA runtime, driver and cuBLAS without a device, for llama.cpp's CUDA backend. Memory is
 * the heap, kernels do nothing, and streams can be captured. What the host does is real; results are wrong by
 * design. The functions that need only return success are made by cuda.sh.
 *
 * Kernels are launched on a timeline of the fake's own, one after the other, and waiting for the device waits
 * until they have ended. Where a library is injected (CUDA_INJECTION64_PATH), it is called as the driver
 * does, and fake_cupti.c is told of each launch. FAKE_CUDA_LOG: a file that gets a line for each kernel
 * executed: 1 if a graph has launched it, its start (CLOCK_MONOTONIC) and duration in ns, its name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <driver_types.h>

#include "fake_cupti.h"

/* Of the device that the backend is told of; any that has the features of compute capability 8.6. */
#define SHARED_BYTES 49152
#define SHARED_OPTIN 101376
#define MEMORY       (8ULL << 30)

enum { OK, OUT_OF_MEMORY = 2 };

struct size3 {
    unsigned x, y, z;
};

static int capturing;

static const struct fake_cupti *cupti;
static FILE *kernels_log;

static void initialise(void) {
    const char *library = getenv("CUDA_INJECTION64_PATH"), *log = getenv("FAKE_CUDA_LOG");
    void *injected = library ? dlopen(library, RTLD_NOW) : NULL;
    int (*injection)(void) = injected ? dlsym(injected, "InitializeInjection") : NULL;
    if (log) kernels_log = fopen(log, "w");
    if (!injection) return;
    injection();
    void *loaded = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
    cupti = loaded ? dlsym(loaded, "fake_cupti") : NULL;
}

/* As the driver's initialisation, which the runtime calls at first use. */
static void initialise_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, initialise);
}

static int new_handle(void **handle) {
    *handle = malloc(8);
    return *handle ? OK : OUT_OF_MEMORY;
}

static int allocate(void **p, size_t n) {
    if (posix_memalign(p, 256, n ? n : 256)) return OUT_OF_MEMORY;
    memset(*p, 0, n);
    return OK;
}

int cudaGetDeviceCount(int *n) {
    initialise_once();
    *n = 1;
    return OK;
}
int cudaGetDevice(int *device) {
    *device = 0;
    return OK;
}
int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;
    return device == peer;
}
int cudaDeviceGetPCIBusId(char *id, int n, int device) {
    strncpy(id, "0000:00:00.0", n);
    return device;
}
const char *cudaGetErrorString(int error) { return error ? "no device: this is a test" : "no error"; }

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 6; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_OPTIN; break;
    default: *value = 0;
    }
    return device;
}

int cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof(*p));
    strcpy(p->name, "CUDA without a device");
    p->major = 8;
    p->minor = 6;
    p->totalGlobalMem = MEMORY;
    p->sharedMemPerBlock = SHARED_BYTES;
    p->sharedMemPerBlockOptin = SHARED_OPTIN;
    p->sharedMemPerMultiprocessor = SHARED_OPTIN + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsPerMultiProcessor = 1024;
    p->maxBlocksPerMultiProcessor = 16;
    p->multiProcessorCount = 28;
    p->l2CacheSize = 3 << 20;
    p->unifiedAddressing = 1;
    for (int i = 0; i < 3; i++) {
        p->maxThreadsDim[i] = 1024;
        p->maxGridSize[i] = INT32_MAX;
    }
    return device;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *free_bytes = MEMORY / 2;
    *total = MEMORY;
    return OK;
}

int cudaMalloc(void **p, size_t n) { return allocate(p, n); }
int cudaMallocManaged(void **p, size_t n, unsigned flags) {
    (void)flags;
    return allocate(p, n);
}
int cudaMallocHost(void **p, size_t n) { return allocate(p, n); }
int cudaFree(void *p) {
    free(p);
    return OK;
}
int cudaFreeHost(void *p) {
    free(p);
    return OK;
}

/* What is captured happens at no time here. */
int cudaMemcpyAsync(void *to, const void *from, size_t n) {
    if (!capturing) memcpy(to, from, n);
    return OK;
}

int cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t pitch, size_t width,
                      size_t height) {
    for (size_t i = 0; i < height && !capturing; i++) memcpy(to + i * to_pitch, from + i * pitch, width);
    return OK;
}

int cudaMemset(void *p, int value, size_t n) {
    memset(p, value, n);
    return OK;
}

int cudaMemsetAsync(void *p, int value, size_t n) { return capturing ? OK : cudaMemset(p, value, n); }

int cudaStreamCreateWithFlags(void **stream) { return new_handle(stream); }
int cudaEventCreateWithFlags(void **event) { return new_handle(event); }
int cublasCreate_v2(void **handle) { return new_handle(handle); }

/* Names of kernels by their stubs: a table with open addressing. */
#define STUBS (1 << 15)
static struct {
    const void *stub;
    const char *name;
} stubs[STUBS];

static unsigned stub_at(const void *stub) {
    unsigned at = ((uintptr_t)stub >> 4) % STUBS;
    while (stubs[at].stub && stubs[at].stub != stub) at = (at + 1) % STUBS;
    return at;
}

void __cudaRegisterFunction(void **binary, const void *stub, char *function, const char *name) {
    (void)binary;
    (void)function;
    unsigned at = stub_at(stub);
    stubs[at].stub = stub;
    stubs[at].name = name;
}

/* A captured graph, and one that can be launched. */
struct graph {
    int id, n, room;
    const char **kernels;
};
static struct graph *captured;
static int graphs;

static void add(struct graph *g, const char *name) {
    if (g->n == g->room) {
        g->room = 2 * g->room + 64;
        g->kernels = realloc(g->kernels, g->room * sizeof(*g->kernels));
        if (!g->kernels) abort();
    }
    g->kernels[g->n++] = name;
}

static void copy(struct graph *to, const struct graph *from) {
    to->n = 0;
    for (int i = 0; i < from->n; i++) add(to, from->kernels[i]);
}

static int new_graph(struct graph **g) {
    *g = calloc(1, sizeof(**g));
    if (!*g) return OUT_OF_MEMORY;
    (*g)->id = ++graphs;
    return OK;
}

int cudaStreamBeginCapture(void) {
    capturing = 1;
    return new_graph(&captured);
}
int cudaStreamEndCapture(void *stream, struct graph **graph) {
    (void)stream;
    capturing = 0;
    *graph = captured;
    return OK;
}
int cudaGraphInstantiate(struct graph **exec, const struct graph *graph) {
    if (new_graph(exec)) return OUT_OF_MEMORY;
    copy(*exec, graph);
    return OK;
}
int cudaGraphExecUpdate(struct graph *exec, const struct graph *graph) {
    copy(exec, graph);
    return OK;
}

/* When the device has executed what it was given, CLOCK_MONOTONIC, ns. */
static uint64_t busy_until;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

/* The device gets a kernel. Its duration is its own: each differs from the one before. */
static void execute(unsigned correlation, const char *name, void *stream, int graph, int node) {
    static unsigned executed;
    struct fake_kernel k = {name, (uintptr_t)stream >> 4, now(), 0, 0, graph, node};
    k.started = (k.queued > busy_until ? k.queued : busy_until) + 700;
    k.ended = busy_until = k.started + 1000 + 13 * (++executed % 977);
    if (cupti) cupti->kernel(correlation, &k);
    if (kernels_log) {
        unsigned long long start = k.started, ns = k.ended - k.started;
        fprintf(kernels_log, "%d %llu %llu %s\n", graph != 0, start, ns, name ? name : "?");
    }
}

/* Calls that launched a kernel or a graph so far: in the file that FAKE_CUDA_COUNTS names, after each, for
 * the program may end without its destructors. */
static unsigned long kernels_launched, graphs_launched;

static void launched(unsigned long *what) {
    static FILE *out;
    const char *path = getenv("FAKE_CUDA_COUNTS");
    ++*what;
    if (path && !out) out = fopen(path, "w");
    if (!out) return;
    rewind(out);
    fprintf(out, "%lu %lu\n", kernels_launched, graphs_launched);
    fflush(out);
}

/* Ids of these calls (cupti_runtime_cbid.h). */
enum { LAUNCH_COOPERATIVE = 269, GRAPH_LAUNCH = 311, LAUNCH_EX = 430, LAUNCH = 505 };

static int launch(unsigned cbid, const char *function, const void *stub, void *stream) {
    const char *name = stubs[stub_at(stub)].name;
    launched(&kernels_launched);
    unsigned number = cupti ? cupti->begin(cbid, function, name) : 0;
    if (capturing)
        add(captured, name);
    else
        execute(number, name, stream, 0, 0);
    if (cupti) cupti->end(cbid, function, number);
    return OK;
}

int __cudaLaunchKernel(const void *kernel, struct size3 grid, struct size3 block, void **args, size_t shared,
                       void *stream) {
    return launch(LAUNCH, "__cudaLaunchKernel", kernel, stream);
}
int cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *stub, void **args) {
    return launch(LAUNCH_EX, "cudaLaunchKernelExC", stub, config->stream);
}
int cudaLaunchCooperativeKernel(const void *stub, struct size3 grid, struct size3 block, void **args,
                                size_t shared, void *stream) {
    return launch(LAUNCH_COOPERATIVE, "cudaLaunchCooperativeKernel", stub, stream);
}

int cudaGraphLaunch(const struct graph *exec, void *stream) {
    launched(&graphs_launched);
    unsigned number = cupti ? cupti->begin(GRAPH_LAUNCH, "cudaGraphLaunch", NULL) : 0;
    for (int i = 0; i < exec->n; i++) execute(number, exec->kernels[i], stream, exec->id, i + 1);
    if (cupti) cupti->end(GRAPH_LAUNCH, "cudaGraphLaunch", number);
    return OK;
}

static int wait(void) {
    while (now() < busy_until) {
        struct timespec t = {0, 20000};
        nanosleep(&t, NULL);
    }
    if (cupti) cupti->idle();
    return OK;
}
int cudaStreamSynchronize(void) { return wait(); }
int cudaDeviceSynchronize(void) { return wait(); }
int cudaEventSynchronize(void) { return wait(); }

int cudaStreamIsCapturing(void *stream, int *is) {
    (void)stream;
    *is = capturing;
    return OK;
}

int cudaFuncGetAttributes(struct cudaFuncAttributes *a) {
    memset(a, 0, sizeof(*a));
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    return OK;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n) {
    *n = 2;
    return OK;
}

/* How a compiled launch `kernel<<<grid, block, shared, stream>>>` passes its configuration to the kernel's
 * stub. */
static _Thread_local struct {
    struct size3 grid, block;
    size_t shared;
    void *stream;
} pushed;

unsigned __cudaPushCallConfiguration(struct size3 grid, struct size3 block, size_t shared, void *stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return OK;
}

int __cudaPopCallConfiguration(struct size3 *grid, struct size3 *block, size_t *shared, void **stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *stream = pushed.stream;
    return OK;
}

int __cudaGetKernel(const void **kernel, const void *stub) {
    *kernel = stub;
    return OK;
}
void *__cudaRegisterFatBinary(void) { return malloc(8); }

/* No virtual memory management: the backend takes its other allocator. */
int cuDeviceGet(int *device, int i) {
    *device = i;
    return OK;
}
int cuDeviceGetAttribute(int *value) {
    *value = 0;
    return OK;
}
int cuGetErrorString(int error, const char **text) {
    *text = cudaGetErrorString(error);
    return OK;
}
