//! `profinfer doctor --peaks`: measures what this machine reaches, and keeps it for recordings.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;

use crate::cli::args::{Args, Usage};
use crate::cli::runner::peak::table;
use crate::daemon::replace::replace;
use crate::host::peaks::{self, MachineIdentity};
use common::cpus;
use runner::peak::{self, Effort, MachinePeaks};

/// Measures, prints, and keeps.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.argument("BINARY").is_some() {
        return Err(Usage::new("--peaks measures this machine: BINARY cannot be given").into());
    }
    let machine = peak::machine(&[], Effort::BRIEF, &mut Progress::new())?;
    let identity = MachineIdentity::read();
    let mut all = serde_json::to_value(&machine).context("cannot write the peaks as JSON")?;
    if let Value::Object(all) = &mut all {
        all.insert("machine".into(), identity.json());
        all.insert("measured_s".into(), peaks::now_s().into());
    }
    // Kept first: printing may end early, in a pipe.
    let kept = keep(&machine, &identity, &all);
    let mut out = io::stdout().lock();
    match args.flag("json") {
        true => render::json::write(&mut out, &all)?,
        false => out.write_all(table(&machine)?.as_bytes())?,
    }
    out.flush()?;
    match kept {
        Ok(text) => eprintln!("{text}"),
        Err(why) => eprintln!("profinfer: the peaks are not kept: {why:#}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the file that recordings look for. Returns what to tell.
fn keep(machine: &MachinePeaks, identity: &MachineIdentity, all: &Value) -> anyhow::Result<String> {
    let used = machine.clusters.iter().flat_map(|c| &c.cpus).filter_map(|&cpu| u32::try_from(cpu).ok());
    let mut measured: Vec<u32> = used.collect();
    common::order::by_key(&mut measured, |cpu| ((*cpu).into(), 0));
    measured.dedup();
    let measured = cpus::ranges(measured.into_iter());
    if measured != identity.online {
        let online = &identity.online;
        anyhow::bail!("this process may run on CPUs {measured} only, of {online} that are online");
    }
    let path = peaks::place().context("neither XDG_CACHE_HOME nor HOME is set to a directory")?;
    let bytes = serde_json::to_vec(all).context("cannot write the peaks as JSON")?;
    write(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("kept in {}: recordings on this machine now contain these peaks", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if !dir.is_dir() {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        // Readable by all, whatever the umask.
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    replace(path, 0o644, bytes)
}

/// A line on standard error while measuring; none if that is not a terminal.
struct Progress(bool);

impl Progress {
    fn new() -> Self {
        Self(io::stderr().is_terminal())
    }
}

impl peak::Progress for Progress {
    fn begins(&mut self, cluster: &str, threads: usize, (done, all): (usize, usize)) {
        if self.0 {
            let of = format!("{} of {all}", done + 1);
            // The line is optional.
            let _ =
                write!(io::stderr(), "\r\x1b[Kmeasuring peaks: cores {cluster}, threads {threads} ({of})");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.0 {
            // Return to the first column and clear the line.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
