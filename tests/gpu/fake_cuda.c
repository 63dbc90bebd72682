/*
 * For tests only: a CUDA runtime, driver and cuBLAS without a device, for llama.cpp's CUDA backend. Memory is
 * the heap, kernels do nothing, and streams can be captured. What the host does is real; results are wrong by
 * design. The functions that need only return success are made by cuda.sh.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <driver_types.h>

/* Of the device that the backend is told of; any that has the features of compute capability 8.6. */
#define SHARED_BYTES 49152
#define SHARED_OPTIN 101376
#define MEMORY       (8ULL << 30)

enum { OK, OUT_OF_MEMORY = 2 };

struct size3 {
    unsigned x, y, z;
};

static int capturing;

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
int cudaGraphInstantiate(void **exec) { return new_handle(exec); }
int cudaStreamBeginCapture(void) {
    capturing = 1;
    return OK;
}
int cudaStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    capturing = 0;
    return new_handle(graph);
}
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

/* What was launched so far: in the file that FAKE_CUDA_COUNTS names, after each launch, for the program may
 * end without its destructors. */
static unsigned long kernels, graphs;

static int launched(unsigned long *what) {
    static FILE *out;
    const char *path = getenv("FAKE_CUDA_COUNTS");
    ++*what;
    if (path && !out) out = fopen(path, "w");
    if (!out) return OK;
    rewind(out);
    fprintf(out, "%lu %lu\n", kernels, graphs);
    return fflush(out);
}

int __cudaLaunchKernel(void) { return launched(&kernels); }
int cudaLaunchKernelExC(void) { return launched(&kernels); }
int cudaLaunchCooperativeKernel(void) { return launched(&kernels); }
int cudaGraphLaunch(void) { return launched(&graphs); }

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
