//! Messages between the service and a recorder.

use serde::{Deserialize, Serialize};

use crate::recorder::figures::RunFigures;
use crate::recorder::trigger::Fired;
use crate::run::Run;
use crate::totals::ModelTally;
use agent::recorder::computing::ComputingChange;
use agent::recorder::recording::Calibration;

/// From the service to a recorder.
#[derive(Debug, Serialize, Deserialize)]
pub enum RecorderCommand {
    /// Record this run.
    Follow(Box<Run>),
    /// Stop recording the run of this process.
    Leave(u32),
    /// Write out the ring.
    Dump,
    /// Somebody watches, or nobody: add up what the runs compute.
    Watched(bool),
    /// Write this text into the trace, as of this time, CLOCK_MONOTONIC ns.
    Note(u64, String),
    /// The calibration of this machine, for a recorder that began before it was known.
    Calibrated(Box<Calibration>),
    /// End cleanly.
    Stop,
}

/// From a recorder to the service.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerEvent {
    /// It has started the command, which is this run.
    Started(Box<Run>),
    /// The command has ended, with this exit code as a shell shows it.
    Exited(i32),
    /// The state of some of its runs.
    Runs(Vec<Run>),
    /// What a run, given by its first process, has computed; before the state of the same time.
    Figures(u32, Box<RunFigures>),
    /// Its calibration of the machine, before its first run.
    Calibration(Calibration),
    /// It is attached, attaches to nothing more, and has dropped the privileges for that.
    Attached,
    /// It would have to attach to more for a run, given by its first process and all processes: the run needs
    /// another recorder.
    Declined(u32, Vec<u32>),
    /// A process has an engine with this build id.
    Engine(u32, String),
    /// A process computes something else from now on.
    Computes(ComputingChange),
    /// What was seen of the requests of a model, since the last message about it.
    Observed(Box<ModelTally>),
    /// The rule's trigger has fired.
    Triggered(Fired),
    /// For the log.
    Message(String),
    /// This recording is complete: nothing more is written to the file.
    File(String),
    /// The ring was written to this file, or why not.
    Dumped(Result<String, DumpError>),
    /// It ends; with a reason, unless it was asked to.
    Ends {
        why: Option<String>,
        /// There is no room; this may change later.
        full: bool,
    },
}

/// Why a ring was not written to a file. What the system refused to the recorder comes as its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum DumpError {
    #[error("its rule has no ring: it is recorded to files")]
    NoRing,
    /// No file could be created.
    #[error("{0}")]
    Create(String),
    /// The file could not be written.
    #[error("{0}")]
    Write(String),
    #[error("its recorder named no file")]
    NoName,
    #[error("its recorder has ended")]
    Ended,
}

impl DumpError {
    /// With the recorder's text changed.
    pub fn map_text(self, change: impl FnOnce(&str) -> String) -> DumpError {
        match self {
            DumpError::Create(text) => DumpError::Create(change(&text)),
            DumpError::Write(text) => DumpError::Write(change(&text)),
            DumpError::NoRing | DumpError::NoName | DumpError::Ended => self,
        }
    }
}
