//! The loader's interface for layers: vulkan/vk_layer.h, version 2.

use core::ffi::c_void;

use ash::vk;

/// `VkLayerFunction`: the structure that a layer looks for.
pub const LAYER_LINK_INFO: i32 = 0;
/// The version of the interface between loader and layers.
pub const VERSION: u32 = 2;

/// `VkLayerInstanceLink` and `VkLayerDeviceLink`, of which the second has one function more.
#[repr(C)]
pub struct InstanceLink {
    pub next: *mut InstanceLink,
    pub instance_proc: vk::PFN_vkGetInstanceProcAddr,
}

#[repr(C)]
pub struct DeviceLink {
    pub next: *mut DeviceLink,
    pub instance_proc: vk::PFN_vkGetInstanceProcAddr,
    pub device_proc: vk::PFN_vkGetDeviceProcAddr,
}

/// `VkLayerInstanceCreateInfo` and `VkLayerDeviceCreateInfo`, as far as they are used.
#[repr(C)]
pub struct CreateInfo<Link> {
    pub s_type: vk::StructureType,
    pub next: *const CreateInfo<Link>,
    pub function: i32,
    pub link: *mut Link,
}

/// The link in a chain of structures.
///
/// # Safety
/// `chain` is the `pNext` of the loader's call: structures of this kind among others that begin alike.
pub unsafe fn link<Link>(chain: *const c_void, kind: vk::StructureType) -> Option<*mut CreateInfo<Link>> {
    let mut at = chain.cast::<CreateInfo<Link>>();
    while !at.is_null() {
        // SAFETY: all structures of a chain begin with a type and a pointer to the next; `function` is read of those
        // of the loader's types only.
        unsafe {
            if (*at).s_type == kind && (*at).function == LAYER_LINK_INFO {
                return Some(at.cast_mut());
            }
            at = (*at).next;
        }
    }
    None
}

/// `VkNegotiateLayerInterface`.
#[repr(C)]
pub struct Negotiate {
    pub s_type: i32,
    pub next: *mut c_void,
    pub version: u32,
    pub instance_proc: vk::PFN_vkGetInstanceProcAddr,
    pub device_proc: vk::PFN_vkGetDeviceProcAddr,
    pub physical_device_proc: Option<vk::PFN_vkGetInstanceProcAddr>,
}
