//! `profinfer score`: accuracy and speed of a model's quantizations in one number.

mod quality;

use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use self::quality::Figures;
use super::reading::{not_over, open, with_bar};
use super::report::style;
use analysis::questions::report::Report;
use analysis::questions::score::{QualityKind, measured, scored_run, scores};
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Argument, Command, Flag, FlagGroup, Usage};
use cli::output::{FORCE, MODE, OutputRules};
use cli::values::percent;

pub const COMMAND: Command = Command {
    name: "score",
    about: "Score quantizations of a model by accuracy and speed",
    text: "\
Computes the harmonic quantisation score H_Q of lm-Meter (arXiv 2510.06126): the harmonic mean of three ratios to the
original model, of accuracy, prefill speed and decode speed. The first trace is that of the original; its score is 1.

The speeds are those of the traces (tokens over the time in calls, as in profinfer report). Accuracy is given: with --quality
as the share of right answers in any task, as in the paper; with --perplexity as figures of 'ggml-runner perplexity --json',
one file for each trace in the same order, all of the same text. The accuracy ratio is then the perplexity of the original
over that of the run.

The file of --quality has a line for each run: the name of its trace, with or without directory, white space, and the
accuracy, as 0.652 or 65.2%. Text after '#' is a comment.

A run gets no score if a factor is missing, or is below --least of the original's: a harmonic mean is near its smallest
factor, and then says nothing about the others. Traces of different machines, engines, threads or prompts are scored, but the
difference is named.",
    usage: &["TRACE... --quality FILE [OPTIONS]", "TRACE... --perplexity JSON,JSON,... [OPTIONS]"],
    arguments: &[Argument { name: "TRACE...", help: "Traces: of the original, then of its quantizations" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: &[
        ("0", "every run has a score"),
        ("1", "failed"),
        ("2", "wrong usage"),
        ("3", "a run has no score: a factor is missing or has collapsed"),
    ],
    examples: "\
profinfer score f16.pfi q8_0.pfi q4_0.pfi --quality accuracy.txt
profinfer score f16.pfi q4_0.pfi --perplexity f16.json,q4_0.json     from 'ggml-runner perplexity --json'
profinfer score f16.pfi q4_0.pfi --quality accuracy.txt --svg score.svg
profinfer score f16.pfi q4_0.pfi --quality accuracy.txt --json | jq '.runs[].h_q'",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("quality", "FILE", "Accuracy of each run").excludes(&["perplexity"]),
        Flag::value(
            "perplexity",
            "JSON",
            "Perplexities of the runs, in the order of the traces (repeat, or separate by commas)",
        )
        .many(),
        Flag::value("least", "SHARE", "A factor below this share of the original's has collapsed")
            .default("50%"),
        Flag::switch("json", "Print JSON: ratios (1 = 100 %), tok/s, bytes"),
        Flag::value("svg", "OUT", "Write a picture to this file instead; '-' is standard output")
            .excludes(&["json"]),
        FORCE,
        MODE,
    ],
};

/// The accuracy of each trace, where it is known.
fn figures(args: &Args, traces: &[OsString]) -> anyhow::Result<Figures> {
    let perplexity = args.list("perplexity", |name| match name {
        "" => Err("empty file name in the list".into()),
        name => Ok(name.to_owned()),
    })?;
    if let Some(file) = args.path("quality")? {
        let names: Vec<String> = traces.iter().map(|t| t.to_string_lossy().into_owned()).collect();
        return quality::accuracies(&file, &names);
    }
    match (perplexity.len(), traces.len()) {
        (0, _) => Err(Usage::new("--quality or --perplexity is required: speed alone is no score").into()),
        (given, wanted) if given != wanted => {
            let why = format!(
                "--perplexity has {given} files for {wanted} traces: give one for each, in the same order"
            );
            Err(Usage::new(why).into())
        }
        _ => quality::perplexities(&perplexity),
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let traces = args.needed_arguments("TRACE...")?;
    if traces.len() < 2 {
        return Err(Usage::new("give the trace of the original and at least one other").into());
    }
    if traces.iter().filter(|t| *t == "-").count() > 1 {
        return Err(
            Usage::new("standard input can be used for one trace only: give files for the others").into()
        );
    }
    let least = args.needed("least", percent)?;
    let picture = args.path("svg")?.map(|out| Ok::<_, Usage>((out, OutputRules::read(args)?))).transpose()?;
    if let Some((out, rules)) = &picture {
        traces.iter().try_for_each(|input| not_over(out, Path::new(input)))?;
        rules.hint(" with --svg").check(out)?;
    }
    let figures = figures(args, traces)?;
    let reports = traces.iter().map(read).collect::<anyhow::Result<Vec<Report>>>()?;
    let first = reports.first().context("no traces")?;
    let name = |trace: &OsString| trace.to_string_lossy().into_owned();
    let runs = traces.iter().zip(&reports).zip(&figures.of_runs);
    let runs =
        runs.map(|((trace, report), figure)| scored_run(name(trace), report, first, *figure)).collect();
    let found = scores(runs, figures.kind, least)?;
    match picture {
        Some((out, rules)) => {
            super::dag::write(&out, rules.hint(" with --svg"), |out| render::score::svg(out, &found))?;
        }
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            match args.flag("json") {
                true => render::json::write(&mut out, &found)?,
                false => render::score::write(&mut out, &found, &style())?,
            }
            out.flush()?;
        }
    }
    let refused = found.runs.iter().any(|r| r.h_q.is_none());
    Ok(if refused { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

fn read(trace: &OsString) -> anyhow::Result<Report> {
    let opened = open(Path::new(trace), "score")?;
    let progress = LoadProgress::default();
    let found = with_bar(&progress, || measured(&opened, &progress));
    found.with_context(|| format!("cannot score {}", trace.to_string_lossy()))
}
