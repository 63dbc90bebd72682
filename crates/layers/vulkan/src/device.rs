//! The devices of the process: the functions below this layer, and the clock of each.

use ash::vk;
use handover::{ClockMap, Ticks};

/// Devices at a time.
pub const DEVICES: usize = 32;

/// The functions that the layer calls.
#[derive(Clone, Copy)]
pub struct Functions {
    pub device_proc: vk::PFN_vkGetDeviceProcAddr,
    pub allocate: vk::PFN_vkAllocateCommandBuffers,
    pub free: vk::PFN_vkFreeCommandBuffers,
    pub begin: vk::PFN_vkBeginCommandBuffer,
    pub reset: vk::PFN_vkResetCommandBuffer,
    pub reset_command_pool: vk::PFN_vkResetCommandPool,
    pub destroy_command_pool: vk::PFN_vkDestroyCommandPool,
    pub execute: vk::PFN_vkCmdExecuteCommands,
    pub bind_pipeline: vk::PFN_vkCmdBindPipeline,
    pub dispatch: vk::PFN_vkCmdDispatch,
    pub dispatch_indirect: vk::PFN_vkCmdDispatchIndirect,
    pub dispatch_base: Option<vk::PFN_vkCmdDispatchBase>,
    pub submit: vk::PFN_vkQueueSubmit,
    pub submit2: Option<vk::PFN_vkQueueSubmit2>,
    pub wait_fences: vk::PFN_vkWaitForFences,
    pub fence_status: vk::PFN_vkGetFenceStatus,
    pub wait_semaphores: Option<vk::PFN_vkWaitSemaphores>,
    pub wait_queue: vk::PFN_vkQueueWaitIdle,
    pub wait_device: vk::PFN_vkDeviceWaitIdle,
    pub create_shader: vk::PFN_vkCreateShaderModule,
    pub create_pipelines: vk::PFN_vkCreateComputePipelines,
    pub create_pool: vk::PFN_vkCreateQueryPool,
    pub destroy_pool: vk::PFN_vkDestroyQueryPool,
    pub reset_pool: vk::PFN_vkCmdResetQueryPool,
    pub timestamp: vk::PFN_vkCmdWriteTimestamp,
    pub results: vk::PFN_vkGetQueryPoolResults,
    pub destroy: vk::PFN_vkDestroyDevice,
}

#[derive(Clone, Copy)]
pub struct Device {
    /// What all objects of the device have as their first word: the loader's table.
    pub key: usize,
    pub handle: vk::Device,
    pub functions: Functions,
    pub ticks: Ticks,
    pub clock: ClockMap,
}

/// Identifies the device of an object that the loader has made.
///
/// # Safety
/// It is a device, a queue or a command buffer.
pub unsafe fn key(object: u64) -> usize {
    // SAFETY: the loader stores the address of its table in the first word of such objects.
    unsafe { *(object as *const usize) }
}

pub struct Devices([Option<Device>; DEVICES]);

impl Devices {
    pub const fn new() -> Devices {
        Devices([None; DEVICES])
    }

    /// False: there is no room for it.
    pub fn add(&mut self, device: Device) -> bool {
        // A place of its own first: the loader may use the table of a device that was destroyed for another one.
        let at = self.place(device.key).or_else(|| self.0.iter().position(Option::is_none));
        at.and_then(|at| self.0.get_mut(at)).map(|place| *place = Some(device)).is_some()
    }

    pub fn get(&mut self, key: usize) -> Option<&mut Device> {
        self.0.iter_mut().flatten().find(|d| d.key == key)
    }

    /// A number below [`DEVICES`] that is this device's as long as it exists.
    pub fn place(&self, key: usize) -> Option<usize> {
        self.0.iter().position(|d| d.is_some_and(|d| d.key == key))
    }

    pub fn remove(&mut self, key: usize) {
        self.0.iter_mut().filter(|d| d.is_some_and(|d| d.key == key)).for_each(|d| *d = None);
    }
}
