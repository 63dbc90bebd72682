//! Pins threads to CPUs on request.

/// CPUs that this process may run on, fastest first if the kernel reports capacities; empty if unknown.
#[cfg(target_os = "linux")]
pub fn cpus() -> Vec<usize> {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has the size given.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Vec::new();
    }
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: the number is within the set's range.
    let mut cpus: Vec<usize> = all.filter(|&c| unsafe { libc::CPU_ISSET(c, &set) }).collect();
    let capacity = |cpu: &usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpu_capacity");
        std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse::<u32>().ok()).unwrap_or(0)
    };
    cpus.sort_by_cached_key(|c| (std::cmp::Reverse(capacity(c)), *c));
    cpus
}

/// Pins the calling thread to `cpu`. False: the kernel refused.
#[cfg(target_os = "linux")]
pub fn stay_on(cpu: usize) -> bool {
    if cpu >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is within the set's range.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set has the size given; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0 }
}

/// Unknown on this system.
#[cfg(not(target_os = "linux"))]
pub fn cpus() -> Vec<usize> {
    Vec::new()
}

/// Not possible on this system.
#[cfg(not(target_os = "linux"))]
pub fn stay_on(_: usize) -> bool {
    false
}
