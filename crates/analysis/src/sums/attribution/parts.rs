//! Thread time split by state: computing, waiting, off-CPU.

use serde::{Deserialize, Serialize};

/// Time of slices and of the barrier waits after them, summed over all threads, ns. The first eight add up to the
/// total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeParts {
    /// On a CPU, in the op. In interval mode this includes spinning at the barrier.
    pub computing_ns: u64,
    /// On a CPU, from the barrier's entry to the next op's start: spinning.
    pub barrier_ns: u64,
    /// Runnable while another thread ran: preempted, or woken and not yet on a CPU.
    pub preempted_ns: u64,
    /// Asleep.
    pub idle_ns: u64,
    /// Off-CPU inside a page fault.
    pub faulting_ns: u64,
    /// Off-CPU for block I/O outside page faults.
    pub io_ns: u64,
    /// Off-CPU for another reason: uninterruptible, stopped.
    pub blocked_ns: u64,
    /// Of threads, or at times, without any recorded scheduler event; or asleep in an op, for a reason that the source cannot
    /// see.
    pub unknown_ns: u64,
    /// The part of the five off-CPU kinds that lies between a barrier's entry and the next op's start.
    pub off_cpu_in_barrier_ns: u64,
}

/// Why a thread is off-CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Off {
    Preempted,
    Idle,
    Faulting,
    Io,
    Blocked,
    /// Not preempted; the source cannot see more.
    Asleep,
}

impl Off {
    /// In the wait at a barrier, a thread sleeps because it waits for the others.
    pub fn at_barrier(self) -> Off {
        if self == Off::Asleep { Off::Idle } else { self }
    }
}

impl TimeParts {
    /// The total time that the parts add up to.
    pub fn whole(&self) -> u64 {
        let p = self;
        [p.computing_ns, p.barrier_ns, p.unknown_ns].into_iter().fold(self.off_cpu(), u64::saturating_add)
    }

    pub fn off_cpu(&self) -> u64 {
        let p = self;
        let all = [p.preempted_ns, p.idle_ns, p.faulting_ns, p.io_ns, p.blocked_ns];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// True if any of the time has a known cause.
    pub fn known(&self) -> bool {
        self.whole() > self.unknown_ns
    }

    pub fn off(&mut self, kind: Off) -> &mut u64 {
        match kind {
            Off::Preempted => &mut self.preempted_ns,
            Off::Idle => &mut self.idle_ns,
            Off::Faulting => &mut self.faulting_ns,
            Off::Io => &mut self.io_ns,
            Off::Blocked => &mut self.blocked_ns,
            Off::Asleep => &mut self.unknown_ns,
        }
    }

    /// Each number combined with the corresponding number of `o`.
    pub fn combined(&self, o: &TimeParts, f: fn(u64, u64) -> u64) -> TimeParts {
        TimeParts {
            computing_ns: f(self.computing_ns, o.computing_ns),
            barrier_ns: f(self.barrier_ns, o.barrier_ns),
            preempted_ns: f(self.preempted_ns, o.preempted_ns),
            idle_ns: f(self.idle_ns, o.idle_ns),
            faulting_ns: f(self.faulting_ns, o.faulting_ns),
            io_ns: f(self.io_ns, o.io_ns),
            blocked_ns: f(self.blocked_ns, o.blocked_ns),
            unknown_ns: f(self.unknown_ns, o.unknown_ns),
            off_cpu_in_barrier_ns: f(self.off_cpu_in_barrier_ns, o.off_cpu_in_barrier_ns),
        }
    }

    pub fn merge(&mut self, o: &TimeParts) {
        *self = self.combined(o, u64::saturating_add);
    }
}
