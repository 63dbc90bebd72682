//! What the agent itself costs, and the clocks. Uses nothing of this crate.

use std::fs;

/// CPU time of this process so far, microseconds: user and system.
pub fn cpu_us() -> (u64, u64) {
    // SAFETY: getrusage fills the struct that it is given; all zero is a valid value of it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let us = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    (us(usage.ru_utime), us(usage.ru_stime))
}

/// Peak resident memory of this process, bytes, without pages mapped from the kernel's ring buffer or from files
/// (VmHWM counts them, so the present anonymous share is taken at its own peak: RssAnon at the time of the call).
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

/// Nanoseconds of a clock (`libc::CLOCK_MONOTONIC` is the trace's own).
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime fills the struct that it is given.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}
