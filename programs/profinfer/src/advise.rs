//! `profinfer advise`: what to change, and whether a later recording kept what was promised.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::reading::{named_or_newest, open, with_bar};
use super::report::{peaks, style};
use analysis::questions::advice::beside::beside;
use analysis::questions::advice::check::{Outcome, check};
use analysis::questions::diff::{DiffOptions, diff};
use analysis::questions::report::{Report, ReportOptions, try_report};
use analysis::recorded::calls::Phase;
use analysis::recorded::idents::OpKey;
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Argument, Command, Flag, FlagGroup};
use cli::values::parsed;
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

With --check, NEW is a recording of the run after the change: prints the measured gain beside the predicted range.

With --with, OTHER is a recording of the same model with other settings, such as another number of threads: prints which is
faster and by how much, where the time differs, and what follows.",
    usage: &["[FILE] [OPTIONS]", "FILE --check NEW", "FILE --with OTHER"],
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
profinfer advise slow.pfi --check fast.pfi --rule fewer-bytes
profinfer advise t2.pfi --with t4.pfi                      are 4 threads faster than 2?",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::switch("json", "Print JSON"),
        Flag::value("check", "NEW", "Compare the promise with this recording, made after the change"),
        Flag::value("with", "OTHER", "Compare with this recording, made with other settings")
            .excludes(&["check", "rule"]),
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
    if let Some(other) = args.path("with")? {
        return with(args, [&file, &other], &options);
    }
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

/// Two recordings with other settings.
fn with(args: &Args, files: [&Path; 2], options: &ReportOptions) -> anyhow::Result<ExitCode> {
    let traces = [open(files[0], "advise on")?, open(files[1], "advise on")?];
    let of = |file, trace| {
        let progress = LoadProgress::default();
        let report = with_bar(&progress, || try_report(trace, options, &progress));
        report.with_context(|| format!("cannot advise on {}", Path::display(file)))
    };
    let [a, b] = [of(files[0], &traces[0])?, of(files[1], &traces[1])?];
    let phase = a.verdict.as_ref().and_then(|v| v.phases.first()).map_or(Phase::Decode, |p| p.phase);
    let compared = DiffOptions {
        phase,
        by: OpKey::Op,
        false_discovery: 0.05,
        least: 0.01,
        pids: options.pid.into_iter().collect(),
    };
    // Calls that cannot be paired have speeds all the same.
    let calls = diff(&[&traces[0]], &[&traces[1]], &compared, &LoadProgress::default()).ok();
    let found = beside(&a, &b, calls.as_ref())?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    match args.flag("json") {
        true => json::write(&mut out, &found)?,
        false => writeln!(out, "{}", found.text())?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path, options: &ReportOptions) -> anyhow::Result<Report> {
    let trace = open(file, "advise on")?;
    let progress = LoadProgress::default();
    let report = with_bar(&progress, || try_report(&trace, options, &progress));
    report.with_context(|| format!("cannot advise on {}", file.display()))
}
