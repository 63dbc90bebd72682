/*
 * For tests only: a GPU in software behind a real driver of the kernel, in a guest
 * (tests/kernels/checks/gpu.py). The registers are memory that the guest's kernel does not use (soft_gpu.py);
 * here is what the device would do: it sees a job in them, takes JOB_NS, sets the status and raises the
 * interrupt, in the interrupt controller. Preloaded into a program, which then submits jobs to the driver,
 * two at a time, and logs a line for each with times of CLOCK_MONOTONIC: before and after the call that
 * submits it, when the device saw it, and when it raised the interrupt. The program ends after the last.
 *
 * SOFT_GPU=panfrost|v3d, SOFT_GPU_JOBS=N, SOFT_GPU_DELAY=SECONDS before the first, SOFT_GPU_LOG=FILE
 */
#include <drm/panfrost_drm.h>
#include <drm/v3d_drm.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Of the device tree: soft_gpu.py. */
#define REGISTERS 0x70000000
#define SIZE      0x10000
#define INTERRUPT (32 + 200)
/* GICv3 of QEMU's virt machine: the register that makes an interrupt pending. */
#define GIC    0x08000000
#define ISPEND (0x200 / 4 + INTERRUPT / 32)

#define JOB_NS  4000000
#define POLL_NS 50000
#define MOST    1000

/* Registers by byte, and the bits of `status` when a job is done. */
struct device {
    const char *name;
    unsigned command, status, raw_status, clear, done;
    int (*submit)(int fd);
};

static int submit_panfrost(int fd) {
    struct drm_panfrost_submit job = {.jc = 0x1000};
    return ioctl(fd, DRM_IOCTL_PANFROST_SUBMIT, &job);
}

static int submit_v3d(int fd) {
    struct drm_v3d_submit_tfu job = {.icfg = 1};
    return ioctl(fd, DRM_IOCTL_V3D_SUBMIT_TFU, &job);
}

/* panfrost: COMMAND_NEXT of job slot 1, JOB_INT_*. v3d 4.2: TFU_ICFG, HUB_INT_*. */
static const struct device DEVICES[] = {
    {"panfrost", 0x18e0, 0x100c, 0x1000, 0x1004, 2, submit_panfrost},
    {"v3d", 0x408, 0x50, 0x50, 0x58, 2, submit_v3d},
};

static const struct device *device;
static volatile uint32_t *registers, *gic;
static struct job { int64_t before, after, seen, raised; } jobs[MOST];
static unsigned total;
static volatile unsigned ended;
static pthread_t submitter;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void wait_ns(long ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }

static void fail(const char *what) {
    perror(what);
    _exit(3);
}

static volatile uint32_t *map(uint32_t at, size_t size) {
    int fd = open("/dev/mem", O_RDWR | O_SYNC);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    if (p == MAP_FAILED) fail("soft_gpu: /dev/mem");
    return p;
}

static void *be_device(void *unused) {
    volatile uint32_t *command = registers + device->command / 4, *clear = registers + device->clear / 4;
    for (unsigned n = 0; n < total; n++) {
        while (!*command) wait_ns(POLL_NS);
        jobs[n].seen = now();
        *command = 0;
        *clear = 0;
        wait_ns(JOB_NS);
        registers[device->raw_status / 4] = device->done;
        registers[device->status / 4] = device->done;
        jobs[n].raised = now();
        gic[ISPEND] = 1u << INTERRUPT % 32;
        while (!*clear) wait_ns(POLL_NS);
        registers[device->status / 4] = 0;
        registers[device->raw_status / 4] = 0;
        ended = n + 1;
    }
    return unused;
}

static void *submit(void *unused) {
    sleep((unsigned)atoi(getenv("SOFT_GPU_DELAY")));
    int fd = open("/dev/dri/renderD128", O_RDWR);
    if (fd < 0) fail("soft_gpu: /dev/dri/renderD128");
    for (unsigned n = 0; n < total; n++) {
        jobs[n].before = now();
        if (device->submit(fd)) fail("soft_gpu: submit");
        jobs[n].after = now();
        while (n % 2 && ended <= n) wait_ns(POLL_NS);
    }
    FILE *log = fopen(getenv("SOFT_GPU_LOG"), "w");
    if (!log) fail("soft_gpu: log");
    for (unsigned n = 0; n < total; n++)
        fprintf(log, "%lld %lld %lld %lld\n", (long long)jobs[n].before, (long long)jobs[n].after,
                (long long)jobs[n].seen, (long long)jobs[n].raised);
    if (fclose(log)) fail("soft_gpu: log");
    return unused;
}

/* By this name a recording knows that the program has a device. */
__attribute__((visibility("default"))) void *ggml_backend_cuda_reg(void) { return NULL; }

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SOFT_GPU");
    if (!name) return;
    for (unsigned i = 0; i < sizeof DEVICES / sizeof *DEVICES; i++)
        if (!strcmp(DEVICES[i].name, name)) device = &DEVICES[i];
    total = (unsigned)atoi(getenv("SOFT_GPU_JOBS"));
    if (!device || total > MOST) fail("soft_gpu: SOFT_GPU, SOFT_GPU_JOBS");
    registers = map(REGISTERS, SIZE);
    gic = map(GIC, 0x1000);
    pthread_t thread;
    if (pthread_create(&thread, NULL, be_device, NULL) || pthread_create(&submitter, NULL, submit, NULL))
        fail("soft_gpu: threads");
}

__attribute__((destructor)) static void finish(void) {
    if (device) pthread_join(submitter, NULL);
}
