//! `profinfer doctor --peaks`: measures what this machine reaches, and keeps it for recordings.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;

use cli::args::{Args, Usage};
use cli::progress::left;
use common::cpus;
use common::machine_peaks::MachinePeak;
use machine::peaks::{self, MachineIdentity};
use runner::peak::{self, Effort, MachinePeaks};
use runner::peaks_table::table;
use service::replace::replace;

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
        false => out.write_all(table(&machine).as_bytes())?,
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
    if let Some(why) = lower(machine, &peaks::find(&mut |_| {})) {
        anyhow::bail!("{why}; measure again when nothing else runs, or remove {} first", path.display());
    }
    let bytes = serde_json::to_vec(all).context("cannot write the peaks as JSON")?;
    write(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("kept in {}: recordings on this machine now contain these peaks", path.display()))
}

/// A kept peak that is this many times the new one was not measured beside other work.
const HIGHER: f64 = 1.1;

/// Why the kept peaks are better than the new ones; `None`: they are not.
fn lower(new: &MachinePeaks, kept: &[MachinePeak]) -> Option<String> {
    kept.iter().find_map(|old| {
        let cluster = new.clusters.iter().find(|c| c.name == old.cluster)?;
        let now = cluster.peaks.iter().find(|p| p.threads as u64 == u64::from(old.threads))?.read;
        let then = old.read as f64 / 1e3;
        (then > HIGHER * now).then(|| {
            let day = common::calendar::day(old.measured_s);
            format!("those of {day} are higher: {then:.1} GB/s with {} threads, now {now:.1}", old.threads)
        })
    })
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
struct Progress {
    shown: bool,
    begun: Instant,
}

impl Progress {
    fn new() -> Self {
        Self { shown: io::stderr().is_terminal(), begun: Instant::now() }
    }
}

impl peak::Progress for Progress {
    fn begins(&mut self, cluster: &str, threads: usize, (done, all): (usize, usize)) {
        if self.shown {
            let left = left(self.begun.elapsed(), done as u64, all as u64);
            let of = format!("{} of {all}{left}", done + 1);
            // The line is optional.
            let _ =
                write!(io::stderr(), "\r\x1b[Kmeasuring peaks: cores {cluster}, threads {threads} ({of})");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            // Return to the first column and clear the line.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner::peak::{ClusterPeaks, Peaks};

    #[test]
    fn higher_peaks_are_not_replaced() {
        let with = |read| MachinePeaks {
            isa: "avx2".into(),
            clusters: vec![ClusterPeaks {
                name: "all".into(),
                cpus: vec![0, 1],
                peaks: vec![Peaks { threads: 2, read, ..Peaks::default() }],
            }],
        };
        let kept = |cluster: &str, threads| MachinePeak {
            cluster: cluster.into(),
            cpus: "0-1".into(),
            threads,
            measured_s: 1_764_000_000,
            read: 40_000,
            read_small_pages: None,
            triad: None,
            f32: None,
            int8: None,
            isa: "avx2".into(),
        };
        let why = lower(&with(20.0), &[kept("all", 2)]);
        assert_eq!(
            why.as_deref(),
            Some("those of 2025-11-24 are higher: 40.0 GB/s with 2 threads, now 20.0")
        );
        assert_eq!(lower(&with(38.0), &[kept("all", 2)]), None, "scatter");
        assert_eq!(lower(&with(20.0), &[kept("all", 1), kept("slow", 2)]), None, "of other cores or threads");
    }
}
