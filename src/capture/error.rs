//! Errors of a recording.

use machine::sensors::SensorError;
use std::io;
use std::path::{Path, PathBuf};

use crate::capture::inside::door::DoorError;
use crate::capture::inside::moved::NoRoom;
use crate::capture::inside::refused::Refused;
use engine::discover::DiscoverError;
use machine::diagnose::KernelError;
use machine::kernel::namespaces::ForeignNamespace;
use machine::kernel::tracefs::TracefsError;
use machine::tracing::NoAnswer;
use pfi::WriteError;

/// Advice for a command that was not found in PATH.
fn elsewhere(command: &str, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound if !command.contains('/') => {
            "; not found in PATH (sudo uses a different PATH): give the full path"
        }
        _ => "",
    }
}

/// Why the recording failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    Silent(#[from] NoAnswer),
    #[error(transparent)]
    Elsewhere(#[from] ForeignNamespace),
    #[error("process {0} does not exist: give the PID of a running process")]
    NoProcess(u32),
    #[error("process {0} ended before its recording began")]
    Ended(u32),
    #[error("cannot start {command}: {source}{}", elsewhere(.command, .source))]
    Command { command: String, source: io::Error },
    #[error("cannot find processes that run the program: {}: {source}; name one with -p PID", path.display())]
    Arrivals { path: PathBuf, source: io::Error },
    #[error(
        "cannot find processes that run the program: this recording does not search for processes; name one \
         with -p PID"
    )]
    NoArrivals,
    #[error("the BPF programs do not load: {0}; run 'profinfer doctor' for details")]
    Load(#[source] KernelError),
    #[error("this recorder has not probed that engine and can no longer attach")]
    Beyond,
    #[error("no probe could be attached: {0}; run 'profinfer doctor' for details")]
    Attach(#[source] AttachError),
    #[error("no probe could be attached: drain is still in use; run 'profinfer doctor' for details")]
    DrainInUse,
    #[error("cannot run on CPU {cpu}: {source}; choose another with --agent-cpu")]
    AgentCpu { cpu: String, source: io::Error },
    #[error(
        "cannot run the command on CPUs {0}: they do not exist here, or this process may not use them; see 'taskset -p $$'"
    )]
    CommandCpus(String),
    #[error("cannot create the kernel's event buffer: {0}; try a smaller --buffer-size")]
    Buffer(#[source] KernelError),
    #[error("counters: {0}")]
    Counters(#[from] CountersError),
    #[error("probe events: {0}; run 'profinfer doctor' for details")]
    Events(#[source] ProbeError),
    #[error("cannot create the kernel's event buffers: {0}; try a smaller --buffer-size")]
    Ring(#[source] KernelError),
    #[error("cannot write the ring to a file: {source}; the ring is kept")]
    Dump { source: io::Error },
    #[error("from inside the engine's process: {0}")]
    Inside(#[source] DoorError),
    #[error("from inside the engine's process: {0}")]
    InsideRefused(#[from] Refused),
    #[error(
        "a running process cannot be recorded from inside: start it as 'profinfer record -- COMMAND', or allow BPF"
    )]
    InsideRunning,
    #[error(
        "process {0} is recorded from inside, or was: jumps in its code would send it astray after a probe of the kernel; \
         it is left alone"
    )]
    RecordedInside(u32),
    #[error("sensors: {0}")]
    Sensors(#[from] SensorError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why an engine's probe is missing.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("{symbol}+{offset} in {module}: {source}")]
    Point { symbol: &'static str, offset: u32, module: String, source: ProbeError },
    #[error("marker of forked children: {0}")]
    Marker(#[source] ProbeError),
    #[error(transparent)]
    Process(ProbeError),
}

/// Why a probe cannot be placed in a file or in a process.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    #[error("{}: {source}", file.display())]
    Open { file: PathBuf, source: io::Error },
    /// A descriptor cannot be duplicated or read.
    #[error(transparent)]
    Descriptor(io::Error),
    #[error("the kernel's format of the event lacks a requested field")]
    NoField,
    #[error("the event ID has more than 16 bits")]
    EventId,
    #[error(transparent)]
    NoRoom(NoRoom),
    #[error("another program is there already")]
    Taken,
    #[error(
        "process {0} has the same file and is recorded from inside, or was: jumps in its code would send it astray after a \
         probe of the kernel, and perf events need the probe in all processes"
    )]
    JumpsThere(u32),
    #[error("no such probe")]
    NoProbe,
    #[error("its thread has ended")]
    ThreadEnded,
}

impl ProbeError {
    /// A file that cannot be opened.
    pub fn open(file: &Path) -> impl FnOnce(io::Error) -> ProbeError {
        |source| ProbeError::Open { file: file.to_owned(), source }
    }
}

/// Why the scheduler cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    #[error("tracefs cannot be mounted: {0}")]
    Mount(#[source] io::Error),
    #[error("tracefs does not have the event {event}: {source}")]
    NoEvent { event: &'static str, source: io::Error },
    #[error("tracefs has no scheduler events: {0}")]
    NoEvents(#[source] io::Error),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Why requested counters are not all available.
#[derive(Debug, thiserror::Error)]
pub enum CountersError {
    #[error("{name}: {why}")]
    Lacking { name: String, why: String },
    #[error("{pmu} has slots for {slots} counters at a time, but {requested} were requested")]
    Slots { pmu: String, slots: usize, requested: usize },
}
