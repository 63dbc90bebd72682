//! `profinfer export`: a recorded run as a timeline for other programs. Uses `trace`, `analysis` and `views`.

use std::fs::{self, File};
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::args::{Args, Argument, Command, Flag, Group, Usage};
use super::output::{MODE, mode, whole};
use super::reading::{not_over, open, with_bar};
use super::values::{time, whole as number};
use crate::analysis::calls::{Timeline, timeline};
use crate::analysis::lanes::{Lanes, Select, Walked};
use crate::analysis::load::{Loaded, Progress, load};
use crate::analysis::opencl::{Profile, profile};
use crate::analysis::ops::sort_runs;
use crate::analysis::processes::Processes;
use crate::analysis::report::{By, Options, report, try_report};
use crate::analysis::tables::Idents;
use crate::trace::Trace;
use crate::views::table::clean;
use crate::views::timeline::Run;
use crate::views::timeline::chrome::Chrome;
use crate::views::timeline::labels::Labels;
use crate::views::timeline::merge::free_sequence;
use crate::views::timeline::perfetto::Perfetto;
use crate::views::units::count;

pub const COMMAND: Command = Command {
    name: "export",
    about: "Writes a recorded run as a timeline for Perfetto or Chrome",
    text: "\
What ran when: calls of the engine (prefill, decode) over graphs, splits by backend, CPU graphs and ops on the thread that
computes them, ops on the other threads, and after each op the wait at the barrier where it was recorded. Open the file at
ui.perfetto.dev, which keeps it on your machine, or ask trace_processor with SQL.

An op is named by what it computes and the tensor; \"what\" beside it has shapes and types, bytes and FLOPs by the cost
model, the mean rate of its kind in this run, and what bounds it where the report says so. Times are CLOCK_BOOTTIME, as in
Perfetto's own recordings, so that both lie on one timeline.",
    usage: &["--perfetto OUT FILE [OPTIONS]", "--chrome OUT FILE [OPTIONS]"],
    arguments: &[Argument { name: "FILE", help: "Trace to read; '-' is standard input" }],
    behind: None,
    groups: &[FORMATS, PARTS],
    notes: "\
An op takes about 30 bytes in Perfetto's format and 300 in Chrome's. Ops are read where they lie in the trace and written as
they come: memory grows with the number of graphs, not of ops.",
    exits: super::EXITS,
    examples: "\
profinfer export --perfetto run.pftrace run.pfi                     all of it
profinfer export --perfetto run.pftrace --tokens 10..19 run.pfi     ten calls of the engine
profinfer export --perfetto run.pftrace --time 1.5s..2s run.pfi     half a second
profinfer export --perfetto all.pftrace --merge system.pftrace run.pfi
profinfer export --perfetto gpu.pftrace --cl-trace cl_trace.json --cl-profile cl_profiling.csv run.pfi
profinfer export --chrome - run.pfi | gzip > run.json.gz            for chrome://tracing",
    run,
};

const FORMATS: Group = Group {
    title: "Formats (one at least), and what to add",
    flags: &[
        Flag::value("perfetto", "OUT", "Perfetto's protobuf; '-' is standard output"),
        Flag::value("chrome", "OUT", "Chrome's trace events in JSON, for tools that read nothing else"),
        Flag::value(
            "merge",
            "OTHER",
            "Put this Perfetto trace of the same machine and time, as of its scheduler, into the file too",
        )
        .needs(&["perfetto"]),
        Flag::value(
            "cl-trace",
            "JSON",
            "Draw the kernels of llama.cpp's cl_trace.json, which a backend built with GGML_OPENCL_PROFILING writes",
        ),
        Flag::value("cl-profile", "CSV", "Tensors and sizes of these kernels, from its cl_profiling.csv")
            .needs(&["cl-trace"]),
    ],
};

const PARTS: Group = Group {
    title: "Options",
    flags: &[
        Flag::value(
            "tokens",
            "A..B",
            "Only what begins within calls A to B of the engine; also A, A.. or ..B",
        )
        .excludes(&["time"]),
        Flag::value(
            "time",
            "A..B",
            "Only what begins from A to B after the first call, as in 500ms..2s; also A.. or ..B",
        ),
        Flag::value("pid", "PID", "Only this process [default: all that were recorded]"),
        MODE,
    ],
};

/// Both ends of a range, each of which may be left out.
pub(super) type Ends<T> = (Option<T>, Option<T>);

/// `A..B`, `A..` or `..B`.
fn ends<T: PartialOrd>(text: &str, one: impl Fn(&str) -> Result<T, String>) -> Result<Ends<T>, String> {
    let Some((a, b)) = text.split_once("..").filter(|(a, b)| !(a.is_empty() && b.is_empty())) else {
        return Err("wanted: A..B, A.. or ..B".into());
    };
    let end = |text: &str| if text.is_empty() { Ok(None) } else { one(text).map(Some) };
    let ends = (end(a)?, end(b)?);
    match &ends {
        (Some(a), Some(b)) if a > b => Err("it ends before it begins".into()),
        _ => Ok(ends),
    }
}

/// Calls by number: `A..B`, one end of it, or one call.
pub(super) fn tokens(text: &str) -> Result<Ends<u64>, String> {
    let one = number(0, u64::MAX);
    match one(text) {
        Ok(only) => Ok((Some(only), Some(only))),
        Err(_) => ends(text, one),
    }
}

/// Times in ns.
fn times(text: &str) -> Result<Ends<i64>, String> {
    ends(text, |text| match text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) {
        "0" => Ok(0),
        _ => time(text).map(|d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)),
    })
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = PathBuf::from(args.needed_argument("FILE")?);
    let (perfetto, chrome) = (args.path("perfetto")?, args.path("chrome")?);
    if perfetto.is_none() && chrome.is_none() {
        return Err(Usage::new("--perfetto OUT or --chrome OUT is needed").into());
    }
    if perfetto == chrome {
        return Err(Usage::new("--perfetto and --chrome need a file each").into());
    }
    let merge = args.path("merge")?;
    let beside = [args.path("cl-trace")?, args.path("cl-profile")?];
    let inputs = [Some(&file), merge.as_ref(), beside[0].as_ref(), beside[1].as_ref()];
    for out in [&perfetto, &chrome].into_iter().flatten() {
        inputs.into_iter().flatten().try_for_each(|input| not_over(out, input))?;
    }
    let cut = Cut {
        tokens: args.option("tokens", tokens)?,
        time: args.option("time", times)?,
        pid: args.option("pid", number(1, u32::MAX.into()))?,
    };
    let trace = open(&file, "export")?;
    let other = merge.as_deref().map(Other::open).transpose()?;
    let cl = Device { json: read_text(args, "cl-trace")?, csv: read_text(args, "cl-profile")? };
    let out =
        Out { perfetto: perfetto.as_deref(), chrome: chrome.as_deref(), mode: args.needed("mode", mode)? };
    export(&trace, &cut, &cl, &out, other.as_ref())
        .with_context(|| format!("cannot export {}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The files to be written, and their permissions.
struct Out<'a> {
    perfetto: Option<&'a Path>,
    chrome: Option<&'a Path>,
    mode: u32,
}

/// What is wanted of the run.
struct Cut {
    tokens: Option<Ends<u64>>,
    time: Option<Ends<i64>>,
    pid: Option<u32>,
}

impl Cut {
    fn select(&self, loaded: &Loaded<'_>, line: &Timeline) -> anyhow::Result<Select> {
        let mut select = Select { pid: self.pid, ..Select::default() };
        if let Some(pid) = self.pid {
            Processes::of(loaded).wanted(pid)?;
        }
        if let Some((a, b)) = self.tokens {
            let wanted = |seq: u64| a.is_none_or(|a| a <= seq) && b.is_none_or(|b| seq <= b);
            let of_pid = || line.calls.iter().filter(|c| self.pid.is_none_or(|pid| pid == c.pid));
            let calls = || of_pid().filter(|c| wanted(c.seq));
            let (Some(from), Some(to)) = (calls().map(|c| c.start).min(), calls().map(|c| c.end()).max())
            else {
                match (of_pid().map(|c| c.seq).min(), of_pid().map(|c| c.seq).max()) {
                    (Some(first), Some(last)) => {
                        bail!("no such call of the engine: there are {first} to {last}")
                    }
                    _ => bail!("no call of the engine was recorded; --time chooses by time"),
                }
            };
            (select.from, select.to) = (from, to);
        }
        if let Some((a, b)) = self.time {
            let Some(first) = line.calls.first() else {
                bail!("no call of the engine was recorded to count time from")
            };
            select.from = a.map_or(i64::MIN, |a| first.start.saturating_add(a));
            select.to = b.map_or(i64::MAX, |b| first.start.saturating_add(b));
        }
        Ok(select)
    }
}

/// What an OpenCL device told of itself: names of the files, and what is in them.
struct Device {
    json: Option<(PathBuf, String)>,
    csv: Option<(PathBuf, String)>,
}

fn read_text(args: &Args, flag: &str) -> anyhow::Result<Option<(PathBuf, String)>> {
    let Some(path) = args.path(flag)? else { return Ok(None) };
    let bytes = fs::read(&path).with_context(|| format!("cannot use {}", path.display()))?;
    Ok(Some((path, String::from_utf8_lossy(&bytes).into_owned())))
}

impl Device {
    fn profile(&self, loaded: &Loaded<'_>) -> anyhow::Result<Option<Profile>> {
        let Some((path, json)) = &self.json else { return Ok(None) };
        let csv = self.csv.as_ref();
        let cannot = || match csv {
            Some((csv, _)) => format!("cannot use {} with {}", path.display(), csv.display()),
            None => format!("cannot use {}", path.display()),
        };
        profile(loaded, json, csv.map(|(_, text)| text.as_str())).map(Some).with_context(cannot)
    }
}

/// Another trace that goes into the file.
struct Other {
    path: PathBuf,
    first_free: u64,
}

impl Other {
    fn open(path: &Path) -> anyhow::Result<Other> {
        let cannot = || format!("cannot merge {}", path.display());
        let file = File::open(path).with_context(cannot)?;
        if !file.metadata().with_context(cannot)?.is_file() {
            return Err(anyhow::anyhow!("it is no regular file")).with_context(cannot);
        }
        let first_free = free_sequence(&mut BufReader::new(file)).with_context(cannot)?;
        Ok(Other { path: path.to_owned(), first_free })
    }
}

fn export(trace: &Trace, cut: &Cut, cl: &Device, out: &Out<'_>, other: Option<&Other>) -> anyhow::Result<()> {
    let progress = Progress::default();
    let pid = cut.pid.map(Into::into);
    let options = Options { tables: vec![By::Name], pid, others: true, ..Options::default() };
    // `select` below reports an unknown process.
    let told = with_bar(&progress, || {
        try_report(trace, &options, &progress).unwrap_or_else(|_| report(trace, &options, &progress))
    });
    let mut loaded = load(trace, &Progress::default());
    let line = timeline(&loaded);
    let select = cut.select(&loaded, &line)?;
    let idents = Idents::new(&loaded);
    let labels = Labels::new(&loaded, &line, &idents, &told);
    drop(told);
    let header = loaded.header.clone();
    if header.is_none() {
        warn("the header is lost: times stay CLOCK_MONOTONIC, and may lie beside those of other traces")?;
    }
    for damage in loaded.damage.iter().take(3) {
        warn(damage)?;
    }
    sort_runs(&mut loaded);
    let lanes = Lanes::new(&loaded, select);
    if lanes.list.is_empty() {
        bail!(NOTHING);
    }
    let device = cl.profile(&loaded)?;
    let mut run = Run::new(&loaded, &line, &lanes, &idents, &labels);
    run.opencl = device.as_ref();
    let mut cut_slices = 0;
    if let Some(path) = out.perfetto {
        let done = to_file(path, true, out.mode, &mut |out| {
            let mut perfetto =
                Perfetto::new(out, &labels, header.as_ref(), other.map_or(1, |o| o.first_free));
            let done = run.draw(&mut perfetto)?;
            match (other, header.as_ref()) {
                // Ours come first: the other's readings of clocks then go on from ours.
                (Some(other), _) => drop(io::copy(&mut File::open(&other.path)?, out)?),
                (None, Some(header)) => perfetto.same_instant(header)?,
                (None, None) => {}
            }
            Ok(done)
        })?;
        cut_slices = done.cut;
    }
    if let Some(path) = out.chrome {
        cut_slices = to_file(path, false, out.mode, &mut |out| {
            run.draw(&mut Chrome::new(out, &labels, header.as_ref()))
        })?
        .cut;
    }
    if cut_slices > 0 {
        warn(&format!(
            "{} did not nest and were cut: their length is not the recorded one",
            count(cut_slices, "slice")
        ))?;
    }
    Ok(())
}

/// An empty picture would look like a run without work.
const NOTHING: &str = "no call, graph or op of the engine begins in what was asked for";

fn warn(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "profinfer: {}", clean(text))
}

/// Writes a file through `write`, or standard output.
fn to_file(
    path: &Path,
    binary: bool,
    mode: u32,
    write: &mut dyn FnMut(&mut dyn Write) -> io::Result<Walked>,
) -> anyhow::Result<Walked> {
    if path.as_os_str() == "-" {
        let stdout = io::stdout();
        if binary && stdout.is_terminal() {
            bail!("Perfetto's format is binary, nothing for a terminal: give a file, or a pipe");
        }
        return Ok(write(&mut stdout.lock())?);
    }
    let done = whole(path, mode, |done: &Walked| done.slices > 0, |out| write(out))?;
    if done.slices == 0 {
        bail!(NOTHING);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_people_write_them() {
        assert_eq!(tokens("3..7"), Ok((Some(3), Some(7))));
        assert_eq!((tokens("3.."), tokens("..7")), (Ok((Some(3), None)), Ok((None, Some(7)))));
        assert_eq!(tokens("5"), Ok((Some(5), Some(5))));
        for wrong in ["", "..", "7..3", "a..b", "-1..2", "1...2", "1,2"] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
        assert_eq!(times("500ms..2s"), Ok((Some(500_000_000), Some(2_000_000_000))));
        assert_eq!(times("0s..1.5"), Ok((Some(0), Some(1_500_000_000))));
        assert_eq!(times("..50us"), Ok((None, Some(50_000))));
        for wrong in ["", "1s", "2s..1s", "1 parsec.."] {
            assert!(times(wrong).is_err(), "{wrong}");
        }
    }
}
