//! The functions that the loader calls instead of those below. Each passes the call on, unchanged except where said.

use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute;
use core::ptr::null;

use ash::vk;
use ash::vk::Handle;
use handover::{ClockMap, Reason, Ticks, monotonic};

use crate::buffers::{Layer, Place, Stamps};
use crate::collect::{collect, create_pool, destroy_pool};
use crate::device::{Device, Functions, key};
use crate::loader::{self, DeviceLink, Negotiate};
use crate::{LAYER, instance, shaders};

/// The device of an object, which is a device, a queue or a command buffer.
fn device_of(object: u64) -> Option<Device> {
    // SAFETY: the application passes objects that exist.
    let key = unsafe { key(object) };
    LAYER.lock().devices.get(key).copied()
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
        let of = instance::of(physical.as_raw());
        let handle = of.map_or(vk::Instance::null(), |of| of.handle);
        // The loader's own layers ask without an instance; others may want one.
        let name = c"vkCreateDevice".as_ptr();
        let create = instance_proc(vk::Instance::null(), name).or_else(|| instance_proc(handle, name));
        let Some(create) = create else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let create = transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateDevice>(create);
        let made = create(physical, info, allocator, device);
        if made != vk::Result::SUCCESS {
            return made;
        }
        let known = functions(device_proc, *device).is_some_and(|functions| {
            let ticks = of.map_or(Ticks::new(1.0, 0), |of| of.clock_of(physical));
            let (key, clock) = (key((*device).as_raw()), ClockMap::new());
            LAYER.lock().devices.add(Device { key, handle: *device, functions, ticks, clock })
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
            // The same function under its name in an older extension.
            ($name:literal, $older:literal) => {
                find!($name).or_else(|| find!($older))
            };
        }
        Some(Functions {
            device_proc,
            allocate: find!(c"vkAllocateCommandBuffers")?,
            free: find!(c"vkFreeCommandBuffers")?,
            begin: find!(c"vkBeginCommandBuffer")?,
            reset: find!(c"vkResetCommandBuffer")?,
            reset_command_pool: find!(c"vkResetCommandPool")?,
            destroy_command_pool: find!(c"vkDestroyCommandPool")?,
            execute: find!(c"vkCmdExecuteCommands")?,
            bind_pipeline: find!(c"vkCmdBindPipeline")?,
            dispatch: find!(c"vkCmdDispatch")?,
            dispatch_indirect: find!(c"vkCmdDispatchIndirect")?,
            dispatch_base: find!(c"vkCmdDispatchBase", c"vkCmdDispatchBaseKHR"),
            submit: find!(c"vkQueueSubmit")?,
            submit2: find!(c"vkQueueSubmit2", c"vkQueueSubmit2KHR"),
            wait_fences: find!(c"vkWaitForFences")?,
            fence_status: find!(c"vkGetFenceStatus")?,
            wait_semaphores: find!(c"vkWaitSemaphores", c"vkWaitSemaphoresKHR"),
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

unsafe extern "system" fn destroy_device(device: vk::Device, allocator: *const vk::AllocationCallbacks<'_>) {
    if device.is_null() {
        return;
    }
    let Some(of) = device_of(device.as_raw()) else { return };
    collect(of.key);
    LAYER.lock().abandon(Some(of.key), Reason::Unended);
    loop {
        // The application destroys a device only when nothing of it is in use.
        let pool = LAYER.lock().take_pool(of.key);
        let Some(pool) = pool else { break };
        destroy_pool(&of, pool);
    }
    LAYER.lock().remove_device(of.key);
    // SAFETY: the application's call.
    unsafe { (of.functions.destroy)(device, allocator) }
}

unsafe extern "system" fn allocate(
    device: vk::Device,
    info: *const vk::CommandBufferAllocateInfo<'_>,
    buffers: *mut vk::CommandBuffer,
) -> vk::Result {
    let Some(of) = device_of(device.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the application's call, with room for as many command buffers as it says.
    unsafe {
        let made = (of.functions.allocate)(device, info, buffers);
        if made == vk::Result::SUCCESS {
            let (pool, secondary) =
                ((*info).command_pool.as_raw(), (*info).level == vk::CommandBufferLevel::SECONDARY);
            let mut layer = LAYER.lock();
            for i in 0..(*info).command_buffer_count as usize {
                layer.allocate(of.key, pool, secondary, (*buffers.add(i)).as_raw());
            }
        }
        made
    }
}

unsafe extern "system" fn free(
    device: vk::Device,
    pool: vk::CommandPool,
    n: u32,
    buffers: *const vk::CommandBuffer,
) {
    let Some(of) = device_of(device.as_raw()) else { return };
    collect(of.key);
    let mut layer = LAYER.lock();
    for i in 0..n as usize {
        // SAFETY: the application gives `n` command buffers, of which some may be null.
        layer.forget(unsafe { *buffers.add(i) }.as_raw());
    }
    drop(layer);
    // SAFETY: the application's call.
    unsafe { (of.functions.free)(device, pool, n, buffers) }
}

unsafe extern "system" fn begin(
    buffer: vk::CommandBuffer,
    info: *const vk::CommandBufferBeginInfo<'_>,
) -> vk::Result {
    let Some(of) = device_of(buffer.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    collect_if(&of, buffer);
    // SAFETY: the application's call.
    unsafe {
        let once = (*info).flags.contains(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        LAYER.lock().begin(buffer.as_raw(), once);
        (of.functions.begin)(buffer, info)
    }
}

unsafe extern "system" fn reset(buffer: vk::CommandBuffer, flags: vk::CommandBufferResetFlags) -> vk::Result {
    let Some(of) = device_of(buffer.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    collect_if(&of, buffer);
    LAYER.lock().clear(buffer.as_raw());
    // SAFETY: the application's call.
    unsafe { (of.functions.reset)(buffer, flags) }
}

unsafe extern "system" fn reset_command_pool(
    device: vk::Device,
    pool: vk::CommandPool,
    flags: vk::CommandPoolResetFlags,
) -> vk::Result {
    let Some(of) = device_of(device.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    collect(of.key);
    LAYER.lock().of_pool(of.key, pool.as_raw(), Layer::clear);
    // SAFETY: the application's call.
    unsafe { (of.functions.reset_command_pool)(device, pool, flags) }
}

unsafe extern "system" fn destroy_command_pool(
    device: vk::Device,
    pool: vk::CommandPool,
    allocator: *const vk::AllocationCallbacks<'_>,
) {
    let Some(of) = device_of(device.as_raw()) else { return };
    collect(of.key);
    LAYER.lock().of_pool(of.key, pool.as_raw(), Layer::forget);
    // SAFETY: the application's call.
    unsafe { (of.functions.destroy_command_pool)(device, pool, allocator) }
}

unsafe extern "system" fn execute(buffer: vk::CommandBuffer, n: u32, parts: *const vk::CommandBuffer) {
    let Some(of) = device_of(buffer.as_raw()) else { return };
    let mut layer = LAYER.lock();
    for i in 0..n as usize {
        // SAFETY: the application gives `n` command buffers.
        layer.execute(buffer.as_raw(), unsafe { *parts.add(i) }.as_raw());
    }
    drop(layer);
    // SAFETY: the application's call.
    unsafe { (of.functions.execute)(buffer, n, parts) }
}

unsafe extern "system" fn bind_pipeline(
    buffer: vk::CommandBuffer,
    point: vk::PipelineBindPoint,
    pipeline: vk::Pipeline,
) {
    let Some(of) = device_of(buffer.as_raw()) else { return };
    if point == vk::PipelineBindPoint::COMPUTE {
        LAYER.lock().bind(buffer.as_raw(), pipeline.as_raw());
    }
    // SAFETY: the application's call.
    unsafe { (of.functions.bind_pipeline)(buffer, point, pipeline) }
}

/// Where the timestamps of the next dispatch go; None: without times.
fn stamps(of: &Device, buffer: u64) -> Option<Stamps> {
    loop {
        let place = LAYER.lock().dispatch(buffer);
        match place {
            Place::Timed(stamps) => return Some(stamps),
            Place::Untimed => return None,
            Place::NeedsPool => {}
        }
        let Some(pool) = create_pool(of) else {
            LAYER.lock().no_stamps(buffer);
            return None;
        };
        let kept = LAYER.lock().keep_pool(of.key, pool);
        if !kept {
            destroy_pool(of, pool);
        }
    }
}

/// Passes a dispatch on, between two timestamps.
fn timed(buffer: vk::CommandBuffer, pass_on: impl FnOnce(&Device)) {
    let Some(of) = device_of(buffer.as_raw()) else { return };
    let (f, stamps) = (&of.functions, stamps(&of, buffer.as_raw()));
    if let Some(s) = &stamps {
        // SAFETY: the queries are in the pool, and are reset before they are written.
        unsafe {
            if let Some(queries) = s.reset {
                (f.reset_pool)(buffer, s.pool, 0, queries);
            }
            (f.timestamp)(buffer, vk::PipelineStageFlags::TOP_OF_PIPE, s.pool, s.first);
        }
    }
    pass_on(&of);
    if let Some(s) = &stamps {
        // SAFETY: as above.
        unsafe { (f.timestamp)(buffer, vk::PipelineStageFlags::BOTTOM_OF_PIPE, s.pool, s.first + 1) };
    }
}

unsafe extern "system" fn dispatch(buffer: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    // SAFETY: the application's call.
    timed(buffer, |of| unsafe { (of.functions.dispatch)(buffer, x, y, z) });
}

unsafe extern "system" fn dispatch_indirect(buffer: vk::CommandBuffer, from: vk::Buffer, at: vk::DeviceSize) {
    // SAFETY: the application's call.
    timed(buffer, |of| unsafe { (of.functions.dispatch_indirect)(buffer, from, at) });
}

unsafe extern "system" fn dispatch_base(
    buffer: vk::CommandBuffer,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    x: u32,
    y: u32,
    z: u32,
) {
    timed(buffer, |of| {
        if let Some(below) = of.functions.dispatch_base {
            // SAFETY: the application's call.
            unsafe { below(buffer, base_x, base_y, base_z, x, y, z) }
        }
    });
}

/// Before the device may reset what a command buffer has, its times are read.
fn collect_if(of: &Device, buffer: vk::CommandBuffer) {
    let is_pending = LAYER.lock().is_pending(buffer.as_raw());
    if is_pending {
        collect(of.key);
    }
}

unsafe extern "system" fn submit(
    queue: vk::Queue,
    n: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let Some(of) = device_of(queue.as_raw()) else { return vk::Result::ERROR_DEVICE_LOST };
    let each = |then: &mut dyn FnMut(vk::CommandBuffer)| {
        for i in 0..n as usize {
            // SAFETY: the application gives `n` structures, each with as many command buffers as it says.
            unsafe {
                let info = &*infos.add(i);
                (0..info.command_buffer_count as usize).for_each(|k| then(*info.p_command_buffers.add(k)));
            }
        }
    };
    // SAFETY: the application's call.
    passed_on(&of, queue, each, || unsafe { (of.functions.submit)(queue, n, infos, fence) })
}

unsafe extern "system" fn submit2(
    queue: vk::Queue,
    n: u32,
    infos: *const vk::SubmitInfo2<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let Some((of, below)) = device_of(queue.as_raw()).and_then(|of| Some((of, of.functions.submit2?))) else {
        return vk::Result::ERROR_DEVICE_LOST;
    };
    let each = |then: &mut dyn FnMut(vk::CommandBuffer)| {
        for i in 0..n as usize {
            // SAFETY: as for `submit`.
            unsafe {
                let info = &*infos.add(i);
                let buffers = info.p_command_buffer_infos;
                (0..info.command_buffer_info_count as usize)
                    .for_each(|k| then((*buffers.add(k)).command_buffer));
            }
        }
    };
    // SAFETY: the application's call.
    passed_on(&of, queue, each, || unsafe { below(queue, n, infos, fence) })
}

/// Submits command buffers, which `each` lists.
fn passed_on(
    of: &Device,
    queue: vk::Queue,
    each: impl Fn(&mut dyn FnMut(vk::CommandBuffer)),
    below: impl FnOnce() -> vk::Result,
) -> vk::Result {
    each(&mut |buffer| collect_if(of, buffer));
    let before = monotonic();
    let result = below();
    if result == vk::Result::SUCCESS {
        let mut layer = LAYER.lock();
        each(&mut |buffer| layer.submitted(queue.as_raw(), buffer.as_raw(), before));
    }
    if_lost(of, result)
}

/// What is on its way to a device that is lost has no times.
fn if_lost(of: &Device, result: vk::Result) -> vk::Result {
    if result == vk::Result::ERROR_DEVICE_LOST {
        LAYER.lock().abandon(Some(of.key), Reason::Failed);
    }
    result
}

/// Hands over what the device has done, if the host now knows that it has done something.
fn waited(of: &Device, result: vk::Result) -> vk::Result {
    if result == vk::Result::SUCCESS {
        collect(of.key);
    }
    if_lost(of, result)
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
            let name = shaders::name(code);
            LAYER.lock().shaders.module((*module).as_raw(), &name);
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
        // Some may be there although others could not be made: those are null.
        let mut layer = LAYER.lock();
        for i in 0..n as usize {
            let (pipeline, module) = (*pipelines.add(i), (*infos.add(i)).stage.module);
            if !pipeline.is_null() {
                layer.shaders.pipeline(pipeline.as_raw(), module.as_raw());
            }
        }
        made
    }
}

/// This layer's function of a name, if it has one.
pub fn own(name: &CStr) -> vk::PFN_vkVoidFunction {
    let address: *const c_void = match name.to_bytes() {
        b"vkCreateInstance" => instance::create as *const c_void,
        b"vkDestroyInstance" => instance::destroy as *const c_void,
        b"vkCreateDevice" => create_device as *const c_void,
        b"vkGetInstanceProcAddr" => instance::proc as *const c_void,
        b"vkGetDeviceProcAddr" => device_proc as *const c_void,
        b"vkDestroyDevice" => destroy_device as *const c_void,
        b"vkAllocateCommandBuffers" => allocate as *const c_void,
        b"vkFreeCommandBuffers" => free as *const c_void,
        b"vkResetCommandBuffer" => reset as *const c_void,
        b"vkResetCommandPool" => reset_command_pool as *const c_void,
        b"vkDestroyCommandPool" => destroy_command_pool as *const c_void,
        b"vkCmdExecuteCommands" => execute as *const c_void,
        b"vkCmdDispatchIndirect" => dispatch_indirect as *const c_void,
        b"vkCmdDispatchBase" | b"vkCmdDispatchBaseKHR" => dispatch_base as *const c_void,
        b"vkBeginCommandBuffer" => begin as *const c_void,
        b"vkCmdBindPipeline" => bind_pipeline as *const c_void,
        b"vkCmdDispatch" => dispatch as *const c_void,
        b"vkQueueSubmit" => submit as *const c_void,
        b"vkQueueSubmit2" | b"vkQueueSubmit2KHR" => submit2 as *const c_void,
        b"vkWaitForFences" => wait_fences as *const c_void,
        b"vkGetFenceStatus" => fence_status as *const c_void,
        b"vkWaitSemaphores" | b"vkWaitSemaphoresKHR" => wait_semaphores as *const c_void,
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
    (asked.instance_proc, asked.device_proc, asked.physical_device_proc) =
        (instance::proc, device_proc, None);
    vk::Result::SUCCESS
}
