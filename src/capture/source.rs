//! Where a recording's events come from. Both backends produce the same events (`event`), so later stages need not
//! know which one is used.

use engine::probes::{Prog, Role};
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::capture::error::{ProbeError, RecordError, SchedError};
use crate::capture::event::{COUNTERS, KINDS};
use crate::capture::structure::Reading;
use crate::capture::transport;
use machine::halt::Halt;
use pfi::record::Availability;
use serde::{Deserialize, Serialize};

/// The requested backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackendChoice {
    /// BPF programs, or perf events if this kernel has no bpf(), or from inside where neither is allowed.
    Auto,
    Bpf,
    Perf,
    /// From inside the engine's process, without privilege.
    Inside,
}

/// How much structure is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Structure {
    Off,
    /// When it changes.
    Changes,
    /// At every hit, as the published method does; for comparison only.
    EveryHit,
}

/// How much is captured of the work on a device, each with what comes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuDetail {
    /// The splits, as on any backend.
    Off,
    /// What they compute.
    Split,
    /// When each of their nodes is enqueued.
    Op,
    /// The device's own times, from a layer in the engine's process.
    Kernel,
}

/// What is captured and how, the same for all engines of a recording. What the BPF programs need of it becomes their
/// constants (`struct ops_constants` in src/bpf/base.h).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CaptureOptions {
    /// One buffer per CPU instead of the ring buffer.
    pub pbuf: bool,
    /// Requested size of the kernel-side buffer; per CPU if each CPU has one.
    pub buffer_bytes: u64,
    pub structure: Structure,
    pub gpu: GpuDetail,
    /// Send the ids of the experts that each layer uses.
    pub experts: bool,
    /// Record when threads are off-CPU.
    pub sched: bool,
    /// Probe only the calling thread: to measure the cost of a probe.
    pub own: bool,
    /// A change between prompt and decode wakes the recorder at once. BPF programs with a ring buffer only: otherwise it
    /// is seen at the next regular reading.
    pub phases_at_once: bool,
    /// Few processes are expected: use probes that are removed quickly but need one kernel object per process.
    pub few: bool,
}

impl CaptureOptions {
    /// Actual size of that buffer, bytes.
    pub fn buffer(&self) -> u32 {
        transport::ring_bytes(self.buffer_bytes)
    }

    /// Bytes waiting in the buffer at which the recorder is woken.
    pub fn wake(&self) -> u32 {
        self.buffer() / 4
    }
}

/// Where events go.
pub type Sink = Rc<RefCell<dyn FnMut(&[u8])>>;

/// Something that is removed when it is dropped.
pub type Guard = Box<dyn Send>;

pub trait Source {
    /// Follows the recorded processes and their children, even if no engine is known yet. Done only once.
    fn start(&mut self) -> Result<(), RecordError>;

    /// Variables that a command must be started with. `wrapped`: its engine is not known from its own files, and what is
    /// in between may drop some.
    ///
    /// # Errors
    /// What they name cannot be made.
    fn environment(&mut self, _wrapped: bool) -> Result<Vec<(&'static str, OsString)>, RecordError> {
        Ok(Vec::new())
    }

    /// The next process that waits until it is examined, if this source stops them by itself.
    fn halted(&mut self) -> Option<Halt> {
        None
    }

    /// Lets it go on, with its probes.
    fn go_on(&mut self, _halt: Halt) {}

    /// Prepares the probes of one engine; also starts the source.
    fn engine(&mut self, reading: &Reading) -> Result<Box<dyn Prober>, RecordError>;

    /// Follows a process from now on: its children are reported. It is recorded by the programs of its engines.
    fn add_target(&mut self, pid: u32);

    /// Records that a followed process has this engine: from now on its hits count.
    fn admit(&mut self, pid: u32, engine: u16);

    /// Stops recording a process.
    fn drop_target(&mut self, pid: u32);

    /// A recorded process may have threads that were started before this could be seen.
    fn meet(&mut self, _pid: u32) {}

    /// Status of [`CaptureOptions::sched`]; None if it was not requested.
    fn scheduler(&self) -> Option<FeatureStatus> {
        None
    }

    /// Whether watching the scheduler can be stopped and resumed while recording.
    fn can_unwatch(&self) -> bool {
        false
    }

    /// Resumes watching the scheduler, with the threads of these processes. In effect when it returns.
    ///
    /// # Errors
    /// Why this is not possible; the scheduler is then not watched.
    fn watch(&mut self, _pids: &[u32]) -> Result<(), Arc<SchedError>> {
        Ok(())
    }

    /// Stops watching the scheduler, or does not start if it was not watched yet. Returns what must be removed,
    /// which takes a while; call [`Source::unwatched`] afterwards.
    fn unwatch(&mut self) -> Vec<Guard> {
        Vec::new()
    }

    /// What [`Source::unwatch`] returned has been dropped: reports what is known about threads that were off-CPU.
    fn unwatched(&mut self) {}

    /// Time spent in programs that belong to no engine, ns, and their run count; see [`Prober::run_stats`].
    fn run_stats(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Ops are recorded from now on, in graphs that may have been seen before: their structure must be sent again.
    fn ops_begin(&mut self) {}

    /// Waits up to `timeout` and passes on what has arrived. Returns early if a lot has arrived, or on a signal.
    fn poll(&mut self, timeout: Duration);

    /// Stops following processes.
    fn leave_processes(&mut self);

    /// Passes on everything that is left, after the probes are removed.
    fn finish(&mut self);

    /// Events lost so far, as far as known.
    fn lost(&self) -> u64;

    /// The event statistics. Complete only after the probes are removed.
    fn event_stats(&self) -> EventStats;

    /// Messages for the user since the last call.
    fn news(&mut self) -> Vec<String>;
}

/// A probe placed in a file. Removed when dropped.
pub trait Probe: Send {
    /// Adds it to the memory of a process. No error if the process has ended. Err says what is missing.
    fn enter(&mut self, _pid: u32) -> Result<(), ProbeError> {
        Ok(())
    }

    /// Removes it from that process. Dropping the returned guard takes a while.
    fn leave(&mut self, _pid: u32) -> Option<Guard> {
        None
    }

    /// Removes it from all processes, likewise.
    fn leave_all(&mut self) -> Vec<Guard>;
}

/// Places probes of one engine.
pub trait Prober {
    /// Places a probe at an offset of a file. Err says what is missing.
    fn place(&self, prog: Prog, file: &Path, offset: u64) -> Result<Box<dyn Probe>, ProbeError>;

    /// This probe may be placed later: a source that changes code only before it runs prepares it now.
    fn reserve(&self, _prog: Prog, _file: &Path, _offset: u64) {}

    /// Whether this source can record what a role shows.
    fn takes(&self, _role: Role) -> bool {
        true
    }

    /// Whether the kernel removes a breakpoint that a forked child inherits at its first hit there, unless the child
    /// is probed itself. Its absence shows that the child has run this code.
    fn clears_inherited(&self) -> bool {
        true
    }

    /// Places breakpoints that no program runs at, but whose inherited copies are removed.
    fn place_markers(&self, _sites: &[(PathBuf, u64)]) -> Result<Vec<Box<dyn Probe>>, ProbeError> {
        Ok(Vec::new())
    }

    /// Places a probe that does nothing, to measure the kernel's own cost. None: there is no such probe.
    fn place_empty(&self, _file: &Path, _offset: u64) -> Option<Result<Box<dyn Probe>, ProbeError>> {
        None
    }

    /// Whether a placed probe can enter another process with no more than the right to inspect that process.
    fn enters_freely(&self) -> bool {
        true
    }

    /// Time spent in our programs so far, ns, and their run count; zeros while accounting is off.
    fn run_stats(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Status of a requested feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureStatus {
    pub state: Availability,
    /// What provides it, or what is missing.
    pub why: String,
}

/// Counts of one kind of event.
#[derive(Debug, Clone, Default)]
pub struct Count {
    pub seen: u64,
    pub lost: u64,
}

/// What the source has seen, and how much of it was lost.
#[derive(Debug, Clone, Default)]
pub struct EventStats {
    pub kinds: [Count; KINDS],
    /// By `enum ev_counter`.
    pub counters: [u64; COUNTERS],
    /// Hits of barriers, which do not produce events.
    pub barriers: Count,
    pub lost_cpu: Vec<u64>,
}

impl EventStats {
    pub fn lost(&self) -> u64 {
        self.kinds.iter().chain([&self.barriers]).map(|k| k.lost).sum()
    }

    pub fn seen(&self) -> u64 {
        self.kinds.iter().map(|k| k.seen).sum()
    }
}
