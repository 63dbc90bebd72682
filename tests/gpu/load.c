/*
 * For tests of the OpenCL layer: known work on a device, and what the device itself says about it.
 *
 * usage: load SCENARIO [KERNELS [STEPS]]     load steps MICROSECONDS
 * Prints one line of JSON (load.h). It is linked with a fake engine, so that a recorder finds one.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include "load.h"

#include <CL/cl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static const char SOURCE[] = "kernel void load(global uint *x, uint steps) {"
                             "    uint v = x[get_global_id(0)];"
                             "    for (uint i = 0; i < steps; i++) v = v * 1664525u + 1013904223u;"
                             "    x[get_global_id(0)] = v;"
                             "}"
                             "kernel void second(global uint *x, uint steps) { x[0] += steps; }";

#define OK(call) ok((call), #call)

/* A context with a buffer, and a kernel that works on it. */
struct place {
    cl_context context;
    cl_device_id device;
    cl_program program;
    cl_kernel kernel;
    cl_mem buffer;
    cl_command_queue queue;
};

static unsigned kernels, steps;

static void ok(cl_int status, const char *what) { check(status == CL_SUCCESS, what, status); }

static cl_device_id device(void) {
    cl_platform_id platform;
    cl_device_id device;

    OK(clGetPlatformIDs(1, &platform, NULL));
    OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    return device;
}

static cl_command_queue queue_of(struct place *p, cl_command_queue_properties wanted) {
    cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, wanted, 0};
    cl_int rc;
    cl_command_queue q = clCreateCommandQueueWithProperties(p->context, p->device, wanted ? list : NULL, &rc);

    ok(rc, "clCreateCommandQueueWithProperties");
    return q;
}

static void set(struct place *p, unsigned of_steps) {

    OK(clSetKernelArg(p->kernel, 0, sizeof(p->buffer), &p->buffer));
    OK(clSetKernelArg(p->kernel, 1, sizeof(of_steps), &of_steps));
}

static struct place place(cl_device_id device, cl_command_queue_properties wanted) {
    const char *text = SOURCE;
    struct place p = {.device = device};
    uint32_t values[ITEMS];
    cl_int rc;

    first_values(values);
    p.context = clCreateContext(NULL, 1, &device, NULL, NULL, &rc);
    ok(rc, "clCreateContext");
    p.buffer = clCreateBuffer(p.context, CL_MEM_COPY_HOST_PTR, BYTES, values, &rc);
    ok(rc, "clCreateBuffer");
    p.program = clCreateProgramWithSource(p.context, 1, &text, NULL, &rc);
    OK(clBuildProgram(p.program, 1, &device, "", NULL, NULL));
    p.kernel = clCreateKernel(p.program, "load", &rc);
    ok(rc, "clCreateKernel");
    set(&p, steps);
    p.queue = queue_of(&p, wanted);
    return p;
}

static cl_event enqueue(cl_command_queue q, cl_kernel kernel, cl_event after, int wanted) {
    size_t global = ITEMS, local = ITEMS / 2;
    cl_event event = NULL;

    OK(clEnqueueNDRangeKernel(q, kernel, 1, NULL, &global, &local, after != NULL, after ? &after : NULL,
                              wanted ? &event : NULL));
    return event;
}

/* Reads the results through a queue of its own. */
static int right(struct place *p, uint64_t all_steps) {
    cl_command_queue q = queue_of(p, 0);
    uint32_t values[ITEMS];

    OK(clEnqueueReadBuffer(q, p->buffer, CL_TRUE, 0, BYTES, values, 0, NULL, NULL));
    OK(clReleaseCommandQueue(q));
    return all_right(values, all_steps);
}

static uint64_t time_of(cl_event event, cl_profiling_info what) {
    cl_ulong time;

    OK(clGetEventProfilingInfo(event, what, sizeof(time), &time, NULL));
    return time;
}

static uint64_t device_ns(cl_event event) {
    return time_of(event, CL_PROFILING_COMMAND_END) - time_of(event, CL_PROFILING_COMMAND_START);
}

/* One kernel again and again, on a queue that has profiling already. */
static void repeat(struct done *d) {
    struct place p = place(device(), CL_QUEUE_PROFILING_ENABLE);
    static cl_event events[MOST];

    for (d->others = 0; d->others < WARM_UP; d->others++) enqueue(p.queue, p.kernel, NULL, 0);
    OK(clFinish(p.queue));
    d->begin = now();
    for (unsigned i = 0; i < kernels; i++) events[i] = enqueue(p.queue, p.kernel, NULL, 1);
    OK(clFinish(p.queue));
    d->end = now();
    d->span_ns = time_of(events[kernels - 1], CL_PROFILING_COMMAND_END) -
                 time_of(events[0], CL_PROFILING_COMMAND_START);
    for (unsigned i = 0; i < kernels; i++) {
        d->device_ns += device_ns(events[i]);
        OK(clReleaseEvent(events[i]));
    }
    d->right = right(&p, (uint64_t)(kernels + WARM_UP) * steps);
}

static void plain(struct done *d) {
    struct place p = place(device(), 0);

    for (unsigned i = 0; i < kernels; i++) enqueue(p.queue, p.kernel, NULL, 0);
    OK(clFinish(p.queue));
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* Ends when its input does: the recorder is killed meanwhile. */
static void patient(struct done *d) {
    struct place p = place(device(), 0);
    char byte;

    d->kernels = 0;
    for (int waiting = 1; waiting; d->kernels += kernels) {
        for (unsigned i = 0; i < kernels; i++) enqueue(p.queue, p.kernel, NULL, 0);
        OK(clFinish(p.queue));
        waiting = read(0, &byte, 1) > 0;
    }
    d->right = right(&p, (uint64_t)d->kernels * steps);
}

/* Each thread has a device and a context of its own, with two queues. */
static void *thread(void *of) {
    struct place p = place(of, 0);
    cl_command_queue queues[2] = {p.queue, queue_of(&p, CL_QUEUE_PROFILING_ENABLE)};
    cl_event last = NULL;

    for (unsigned i = 0; i < kernels; i++) {
        cl_event event = enqueue(queues[i % 2], p.kernel, last, 1);

        OK(clFlush(queues[i % 2]));
        if (last) OK(clReleaseEvent(last));
        last = event;
        if (i % 64 == 63) OK(clWaitForEvents(1, &last));
    }
    OK(clFinish(queues[0]));
    OK(clFinish(queues[1]));
    OK(clReleaseEvent(last));
    OK(clReleaseCommandQueue(queues[0]));
    OK(clReleaseCommandQueue(queues[1]));
    return right(&p, (uint64_t)kernels * steps) ? of : NULL;
}

static void threads(struct done *d) {
    cl_device_partition_property parts[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_device_id whole = device(), half[2] = {whole, whole};
    pthread_t other;
    void *good;

    /* A device with one unit cannot be parted: then it is the same for both. */
    if (clCreateSubDevices(whole, parts, 2, half, NULL) != CL_SUCCESS) half[0] = half[1] = whole;
    check(!pthread_create(&other, NULL, thread, half[1]), "pthread_create", 0);
    d->right = thread(half[0]) != NULL;
    pthread_join(other, &good);
    d->right &= good != NULL;
    d->kernels = 2 * kernels;
}

/* The order is that of the events alone. */
static void unordered(struct done *d) {
    struct place p = place(device(), CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    cl_event last = NULL;

    for (unsigned i = 0; i < kernels; i++) {
        cl_event event = enqueue(p.queue, p.kernel, last, 1);

        if (last) OK(clReleaseEvent(last));
        last = event;
    }
    OK(clFinish(p.queue));
    OK(clReleaseEvent(last));
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* Everything but the last event is released before the work begins. */
static void released(struct done *d) {
    struct place p = place(device(), 0);
    cl_event gate, last = NULL;
    cl_int rc;

    gate = clCreateUserEvent(p.context, &rc);
    for (unsigned i = 0; i < kernels; i++) {
        if (last) OK(clReleaseEvent(last));
        last = enqueue(p.queue, p.kernel, i ? NULL : gate, 1);
    }
    OK(clReleaseKernel(p.kernel));
    OK(clReleaseProgram(p.program));
    OK(clFlush(p.queue));
    OK(clReleaseCommandQueue(p.queue));
    OK(clSetUserEventStatus(gate, CL_COMPLETE));
    OK(clReleaseEvent(gate));
    OK(clWaitForEvents(1, &last));
    OK(clReleaseEvent(last));
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* One queue waits for the host, while another one works and the host waits for that. */
static void held(struct done *d) {
    struct place p = place(device(), 0), other = place(p.device, 0);
    cl_event gate;
    cl_int rc;

    gate = clCreateUserEvent(p.context, &rc);
    for (unsigned i = 0; i < kernels; i++) enqueue(p.queue, p.kernel, gate, 0);
    OK(clFlush(p.queue));
    for (unsigned i = 0; i < kernels; i++) enqueue(other.queue, other.kernel, NULL, 0);
    OK(clFinish(other.queue));
    d->end = now();
    OK(clSetUserEventStatus(gate, CL_COMPLETE));
    OK(clFinish(p.queue));
    d->kernels = 2 * kernels;
    d->right = right(&p, (uint64_t)kernels * steps) && right(&other, (uint64_t)kernels * steps);
}

/* Kernels of one queue wait for an event that fails, and are never executed. Intel's runtime crashes in
 * clFinish of such a queue, with and without the layer. */
static void failing(struct done *d) {
    struct place p = place(device(), 0), other = place(p.device, 0);
    cl_event gate, last = NULL;
    cl_int status = CL_QUEUED, rc;

    gate = clCreateUserEvent(p.context, &rc);
    for (unsigned i = 0; i < kernels; i++) {
        if (last) OK(clReleaseEvent(last));
        last = enqueue(p.queue, p.kernel, gate, 1);
        enqueue(other.queue, other.kernel, NULL, 0);
    }
    OK(clFlush(p.queue));
    OK(clSetUserEventStatus(gate, -1));
    while (status > CL_COMPLETE)
        OK(clGetEventInfo(last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
    OK(clFinish(other.queue));
    d->failed = kernels;
    d->right = right(&other, (uint64_t)kernels * steps);
}

/* The program ends while kernels still wait for the host. */
static void abandoned(struct done *d) {
    struct place p = place(device(), 0), other = place(p.device, 0);
    cl_int rc;
    cl_event gate = clCreateUserEvent(p.context, &rc);

    for (unsigned i = 0; i < kernels; i++) enqueue(p.queue, p.kernel, gate, 0);
    for (unsigned i = 0; i < kernels; i++) enqueue(other.queue, other.kernel, NULL, 0);
    OK(clFinish(other.queue));
    d->failed = kernels;
    d->right = right(&other, (uint64_t)kernels * steps);
}

static struct place called;
static atomic_uint calls;

static void CL_CALLBACK again(cl_event event, cl_int status, void *of) {
    (void)event, (void)status, (void)of;
    enqueue(called.queue, called.kernel, NULL, 0);
    calls++;
}

/* Kernels are enqueued by callbacks of the runtime, while the host waits. */
static void callbacks(struct done *d) {

    called = place(device(), 0);
    for (unsigned i = 0; i < kernels; i++) {
        cl_event event = enqueue(called.queue, called.kernel, NULL, 1);

        OK(clSetEventCallback(event, CL_COMPLETE, again, NULL));
        OK(clReleaseEvent(event));
        if (i % 8 == 7) OK(clFinish(called.queue));
    }
    while (calls < kernels) {
        OK(clFinish(called.queue));
    }
    OK(clFinish(called.queue));
    d->kernels = 2 * kernels;
    d->right = right(&called, (uint64_t)d->kernels * steps);
}

/* Kernels that are made in other ways than by clCreateKernel, and released at once. */
static void made(struct done *d) {
    struct place p = place(device(), 0);
    cl_kernel both[2], copy;
    cl_int rc;

    OK(clCreateKernelsInProgram(p.program, 2, both, NULL));
    for (unsigned i = 0; i < kernels; i++) {
        copy = clCloneKernel(p.kernel, &rc);
        ok(rc, "clCloneKernel");
        enqueue(p.queue, copy, NULL, 0);
        OK(clReleaseKernel(copy));
    }
    OK(clReleaseKernel(both[0]));
    OK(clReleaseKernel(both[1]));
    OK(clFinish(p.queue));
    /* A recorder reads names while the process lives. */
    sleep(1);
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* Prints how many steps make a kernel of this length. */
static int calibrate(double microseconds) {
    struct place p = place(device(), CL_QUEUE_PROFILING_ENABLE);
    uint64_t best = 0, wanted = (uint64_t)(microseconds * 1000);

    for (steps = 16; steps < 1u << 30; steps = steps * 9 / 8 + 1) {
        set(&p, steps);
        best = UINT64_MAX;
        for (int i = 0; i < 7; i++) {
            cl_event event = enqueue(p.queue, p.kernel, NULL, 1);

            OK(clWaitForEvents(1, &event));
            if (device_ns(event) < best) best = device_ns(event);
            OK(clReleaseEvent(event));
        }
        if (best >= wanted) break;
    }
    printf("%u\n", steps);
    return 0;
}

static const struct scenario SCENARIOS[] = {
    {"repeat", repeat},       {"plain", plain},         {"patient", patient}, {"threads", threads},
    {"unordered", unordered}, {"released", released},   {"held", held},       {"failing", failing},
    {"abandoned", abandoned}, {"callbacks", callbacks}, {"made", made},
};

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";

    if (argc == 3 && !strcmp(name, "steps")) return calibrate(atof(argv[2]));
    done.kernels = kernels = argc > 2 ? (unsigned)atoi(argv[2]) : 50;
    steps = argc > 3 ? (unsigned)atoi(argv[3]) : 100;
    check(kernels <= MOST, "too many kernels", kernels);
    return run(name, SCENARIOS, sizeof(SCENARIOS) / sizeof(*SCENARIOS));
}
