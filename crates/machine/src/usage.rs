//! Resource usage of the agent itself, and the clocks. Uses the C library: rustix has no getrusage(2), would parse
//! the vDSO again for the clocks, and panics if it cannot read the auxiliary vector for the values that sysconf(3)
//! returns.

use std::fs;

/// CPU time of this process so far, microseconds: user and system.
pub fn cpu_us() -> (u64, u64) {
    cpu_us_of(libc::RUSAGE_SELF)
}

/// CPU time of the children that have ended and were waited for, and of theirs, microseconds: user and system.
pub fn children_cpu_us() -> (u64, u64) {
    cpu_us_of(libc::RUSAGE_CHILDREN)
}

fn cpu_us_of(who: libc::c_int) -> (u64, u64) {
    // SAFETY: getrusage fills the given struct; all zero is a valid value.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(who, &raw mut usage);
        usage
    };
    let us = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    (us(usage.ru_utime), us(usage.ru_stime))
}

/// Peak resident memory of this process and its current anonymous memory, bytes. The peak (VmHWM) includes pages mapped
/// from the kernel's ring buffer and from files; the anonymous memory (RssAnon, at the time of the call) does not.
pub fn resident() -> Resident {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim_start_matches(':').trim().split(' ').next()?.parse::<u64>().ok().map(|kb| kb * 1024)
    };
    Resident { peak: field("VmHWM").unwrap_or(0), anonymous: field("RssAnon").unwrap_or(0) }
}

/// Memory of this process, bytes.
#[derive(Debug, Clone, Copy)]
pub struct Resident {
    /// Peak of everything resident: code, anonymous memory, the mapped buffer.
    pub peak: u64,
    /// Anonymous memory now.
    pub anonymous: u64,
}

/// Nanoseconds of a clock (`libc::CLOCK_MONOTONIC` is the trace's clock).
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime fills the given struct.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}
