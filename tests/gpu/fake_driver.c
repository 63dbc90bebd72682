/*
 * For tests only: what a GPU's kernel driver would say of the submissions of llama.cpp's CUDA backend, on a
 * machine without one. Preloaded before fake_cuda.c. Each launch of a CUDA graph is two jobs, the second one
 * handed over some time after the end of the first. The three functions are where a test places events with
 * the names and fields of the kernel's gpu_scheduler (Linux 6.17).
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define CONTEXT 40
#define GAP_NS  2000000

static const char device[] = "0000:00:00.0", ring[] = "fake";
static uint64_t queued, done;

#define HOOK __attribute__((noinline, visibility("default"))) void
HOOK driver_job_queue(uint64_t context, uint64_t seqno, const char *dev, const char *name) {
    __asm__ volatile("" ::"r"(context), "r"(seqno), "r"(dev), "r"(name));
}
HOOK driver_job_run(uint64_t context, uint64_t seqno, const char *dev, const char *name) {
    __asm__ volatile("" ::"r"(context), "r"(seqno), "r"(dev), "r"(name));
}
HOOK driver_job_done(uint64_t context, uint64_t seqno) { __asm__ volatile("" ::"r"(context), "r"(seqno)); }

static void work(void) { nanosleep(&(struct timespec){.tv_nsec = GAP_NS}, NULL); }

int cudaGraphLaunch(void *graph, void *stream) {
    (void)graph, (void)stream;
    driver_job_queue(CONTEXT, queued + 1, device, ring);
    driver_job_run(CONTEXT, queued + 1, device, ring);
    driver_job_queue(CONTEXT, queued + 2, device, ring);
    queued += 2;
    return 0;
}

int cudaStreamSynchronize(void *stream) {
    (void)stream;
    if (done == queued) return 0;
    while (done < queued) {
        work();
        driver_job_done(CONTEXT, ++done);
        work();
        driver_job_run(CONTEXT, ++done, device, ring);
        work();
        driver_job_done(CONTEXT, done);
    }
    /* The program may end without a word. */
    fprintf(stderr, "jobs of the fake driver: %lu\n", (unsigned long)done);
    return 0;
}
