//! Records of causes for made-up traces: what they say is known to the nanosecond too.

use super::*;

/// Of the synthetic engine's first call: start of its first op.
pub const FIRST_OP: u64 = ORIGIN + 3 * LEAD;

/// Start of position `p` in a graph whose first op starts at `first`, all threads' slowest being `slowest`.
pub fn start_of(first: u64, p: usize, slowest: impl Fn(usize) -> u64) -> i64 {
    (first + (0..p).map(|p| slowest(p) + SYNC).sum::<u64>()) as i64
}

/// A thread that was preempted by thread 900.
pub fn preempted(ith: u32, t: i64, dur: u64) -> OffCpu {
    OffCpu {
        pid: PID,
        tid: TID + ith,
        t,
        dur,
        runnable: Some(dur),
        state: 0,
        io: Answer::No,
        fault: Answer::No,
        cpu: ith as u16,
        to_cpu: ith as u16,
        by: 900,
        from: 900,
        waker: 0,
        cut: false,
    }
}

/// A thread that slept, the last `runnable` ns of it awake and waiting behind thread 901.
pub fn slept(ith: u32, t: i64, dur: u64, runnable: u64) -> OffCpu {
    OffCpu { state: 1, runnable: Some(runnable), by: 0, from: 901, ..preempted(ith, t, dur) }
}

/// A thread that waited inside a page fault.
pub fn faulted(ith: u32, t: i64, dur: u64) -> OffCpu {
    OffCpu {
        state: 2,
        runnable: Some(0),
        fault: Answer::Yes,
        io: Answer::Yes,
        by: 0,
        from: 0,
        ..preempted(ith, t, dur)
    }
}

pub fn feature<'a>(name: &'a str, state: Availability, why: &'a str) -> Feature<'a> {
    Feature { name, state, why }
}

pub fn counter<'a>(id: u32, name: &'a str, unit: &'a str, scale: u32) -> Counter<'a> {
    let (enabled_ns, running_ns) = (1000, 1000);
    Counter {
        id,
        name,
        unit,
        scale,
        events: "cpu/x",
        state: Availability::Whole,
        why: "",
        enabled_ns,
        running_ns,
    }
}

pub fn phase_call(what: &str, t: u64, dur: u64) -> PhaseCall<'_> {
    PhaseCall { what, pid: PID, tid: TID, t: t as i64, dur, cut: false }
}
