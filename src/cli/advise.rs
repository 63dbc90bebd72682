//! `profinfer advise`: what to change, and whether a later recording kept what was promised.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::args::{Args, Argument, Command, Flag, FlagGroup};
use super::reading::{named_or_newest, open, with_bar};
use super::report::{peaks, style};
use super::values::parsed;
use analysis::advice::check::{Outcome, check};
use analysis::load::LoadProgress;
use analysis::report::{Report, ReportOptions, try_report};
use render::{json, verdict};

pub const COMMAND: Command = Command {
    name: "advise",
    about: "Say what to change, and what gain to expect",
    text: "\
Prints each piece of advice with what to type, the predicted gain, the evidence, and what would show it to be wrong. Threads
without a CPU come first, then the largest gain; advice that costs something other than time comes last. A rule that lacks
its evidence says nothing, and a run near the ceiling of its machine gets no advice.

A gain is promised for waste that is removed and for bytes that are not read. None is promised for more threads or for fewer
page faults: predictions of these from one recording are not good enough.

With --check, NEW is a recording of the run after the change: prints the measured gain beside the predicted range.",
    usage: &["[FILE] [OPTIONS]", "FILE --check NEW"],
    arguments: &[Argument { name: "FILE", help: "Trace to read; '-' is standard input [default: the newest *.pfi here]" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: &[
        ("0", "done; with --check: the gain is in the predicted range, or above it"),
        ("1", "failed, e.g. the recording is too short for advice"),
        ("2", "wrong usage"),
        ("3", "with --check: the gain is below the predicted range"),
    ],
    examples: "\
profinfer advise run.pfi
profinfer advise run.pfi --json | jq '.advice[0].actions'
profinfer advise slow.pfi --check fast.pfi                 did the first advice keep its promise?
profinfer advise slow.pfi --check fast.pfi --rule fewer-bytes",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::switch("json", "Print JSON"),
        Flag::value("check", "NEW", "Compare the promise with this recording, made after the change"),
        Flag::value("rule", "RULE", "With --check: the advice that was followed [default: the first]"),
        Flag::value(
            "peak",
            "PEAK",
            "This machine's GFLOP/s and GB/s, e.g. 280,61, or a file written by 'ggml-runner peak --json'",
        ),
        Flag::value("pid", "PID[:N]", "Process, or its N-th context [default: the one with the most calls]"),
    ],
};

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = named_or_newest(args.argument("FILE"))?;
    let peaks = args.option("peak", peaks::read)?.unwrap_or_default();
    let options =
        ReportOptions { peaks, verdict: true, pid: args.option("pid", parsed)?, ..ReportOptions::default() };
    let report = read(&file, &options)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if let Some(new) = args.path("check")? {
        let new = read(&new, &ReportOptions { pid: None, ..options })?;
        let found = check(&report, &new, args.option("rule", |rule| Ok(rule.to_owned()))?.as_deref())?;
        match args.flag("json") {
            true => json::write(&mut out, &found)?,
            false => writeln!(out, "{}", found.text())?,
        }
        out.flush()?;
        let below = found.outcome == Outcome::Below;
        return Ok(if below { ExitCode::from(3) } else { ExitCode::SUCCESS });
    }
    let Some(v) = &report.verdict else { bail!("no verdict was made") };
    if args.flag("json") {
        json::write(&mut out, v)?;
    } else if v.advice.is_empty() {
        verdict::write(&mut out, &report, &file.to_string_lossy(), &style())?;
    } else {
        render::quality::warning(&mut out, &report.quality, &style())?;
        verdict::advice(&mut out, v, &style())?;
    }
    out.flush()?;
    if v.phases.is_empty() {
        bail!("{}", v.missing.first().map_or("no engine call was recorded", String::as_str));
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path, options: &ReportOptions) -> anyhow::Result<Report> {
    let trace = open(file, "advise on")?;
    let progress = LoadProgress::default();
    let report = with_bar(&progress, || try_report(&trace, options, &progress));
    report.with_context(|| format!("cannot advise on {}", file.display()))
}
