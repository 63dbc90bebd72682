//! `profinfer html`: a recorded run as one page for a browser.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::args::{Args, Argument, Command, Flag, FlagGroup};
use super::export::tokens;
use super::output::{FORCE, MODE, OutputRules, whole};
use super::reading::{not_over, open, with_bar};
use super::report::peaks;
use super::values::{parsed, whole as number};
use analysis::cut::Cut;
use analysis::load::LoadProgress;
use analysis::overview::overview;
use render::html;

pub const COMMAND: Command = Command {
    name: "html",
    about: "Write a recorded run as one HTML page",
    text: "\
A single self-contained file that opens in any browser, offline. It shows a summary in a few sentences, prefill and decode,
the time of each token, the model graph coloured by any metric, sortable operator tables, the roofline, thread balance,
experts, and the recording quality; also counters, off-CPU time and energy if they were recorded.

Where data is missing, the page names the flag that records it. Statistics are for decode, or for the only recorded phase.
Everything is readable without JavaScript, by keyboard and with a screen reader, in dark or light theme, on a phone and on
paper. The page fetches nothing; its Content-Security-Policy forbids it.",
    usage: &["FILE -o OUT [OPTIONS]"],
    arguments: &[Argument { name: "FILE", help: "Trace to read; '-' is standard input" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: super::args::EXITS,
    examples: "\
profinfer html run.pfi -o run.html                     everything
profinfer html run.pfi -o run.html --peak peak.json    with ops compared to the peaks of 'ggml-runner peak --json'
profinfer html run.pfi -o part.html --tokens 10..19    ten calls of the engine
ssh board cat run.pfi | profinfer html - -o run.html   from a pipe",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("output", "OUT", "Write to this file; '-' is standard output").short('o'),
        FORCE,
        MODE,
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
    ],
};

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = Path::new(args.needed_argument("FILE")?);
    let output = args.path("output")?.ok_or_else(|| args.missing("output"))?;
    let cut =
        Cut { pid: args.option("pid", parsed)?, calls: args.option("tokens", tokens)?.unwrap_or_default() };
    let peaks = args.option("peak", peaks::read)?.unwrap_or_default();
    let top = args.needed("top", number(1, u32::MAX.into()))?;
    let rules = OutputRules::read(args)?;
    not_over(&output, file)?;
    rules.check(&output)?;
    let trace = open(file, "show")?;
    let progress = LoadProgress::default();
    let found = with_bar(&progress, || overview(&trace, &cut, &peaks, &progress))
        .with_context(|| format!("cannot show {}", file.display()))?;
    let name = match file.file_name() {
        Some(name) if name != "-" => name.to_string_lossy().into_owned(),
        _ => "standard input".to_owned(),
    };
    if output == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!("not writing a page to a terminal: give a file with -o, or redirect to a pipe");
        }
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        html::write(&mut out, &found, &name, top)?;
        out.flush()?;
    } else {
        whole(&output, rules, |()| true, |mut out| html::write(&mut out, &found, &name, top))?;
    }
    Ok(ExitCode::SUCCESS)
}
