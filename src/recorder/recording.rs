//! What is asked of a recording, and its result.

use crate::capture::error::RecordError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use crate::capture::pmc;
use crate::capture::source::{BackendChoice, CaptureOptions};
use crate::recorder::computing::ComputingChange;
use crate::recorder::drain::Totals;
use crate::recorder::process_tree::ProcessTree;
use crate::recorder::qos::Prices;
use crate::recorder::qos::policy::{DetailStep, LevelPolicy};
use crate::recorder::requests::Requests;
use crate::recorder::tally::RequestTally;
use crate::recorder::verify::OpEnd;
use engine::enqueue::OpProbe;
use engine::probes::Site;
use engine::search::Launch;
use machine::hardware::AgentCpu;
use machine::kernel::btf::Btf;
use machine::sensors;
pub use machine::target::Streams;
use machine::user::User;
use pfi::Output;
use pfi::record::Level;

/// The processes to record.
#[derive(Debug, Clone)]
pub enum Target {
    Pids(Vec<u32>),
    Command(Vec<OsString>),
    /// Processes that run or map this file, or a file of this directory.
    Exe(Launch),
    /// Processes come and go as [`SessionObserver::order`] says, until it says stop. With a command, that is started: what it
    /// starts is part of its run, and the recording ends with it.
    Managed(Option<Vec<OsString>>),
}

/// Orders to a recording of [`Target::Managed`].
pub enum SessionCommand {
    /// Record a process, known to have an engine, as part of the run whose first process is the second number:
    /// itself or an ancestor by fork.
    Follow(u32, u32),
    /// Stop recording all processes of this run.
    Unfollow(u32),
    /// End the trace, for this reason, and continue in another.
    Rotate(Box<dyn Output>, &'static str),
    /// Write out the ring.
    Dump(Box<dyn Output>),
    /// Write this text into the trace, as of this time, CLOCK_MONOTONIC ns.
    Note(u64, String),
    /// The calibration of this machine, for [`RecordOptions::calibrated_later`].
    Calibrated(Box<Calibration>),
}

/// How to record.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordOptions {
    pub level: Level,
    /// What is captured and how. Tensors (`structure`) and experts need level op.
    pub capture: CaptureOptions,
    /// Record calls that are phases.
    pub phases: bool,
    /// Layers that a started command loads (`engine::layer`).
    pub layers: Vec<PathBuf>,
    /// The scheduler was asked for: off-CPU threads alone are worth a recording, and perf events record it, too.
    pub sched_requested: bool,
    pub source: BackendChoice,
    pub agent_cpu: AgentCpu,
    pub op_end: OpEnd,
    pub site: Site,
    /// A function that enqueues one node, of a backend that is not known here.
    pub op_probe: Option<OpProbe>,
    /// The running kernel's types, if the kernel does not provide them itself.
    pub btf: Option<Btf>,
    /// Limit on the recording's cost; None: it stays at its level.
    pub budget: Option<LevelPolicy>,
    /// None: the machine's sensors are not read.
    pub sensors: Option<sensors::SensorOptions>,
    pub duration: Option<Duration>,
    pub counters: pmc::CounterOptions,
    /// End after this many decoded tokens.
    pub tokens: Option<u64>,
    /// Stored calibration of this machine; None: calibrate now.
    pub calibration: Option<Calibration>,
    /// It comes later, by [`SessionCommand::Calibrated`]: until then, a budget leaves the calls alone.
    pub calibrated_later: bool,
    /// The command's standard streams.
    pub streams: Streams,
    /// The user to run the command as; None: the recorder's own.
    pub user: Option<User>,
    /// The CPUs to run the command on; None: those of the recorder when it was started.
    pub cpus: Option<Vec<u32>>,
    /// Maximum age of data that is not yet in an output that can be overwritten.
    pub flush: Duration,
    /// Keep the last part of the recording in memory, up to this time and this many bytes, and write it when
    /// ordered to.
    pub ring: Option<(Duration, u64)>,
    pub tool: String,
    /// With secrets removed.
    pub command_line: String,
    /// Record command lines of processes, with secrets removed; otherwise only the programs.
    pub cmdline: bool,
}

/// Facts about the machine that are measured before a recording begins.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Calibration {
    /// Cost of an op hit where it is cheapest, ns; 0 = unknown.
    pub hit_ns: u32,
    /// Basis of a budget; None if there is no budget, or hits cannot be priced.
    pub prices: Option<Prices>,
    /// Why the scheduler cannot be a level under a budget, though it was requested.
    pub unfit: Option<String>,
}

/// How a recording ended.
#[derive(Debug, Clone)]
pub struct Summary {
    pub end: String,
    pub totals: Totals,
    pub lost: u64,
    pub seen: u64,
    pub bytes: u64,
    /// Op hits.
    pub ops: u64,
    /// Whether the engine was seen at work: any call, graph, op or phase of it, or an off-CPU thread if the scheduler was asked for.
    pub worked: bool,
    pub engines: usize,
    /// Exit code of the recorded command.
    pub status: Option<i32>,
    /// Why nothing was found, if so.
    pub missing: Option<String>,
}

/// Reports processes that begin to run what is recorded.
pub trait Arrivals {
    /// The pids since the last call. Waits for them, at most this long.
    fn wait(&mut self, most: Duration) -> Vec<u32>;
    /// Processes that have started another program since the last call.
    fn changed(&mut self) -> Vec<u32> {
        Vec::new()
    }
    /// Whether a process currently runs or maps the wanted file.
    fn runs(&self, _pid: u32) -> bool {
        true
    }
}

/// An engine in a process.
#[derive(Debug, Clone, Copy)]
pub struct ProbedEngine<'a> {
    /// Of its base library, in hexadecimal; empty: it has none.
    pub build_id: &'a str,
    /// The base library, as the process sees it.
    pub file: Option<&'a Path>,
    /// The number of its probes.
    pub probes: usize,
    /// The process was known; it has loaded more of the engine.
    pub again: bool,
}

/// What the session reports while it runs.
pub trait SessionObserver {
    /// Stop request: 1 = end and flush.
    fn stop(&self) -> bool;
    /// A line for the user.
    fn tell(&mut self, text: &str);
    /// Current state; called many times a second.
    fn progress(&mut self, now: &RecordingProgress);
    /// A process has this engine, and is probed; again when it has loaded more of it.
    fn engine(&mut self, _pid: u32, _engine: &ProbedEngine<'_>) {}
    /// A budget has changed the level to this one.
    fn level(&mut self, _to: &str, _why: &str) {}
    /// A process computes something else from now on; called as soon as it is read: see
    /// [`CaptureOptions::phases_at_once`].
    fn computes(&mut self, _change: ComputingChange) {}
    /// The source of processes that run this program or library, for [`Target::Exe`].
    ///
    /// # Errors
    /// Such processes cannot be looked for.
    fn arrivals(&mut self, _program: &Path) -> Result<Box<dyn Arrivals>, RecordError> {
        Err(RecordError::NoArrivals)
    }
    /// The next order, for [`Target::Managed`]; called until there is none.
    fn order(&mut self, _now: &RecordingProgress, _tree: &ProcessTree) -> Option<SessionCommand> {
        None
    }
    /// Whether [`SessionObserver::requests_now`] is wanted.
    fn lists_requests(&self) -> bool {
        false
    }
    /// The requests in progress; called many times a second.
    fn requests_now(&mut self, _requests: &Requests) {}
    /// What was seen of the requests of a run, given by its first process, since the last time; for
    /// [`Target::Managed`].
    fn requests(&mut self, _run: u32, _seen: &RequestTally) {}
    /// Everything that is recorded is probed for good; counters may still have to be opened. True: nothing is
    /// attached from now on.
    fn attached(&mut self, _counting: bool) -> bool {
        false
    }
    /// A run, given by its first process, is not recorded any longer, with all its processes, because something
    /// would have to be attached.
    fn declined(&mut self, _run: u32, _processes: Vec<u32>) {}
    /// An order was carried out, or why it could not be.
    fn done(&mut self, _done: Result<(), RecordError>) {}
    /// The command of [`Target::Managed`] exists, and has not begun; orders are taken before it does.
    fn launching(&mut self, _pid: u32) {}
    /// That command has begun.
    fn launched(&mut self) {}
    /// The started command continues after its recording has ended.
    fn left(&mut self, _command: Child) {}
    /// The recording ends, for this reason. Its probes have yet to be removed, which takes time.
    fn stopping(&mut self, _why: Result<&str, &RecordError>) {}
}

/// State of a recording.
#[derive(Debug, Clone, Copy)]
pub struct RecordingProgress {
    pub totals: Totals,
    /// Events lost so far.
    pub lost: u64,
    /// Size of the trace, bytes.
    pub bytes: u64,
    /// Engines that are probed.
    pub engines: usize,
    /// Followed processes.
    pub targets: usize,
    /// The longest open call: when it began, CLOCK_MONOTONIC ns, and the width of its ubatch, 0 = not known (yet).
    pub call: Option<(u64, u32)>,
    pub level: DetailStep,
    /// All graphs that began on the CPU before this time were seen, CLOCK_MONOTONIC ns. None: not all are seen.
    pub followed: Option<u64>,
    /// The cost of that level as a share of a token's time, if a budget has it measured.
    pub cost: Option<f64>,
}
