/*
 * For tests of the Vulkan layer: known work on a device, and what the device itself says about it.
 *
 * usage: vk_load SCENARIO [KERNELS [STEPS]]     vk_load steps MICROSECONDS
 * Prints one line of JSON (load.h). It is linked with a fake engine, so that a recorder finds one.
 */
#include "load.h"

#include <pthread.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

#include "load_spv.h"

#define GROUPS      (ITEMS / 64)
#define MOST_STEPS  60000 /* lavapipe ends a loop after 65535 */
#define IN_A_BUFFER 100   /* dispatches of a command buffer; ggml-vulkan submits as many nodes */
#define BUFFERS     256
#define OK(call)    ok((call), #call)

/* A device with one queue, a buffer that the host sees, and a pipeline that works on it. */
struct place {
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint32_t *values;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkDescriptorSet set;
    VkCommandPool pool;
    VkCommandBuffer buffers[BUFFERS];
    VkQueryPool stamps;
    VkFence fence;
    float period;
};

static unsigned kernels, steps;

static void ok(VkResult result, const char *what) { check(result == VK_SUCCESS, what, result); }

static void open_device(struct place *p) {
    VkQueueFamilyProperties families[8];
    VkPhysicalDeviceProperties about;
    uint32_t n = 1;
    float priority = 1;
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_1};
    VkInstanceCreateInfo instance = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                     .pApplicationInfo = &app};

    OK(vkCreateInstance(&instance, NULL, &p->instance));
    check(vkEnumeratePhysicalDevices(p->instance, &n, &p->physical) >= 0 && n == 1, "no device", n);
    vkGetPhysicalDeviceProperties(p->physical, &about);
    p->period = about.limits.timestampPeriod;
    n = 8;
    vkGetPhysicalDeviceQueueFamilyProperties(p->physical, &n, families);
    while (p->family < n && !(families[p->family].queueFlags & VK_QUEUE_COMPUTE_BIT)) p->family++;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueFamilyIndex = p->family,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkDeviceCreateInfo device = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                 .queueCreateInfoCount = 1,
                                 .pQueueCreateInfos = &queue};
    OK(vkCreateDevice(p->physical, &device, NULL, &p->device));
    vkGetDeviceQueue(p->device, p->family, 0, &p->queue);
}

static void make_buffer(struct place *p) {
    VkPhysicalDeviceMemoryProperties types;
    VkMemoryRequirements needs;
    VkMemoryPropertyFlags seen = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkBufferUsageFlags usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT;
    VkBufferCreateInfo buffer = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = BYTES + 16, .usage = usage};
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    uint32_t type = 0;

    OK(vkCreateBuffer(p->device, &buffer, NULL, &p->buffer));
    vkGetBufferMemoryRequirements(p->device, p->buffer, &needs);
    vkGetPhysicalDeviceMemoryProperties(p->physical, &types);
    while (!(needs.memoryTypeBits >> type & 1) || (types.memoryTypes[type].propertyFlags & seen) != seen)
        type++;
    memory.allocationSize = needs.size;
    memory.memoryTypeIndex = type;
    OK(vkAllocateMemory(p->device, &memory, NULL, &p->memory));
    OK(vkBindBufferMemory(p->device, p->buffer, p->memory, 0));
    OK(vkMapMemory(p->device, p->memory, 0, VK_WHOLE_SIZE, 0, (void **)&p->values));
    first_values(p->values);
    /* Arguments of an indirect dispatch. */
    p->values[ITEMS] = GROUPS;
    p->values[ITEMS + 1] = p->values[ITEMS + 2] = 1;
}

static void make_pipeline(struct place *p) {
    VkDescriptorType type = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    VkDescriptorSetLayoutBinding binding = {
        .descriptorType = type, .descriptorCount = 1, .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    VkDescriptorSetLayoutCreateInfo sets = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                            .bindingCount = 1,
                                            .pBindings = &binding};
    VkDescriptorSetLayout set_layout;
    VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = sizeof(steps)};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .setLayoutCount = 1,
                                         .pSetLayouts = &set_layout,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &push};
    VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = sizeof(load_spv),
                                     .pCode = load_spv};
    VkComputePipelineCreateInfo pipeline = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .pName = "main"}};
    VkDescriptorPoolSize size = {.type = type, .descriptorCount = 1};
    VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = 1,
                                       .poolSizeCount = 1,
                                       .pPoolSizes = &size};
    VkDescriptorPool descriptors;
    VkDescriptorSetAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                            .descriptorSetCount = 1,
                                            .pSetLayouts = &set_layout};
    VkDescriptorBufferInfo whole = {.buffer = p->buffer, .range = VK_WHOLE_SIZE};
    VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                  .descriptorCount = 1,
                                  .descriptorType = type,
                                  .pBufferInfo = &whole};

    OK(vkCreateDescriptorSetLayout(p->device, &sets, NULL, &set_layout));
    OK(vkCreatePipelineLayout(p->device, &layout, NULL, &p->layout));
    OK(vkCreateShaderModule(p->device, &code, NULL, &pipeline.stage.module));
    pipeline.layout = p->layout;
    OK(vkCreateComputePipelines(p->device, NULL, 1, &pipeline, NULL, &p->pipeline));
    vkDestroyShaderModule(p->device, pipeline.stage.module, NULL);
    OK(vkCreateDescriptorPool(p->device, &pool, NULL, &descriptors));
    allocate.descriptorPool = descriptors;
    OK(vkAllocateDescriptorSets(p->device, &allocate, &p->set));
    write.dstSet = p->set;
    vkUpdateDescriptorSets(p->device, 1, &write, 0, NULL);
}

static void allocate(struct place *p, VkCommandBufferLevel level, unsigned n, VkCommandBuffer *to) {
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                        .commandPool = p->pool,
                                        .level = level,
                                        .commandBufferCount = n};

    OK(vkAllocateCommandBuffers(p->device, &info, to));
}

static struct place place(void) {
    struct place p = {0};
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};
    VkQueryPoolCreateInfo stamps = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                    .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                    .queryCount = 2 * MOST};
    VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};

    open_device(&p);
    make_buffer(&p);
    make_pipeline(&p);
    pool.queueFamilyIndex = p.family;
    OK(vkCreateCommandPool(p.device, &pool, NULL, &p.pool));
    allocate(&p, VK_COMMAND_BUFFER_LEVEL_PRIMARY, BUFFERS, p.buffers);
    OK(vkCreateQueryPool(p.device, &stamps, NULL, &p.stamps));
    OK(vkCreateFence(p.device, &fence, NULL, &p.fence));
    return p;
}

static void close_device(struct place *p) {
    OK(vkQueueWaitIdle(p->queue));
    vkDestroyQueryPool(p->device, p->stamps, NULL);
    vkDestroyFence(p->device, p->fence, NULL);
    vkDestroyCommandPool(p->device, p->pool, NULL);
    vkDestroyDevice(p->device, NULL);
    vkDestroyInstance(p->instance, NULL);
}

enum {
    ONCE = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    SHARED = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT
};

static void begin(struct place *p, VkCommandBuffer b, VkCommandBufferUsageFlags flags) {
    VkCommandBufferInheritanceInfo inherited = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO};
    VkCommandBufferBeginInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = flags, .pInheritanceInfo = &inherited};

    OK(vkBeginCommandBuffer(b, &info));
    vkCmdBindPipeline(b, VK_PIPELINE_BIND_POINT_COMPUTE, p->pipeline);
    vkCmdBindDescriptorSets(b, VK_PIPELINE_BIND_POINT_COMPUTE, p->layout, 0, 1, &p->set, 0, NULL);
    vkCmdPushConstants(b, p->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(steps), &steps);
}

/* What is next waits for what was before, as in ggml-vulkan. */
static void barrier(VkCommandBuffer b) {
    VkAccessFlags both = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = both, .dstAccessMask = both};
    VkPipelineStageFlags stage = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;

    vkCmdPipelineBarrier(b, stage, stage, 0, 1, &memory, 0, NULL, 0, NULL);
}

static void dispatches(VkCommandBuffer b, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        vkCmdDispatch(b, GROUPS, 1, 1);
        barrier(b);
    }
}

/* The same, with two timestamps around each. */
static void stamped_dispatches(struct place *p, VkCommandBuffer b, unsigned first, unsigned n) {
    for (unsigned i = first; i < first + n; i++) {
        vkCmdWriteTimestamp(b, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, p->stamps, 2 * i);
        vkCmdDispatch(b, GROUPS, 1, 1);
        vkCmdWriteTimestamp(b, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, p->stamps, 2 * i + 1);
        barrier(b);
    }
}

static void record(struct place *p, VkCommandBuffer b, unsigned n, VkCommandBufferUsageFlags flags) {
    begin(p, b, flags);
    dispatches(b, n);
    OK(vkEndCommandBuffer(b));
}

static void submit(struct place *p, unsigned n, const VkCommandBuffer *buffers, VkFence fence) {
    VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = n, .pCommandBuffers = buffers};

    OK(vkQueueSubmit(p->queue, 1, &info, fence));
}

static void wait_for(struct place *p, VkFence fence) {
    OK(vkWaitForFences(p->device, 1, &fence, VK_TRUE, UINT64_MAX));
    OK(vkResetFences(p->device, 1, &fence));
}

static void submit_and_wait(struct place *p, unsigned n, const VkCommandBuffer *buffers) {
    submit(p, n, buffers, p->fence);
    wait_for(p, p->fence);
}

static int right(struct place *p, uint64_t all_steps) {
    int right = all_right(p->values, all_steps);

    close_device(p);
    return right;
}

/* One kernel again and again, with a timestamp before the first and after the last. */
static uint64_t batch(struct place *p, unsigned n, struct done *d) {
    unsigned used = 0;
    uint64_t stamps[2];

    for (unsigned left = n; left; used++) {
        unsigned some = left < IN_A_BUFFER ? left : IN_A_BUFFER;
        VkCommandBuffer b = p->buffers[used];

        begin(p, b, ONCE);
        if (!used) {
            vkCmdResetQueryPool(b, p->stamps, 0, 2);
            vkCmdWriteTimestamp(b, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, p->stamps, 0);
        }
        dispatches(b, some);
        left -= some;
        if (!left) vkCmdWriteTimestamp(b, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, p->stamps, 1);
        OK(vkEndCommandBuffer(b));
    }
    d->begin = now();
    submit_and_wait(p, used, p->buffers);
    d->end = now();
    OK(vkGetQueryPoolResults(p->device, p->stamps, 0, 2, sizeof(stamps), stamps, 8, VK_QUERY_RESULT_64_BIT));
    return (uint64_t)((double)(stamps[1] - stamps[0]) * p->period);
}

static void repeat(struct done *d) {
    struct place p = place();
    struct done before;

    batch(&p, d->others = WARM_UP, &before);
    d->span_ns = d->device_ns = batch(&p, kernels, d);
    d->right = right(&p, (uint64_t)(kernels + WARM_UP) * steps);
}

/* The same without a layer: what the program itself would measure of each. */
static void stamped(struct done *d) {
    struct place p = place();
    static uint64_t stamps[2 * MOST];
    unsigned used = 0;
    struct done before;

    batch(&p, d->others = WARM_UP, &before);
    for (unsigned first = 0; first < kernels; first += IN_A_BUFFER, used++) {
        VkCommandBuffer b = p.buffers[used];

        begin(&p, b, ONCE);
        if (!used) vkCmdResetQueryPool(b, p.stamps, 0, 2 * kernels);
        stamped_dispatches(&p, b, first, kernels - first < IN_A_BUFFER ? kernels - first : IN_A_BUFFER);
        OK(vkEndCommandBuffer(b));
    }
    d->begin = now();
    submit_and_wait(&p, used, p.buffers);
    d->end = now();
    OK(vkGetQueryPoolResults(p.device, p.stamps, 0, 2 * kernels, sizeof(stamps), stamps, 8,
                             VK_QUERY_RESULT_64_BIT));
    for (unsigned i = 0; i < kernels; i++)
        d->device_ns += (uint64_t)((double)(stamps[2 * i + 1] - stamps[2 * i]) * p.period);
    d->span_ns = (uint64_t)((double)(stamps[2 * kernels - 1] - stamps[0]) * p.period);
    d->right = right(&p, (uint64_t)(kernels + WARM_UP) * steps);
}

/* One command buffer, submitted several times; its fence is reset each time. */
static void resubmitted(struct done *d) {
    struct place p = place();

    record(&p, p.buffers[0], 5, 0);
    for (unsigned i = 0; i < kernels / 5; i++) submit_and_wait(&p, 1, p.buffers);
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* One command buffer, twice on its way at a time. */
static void shared(struct done *d) {
    struct place p = place();
    VkCommandBuffer twice[2] = {p.buffers[0], p.buffers[0]};

    record(&p, p.buffers[0], 5, SHARED);
    submit_and_wait(&p, 2, twice);
    record(&p, p.buffers[0], kernels, 0);
    submit_and_wait(&p, 1, p.buffers);
    d->failed = 10;
    d->right = right(&p, (uint64_t)(kernels + 10) * steps);
}

/* The host waits for the first of two submissions, whose command buffers were executed before. */
static void overlapping(struct done *d) {
    struct place p = place();
    VkFenceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkFence second;

    OK(vkCreateFence(p.device, &info, NULL, &second));
    for (unsigned i = 0; i < kernels / 10; i++) {
        record(&p, p.buffers[0], 5, ONCE);
        record(&p, p.buffers[1], 5, ONCE);
        submit(&p, 1, p.buffers, p.fence);
        submit(&p, 1, p.buffers + 1, second);
        wait_for(&p, p.fence);
        wait_for(&p, second);
    }
    vkDestroyFence(p.device, second, NULL);
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* A recorded command buffer is reset, alone or with its pool, and another one takes its place. */
static void reset(struct done *d) {
    struct place p = place();

    for (unsigned i = 0; i < kernels / 5; i++) {
        record(&p, p.buffers[i % 4], 7, 0);
        if (i % 4 == 3) OK(vkResetCommandPool(p.device, p.pool, 0));
        if (i % 4 == 1) OK(vkResetCommandBuffer(p.buffers[1], 0));
        record(&p, p.buffers[i % 4], 5, 0);
        submit_and_wait(&p, 1, p.buffers + i % 4);
        if (i % 8 == 7) {
            vkFreeCommandBuffers(p.device, p.pool, 4, p.buffers);
            allocate(&p, VK_COMMAND_BUFFER_LEVEL_PRIMARY, 4, p.buffers);
        }
    }
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* All command buffers stay valid, and are more than the layer keeps. */
static void many(struct done *d) {
    struct place p = place();

    for (unsigned i = 0; i < kernels; i++) record(&p, p.buffers[i], 1, 0);
    submit_and_wait(&p, kernels, p.buffers);
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* One command buffer with all of them. */
static void lengthy(struct done *d) {
    struct place p = place();

    record(&p, p.buffers[0], kernels, ONCE);
    submit_and_wait(&p, 1, p.buffers);
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* Dispatches of a secondary command buffer, which a primary one executes twice beside one of its own. */
static void secondary(struct done *d) {
    struct place p = place();
    VkCommandBuffer part;

    allocate(&p, VK_COMMAND_BUFFER_LEVEL_SECONDARY, 1, &part);
    record(&p, part, kernels, SHARED);
    begin(&p, p.buffers[0], ONCE);
    dispatches(p.buffers[0], 1);
    for (int i = 0; i < 2; i++) {
        vkCmdExecuteCommands(p.buffers[0], 1, &part);
        barrier(p.buffers[0]);
    }
    OK(vkEndCommandBuffer(p.buffers[0]));
    submit_and_wait(&p, 1, p.buffers);
    d->failed = 2 * kernels;
    d->kernels = 1;
    d->right = right(&p, (uint64_t)(2 * kernels + 1) * steps);
}

/* The other commands that dispatch. */
static void indirect(struct done *d) {
    struct place p = place();

    begin(&p, p.buffers[0], ONCE);
    for (unsigned i = 0; i < kernels; i++) {
        if (i % 2)
            vkCmdDispatchIndirect(p.buffers[0], p.buffer, BYTES);
        else
            vkCmdDispatchBase(p.buffers[0], 0, 0, 0, GROUPS, 1, 1);
        barrier(p.buffers[0]);
    }
    OK(vkEndCommandBuffer(p.buffers[0]));
    submit_and_wait(&p, 1, p.buffers);
    d->right = right(&p, (uint64_t)kernels * steps);
}

/* Each thread has an instance and a device of its own, and polls. */
static void *thread(void *good) {
    struct place p = place();

    for (unsigned i = 0; i < kernels / 5; i++) {
        record(&p, p.buffers[i % 3], 5, i % 2 ? ONCE : 0);
        submit(&p, 1, p.buffers + i % 3, p.fence);
        while (vkGetFenceStatus(p.device, p.fence) == VK_NOT_READY) sched_yield();
        OK(vkResetFences(p.device, 1, &p.fence));
    }
    *(int *)good = right(&p, (uint64_t)kernels * steps);
    return NULL;
}

static void threads(struct done *d) {
    int good[2] = {0, 0};
    pthread_t other;

    check(!pthread_create(&other, NULL, thread, &good[1]), "pthread_create", 0);
    thread(&good[0]);
    pthread_join(other, NULL);
    d->kernels = 2 * kernels;
    d->right = good[0] && good[1];
}

/* Ends when its input does: the recorder is killed meanwhile. */
static void patient(struct done *d) {
    struct place p = place();
    char byte;

    d->kernels = 0;
    for (int waiting = 1; waiting; d->kernels += kernels) {
        record(&p, p.buffers[0], kernels, ONCE);
        submit_and_wait(&p, 1, p.buffers);
        waiting = read(0, &byte, 1) > 0;
    }
    d->right = right(&p, (uint64_t)d->kernels * steps);
}

/* A submission or a wait fails, as tests/gpu/vk_stub.c has it: nothing is executed. */
static void lost(struct done *d) {
    struct place p = place();
    VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = p.buffers};

    record(&p, p.buffers[0], kernels, ONCE);
    if (vkQueueSubmit(p.queue, 1, &info, p.fence) == VK_SUCCESS)
        check(vkWaitForFences(p.device, 1, &p.fence, VK_TRUE, UINT64_MAX) == VK_ERROR_DEVICE_LOST, "no loss",
              0);
    d->failed = kernels;
    d->right = 1;
    vkDestroyDevice(p.device, NULL);
    vkDestroyInstance(p.instance, NULL);
}

/* Prints how many steps make a kernel of this length. */
static int calibrate(double microseconds) {
    struct place p = place();
    struct done d;

    for (steps = 1; steps < MOST_STEPS * 8 / 9; steps = steps * 9 / 8 + 1) {
        uint64_t best = UINT64_MAX;

        for (int i = 0; i < 5; i++) {
            uint64_t ns = batch(&p, 4, &d) / 4;

            if (ns < best) best = ns;
        }
        if (best >= microseconds * 1000) break;
    }
    printf("%u\n", steps);
    return 0;
}

static const struct scenario SCENARIOS[] = {
    {"repeat", repeat},   {"stamped", stamped},         {"resubmitted", resubmitted},
    {"shared", shared},   {"overlapping", overlapping}, {"reset", reset},
    {"many", many},       {"lengthy", lengthy},         {"secondary", secondary},
    {"lost", lost},       {"indirect", indirect},       {"threads", threads},
    {"patient", patient},
};

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";

    if (argc == 3 && !strcmp(name, "steps")) return calibrate(atof(argv[2]));
    done.kernels = kernels = argc > 2 ? (unsigned)atoi(argv[2]) : 50;
    steps = argc > 3 ? (unsigned)atoi(argv[3]) : 100;
    check(kernels <= MOST && steps <= MOST_STEPS, "too many kernels or steps", kernels);
    return run(name, SCENARIOS, sizeof(SCENARIOS) / sizeof(*SCENARIOS));
}
