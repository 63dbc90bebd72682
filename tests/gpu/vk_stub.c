/*
 * For tests only: a Vulkan layer below profinfer's that behaves as devices do which are not here. VK_STUB
 * says how: untimed  no queue has timestamps submit   submissions fail: the device is lost wait submissions
 * are not executed, and the wait for them fails: the device is lost
 */
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static PFN_vkGetPhysicalDeviceQueueFamilyProperties families;
static PFN_vkQueueSubmit submit;
static PFN_vkWaitForFences wait_for;

static int is(const char *how) {
    const char *stub = getenv("VK_STUB");

    return stub && !strcmp(stub, how);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkInstance *to) {
    VkLayerInstanceCreateInfo *link = (void *)info->pNext;

    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO ||
           link->function != VK_LAYER_LINK_INFO)
        link = (void *)link->pNext;
    next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;

    VkResult made = ((PFN_vkCreateInstance)next_instance(NULL, "vkCreateInstance"))(info, allocator, to);

    if (made == VK_SUCCESS)
        families = (PFN_vkGetPhysicalDeviceQueueFamilyProperties)next_instance(
            *to, "vkGetPhysicalDeviceQueueFamilyProperties");
    return made;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator, VkDevice *to) {
    VkLayerDeviceCreateInfo *link = (void *)info->pNext;

    while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
        link = (void *)link->pNext;
    next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;

    VkResult made =
        ((PFN_vkCreateDevice)next_instance(NULL, "vkCreateDevice"))(physical, info, allocator, to);

    if (made == VK_SUCCESS) {
        submit = (PFN_vkQueueSubmit)next_device(*to, "vkQueueSubmit");
        wait_for = (PFN_vkWaitForFences)next_device(*to, "vkWaitForFences");
    }
    return made;
}

static VKAPI_ATTR void VKAPI_CALL queue_families(VkPhysicalDevice physical, uint32_t *n,
                                                 VkQueueFamilyProperties *to) {
    families(physical, n, to);
    for (uint32_t i = 0; to && i < *n; i++)
        if (is("untimed")) to[i].timestampValidBits = 0;
}

static VKAPI_ATTR VkResult VKAPI_CALL queue_submit(VkQueue queue, uint32_t n, const VkSubmitInfo *infos,
                                                   VkFence fence) {
    if (is("submit")) return VK_ERROR_DEVICE_LOST;
    return is("wait") ? VK_SUCCESS : submit(queue, n, infos, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL wait_fences(VkDevice device, uint32_t n, const VkFence *fences,
                                                  VkBool32 all, uint64_t timeout) {
    return is("wait") ? VK_ERROR_DEVICE_LOST : wait_for(device, n, fences, all, timeout);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance, const char *);
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice, const char *);

static PFN_vkVoidFunction own(const char *name) {
    static const struct {
        const char *name;
        void *function;
    } all[] = {
        {"vkCreateInstance", create_instance},
        {"vkCreateDevice", create_device},
        {"vkGetInstanceProcAddr", instance_proc},
        {"vkGetDeviceProcAddr", device_proc},
        {"vkGetPhysicalDeviceQueueFamilyProperties", queue_families},
        {"vkQueueSubmit", queue_submit},
        {"vkWaitForFences", wait_fences},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (!strcmp(all[i].name, name)) return (PFN_vkVoidFunction)all[i].function;
    return NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance, const char *name) {
    PFN_vkVoidFunction function = own(name);

    return function || !instance ? function : next_instance(instance, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char *name) {
    PFN_vkVoidFunction function = own(name);

    return function ? function : next_device(device, name);
}

VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *asked) {
    asked->loaderLayerInterfaceVersion = 2;
    asked->pfnGetInstanceProcAddr = instance_proc;
    asked->pfnGetDeviceProcAddr = device_proc;
    asked->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
