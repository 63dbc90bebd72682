//! Errors of a recording.

use crate::engine::discover::DiscoverError;
use crate::host::diagnose::{self, Act};
use pfi::WriteError;

/// Advice for a command that was not found in PATH.
fn elsewhere(command: &str, source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound if !command.contains('/') => {
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
    #[error("process {0} does not exist: give the PID of a running process")]
    NoProcess(u32),
    #[error("process {0} ended before its recording began")]
    Ended(u32),
    #[error("cannot start {command}: {source}{}", elsewhere(.command, .source))]
    Command { command: String, source: std::io::Error },
    #[error("cannot find processes that run the program: {0}; name one with -p PID")]
    Arrivals(String),
    #[error("the BPF programs do not load: {}; run 'profinfer doctor' for details", diagnose::explain(Act::Load, .0))]
    Load(libbpf_rs::Error),
    #[error("this recorder has not probed that engine and can no longer attach")]
    Beyond,
    #[error("no probe could be attached: {0}; run 'profinfer doctor' for details")]
    Attach(String),
    #[error("cannot run on CPU {cpu}: {source}; choose another with --agent-cpu")]
    AgentCpu { cpu: String, source: std::io::Error },
    #[error("cannot create the kernel's event buffer: {}; try a smaller --buffer-size", diagnose::explain(Act::Map, .0))]
    Buffer(libbpf_rs::Error),
    #[error("counters: {0}")]
    Counters(String),
    #[error("probe events: {0}; run 'profinfer doctor' for details")]
    Events(String),
    #[error("cannot create the kernel's event buffers: {0}; try a smaller --buffer-size")]
    Ring(String),
    #[error("cannot write the ring to a file: {source}; the ring is kept")]
    Dump { source: std::io::Error },
    #[error(transparent)]
    Write(#[from] WriteError),
}
