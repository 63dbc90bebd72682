//! Whether a process computes for several requests at a time.

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::load::Loaded;

/// Whether calls of several tokens may be something other than a prompt: those of a server, and those of one of
/// several contexts, which may verify what a draft model proposed.
pub fn batches(loaded: &Loaded<'_>, line: &Timeline, pid: u32) -> bool {
    let mut wide = line.calls.iter().filter(|c| c.pid == pid && c.phase == Phase::Prefill);
    is_server(loaded, pid) || (loaded.one_context && wide.nth(1).is_some())
}

/// Whether a process is a server of several requests, by its program name.
fn is_server(loaded: &Loaded<'_>, pid: u32) -> bool {
    let Some(process) = loaded.processes.iter().find(|p| p.pid == pid) else { return false };
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().contains("server");
    let first = process.cmdline.split(' ').next().unwrap_or_default();
    name(process.exe) || name(first) || process.cmdline.contains("llama_cpp.server")
}
