//! `profinfer export`: a recorded run in the formats of other programs.

#[cfg(feature = "dataset")]
mod dataset;

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::reading::{not_over, open, with_bar};
use analysis::questions::report::{By, ReportOptions, report, try_report};
use analysis::recorded::calls::{Timeline, timeline};
use analysis::recorded::idents::Idents;
use analysis::recorded::load::{LoadProgress, Loaded, load};
use analysis::recorded::processes::Processes;
use analysis::recorded::runs::Runs;
use analysis::streams::lanes::{Lanes, Select, Walked};
use analysis::streams::stacks::{Stacks, stacks};
use analysis::sums::ops::sort_runs;
use cli::args::{Args, Argument, Choices, Command, Flag, FlagGroup, Usage};
use cli::output::{FORCE, MODE, OutputRules, whole};
use cli::values::{one_of, time, whole as number};
use pfi::Trace;
use render::ops_csv::OpsTable;
use render::stacks::pprof::pprof;
use render::stacks::{folded, speedscope};
use render::table::clean;
use render::timeline::TimelineRun;
use render::timeline::chrome::Chrome;
use render::timeline::labels::Labels;
use render::timeline::merge::free_sequence;
use render::timeline::perfetto::Perfetto;
use render::units::count;
use render::{kernels_csv, samplers_csv};

pub const COMMAND: Command = Command {
    name: "export",
    about: "Write a recorded run as a timeline, flame graph or tables for other programs",
    text: "\
Timelines show what ran when: engine calls (prefill, decode), graphs, splits by backend, CPU graphs and ops on the thread
that computes them, ops on the other threads, and the wait at the barrier after each op if it was recorded. Open the file
at ui.perfetto.dev, which keeps it on your machine, or query it in SQL with trace_processor. An op is named after its
operation and tensor; its arguments are types and dimensions, layer, bytes and FLOPs from the cost model, the number of
its call, the mean rate of similar ops in this run, and its bottleneck if report shows one. Timestamps are CLOCK_BOOTTIME,
as in Perfetto's own recordings, so that both share one timeline.

Flame graphs (--folded, --pprof, --speedscope) show where the time went: model, phase, layer and op. Times are those of
report: ops of thread 0, its barrier waits, and gaps, which together are the time of the graphs.

--csv ops is a table with one row per op and thread, for a data frame or database; --csv kernels has one row per kernel that
a device executed: when the host enqueued it, when it was queued, submitted, started and ended, and the gap before it; --csv
samplers has one row per call of a sampler, with the time that it took itself.

--parquet adds complete runs to a data set: typed tables of runs, calls, ops, tensors, threads, counters, off-CPU times,
sensors, experts and splits, in files DIR/TABLE/date=DATE/host=NAME/RUN.parquet that DuckDB, Spark and others read as one
table each. RUN is made of the trace's contents, so that a run added again takes its own place. No other run's file is
touched, and a run that cannot be written completely is not added. The static builds for boards do without.",
    usage: &[
        "--perfetto OUT FILE [OPTIONS]",
        "--folded OUT FILE [OPTIONS]",
        "--csv ops|kernels|samplers FILE [-o OUT]",
        "--parquet DIR FILE...",
    ],
    arguments: &[Argument {
        name: TRACES,
        help: "Trace to read; '-' is standard input. Only --parquet takes several",
    }],
    behind: None,
    groups: &[FORMATS, WITH, PARTS],
    notes: "\
An op with its wait takes about 100 bytes in Perfetto's format, 500 in Chrome's and 150 in a table; after gzip, which
Perfetto reads, an eighth of that or less. Ops are read from the trace and written as a stream: memory use grows with the
number of graphs, not of ops. docs/TIMELINE.md and docs/EXPORT.md describe the formats, docs/DATASET.md the tables of a data
set, and docs/SQL.md has questions to ask it.",
    exits: cli::args::EXITS,
    examples: "\
profinfer export --perfetto run.pftrace run.pfi                     everything
profinfer export --perfetto run.pftrace --tokens 10..19 run.pfi     ten calls of the engine
profinfer export --perfetto run.pftrace --time 1.5s..2s run.pfi     half a second
profinfer export --perfetto all.pftrace --merge system.pftrace run.pfi
profinfer export --chrome - run.pfi | gzip > run.json.gz            for chrome://tracing
profinfer export --folded - run.pfi | flamegraph.pl > run.svg       a flame graph
profinfer export --pprof run.pb.gz run.pfi && go tool pprof -http=: run.pb.gz
profinfer export --speedscope run.json --tokens 10..19 run.pfi      for speedscope.app
profinfer export --csv ops -o ops.csv run.pfi                       one row per op and thread
profinfer export --csv kernels run.pfi                              one row per kernel of a device
profinfer export --csv samplers run.pfi                             one row per call of a sampler
profinfer export --parquet fleet *.pfi                              all runs, for SQL",
    run,
};

const FORMATS: FlagGroup = FlagGroup {
    title: "Formats (at least one)",
    flags: &[
        Flag::value("perfetto", "OUT", "Write Perfetto's protobuf format; '-' is standard output"),
        Flag::value(
            "chrome",
            "OUT",
            "Write Chrome's trace event JSON, for tools without Perfetto support; '-' is standard output",
        ),
        Flag::value(
            "folded",
            "OUT",
            "Write one line per stack, model;phase;layer;op and its time in ns, for flamegraph.pl and others",
        ),
        Flag::value("pprof", "OUT", "Write the gzip'd profile of `go tool pprof`"),
        Flag::value("speedscope", "OUT", "Write speedscope's JSON"),
        Flag::value(
            "csv",
            "TABLE",
            "Write a table as comma-separated values, to standard output or to -o OUT",
        )
        .choices(Choices::from_fn(|i| TABLES.get(i).map(|(name, what, _)| (*name, *what)))),
        Flag::value("output", "OUT", "File for --csv; '-' is standard output").short('o').needs(&["csv"]),
        PARQUET,
    ],
};

/// Hidden in a build that cannot write it.
const PARQUET: Flag = {
    let flag =
        Flag::value("parquet", "DIR", "Add complete runs to the data set in this directory, or begin one")
            .excludes(&[
                "perfetto",
                "chrome",
                "folded",
                "pprof",
                "speedscope",
                "csv",
                "tokens",
                "time",
                "pid",
                "force",
            ]);
    if cfg!(feature = "dataset") { flag } else { flag.hidden() }
};

/// The traces.
const TRACES: &str = "FILE...";

/// The tables of --csv and their meanings.
const TABLES: [(&str, &str, Format); 3] = [
    ("ops", "one row per op and thread", Format::Ops),
    ("kernels", "one row per kernel that a device executed", Format::Kernels),
    ("samplers", "one row per call of a sampler", Format::Samplers),
];

const WITH: FlagGroup = FlagGroup {
    title: "Other traces in a timeline",
    flags: &[Flag::value(
        "merge",
        "OTHER",
        "Add this Perfetto trace of the same machine and time, e.g. of its scheduler",
    )
    .needs(&["perfetto"])],
};

const PARTS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value(
            "tokens",
            "A..B",
            "Include only what begins within engine calls A to B; also A, A.. or ..B",
        )
        .excludes(&["time"]),
        Flag::value(
            "time",
            "A..B",
            "Include only what begins from A to B after the first call, e.g. 500ms..2s; also A.. or ..B",
        ),
        Flag::value("pid", "PID", "Include only this process [default: all recorded processes]"),
        Flag::switch("all-threads", "Flame graphs: add up the ops of all threads, not only of thread 0")
            .needs(&["folded", "pprof", "speedscope"]),
        FORCE,
        MODE,
    ],
};

/// Both ends of a range, each optional.
pub(super) type Ends<T> = (Option<T>, Option<T>);

/// `A..B`, `A..` or `..B`.
fn ends<T: PartialOrd>(text: &str, one: impl Fn(&str) -> Result<T, String>) -> Result<Ends<T>, String> {
    let Some((a, b)) = text.split_once("..").filter(|(a, b)| !(a.is_empty() && b.is_empty())) else {
        return Err("expected A..B, A.. or ..B".into());
    };
    let end = |text: &str| if text.is_empty() { Ok(None) } else { one(text).map(Some) };
    let ends = (end(a)?, end(b)?);
    match &ends {
        (Some(a), Some(b)) if a > b => Err("the end is before the start".into()),
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

/// What is written, in this order.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Format {
    Perfetto,
    Chrome,
    Folded,
    Pprof,
    Speedscope,
    Ops,
    Kernels,
    Samplers,
}

/// Each format with its flag and what to say about it.
const FLAGS: [(Format, &str, &str); 6] = [
    (Format::Perfetto, "perfetto", " with --perfetto"),
    (Format::Chrome, "chrome", " with --chrome"),
    (Format::Folded, "folded", " with --folded"),
    (Format::Pprof, "pprof", " with --pprof"),
    (Format::Speedscope, "speedscope", " with --speedscope"),
    (Format::Ops, "output", " with -o"),
];

/// A file to write.
struct ExportFile {
    format: Format,
    path: PathBuf,
    rules: OutputRules,
}

/// The requested files.
fn outputs(args: &Args) -> anyhow::Result<Vec<ExportFile>> {
    let rules = OutputRules::read(args)?;
    let mut files: Vec<ExportFile> = Vec::new();
    for (mut format, flag, hint) in FLAGS {
        let mut path = args.path(flag)?;
        let table = (format == Format::Ops)
            .then(|| args.option("csv", one_of(&TABLES.map(|(name, _, f)| (name, f)))));
        if let Some(table) = table.transpose()?.flatten() {
            (format, path) = (table, path.or(Some("-".into())));
        }
        let Some(path) = path else { continue };
        if let Some((_, other, _)) =
            FLAGS.iter().find(|f| files.iter().any(|o| o.format == f.0 && o.path == path))
        {
            return Err(Usage::new(format!("--{other} and --{flag} each require a separate file")).into());
        }
        files.push(ExportFile { format, path, rules: rules.hint(hint) });
    }
    if files.is_empty() {
        return Err(Usage::new(
            "a format is required: --perfetto, --chrome, --folded, --pprof or --speedscope OUT, --csv TABLE or --parquet DIR",
        )
        .into());
    }
    Ok(files)
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(dir) = args.path("parquet")? {
        return add_to_dataset(args, &dir);
    }
    let [file] = args.needed_arguments(TRACES)? else {
        return Err(Usage::new("only --parquet takes several traces").into());
    };
    let file = PathBuf::from(file);
    let out = outputs(args)?;
    let merge = args.path("merge")?;
    let inputs = [Some(&file), merge.as_ref()];
    for ExportFile { path, rules, .. } in &out {
        inputs.into_iter().flatten().try_for_each(|input| not_over(path, input))?;
        rules.check(path)?;
    }
    let cut = CutArgs {
        tokens: args.option("tokens", tokens)?,
        time: args.option("time", times)?,
        pid: args.option("pid", number(1, u32::MAX.into()))?,
        all_threads: args.flag("all-threads"),
    };
    let trace = open(&file, "export")?;
    let other = merge.as_deref().map(Other::open).transpose()?;
    export(&trace, &cut, &out, other.as_ref())
        .with_context(|| format!("cannot export {}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "dataset")]
fn add_to_dataset(args: &Args, dir: &Path) -> anyhow::Result<ExitCode> {
    dataset::run(args, dir)
}

#[cfg(not(feature = "dataset"))]
fn add_to_dataset(_: &Args, _: &Path) -> anyhow::Result<ExitCode> {
    Err(Usage::new(
        "this build of profinfer cannot write --parquet: use one with the feature dataset, as cargo build --release \
         makes it, or --csv",
    )
    .into())
}

/// The requested part of the run.
struct CutArgs {
    tokens: Option<Ends<u64>>,
    time: Option<Ends<i64>>,
    pid: Option<u32>,
    all_threads: bool,
}

impl CutArgs {
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
                        bail!("no such engine call: the trace has calls {first} to {last}")
                    }
                    _ => bail!("no engine call was recorded; use --time to select by time"),
                }
            };
            (select.from, select.to) = (from, to);
        }
        if let Some((a, b)) = self.time {
            let Some(first) = line.calls.first() else {
                bail!("no engine call was recorded, so --time has no reference point")
            };
            select.from = a.map_or(i64::MIN, |a| first.start.saturating_add(a));
            select.to = b.map_or(i64::MAX, |b| first.start.saturating_add(b));
        }
        Ok(select)
    }
}

/// Another trace to merge into the file.
struct Other {
    path: PathBuf,
    first_free: u64,
}

impl Other {
    fn open(path: &Path) -> anyhow::Result<Other> {
        let cannot = || format!("cannot merge {}", path.display());
        let file = File::open(path).with_context(cannot)?;
        if !file.metadata().with_context(cannot)?.is_file() {
            return Err(anyhow::anyhow!("not a regular file")).with_context(cannot);
        }
        let first_free = free_sequence(&mut BufReader::new(file)).with_context(cannot)?;
        Ok(Other { path: path.to_owned(), first_free })
    }
}

/// A loaded trace and the requested part of it.
struct Source<'l, 'a> {
    loaded: &'l Loaded<'a>,
    line: &'l Timeline,
    idents: &'l Idents,
    select: Select,
}

fn export(trace: &Trace, cut: &CutArgs, out: &[ExportFile], other: Option<&Other>) -> anyhow::Result<()> {
    let timelines = out.iter().any(|o| matches!(o.format, Format::Perfetto | Format::Chrome));
    let progress = LoadProgress::default();
    let pid = cut.pid.map(Into::into);
    let options = ReportOptions { tables: vec![By::Name], pid, others: true, ..ReportOptions::default() };
    // `select` below reports an unknown process.
    let told = timelines.then(|| {
        with_bar(&progress, || {
            try_report(trace, &options, &progress).unwrap_or_else(|_| report(trace, &options, &progress))
        })
    });
    let progress = LoadProgress::default();
    progress.total.store(trace.size(), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = with_bar(&progress, || load(trace, &progress));
    let line = timeline(&loaded);
    let select = cut.select(&loaded, &line)?;
    let idents = Idents::new(&loaded);
    let labels = Labels::new(&loaded, &line, &idents, told.as_ref());
    drop(told);
    if loaded.header.is_none() {
        warn(
            "the trace header is missing: timestamps stay CLOCK_MONOTONIC and may not line up with other \
         traces",
        )?;
    }
    for damage in loaded.damage.iter().take(3) {
        warn(damage)?;
    }
    sort_runs(&mut loaded);
    let source = Source { loaded: &loaded, line: &line, idents: &idents, select };
    if timelines {
        write_timelines(&source, &labels, out, other)?;
    }
    write_tables(&source, &labels, cut.all_threads, out)
}

fn write_timelines(
    source: &Source<'_, '_>,
    labels: &Labels,
    out: &[ExportFile],
    other: Option<&Other>,
) -> anyhow::Result<()> {
    let Source { loaded, line, idents, select } = *source;
    let lanes = Lanes::new(loaded, select);
    if lanes.list.is_empty() {
        bail!(NOTHING);
    }
    let run = TimelineRun::new(loaded, line, &lanes, idents, labels);
    let header = loaded.header.as_ref();
    let mut cut_slices = 0;
    for file in out {
        let done = match file.format {
            Format::Perfetto => to_file(file, NOTHING, &mut |out| {
                let mut perfetto = Perfetto::new(out, labels, header, other.map_or(1, |o| o.first_free));
                let done = run.draw(&mut perfetto)?;
                match (other, header) {
                    // Ours comes first: the other's clock readings then continue from ours.
                    (Some(other), _) => drop(io::copy(&mut File::open(&other.path)?, out)?),
                    (None, Some(header)) => perfetto.same_instant(header)?,
                    (None, None) => {}
                }
                Ok(done)
            })?,
            Format::Chrome => {
                to_file(file, NOTHING, &mut |out| run.draw(&mut Chrome::new(out, labels, header)))?
            }
            _ => continue,
        };
        cut_slices = done.cut;
    }
    if cut_slices > 0 {
        warn(&format!(
            "{} did not nest and were cut: the length shown is not the recorded one",
            count(cut_slices, "slice")
        ))?;
    }
    Ok(())
}

/// Flame graphs and tables.
fn write_tables(
    source: &Source<'_, '_>,
    labels: &Labels,
    all_threads: bool,
    out: &[ExportFile],
) -> anyhow::Result<()> {
    let Source { loaded, line, idents, select } = *source;
    let runs = Runs::of(loaded, line);
    let mut summed: Option<Stacks> = None;
    for file in out {
        let mut flame = |write: &mut dyn FnMut(&mut dyn Write, &Stacks) -> io::Result<()>| {
            let of = summed.get_or_insert_with(|| stacks(loaded, line, &runs, idents, &select, all_threads));
            let done = Walked { slices: of.slices, cut: 0 };
            if of.slices == 0 {
                bail!(NO_OPS);
            }
            to_file(file, NO_OPS, &mut |out| write(out, of).map(|()| done))
        };
        match file.format {
            Format::Perfetto | Format::Chrome => {}
            Format::Folded => drop(flame(&mut |out, of| folded(out, of))?),
            Format::Speedscope => drop(flame(&mut |out, of| speedscope(out, of))?),
            Format::Pprof => drop(flame(&mut |out, of| pprof(out, of, loaded.header.as_ref()))?),
            Format::Ops => {
                let table = OpsTable { loaded, line, idents, labels, runs: &runs, select };
                to_file(file, NO_OPS, &mut |out| Ok(Walked { slices: table.write(out)?, cut: 0 }))?;
            }
            Format::Kernels => {
                let write = |out: &mut dyn Write| kernels_csv::write(out, loaded, line, idents, select);
                to_file(file, NO_KERNELS, &mut |out| Ok(Walked { slices: write(out)?, cut: 0 }))?;
            }
            Format::Samplers => {
                let write = |out: &mut dyn Write| samplers_csv::write(out, loaded, select);
                to_file(file, NO_SAMPLERS, &mut |out| Ok(Walked { slices: write(out)?, cut: 0 }))?;
            }
        }
    }
    Ok(())
}

/// An empty timeline would look like a run without work.
const NOTHING: &str = "no engine call, graph or op begins in the selected range";

/// A flame graph or table without ops.
const NO_OPS: &str = "no op begins in the selected range: ops are recorded at level op and above";

/// A table without kernels.
const NO_KERNELS: &str =
    "no kernel of a device begins in the selected range: their times are recorded with --gpu kernel";

/// A table without samplers.
const NO_SAMPLERS: &str = "no call of a sampler begins in the selected range: they are recorded with --phases; report --by phase says what is missing";

fn warn(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "profinfer: {}", clean(text))
}

/// Writes a file, or standard output, through `write`; `nothing` is the error if there is nothing to write.
fn to_file(
    ExportFile { format, path, rules }: &ExportFile,
    nothing: &'static str,
    write: &mut dyn FnMut(&mut dyn Write) -> io::Result<Walked>,
) -> anyhow::Result<Walked> {
    if path.as_os_str() == "-" {
        let stdout = io::stdout();
        if matches!(format, Format::Perfetto | Format::Pprof) && stdout.is_terminal() {
            bail!("not writing a binary format to a terminal: give a file, or redirect to a pipe");
        }
        let done = write(&mut stdout.lock())?;
        if done.slices == 0 {
            bail!(nothing);
        }
        return Ok(done);
    }
    let done = whole(path, *rules, |done: &Walked| done.slices > 0, |out| write(out))?;
    if done.slices == 0 {
        bail!(nothing);
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
