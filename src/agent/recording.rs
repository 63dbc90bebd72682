//! What is asked of a recording, and what comes of it. Uses `attached`, `btf`, `discover`, `drain`, `kin`, `machine`, `qos`,
//! `refusal`, `sensors`, `target`, `user`, `verify` and `trace`.

use std::ffi::OsString;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::attached::Site;
use super::btf::Btf;
use super::discover::DiscoverError;
use super::drain::Totals;
use super::kin::Kin;
use super::machine::AgentCpu;
use super::pmc;
use super::qos::Prices;
use super::qos::law::{Rule, Step};
use super::refusal::{self, Act};
use super::search::Launch;
use super::sensors;
use super::source::Wish;
pub use super::target::Streams;
use super::user::User;
use super::verify::OpEnd;
use crate::trace::record::Level;
use crate::trace::{Output, WriteError};

/// What is recorded.
#[derive(Debug, Clone)]
pub enum Target {
    Pids(Vec<u32>),
    Command(Vec<OsString>),
    /// Whoever runs or maps this file, or a file of this directory.
    Exe(Launch),
    /// Processes that come and go as [`Watch::order`] says, until that says stop.
    Fed,
}

/// What a recording of [`Target::Fed`] is told to do.
pub enum Order {
    /// Record a process, found to have an engine, as a part of the run whose first process is the second one: itself, or one
    /// that it came from by fork.
    Follow(u32, u32),
    /// Record no process of this run any more.
    Unfollow(u32),
    /// End the trace, for this reason, and go on in another.
    Turn(Box<dyn Output>, &'static str),
    /// Write what the ring holds.
    Dump(Box<dyn Output>),
}

/// How it is recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub level: Level,
    pub structure: bool,
    /// Which experts each layer chose; wants level op and structure.
    pub experts: bool,
    /// Calls that are a phase of their own.
    pub phases: bool,
    pub pbuf: bool,
    pub source: Wish,
    pub buffer_bytes: u64,
    pub agent_cpu: AgentCpu,
    pub op_end: OpEnd,
    pub site: Site,
    /// The running kernel's types, where it does not show them itself.
    pub btf: Option<Btf>,
    /// What the recording may cost; None: it stays at its level.
    pub budget: Option<Rule>,
    /// None: the machine's sensors are not read.
    pub sensors: Option<sensors::Options>,
    /// Tell when threads are off the CPU, and why.
    pub sched: bool,
    pub duration: Option<Duration>,
    pub counters: pmc::Options,
    /// Ends after this many decoded tokens.
    pub tokens: Option<u64>,
    /// What was learnt before of this machine; None: it is learnt now.
    pub learnt: Option<Learnt>,
    /// What the command reads and writes.
    pub streams: Streams,
    /// The user that the command runs as; None: the recorder's own.
    pub user: Option<User>,
    /// What is older than this is brought to an output that can be written over, if not sooner.
    pub flush: Duration,
    /// Keep in memory what was recorded in the last so long, at most so many bytes, and write that when told to.
    pub ring: Option<(Duration, u64)>,
    pub tool: String,
    /// Without its secrets.
    pub command_line: String,
    /// Command lines of processes are recorded, without their secrets; else the programs only.
    pub cmdline: bool,
}

/// What a recording learns of the machine before it begins.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Learnt {
    /// What an op's hit costs where it is cheapest, ns; 0 = not known.
    pub hit_ns: u32,
    /// What a budget goes by; None where there is no budget, or hits cannot be priced.
    pub prices: Option<Prices>,
    /// Why the scheduler can be no level under a budget, though it was asked for.
    pub unfit: Option<String>,
}

/// What to do about a command that was looked for along PATH, in vain.
fn elsewhere(command: &str, source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound if !command.contains('/') => {
            "; no directory of PATH has it, and under sudo PATH is another one: give its whole path"
        }
        _ => "",
    }
}

/// Why the recording could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error("process {0} does not exist: give the id of a running process")]
    NoProcess(u32),
    #[error("process {0} ended before its recording began")]
    Ended(u32),
    #[error("cannot start {command}: {source}{}", elsewhere(.command, .source))]
    Command { command: String, source: std::io::Error },
    #[error("processes that run the program cannot be found: {0}; give them by -p PID")]
    Arrivals(String),
    #[error("the BPF programs do not load: {}; profinfer doctor tells more", refusal::explain(Act::Load, .0))]
    Load(libbpf_rs::Error),
    #[error("its engine is none of those that the recording is attached to, and it attaches to no more")]
    Beyond,
    #[error("no probe could be attached: {0}; profinfer doctor tells more")]
    Attach(String),
    #[error("cannot run on CPU {cpu}: {source}; give another with --agent-cpu")]
    AgentCpu { cpu: String, source: std::io::Error },
    #[error("the kernel's event buffer: {}; try a smaller --buffer-size", refusal::explain(Act::Map, .0))]
    Buffer(libbpf_rs::Error),
    #[error("counters: {0}")]
    Counters(String),
    #[error("probe events: {0}; profinfer doctor tells more")]
    Events(String),
    #[error("the kernel's event buffers: {0}; try a smaller --buffer-size")]
    Ring(String),
    #[error("the ring cannot be written out: {source}; it stays as it is")]
    Dump { source: std::io::Error },
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// How it ended.
#[derive(Debug, Clone)]
pub struct Summary {
    pub end: String,
    pub totals: Totals,
    pub lost: u64,
    pub seen: u64,
    pub bytes: u64,
    /// Op hits.
    pub ops: u64,
    /// Whether the engine was seen at work: a call, graph, op or phase of it, or a thread off its CPU.
    pub worked: bool,
    pub engines: usize,
    /// Exit code of the recorded command.
    pub status: Option<i32>,
    /// Why nothing was found, when nothing was.
    pub missing: Option<String>,
}

/// Tells which processes begin to run what is recorded.
pub trait Arrivals {
    /// Those since the last call, by number. Waits for them, at most so long.
    fn wait(&mut self, most: Duration) -> Vec<u32>;
    /// Processes that have begun another program since the last call.
    fn changed(&mut self) -> Vec<u32> {
        Vec::new()
    }
    /// Whether a process runs or maps just now what is looked for.
    fn runs(&self, _pid: u32) -> bool {
        true
    }
}

/// What the session tells while it runs.
pub trait Watch {
    /// Asked to stop: 1 = end and flush.
    fn stop(&self) -> bool;
    /// A line for the user.
    fn tell(&mut self, text: &str);
    /// How it stands; many times a second.
    fn progress(&mut self, now: &Progress);
    /// Who tells of processes that run this program or library, for [`Target::Exe`].
    ///
    /// # Errors
    /// They cannot be looked for.
    fn arrivals(&mut self, _program: &Path) -> Result<Box<dyn Arrivals>, RecordError> {
        Err(RecordError::Arrivals("nobody looks for them".into()))
    }
    /// What is to be done next, for [`Target::Fed`]; asked until there is nothing.
    fn order(&mut self, _now: &Progress, _kin: &Kin) -> Option<Order> {
        None
    }
    /// All that is recorded is probed, for good; counters may still have to be opened. True: nothing is attached from now on.
    fn attached(&mut self, _counting: bool) -> bool {
        false
    }
    /// A run, by its first process, is recorded no more with all its processes, since something would have to be attached.
    fn declined(&mut self, _run: u32, _processes: Vec<u32>) {}
    /// An order was carried out, or why it could not be.
    fn done(&mut self, _done: Result<(), String>) {}
    /// The command that was started goes on, though its recording has ended.
    fn left(&mut self, _command: Child) {}
    /// The recording ends for this. Its probes have yet to go, which takes time.
    fn failed(&mut self, _why: &RecordError) {}
}

/// How a recording stands.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub totals: Totals,
    /// Events lost so far.
    pub lost: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// Engines that are probed.
    pub engines: usize,
    /// Processes followed.
    pub targets: usize,
    /// The call that has been under way for longest: since when, CLOCK_MONOTONIC ns, and the width of its ubatch, 0 = not
    /// known (yet).
    pub call: Option<(u64, u32)>,
    pub level: Step,
    /// What that level costs of a token's time, where a budget has it measured.
    pub cost: Option<f64>,
}
