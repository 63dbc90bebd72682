//! The engines that run on this machine.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::Schema;
use agent::capture::inside::is_recorded_inside;
use inspector::finder::{Finder, RunningEngines};
use machine::target::describe;
use render::json;
use render::table::clean;

/// Longest scan. It takes tens of milliseconds, unless a file does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The output of `--list --json`.
#[derive(Serialize)]
struct EngineList {
    schema: Schema,
    /// Ordered by pid.
    engines: Vec<ListedEngine>,
    /// Why there may be more; empty: there are no others.
    missing: Vec<String>,
}

/// A process with an engine in memory.
#[derive(Serialize)]
struct ListedEngine {
    pid: u32,
    /// Effective user.
    uid: u32,
    /// Empty: it cannot be read.
    exe: String,
    /// The command line, without what looks like a secret.
    cmdline: String,
    /// The file with GGML's base code.
    path: String,
    /// In the hierarchy v2; null: the machine has none.
    cgroup: Option<String>,
}

fn running() -> Result<RunningEngines> {
    Finder::once(PATIENCE).context("cannot look for engines")
}

/// `--list`.
pub fn list(as_json: bool) -> Result<ExitCode> {
    let RunningEngines { found, missing } = running()?;
    let engines = found.into_iter().map(|f| ListedEngine {
        pid: f.pid,
        uid: f.uid,
        exe: f.exe.display().to_string(),
        cmdline: describe(f.pid).1,
        path: f.path.display().to_string(),
        cgroup: f.cgroup,
    });
    let all = EngineList { schema: Schema::new("profinfer.engines"), engines: engines.collect(), missing };
    let mut out = io::stdout().lock();
    if as_json {
        json::write(&mut out, &all)?;
    } else {
        for e in &all.engines {
            let what = if e.cmdline.is_empty() { &e.exe } else { &e.cmdline };
            writeln!(out, "{:>8}  {}", e.pid, clean(what))?;
        }
        if all.engines.is_empty() {
            writeln!(out, "no engine runs here")?;
        }
        for why in &all.missing {
            writeln!(out, "missing: {}", clean(why))?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The processes to record where no target is given.
///
/// # Errors
/// No engine runs.
pub fn pids() -> Result<Vec<u32>> {
    let RunningEngines { found, missing } = running()?;
    // The kernel's probes would harm those that are recorded from inside. A recording follows only the children that are born
    // during it: others are named, too.
    let (inside, pids): (Vec<u32>, Vec<u32>) =
        found.iter().map(|f| f.pid).partition(|&pid| is_recorded_inside(pid));
    if pids.is_empty() {
        let beside = inside.iter().map(|pid| format!("; process {pid} is recorded from inside already"));
        let missing: String = missing.iter().map(|why| format!("; {why}")).chain(beside).collect();
        bail!("no engine runs here{missing}: start one, or give a command after '--'");
    }
    Ok(pids)
}
