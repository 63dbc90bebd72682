//! `profinfer html`: a recorded run as one page for a browser.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode, Stdio};

use anyhow::{Context, bail};

use super::export::tokens;
use super::reading::{named_or_newest, not_over, open, with_bar};
use super::report::peaks;
use analysis::questions::diff::{DiffOptions, diff};
use analysis::recorded::idents::OpKey;
use analysis::recorded::load::LoadProgress;
use analysis::recorded::selection::Cut;
use analysis::streams::overview::{Overview, overview_with};
use analysis::sums::attribution::verdict::Peak;
use cli::args::{Args, Argument, Command, Flag, FlagGroup, Usage};
use cli::output::{FORCE, MODE, OutputRules, whole};
use cli::values::{parsed, whole as number};
use pfi::Trace;
use render::html;
use render::html::compare::ComparedRun;

/// False discovery rate and smallest change of a comparison: the defaults of `profinfer diff`.
const FDR: f64 = 0.05;
const LEAST: f64 = 0.01;

pub const COMMAND: Command = Command {
    name: "html",
    about: "Write a recorded run as one HTML page",
    text: "\
A single self-contained file that opens in any browser, offline. It shows a summary in a few sentences, prefill and decode,
the time of each token and a timeline of its threads, the model graph coloured by any metric, sortable operator tables, the roofline, thread balance,
experts, and the recording quality; also counters, off-CPU time and energy if they were recorded.

Where data is missing, the page names the flag that records it. Statistics are for decode, or for the only recorded phase.
Everything is readable without JavaScript, by keyboard and with a screen reader, in dark or light theme, on a phone and on
paper. The page fetches nothing; its Content-Security-Policy forbids it.

With two traces, the page has both verdicts, the operators that changed (see profinfer diff), and the graph of OTHER
coloured by change.",
    usage: &["[FILE] [OPTIONS]", "FILE OTHER [OPTIONS]"],
    arguments: &[
        Argument { name: "FILE", help: "Trace to read; '-' is standard input [default: the newest *.pfi here]" },
        Argument { name: "OTHER", help: "Compare this trace with FILE, which is the baseline" },
    ],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
profinfer html run.pfi                                 everything, to run.html
profinfer html run.pfi --open                          the same, and opens it in a browser
profinfer html run.pfi --peak peak.json                with ops compared to the peaks of 'ggml-runner peak --json'
profinfer html run.pfi -o part.html --tokens 10..19    ten calls of the engine, each with its timeline if they fit
profinfer html old.pfi new.pfi                         both verdicts, what changed, and the graph coloured by change
ssh board cat run.pfi | profinfer html - -o run.html   from a pipe",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value(
            "output",
            "OUT",
            "Write to this file; '-' is standard output [default: the trace's name with .html, in the current \
             directory]",
        )
        .short('o'),
        FORCE,
        MODE,
        Flag::switch("open", "Open the page in a browser: $BROWSER, else the one of xdg-open"),
        Flag::value("tokens", "A..B", "Include only engine calls A to B; also A, A.. or ..B"),
        Flag::value(
            "pid",
            "PID[:N]",
            "Process to show, or its N-th context [default: the one with the most calls]",
        ),
        Flag::value(
            "peak",
            "PEAK",
            "This machine's GFLOP/s and GB/s, e.g. 280,61, or a file written by 'ggml-runner peak --json'",
        )
        .formerly("roof"),
        Flag::value("top", "N", "Maximum rows per table").default("100"),
        Flag::value("timeline", "N", "Maximum op slices in the timelines of tokens; 0 leaves them out")
            .default("40000"),
    ],
};

/// The page's name in the current directory: `run.html`, or `old-new.html` of two. Standard input has no name.
fn page_name(file: &Path, other: Option<&Path>) -> Option<PathBuf> {
    let mut name = OsString::new();
    for (i, file) in std::iter::once(file).chain(other).enumerate() {
        let own = Path::new(file.file_name().filter(|name| *name != "-")?);
        // Only the format's own ending is removed: `run.1` and `run.2` are two traces.
        let ends = own.extension().is_some_and(|e| e == "pfi");
        let own = if ends { own.file_stem()? } else { own.as_os_str() };
        name.push(if i > 0 { "-" } else { "" });
        name.push(own);
    }
    name.push(".html");
    Some(name.into())
}

/// The trace's name as shown.
fn shown(file: &Path) -> String {
    match file.file_name() {
        Some(name) if name != "-" => name.to_string_lossy().into_owned(),
        _ => "standard input".to_owned(),
    }
}

/// What the page of a trace is made with.
struct PageOptions {
    cut: Cut,
    peaks: Vec<Peak>,
    top: usize,
    /// Op slices in timelines.
    slices: usize,
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = named_or_newest(args.argument("FILE"))?;
    let file = file.as_path();
    let other = args.argument("OTHER").map(Path::new);
    let given = args.path("output")?;
    let named = given.is_some();
    let output = given.or_else(|| page_name(file, other)).ok_or_else(|| args.missing("output"))?;
    let options = PageOptions {
        cut: Cut {
            pid: args.option("pid", parsed)?,
            calls: args.option("tokens", tokens)?.unwrap_or_default(),
        },
        peaks: args.option("peak", peaks::read)?.unwrap_or_default(),
        top: args.needed("top", number(1, u32::MAX.into()))?,
        slices: args.needed("timeline", number(0, u32::MAX.into()))?,
    };
    let rules = OutputRules::read(args)?;
    for input in std::iter::once(file).chain(other) {
        not_over(&output, input)?;
    }
    if other.is_some_and(|other| other.as_os_str() == "-" && file.as_os_str() == "-") {
        return Err(
            Usage::new("standard input can be used for one trace only: give a file for the other").into()
        );
    }
    if args.flag("open") {
        can_open(&output)?;
    }
    rules.check(&output)?;
    let page = match other {
        Some(other) => compared(file, other, &options)?,
        None => single(file, &options)?,
    };
    if output == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!("not writing a page to a terminal: give a file with -o, or redirect to a pipe");
        }
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        out.write_all(&page)?;
        out.flush()?;
    } else {
        whole(&output, rules, |()| true, |out| out.write_all(&page))?;
        if !named {
            // Nothing can be done if even this fails.
            let _ = writeln!(io::stderr(), "profinfer: wrote {}", output.display());
        }
        if args.flag("open") {
            browse(&output)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a browser can be started on what is made from this file.
///
/// # Errors
/// It is no file, or a browser would run as root.
pub(super) fn can_open(file: &Path) -> Result<(), Usage> {
    if file == Path::new("-") {
        return Err(Usage::new("--open needs a file, not standard output"));
    }
    if std::env::var_os("SUDO_UID").is_some_and(|uid| uid != "0") {
        return Err(Usage::new(
            "--open starts no browser under sudo: call profinfer html --open without sudo afterwards",
        ));
    }
    Ok(())
}

/// Writes the page of a trace just recorded, and opens it.
///
/// # Errors
/// The trace cannot be shown, the page exists, or there is no browser.
#[cfg(feature = "agent")]
pub(super) fn open_page(trace: &Path) -> anyhow::Result<()> {
    let page = page_name(trace, None).context("the trace has no name")?;
    let slices = analysis::streams::overview::SLICES;
    let options = PageOptions { cut: Cut::default(), peaks: Vec::new(), top: TOP, slices };
    let rules = OutputRules::new(cli::output::Overwrite::Never, PRIVATE);
    rules.check(&page)?;
    let written = single(trace, &options)?;
    whole(&page, rules, |()| true, |out| out.write_all(&written))?;
    let _ = writeln!(io::stderr(), "profinfer: wrote {}", page.display());
    browse(&page)
}

/// Rows of a table of a page.
#[cfg(feature = "agent")]
const TOP: usize = 100;
/// The page of a recording is for whom the recording is for.
#[cfg(feature = "agent")]
const PRIVATE: u32 = 0o600;

/// Starts a browser on the page, and does not wait for it.
fn browse(page: &Path) -> anyhow::Result<()> {
    let programs = std::env::var_os("BROWSER").into_iter().chain(["xdg-open".into(), "open".into()]);
    for program in programs {
        let mut command = process::Command::new(program);
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if command.spawn().is_ok() {
            return Ok(());
        }
    }
    bail!("no program to open {} with: set BROWSER to one, or install xdg-utils", page.display())
}

fn single(file: &Path, options: &PageOptions) -> anyhow::Result<Vec<u8>> {
    let trace = open(file, "show")?;
    let found = analysed(&trace, file, options, options.slices)?;
    let mut page = Vec::new();
    html::write(&mut page, &found, &shown(file), options.top, crate::identity::TOOL)?;
    Ok(page)
}

/// The page of two traces; `file` is the baseline.
fn compared(file: &Path, other: &Path, options: &PageOptions) -> anyhow::Result<Vec<u8>> {
    let [a, b] = [open(file, "compare")?, open(other, "compare")?];
    // Without timelines: a page of two has none.
    let [of_a, of_b] = [analysed(&a, file, options, 0)?, analysed(&b, other, options, 0)?];
    let pids = options.cut.pid.iter().copied().collect();
    let phase = of_a.phase;
    let rules = DiffOptions { phase, by: OpKey::Name, false_discovery: FDR, least: LEAST, pids };
    let progress = LoadProgress::default();
    let changes = with_bar(&progress, || diff(&[&a], &[&b], &rules, &progress));
    let [name_a, name_b] = [shown(file), shown(other)];
    let runs =
        [ComparedRun { name: &name_a, overview: &of_a }, ComparedRun { name: &name_b, overview: &of_b }];
    let mut page = Vec::new();
    html::compare::write(&mut page, &runs, &changes, options.top, crate::identity::TOOL)?;
    Ok(page)
}

fn analysed(trace: &Trace, file: &Path, options: &PageOptions, slices: usize) -> anyhow::Result<Overview> {
    let progress = LoadProgress::default();
    with_bar(&progress, || overview_with(trace, &options.cut, &options.peaks, slices, &progress))
        .with_context(|| format!("cannot show {}", file.display()))
}
