//! `profinfer html`: a recorded run as one page for a browser. Uses `trace`, `analysis` and `views`.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::args::{Args, Argument, Command, Flag, Group};
use super::export::tokens;
use super::output::{MODE, mode, whole};
use super::reading::{not_over, open, with_bar};
use super::report::peaks;
use super::values::{parsed, whole as number};
use crate::analysis::cut::Cut;
use crate::analysis::load::Progress;
use crate::analysis::overview::overview;
use crate::views::html;

pub const COMMAND: Command = Command {
    name: "html",
    about: "Writes a recorded run as one page for a browser",
    text: "\
One file that a colleague can open without installing anything and without a network: what the run comes to in a few
sentences, prefill and decode, the time of each token, the graph of the model coloured by any metric, the operators in tables
that can be sorted, the roofline, the balance of the threads, the experts, and how far the record can be trusted; with them
counters, time off the CPU and energy where they were recorded.

What the recording does not hold is said where its picture would be, with the flag that records it. Statistics are of decode,
else of the phase that there is. Everything can be read without the page's script, by keyboard and by a screen reader, in a
dark or a light theme as the browser has it, on a phone and on paper. The page may not fetch anything: its own policy
forbids it.",
    usage: &["FILE -o OUT [OPTIONS]"],
    arguments: &[Argument { name: "FILE", help: "Trace to read; '-' is standard input" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: super::EXITS,
    examples: "\
profinfer html run.pfi -o run.html                     everything
profinfer html run.pfi -o run.html --roof peak.json    ops under what 'ggml-runner peak --json' measured
profinfer html run.pfi -o part.html --tokens 10..19    ten calls of the engine
ssh board cat run.pfi | profinfer html - -o run.html   from a pipe",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::value("output", "OUT", "Write to this file; '-' is standard output").short('o'),
        MODE,
        Flag::value("tokens", "A..B", "Only calls A to B of the engine; also A, A.. or ..B"),
        Flag::value(
            "pid",
            "PID[:N]",
            "Process to tell of, or its N-th context [default: the one with the most calls]",
        ),
        Flag::value(
            "roof",
            "PEAK",
            "This machine's GFLOP/s and GB/s, as in 280,61, or a file that 'ggml-runner peak --json' wrote",
        ),
        Flag::value("top", "N", "Rows of each table").default("100"),
    ],
};

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = Path::new(args.needed_argument("FILE")?);
    let output = args.path("output")?.ok_or_else(|| args.missing("output"))?;
    let cut =
        Cut { pid: args.option("pid", parsed)?, calls: args.option("tokens", tokens)?.unwrap_or_default() };
    let peaks = args.option("roof", peaks::read)?.unwrap_or_default();
    let top = args.needed("top", number(1, u32::MAX.into()))?;
    not_over(&output, file)?;
    let trace = open(file, "show")?;
    let progress = Progress::default();
    let found = with_bar(&progress, || overview(&trace, &cut, &peaks, &progress))
        .with_context(|| format!("cannot show {}", file.display()))?;
    let name = match file.file_name() {
        Some(name) if name != "-" => name.to_string_lossy().into_owned(),
        _ => "standard input".to_owned(),
    };
    if output == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!("a page is nothing for a terminal: give a file, or a pipe");
        }
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        html::write(&mut out, &found, &name, top)?;
        out.flush()?;
    } else {
        whole(
            &output,
            args.needed("mode", mode)?,
            |()| true,
            |mut out| html::write(&mut out, &found, &name, top),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
