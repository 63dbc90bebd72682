//! Instances of the process: the function below this layer that finds others, and the clocks of their devices.

use core::ffi::{CStr, c_char};
use core::mem::transmute;

use ash::vk;
use ash::vk::Handle;
use handover::{Lock, Ticks};

use crate::device::key;
use crate::entry::own;
use crate::loader::{self, InstanceLink};

/// Instances at a time.
const INSTANCES: usize = 16;

#[derive(Clone, Copy)]
pub struct Instance {
    /// What the instance and its physical devices have as their first word.
    key: usize,
    pub handle: vk::Instance,
    proc: vk::PFN_vkGetInstanceProcAddr,
    // Asked while the instance is made: afterwards the loader answers with those of the first layer of all.
    destroy: vk::PFN_vkDestroyInstance,
    properties: vk::PFN_vkGetPhysicalDeviceProperties,
    queues: vk::PFN_vkGetPhysicalDeviceQueueFamilyProperties,
}

static ALL: Lock<[Option<Instance>; INSTANCES]> = Lock::new([None; INSTANCES]);

/// The instance of an object, which is an instance or a physical device.
pub fn of(object: u64) -> Option<Instance> {
    // SAFETY: the application passes objects that exist.
    let key = unsafe { key(object) };
    ALL.lock().iter().flatten().find(|i| i.key == key).copied()
}

pub unsafe extern "system" fn create(
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
        let proc = (*(*found).link).instance_proc;
        (*found).link = (*(*found).link).next;
        let Some(create) = proc(vk::Instance::null(), c"vkCreateInstance".as_ptr()) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let create = transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateInstance>(create);
        let made = create(info, allocator, instance);
        if made != vk::Result::SUCCESS {
            return made;
        }
        // Without room or a function that has been there from the start, calls could not be passed on.
        let Some(new) = Instance::new(*instance, proc) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let mut all = ALL.lock();
        let place = all.iter_mut().find(|i| i.is_none_or(|i| i.key == new.key));
        let kept = place.map(|place| *place = Some(new)).is_some();
        drop(all);
        if !kept {
            (new.destroy)(new.handle, allocator);
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        }
        made
    }
}

pub unsafe extern "system" fn destroy(instance: vk::Instance, allocator: *const vk::AllocationCallbacks<'_>) {
    if instance.is_null() {
        return;
    }
    if let Some(known) = of(instance.as_raw()) {
        ALL.lock().iter_mut().filter(|i| i.is_some_and(|i| i.key == known.key)).for_each(|i| *i = None);
        // SAFETY: the application's call.
        unsafe { (known.destroy)(instance, allocator) };
    }
}

pub unsafe extern "system" fn proc(instance: vk::Instance, name: *const c_char) -> vk::PFN_vkVoidFunction {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller gives a text.
    let own = unsafe { own(CStr::from_ptr(name)) };
    if instance.is_null() {
        // Without an instance the loader asks for the functions that make one.
        return own;
    }
    let below = of(instance.as_raw())?.proc;
    // SAFETY: the caller's call; what is not there below is not offered.
    unsafe { below(instance, name) }.and_then(|below| own.or(Some(below)))
}

impl Instance {
    /// None: the instance lacks a function that all have.
    ///
    /// # Safety
    /// The instance is one that `proc` knows.
    unsafe fn new(handle: vk::Instance, proc: vk::PFN_vkGetInstanceProcAddr) -> Option<Instance> {
        // SAFETY: the names are those of the types that the fields have.
        unsafe {
            macro_rules! find {
                ($name:literal) => {
                    transmute::<vk::PFN_vkVoidFunction, Option<_>>(proc(handle, $name.as_ptr()))
                };
            }
            Some(Instance {
                key: key(handle.as_raw()),
                handle,
                proc,
                destroy: find!(c"vkDestroyInstance")?,
                properties: find!(c"vkGetPhysicalDeviceProperties")?,
                queues: find!(c"vkGetPhysicalDeviceQueueFamilyProperties")?,
            })
        }
    }

    /// Timestamps of all queues that compute.
    ///
    /// # Safety
    /// The device is one of this instance.
    pub unsafe fn clock_of(&self, physical: vk::PhysicalDevice) -> Ticks {
        /// Families of queues; devices have a handful.
        const FAMILIES: usize = 32;
        let mut about = vk::PhysicalDeviceProperties::default();
        // SAFETY: a device of this instance; `families` has room for `n`.
        unsafe {
            (self.properties)(physical, &raw mut about);
            let mut families = [vk::QueueFamilyProperties::default(); FAMILIES];
            let mut n = FAMILIES as u32;
            (self.queues)(physical, &raw mut n, families.as_mut_ptr());
            let computing =
                families.iter().take(n as usize).filter(|f| f.queue_flags.contains(vk::QueueFlags::COMPUTE));
            let bits = computing.map(|f| f.timestamp_valid_bits).min().unwrap_or(0);
            Ticks::new(about.limits.timestamp_period, bits)
        }
    }
}
