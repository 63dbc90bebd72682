//! The functions that the loader calls instead of those below. Each passes the call on, unchanged except where said.

use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute;
use core::ptr::null;

use ash::vk;
use ash::vk::Handle;
use handover::{ClockMap, Lock, monotonic};

use crate::LAYER;
use crate::device::{Device, Functions, key};
use crate::loader::{self, DeviceLink, InstanceLink, Negotiate};

/// The instance's function for finding others; that of the last instance, as they are all of the same loader.
static INSTANCE: Lock<Option<(vk::PFN_vkGetInstanceProcAddr, vk::Instance)>> = Lock::new(None);

/// The device of an object, which is a device, a queue or a command buffer.
fn device_of(object: u64) -> Option<Device> {
    // SAFETY: the application passes objects that exist.
    let key = unsafe { key(object) };
    LAYER.lock().devices.get(key).copied()
}

unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    instance: *mut vk::Instance,
) -> vk::Result {
    // SAFETY: the loader puts a link into the chain, and expects it to be advanced to the next layer's.
    unsafe {
        let kind = vk::StructureType::LOADER_INSTANCE_CREATE_INFO;
        let Some(found) = loader::link::<InstanceLink>((*info).p_next, kind) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let below = (*(*found).link).instance_proc;
        (*found).link = (*(*found).link).next;
        let Some(create) = below(vk::Instance::null(), c"vkCreateInstance".as_ptr()) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let made = transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateInstance>(create)(
            info, allocator, instance,
        );
        if made == vk::Result::SUCCESS {
            *INSTANCE.lock() = Some((below, *instance));
        }
        made
    }
}

unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    device: *mut vk::Device,
) -> vk::Result {
    // SAFETY: as for the instance.
    unsafe {
        let kind = vk::StructureType::LOADER_DEVICE_CREATE_INFO;
        let Some(found) = loader::link::<DeviceLink>((*info).p_next, kind) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let (instance_proc, device_proc) = ((*(*found).link).instance_proc, (*(*found).link).device_proc);
        (*found).link = (*(*found).link).next;
        let Some(create) = instance_proc(vk::Instance::null(), c"vkCreateDevice".as_ptr()) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let create = transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateDevice>(create);
        let made = create(physical, info, allocator, device);
        if made != vk::Result::SUCCESS {
            return made;
        }
        let known = functions(device_proc, *device).is_some_and(|functions| {
            let (period, mask) = clock_of(physical);
            let (key, clock) = (key((*device).as_raw()), ClockMap::new());
            LAYER.lock().devices.add(Device { key, handle: *device, functions, period, mask, clock })
        });
        if !known {
            // Calls could not be passed on.
            if let Some(destroy) = device_proc(*device, c"vkDestroyDevice".as_ptr()) {
                transmute::<unsafe extern "system" fn(), vk::PFN_vkDestroyDevice>(destroy)(
                    *device, allocator,
                );
            }
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        }
        made
    }
}

/// The functions below; None: the driver lacks one that has been in Vulkan from the start.
unsafe fn functions(device_proc: vk::PFN_vkGetDeviceProcAddr, device: vk::Device) -> Option<Functions> {
    // SAFETY: the names are those of the types that the fields have.
    unsafe {
        macro_rules! find {
            ($name:literal) => {
                transmute::<vk::PFN_vkVoidFunction, Option<_>>(device_proc(device, $name.as_ptr()))
            };
        }
        Some(Functions {
            device_proc,
            begin: find!(c"vkBeginCommandBuffer")?,
            bind_pipeline: find!(c"vkCmdBindPipeline")?,
            dispatch: find!(c"vkCmdDispatch")?,
            submit: find!(c"vkQueueSubmit")?,
            submit2: find!(c"vkQueueSubmit2"),
            wait_fences: find!(c"vkWaitForFences")?,
            fence_status: find!(c"vkGetFenceStatus")?,
            wait_semaphores: find!(c"vkWaitSemaphores"),
            wait_queue: find!(c"vkQueueWaitIdle")?,
            wait_device: find!(c"vkDeviceWaitIdle")?,
            create_shader: find!(c"vkCreateShaderModule")?,
            create_pipelines: find!(c"vkCreateComputePipelines")?,
            create_pool: find!(c"vkCreateQueryPool")?,
            destroy_pool: find!(c"vkDestroyQueryPool")?,
            reset_pool: find!(c"vkCmdResetQueryPool")?,
            timestamp: find!(c"vkCmdWriteTimestamp")?,
            results: find!(c"vkGetQueryPoolResults")?,
            destroy: find!(c"vkDestroyDevice")?,
        })
    }
}

/// ns of a tick, and the bits that count in all queues that compute; no bits: one of them has no times.
unsafe fn clock_of(physical: vk::PhysicalDevice) -> (f32, u64) {
    /// Families of queues; devices have a handful.
    const FAMILIES: usize = 32;
    let Some((proc, instance)) = *INSTANCE.lock() else { return (1.0, 0) };
    // SAFETY: the names are those of the types; `families` has room for `n`.
    unsafe {
        let properties = proc(instance, c"vkGetPhysicalDeviceProperties".as_ptr());
        let queues = proc(instance, c"vkGetPhysicalDeviceQueueFamilyProperties".as_ptr());
        let (Some(properties), Some(queues)) = (properties, queues) else { return (1.0, 0) };
        let properties =
            transmute::<unsafe extern "system" fn(), vk::PFN_vkGetPhysicalDeviceProperties>(properties);
        let queues = transmute::<unsafe extern "system" fn(), vk::PFN_vkGetPhysicalDeviceQueueFamilyProperties>(
            queues,
        );
        let mut about = vk::PhysicalDeviceProperties::default();
        properties(physical, &raw mut about);
        let mut families = [vk::QueueFamilyProperties::default(); FAMILIES];
        let mut n = FAMILIES as u32;
        queues(physical, &raw mut n, families.as_mut_ptr());
        let computing =
            families.iter().take(n as usize).filter(|f| f.queue_flags.contains(vk::QueueFlags::COMPUTE));
        let bits = computing.map(|f| f.timestamp_valid_bits).min().unwrap_or(0);
        let mask = u64::MAX.checked_shr(64 - bits.min(64)).unwrap_or(0);
        (about.limits.timestamp_period, mask)
    }
}

unsafe extern "system" fn destroy_device(device: vk::Device, allocator: *const vk::AllocationCallbacks<'_>) {
    if device.is_null() {
        return;
    }
    if let Some(of) = device_of(device.as_raw()) {
        let mut layer = LAYER.lock();
        layer.collect(of.key);
        layer.forget(of.key);
        drop(layer);
        // SAFETY: the application's call.
        unsafe { (of.functions.destroy)(device, allocator) }
    }
}

unsafe extern "system" fn begin(
    buffer: vk::CommandBuffer,
    info: *const vk::CommandBufferBeginInfo<'_>,
) -> vk::Result {
    let Some(of) = device_of(buffer.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    LAYER.lock().begin(buffer.as_raw());
    // SAFETY: the application's call.
    unsafe { (of.functions.begin)(buffer, info) }
}

unsafe extern "system" fn bind_pipeline(
    buffer: vk::CommandBuffer,
    point: vk::PipelineBindPoint,
    pipeline: vk::Pipeline,
) {
    let Some(of) = device_of(buffer.as_raw()) else { return };
    if point == vk::PipelineBindPoint::COMPUTE {
        LAYER.lock().bind(of.key, buffer.as_raw(), pipeline.as_raw());
    }
    // SAFETY: the application's call.
    unsafe { (of.functions.bind_pipeline)(buffer, point, pipeline) }
}

unsafe extern "system" fn dispatch(buffer: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    let Some(of) = device_of(buffer.as_raw()) else { return };
    let f = &of.functions;
    let stamps = LAYER.lock().dispatch(buffer.as_raw());
    // SAFETY: the application's call; the queries are in the pool, and were reset before they are written.
    unsafe {
        if let Some(s) = &stamps {
            if let Some(queries) = s.reset {
                (f.reset_pool)(buffer, s.pool, 0, queries);
            }
            (f.timestamp)(buffer, vk::PipelineStageFlags::TOP_OF_PIPE, s.pool, s.first);
        }
        (f.dispatch)(buffer, x, y, z);
        if let Some(s) = &stamps {
            (f.timestamp)(buffer, vk::PipelineStageFlags::BOTTOM_OF_PIPE, s.pool, s.first + 1);
        }
    }
}

unsafe extern "system" fn submit(
    queue: vk::Queue,
    n: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let Some(of) = device_of(queue.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    let (mut layer, now) = (LAYER.lock(), monotonic());
    for i in 0..n as usize {
        // SAFETY: the application gives `n` structures, each with as many command buffers as it says.
        unsafe {
            let info = &*infos.add(i);
            for k in 0..info.command_buffer_count as usize {
                layer.submit(queue.as_raw(), (*info.p_command_buffers.add(k)).as_raw(), now);
            }
        }
    }
    drop(layer);
    // SAFETY: the application's call.
    unsafe { (of.functions.submit)(queue, n, infos, fence) }
}

unsafe extern "system" fn submit2(
    queue: vk::Queue,
    n: u32,
    infos: *const vk::SubmitInfo2<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let Some(below) = device_of(queue.as_raw()).and_then(|of| of.functions.submit2) else {
        return vk::Result::ERROR_DEVICE_LOST;
    };
    let (mut layer, now) = (LAYER.lock(), monotonic());
    for i in 0..n as usize {
        // SAFETY: as for `submit`.
        unsafe {
            let info = &*infos.add(i);
            for k in 0..info.command_buffer_info_count as usize {
                let buffer = (*info.p_command_buffer_infos.add(k)).command_buffer;
                layer.submit(queue.as_raw(), buffer.as_raw(), now);
            }
        }
    }
    drop(layer);
    // SAFETY: the application's call.
    unsafe { below(queue, n, infos, fence) }
}

/// Hands over what the device has done, if the host now knows that it has done something.
fn waited(of: &Device, result: vk::Result) -> vk::Result {
    if result == vk::Result::SUCCESS {
        LAYER.lock().collect(of.key);
    }
    result
}

unsafe extern "system" fn wait_fences(
    device: vk::Device,
    n: u32,
    fences: *const vk::Fence,
    all: vk::Bool32,
    timeout: u64,
) -> vk::Result {
    let Some(of) = device_of(device.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the application's call.
    waited(&of, unsafe { (of.functions.wait_fences)(device, n, fences, all, timeout) })
}

unsafe extern "system" fn fence_status(device: vk::Device, fence: vk::Fence) -> vk::Result {
    let Some(of) = device_of(device.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the application's call.
    waited(&of, unsafe { (of.functions.fence_status)(device, fence) })
}

unsafe extern "system" fn wait_semaphores(
    device: vk::Device,
    info: *const vk::SemaphoreWaitInfo<'_>,
    timeout: u64,
) -> vk::Result {
    let Some((of, below)) =
        device_of(device.as_raw()).and_then(|of| Some((of, of.functions.wait_semaphores?)))
    else {
        return vk::Result::ERROR_DEVICE_LOST;
    };
    // SAFETY: the application's call.
    waited(&of, unsafe { below(device, info, timeout) })
}

unsafe extern "system" fn wait_queue(queue: vk::Queue) -> vk::Result {
    let Some(of) = device_of(queue.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the application's call.
    waited(&of, unsafe { (of.functions.wait_queue)(queue) })
}

unsafe extern "system" fn wait_device(device: vk::Device) -> vk::Result {
    let Some(of) = device_of(device.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the application's call.
    waited(&of, unsafe { (of.functions.wait_device)(device) })
}

unsafe extern "system" fn create_shader(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::ShaderModule,
) -> vk::Result {
    let Some(of) = device_of(device.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the application's call; its code has `code_size` bytes.
    unsafe {
        let made = (of.functions.create_shader)(device, info, allocator, module);
        if made == vk::Result::SUCCESS {
            let code = core::slice::from_raw_parts((*info).p_code, (*info).code_size / size_of::<u32>());
            LAYER.lock().shaders.module((*module).as_raw(), code);
        }
        made
    }
}

unsafe extern "system" fn create_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    n: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    let Some(of) = device_of(device.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the application's call, with `n` structures and room for as many pipelines.
    unsafe {
        let made = (of.functions.create_pipelines)(device, cache, n, infos, allocator, pipelines);
        if made == vk::Result::SUCCESS {
            let mut layer = LAYER.lock();
            for i in 0..n as usize {
                let module = (*infos.add(i)).stage.module;
                layer.shaders.pipeline((*pipelines.add(i)).as_raw(), module.as_raw());
            }
        }
        made
    }
}

/// This layer's function of a name, if it has one.
fn own(name: &CStr) -> vk::PFN_vkVoidFunction {
    let address: *const c_void = match name.to_bytes() {
        b"vkCreateInstance" => create_instance as *const c_void,
        b"vkCreateDevice" => create_device as *const c_void,
        b"vkGetInstanceProcAddr" => instance_proc as *const c_void,
        b"vkGetDeviceProcAddr" => device_proc as *const c_void,
        b"vkDestroyDevice" => destroy_device as *const c_void,
        b"vkBeginCommandBuffer" => begin as *const c_void,
        b"vkCmdBindPipeline" => bind_pipeline as *const c_void,
        b"vkCmdDispatch" => dispatch as *const c_void,
        b"vkQueueSubmit" => submit as *const c_void,
        b"vkQueueSubmit2" => submit2 as *const c_void,
        b"vkWaitForFences" => wait_fences as *const c_void,
        b"vkGetFenceStatus" => fence_status as *const c_void,
        b"vkWaitSemaphores" => wait_semaphores as *const c_void,
        b"vkQueueWaitIdle" => wait_queue as *const c_void,
        b"vkDeviceWaitIdle" => wait_device as *const c_void,
        b"vkCreateShaderModule" => create_shader as *const c_void,
        b"vkCreateComputePipelines" => create_pipelines as *const c_void,
        _ => null(),
    };
    // SAFETY: null is None, and the others are functions; who asks knows their types by the names.
    unsafe { transmute::<*const c_void, vk::PFN_vkVoidFunction>(address) }
}

unsafe extern "system" fn device_proc(device: vk::Device, name: *const c_char) -> vk::PFN_vkVoidFunction {
    let of = device_of(device.as_raw())?;
    // SAFETY: the caller gives a text; below is asked first, so that what the driver lacks is not offered.
    unsafe {
        let below = (of.functions.device_proc)(device, name)?;
        own(CStr::from_ptr(name)).or(Some(below))
    }
}

unsafe extern "system" fn instance_proc(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller gives a text.
    unsafe {
        let own = own(CStr::from_ptr(name));
        let below = INSTANCE.lock().and_then(|(proc, _)| proc(instance, name));
        match (own, instance.is_null()) {
            // Without an instance the loader asks for the functions that make one.
            (own, true) => own.or(below),
            (own, false) => below.and_then(|below| own.or(Some(below))),
        }
    }
}

/// What the loader asks first.
///
/// # Safety
/// `asked` is the loader's structure.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn vkNegotiateLoaderLayerInterfaceVersion(asked: *mut Negotiate) -> vk::Result {
    if asked.is_null() {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    // SAFETY: the caller vouches for it.
    let asked = unsafe { &mut *asked };
    if asked.version < loader::VERSION {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    asked.version = loader::VERSION;
    (asked.instance_proc, asked.device_proc, asked.physical_device_proc) = (instance_proc, device_proc, None);
    vk::Result::SUCCESS
}
