//! Where a recording's events come from. Whatever the road, the same events (`event`) come out of it, so that all that
//! stands behind them need not know. Uses `event`, `structure` and `recording`.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::event::{COUNTERS, KINDS};
use super::recording::RecordError;
use super::structure::Reading;
use crate::trace::record::Availability;

/// What a probe observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prog {
    TokenProcess,
    TokenDecode,
    TokenEncode,
    TokenExit,
    SchedEnter,
    SchedExit,
    SplitEnter,
    SplitExit,
    GraphEnter,
    GraphExit,
    Op,
    Fused,
    OpExit,
    Barrier,
    Tokenize,
    Detokenize,
    Sampling,
    Load,
    PhaseExit,
    WaitBackend,
    WaitSched,
    WaitContext,
    WaitRead,
    WaitExit,
}

impl Prog {
    pub const ALL: [Prog; 24] = [
        Prog::TokenProcess,
        Prog::TokenDecode,
        Prog::TokenEncode,
        Prog::TokenExit,
        Prog::SchedEnter,
        Prog::SchedExit,
        Prog::SplitEnter,
        Prog::SplitExit,
        Prog::GraphEnter,
        Prog::GraphExit,
        Prog::Op,
        Prog::Fused,
        Prog::OpExit,
        Prog::Barrier,
        Prog::Tokenize,
        Prog::Detokenize,
        Prog::Sampling,
        Prog::Load,
        Prog::PhaseExit,
        Prog::WaitBackend,
        Prog::WaitSched,
        Prog::WaitContext,
        Prog::WaitRead,
        Prog::WaitExit,
    ];

    /// Return probes run when the function returns.
    pub fn is_return(self) -> bool {
        matches!(
            self,
            Prog::TokenExit
                | Prog::SchedExit
                | Prog::SplitExit
                | Prog::GraphExit
                | Prog::OpExit
                | Prog::PhaseExit
                | Prog::WaitExit
        )
    }
}

/// Where events are to come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// From BPF programs, or, where this kernel has no bpf(), from perf events.
    Auto,
    Bpf,
    Perf,
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

/// Knobs of a recording that are the same for all its engines.
#[derive(Debug, Clone, Copy)]
pub struct Knobs {
    /// One buffer for each CPU instead of the ring buffer.
    pub pbuf: bool,
    /// Kernel-side buffer, bytes (a power of two); each CPU's, where each has one.
    pub buffer: u32,
    pub structure: Structure,
    /// Send the ids of the experts that each layer uses.
    pub experts: bool,
    /// Tell when threads are off the CPU.
    pub sched: bool,
    /// Probe nothing but the calling thread: to measure what a probe costs.
    pub own: bool,
}

impl Knobs {
    /// Bytes waiting in the buffer at which the recorder is woken.
    pub fn wake(&self) -> u32 {
        self.buffer / 4
    }
}

/// Where events go.
pub type Sink = Rc<RefCell<dyn FnMut(&[u8])>>;

/// What is removed when it is dropped.
pub type Guard = Box<dyn Send>;

/// A source of events.
pub trait Source {
    /// Follows the processes recorded and their children, though no engine may be known yet. Done once.
    fn start(&mut self) -> Result<(), RecordError>;

    /// Prepares the probes of one engine; starts as well.
    fn engine(&mut self, reading: &Reading) -> Result<Box<dyn Prober>, RecordError>;

    /// Follows a process from now on: its children are told of. It is recorded by the programs of its engines.
    fn add_target(&mut self, pid: u32);

    /// A process that is followed has this engine: from now on its hits count.
    fn admit(&mut self, pid: u32, engine: u16);

    /// Records a process no more.
    fn drop_target(&mut self, pid: u32);

    /// A recorded process may have threads that were there before they could be seen to begin.
    fn meet(&mut self, _pid: u32) {}

    /// How it stands with [`Knobs::sched`]; None when it was not asked for.
    fn scheduler(&self) -> Option<Standing> {
        None
    }

    /// Whether the scheduler can be left and watched again while recording.
    fn can_unwatch(&self) -> bool {
        false
    }

    /// Watches the scheduler again, with the threads of these processes. Done when it returns.
    ///
    /// # Errors
    /// Why that is not to be had, in words; it is not watched any more then.
    fn watch(&mut self, _pids: &[u32]) -> Result<(), String> {
        Ok(())
    }

    /// Watches the scheduler no more, and not from the start if there was none yet. Gives what is to be removed, which takes
    /// its time; [`Source::unwatched`] is to follow.
    fn unwatch(&mut self) -> Vec<Guard> {
        Vec::new()
    }

    /// What [`Source::unwatch`] gave is gone: what is known of threads that were away is told.
    fn unwatched(&mut self) {}

    /// Time in programs that are no engine's, ns, and their runs; as [`Prober::run_stats`].
    fn run_stats(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Ops are seen from now on, in graphs that may have been met before: their structure is to be sent.
    fn ops_begin(&mut self) {}

    /// Waits up to `timeout` and hands on what has arrived; returns early when much has or when a signal came.
    fn poll(&mut self, timeout: Duration);

    /// Follows no process any more.
    fn leave_processes(&mut self);

    /// Hands on everything that is left, when the probes are gone.
    fn finish(&mut self);

    /// Events lost so far, as far as is known now.
    fn lost(&self) -> u64;

    /// The books. Whole only when the probes are gone.
    fn books(&self) -> Books;

    /// What the user should be told, since last asked.
    fn news(&mut self) -> Vec<String>;
}

/// A probe that was placed in a file. Dropped, it is removed.
pub trait Probe: Send {
    /// Has it in the memory of a process. One that is gone is none. Err says what is missing.
    fn enter(&mut self, _pid: u32) -> Result<(), String> {
        Ok(())
    }

    /// Has it there no more. What is given back takes long to be dropped.
    fn leave(&mut self, _pid: u32) -> Option<Guard> {
        None
    }

    /// Has it in no process any more, likewise.
    fn leave_all(&mut self) -> Vec<Guard>;
}

/// Places probes of one engine.
pub trait Prober {
    /// Places a probe at an offset of a file. Err says what is missing.
    fn place(&self, prog: Prog, file: &Path, offset: u64) -> Result<Box<dyn Probe>, String>;

    /// Places a probe that does nothing there, to tell what the kernel itself takes. None: there is no such probe.
    fn place_empty(&self, _file: &Path, _offset: u64) -> Option<Result<Box<dyn Probe>, String>> {
        None
    }

    /// Whether a probe that is placed can be had in another process with no right but to look at it.
    fn enters_freely(&self) -> bool {
        true
    }

    /// Time in our programs so far, ns, and their runs; zeros where nobody counts them.
    fn run_stats(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// How it stands with something that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub state: Availability,
    /// By what it is had, or what is missing.
    pub why: String,
}

/// One row of the books.
#[derive(Debug, Clone, Default)]
pub struct Count {
    pub seen: u64,
    pub lost: u64,
}

/// What was seen on the source's side, and what of it was lost.
#[derive(Debug, Clone, Default)]
pub struct Books {
    pub kinds: [Count; KINDS],
    /// By `enum ev_counter`.
    pub counters: [u64; COUNTERS],
    /// Hits of barriers, which make no event of their own.
    pub barriers: Count,
    pub lost_cpu: Vec<u64>,
}

impl Books {
    pub fn lost(&self) -> u64 {
        self.kinds.iter().chain([&self.barriers]).map(|k| k.lost).sum()
    }

    pub fn seen(&self) -> u64 {
        self.kinds.iter().map(|k| k.seen).sum()
    }
}
