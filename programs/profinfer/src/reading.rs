//! Reads a trace for a subcommand: from a file or a pipe, with a progress bar if it takes long.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use analysis::recorded::load::LoadProgress;
use cli::args::Usage;
use pfi::{ReadError, Trace};

/// Opens a trace; `-` is standard input. `what` is what cannot be done if this fails: `report on`.
pub fn open(file: &Path, what: &str) -> anyhow::Result<Trace> {
    let named = Some(file).filter(|file| file.as_os_str() != "-");
    let opened = match named {
        Some(file) => Trace::open(file),
        None => Trace::from_reader(&mut std::io::stdin().lock()),
    };
    let whole = opened.map_err(|e| unread(e, named)).and_then(with_a_block);
    whole.with_context(|| match named {
        Some(file) => format!("cannot {what} {}", file.display()),
        None => format!("cannot {what} standard input"),
    })
}

/// A file that is damaged before its first whole block shows nothing.
fn with_a_block(trace: Trace) -> anyhow::Result<Trace> {
    match trace.damage().first().filter(|_| trace.blocks().is_empty()) {
        Some(first) => Err(anyhow::anyhow!("nothing in its {} bytes is readable: {first}", trace.size())),
        None => Ok(trace),
    }
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

/// Traces shown in a message.
const SHOWN: usize = 4;

/// The trace that a subcommand without FILE reads: the newest `*.pfi` here.
///
/// # Errors
/// There is none.
pub fn named_or_newest(given: Option<&OsStr>) -> Result<PathBuf, Usage> {
    if let Some(given) = given.filter(|g| !g.is_empty()) {
        return Ok(given.into());
    }
    let newest = traces_in(Path::new(".")).into_iter().next();
    let file = newest.ok_or_else(|| Usage::new("FILE is required: there is no *.pfi here"))?;
    let _ = writeln!(std::io::stderr(), "profinfer: reading {}, the newest trace here", file.display());
    Ok(file)
}

/// The `*.pfi` of a directory, newest first.
fn traces_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|e| Path::new(&e.file_name()).extension().is_some_and(|x| x == "pfi"))
        .filter_map(|e| Some((e.metadata().ok().filter(|m| m.is_file())?.modified().ok()?, e.file_name())))
        .collect();
    common::order::by(&mut found, |a, b| b.cmp(a));
    found.into_iter().map(|(_, name)| PathBuf::from(name)).collect()
}

/// Adds what to do next where the error alone does not say it.
fn unread(e: ReadError, file: Option<&Path>) -> anyhow::Error {
    let kind = match &e {
        ReadError::NotATrace(_) | ReadError::Empty => {
            return anyhow::anyhow!("{e}; `profinfer record` writes traces");
        }
        ReadError::Io(io) => io.kind(),
        _ => return e.into(),
    };
    let there = |directory: &Path| {
        let names = traces_in(directory);
        let names: Vec<_> = names.iter().take(SHOWN).map(|name| name.display().to_string()).collect();
        if names.is_empty() { String::new() } else { format!("; traces there: {}", names.join(", ")) }
    };
    match (kind, file) {
        (ErrorKind::NotFound, Some(file)) => {
            let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            anyhow::anyhow!("no such file{}", there(parent))
        }
        (ErrorKind::IsADirectory, Some(file)) => {
            anyhow::anyhow!("it is a directory: name a trace in it{}", there(file))
        }
        (ErrorKind::PermissionDenied, Some(file)) => anyhow::anyhow!("{}", forbidden(file)),
        _ => e.into(),
    }
}

/// Whose file it is that this user may not read.
fn forbidden(file: &Path) -> String {
    let whose = match fs::metadata(file) {
        Ok(m) => format!("it belongs to user {} and has mode {:04o}", m.uid(), m.mode() & 0o7777),
        Err(_) => "this user may not access its directory".to_owned(),
    };
    format!("permission denied: {whose}; record with --mode 0644, or read it with sudo")
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
            let done = progress.done.load(Ordering::Relaxed).min(total);
            bar(what, done.saturating_mul(100) / total, &cli::progress::left(start.elapsed(), done, total));
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    if shown {
        // Return to the first column and clear the line.
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Redraws the bar; a closed terminal is no error.
fn bar(what: &str, percent: u64, left: &str) {
    let _ = write!(
        std::io::stderr(),
        "\r{what} [{:<40}] {percent:>3} %{left}\x1b[K",
        "=".repeat(percent as usize * 2 / 5)
    );
}
