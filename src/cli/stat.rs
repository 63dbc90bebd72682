//! `profinfer stat`: statistics across tokens, ops, threads, experts and backends of a run.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::args::{Args, Argument, Choice, Choices, Command, Flag, FlagGroup, Usage};
use super::program::ArgumentChoices;
use super::reading::{open, with_bar};
use super::report::{peaks, style};
use super::values::{choice, parsed, whole};
use analysis::calls::Phase;
use analysis::load::LoadProgress;
use analysis::stat::shapes::of_trace;
use analysis::stat::{StatOptions, View, stat};

pub const COMMAND: Command = Command {
    name: "stat",
    about: "Show how times depend on context, work, threads, experts and backends",
    text: "\
The time of an op is from its start to the start of the next op on thread 0, including the wait at the barrier; in the view
threads it ends at the barrier. Bytes and FLOPs come from the cost model.",
    usage: &["FILE [VIEW] [OPTIONS]"],
    arguments: &[
        Argument { name: "FILE", help: "Trace to read; '-' is standard input" },
        Argument { name: "VIEW", help: "View to show [default: all except activation]" },
    ],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: super::args::EXITS,
    examples: "\
profinfer stat run.pfi                              all views
profinfer stat run.pfi tokens                       which op slows decoding down as the context grows
profinfer stat run.pfi roofline --peak peak.json    against the peaks measured by 'ggml-runner peak --json'
profinfer stat run.pfi --bandwidth 120 --context 8192   tokens/s with faster memory and a longer context
profinfer stat run.pfi shapes --beside other.pfi    each op in this trace and in another
profinfer stat run.pfi ops --csv > ops.csv          for a spreadsheet",
    run,
};

impl Choice for View {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("tokens", "time of calls and ops as the context grows", Self::Tokens),
        ("ops", "matrix multiplication time against bytes and FLOPs, with outliers", Self::Ops),
        ("roofline", "ops compared with the machine's memory and compute peaks (--peak)", Self::Roofline),
        ("threads", "how evenly each op is shared among the threads", Self::Threads),
        ("experts", "which experts each layer selects, how often, and how soon again", Self::Experts),
        ("reuse", "expert multiplication time by tokens since the expert's last use", Self::Reuse),
        ("activation", "experts selected by each layer, per token (long: on request only)", Self::Activation),
        ("backends", "graph splits by backend", Self::Backends),
        ("shapes", "the same ops on two backends, or in two traces (--beside)", Self::Shapes),
    ];
}

/// Values of VIEW.
pub const VIEW: ArgumentChoices =
    ArgumentChoices { command: "stat", argument: "VIEW", choices: Choices::of::<View>() };

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("phase", "PHASE", "Calls to show").default("decode").one_of::<Phase>(),
        Flag::value(
            "pid",
            "PID[:N]",
            "Process to show, or its N-th context [default: the one with the most such calls]",
        ),
        Flag::value(
            "peak",
            "PEAK",
            "This machine's GFLOP/s and GB/s, e.g. 280,61, or a file written by 'ggml-runner peak --json'",
        )
        .formerly("roof"),
        Flag::value("bandwidth", "GB/S", "Predict tokens/s at this memory bandwidth"),
        Flag::value("context", "N", "Predict tokens/s at this context length"),
        Flag::value(
            "beside",
            "OTHER",
            "Trace to compare with in the view shapes (its process with the most such calls); not '-'",
        ),
        Flag::value("top", "N", "Maximum rows per table").default("20"),
        Flag::switch("json", "Print JSON: nanoseconds, bytes, ratios (1 = 100 %)"),
        Flag::switch("csv", "Print the table of one VIEW as comma-separated values").excludes(&["json"]),
    ],
};

fn bandwidth(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| "expected 10^9 bytes per second, e.g. 61.5".into())
}

fn view(args: &Args) -> Result<Option<View>, Usage> {
    let Some(given) = args.argument("VIEW") else { return Ok(None) };
    let given = given.to_string_lossy();
    choice(&given).map(Some).map_err(|why| Usage::new(format!("'{given}': {why}")))
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (file, one) = (args.needed_argument("FILE")?, view(args)?);
    let mut options = StatOptions {
        phase: args.needed("phase", choice)?,
        views: one.map_or(View::ALL.to_vec(), |one| vec![one]),
        pid: args.option("pid", parsed)?,
        peaks: args.option("peak", peaks::read)?.unwrap_or_default(),
        bandwidth: args.option("bandwidth", bandwidth)?,
        context: args.option("context", whole(1, u32::MAX.into()))?,
        beside: None,
    };
    let top = args.needed("top", whole(1, u32::MAX.into()))?;
    let csv =
        if args.flag("csv") { Some(one.ok_or_else(|| Usage::new("--csv requires a VIEW"))?) } else { None };
    let other = args.path("beside")?;
    if other.is_some() && !options.views.contains(&View::Shapes) {
        return Err(Usage::new("--beside applies to the view shapes only").into());
    }
    let trace = open(Path::new(file), "read")?;
    if let Some(path) = other {
        let other = open(&path, "read")?;
        options.beside = Some(of_trace(&other, options.phase, &LoadProgress::default()));
    }
    let progress = LoadProgress::default();
    let shown = file.to_string_lossy();
    let found =
        with_bar(&progress, || stat(&trace, &options, &progress)).with_context(|| shown.into_owned())?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        render::json::write(&mut out, &found)?;
    } else if let Some(view) = csv {
        if !render::stat::csv(&mut out, &found, view)? {
            bail!(
                "{}: the recording has no data for this view; run without --csv to see why",
                file.to_string_lossy()
            );
        }
    } else {
        render::stat::write(&mut out, &found, &options.views, top, &style())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
