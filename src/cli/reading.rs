//! Reads a trace for a subcommand: from a file or a pipe, with a progress bar if it takes long.

use std::fs;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::args::Usage;
use analysis::load::LoadProgress;
use pfi::{ReadError, Trace};

/// Opens a trace; `-` is standard input. `what` is what cannot be done if this fails: `report on`.
pub fn open(file: &Path, what: &str) -> anyhow::Result<Trace> {
    if file.as_os_str() != "-" {
        return told(Trace::open(file)).with_context(|| format!("cannot {what} {}", file.display()));
    }
    told(Trace::from_reader(&mut std::io::stdin().lock()))
        .with_context(|| format!("cannot {what} standard input"))
}

/// Refuses to overwrite the input: a recording cannot be repeated.
pub fn not_over(out: &Path, input: &Path) -> Result<(), Usage> {
    let id = |path: &Path| fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| (m.dev(), m.ino()));
    match id(out) {
        Some(out_id) if Some(out_id) == id(input) => {
            Err(Usage::new(format!("{} is the input: it cannot also be the output", out.display())))
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

/// Work that takes longer than this gets a progress bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs `work`; if it takes long and standard error is a terminal, shows a progress bar there.
pub fn with_bar<T>(progress: &LoadProgress, work: impl FnOnce() -> T) -> T {
    with_bar_of(progress, "reading", work)
}

/// The same, with another word before the bar.
pub fn with_bar_of<T>(progress: &LoadProgress, what: &str, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // If no thread can be started, there is no bar.
        let watcher = std::thread::Builder::new().spawn_scoped(scope, || watch(progress, what, &done)).ok();
        let result = work();
        done.store(true, Ordering::Relaxed);
        watcher.inspect(|watcher| watcher.thread().unpark());
        result
    })
}

fn watch(progress: &LoadProgress, what: &str, done: &AtomicBool) {
    let start = Instant::now();
    let mut shown = false;
    while !done.load(Ordering::Relaxed) {
        if start.elapsed() >= PATIENCE {
            shown = true;
            let total = progress.total.load(Ordering::Relaxed).max(1);
            bar(what, progress.done.load(Ordering::Relaxed).min(total).saturating_mul(100) / total);
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    if shown {
        // Return to the first column and clear the line.
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Redraws the bar; a closed terminal is no error.
fn bar(what: &str, percent: u64) {
    let _ = write!(std::io::stderr(), "\r{what} [{:<50}] {percent:>3} %", "=".repeat(percent as usize / 2));
}
