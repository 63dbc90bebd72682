//! Reading a trace for a subcommand: from a file or a pipe, with a bar where it takes long. Uses `trace` and `analysis`.

use std::fs;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::args::Usage;
use crate::analysis::load::Progress;
use crate::trace::{ReadError, Trace};

/// Opens a trace; `-` is standard input. `what` is not done where that fails: `report on`.
pub fn open(file: &Path, what: &str) -> anyhow::Result<Trace> {
    if file.as_os_str() != "-" {
        return told(Trace::open(file)).with_context(|| format!("cannot {what} {}", file.display()));
    }
    told(Trace::from_reader(&mut std::io::stdin().lock()))
        .with_context(|| format!("cannot {what} standard input"))
}

/// Refuses to write over what is to be read: a recording is not had twice.
pub fn not_over(out: &Path, input: &Path) -> Result<(), Usage> {
    let id = |path: &Path| fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| (m.dev(), m.ino()));
    match id(out) {
        Some(out_id) if Some(out_id) == id(input) => {
            Err(Usage::new(format!("{} is to be read, it can't be written to", out.display())))
        }
        _ => Ok(()),
    }
}

/// Adds what to do next where the error alone does not say it.
fn told(opened: Result<Trace, ReadError>) -> anyhow::Result<Trace> {
    opened.map_err(|e| match e {
        ReadError::NotATrace(_) | ReadError::Empty => {
            anyhow::anyhow!("{e}; `profinfer record` writes traces")
        }
        other => other.into(),
    })
}

/// Work that takes longer than this gets a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs `work`; where it takes long and someone watches, a bar on standard error shows how far it is.
pub fn with_bar<T>(progress: &Progress, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Without a thread it goes without a bar.
        let watcher = std::thread::Builder::new().spawn_scoped(scope, || watch(progress, &done)).ok();
        let result = work();
        done.store(true, Ordering::Relaxed);
        watcher.inspect(|watcher| watcher.thread().unpark());
        result
    })
}

fn watch(progress: &Progress, done: &AtomicBool) {
    let start = Instant::now();
    let mut shown = false;
    while !done.load(Ordering::Relaxed) {
        if start.elapsed() >= PATIENCE {
            shown = true;
            let total = progress.total.load(Ordering::Relaxed).max(1);
            bar(progress.done.load(Ordering::Relaxed).min(total).saturating_mul(100) / total);
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    if shown {
        // Back to the first column, and the line is empty again.
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Draws over the line that the bar stood on; a terminal that is gone is no matter.
fn bar(percent: u64) {
    let _ = write!(std::io::stderr(), "\rreading [{:<50}] {percent:>3} %", "=".repeat(percent as usize / 2));
}
