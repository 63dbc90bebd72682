//! Pins threads to CPUs on request.

#[cfg(target_os = "linux")]
use std::sync::OnceLock;

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that this process may run on, fastest first if the kernel reports capacities; empty if unknown. They are those
/// of the first call: a thread that has been pinned since then would see only its own.
#[cfg(target_os = "linux")]
pub fn cpus() -> Vec<usize> {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(allowed).clone()
}

#[cfg(target_os = "linux")]
fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let mut cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).collect();
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
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
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

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn a_pinned_thread_still_knows_all_cpus() {
        let all = super::cpus();
        let pinned =
            std::thread::spawn(move || all.last().is_none_or(|cpu| super::stay_on(*cpu)).then(super::cpus));
        assert_eq!(pinned.join().ok().flatten(), Some(super::cpus()));
    }
}
