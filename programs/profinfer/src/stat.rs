//! `profinfer stat`: statistics across tokens, ops, threads, experts and backends of a run.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};

use super::reading::{named_or_newest, not_over, open, with_bar};
use super::report::{peaks, style};
use analysis::questions::stat::scaling::{Scaling, row, scaling};
use analysis::questions::stat::shapes::of_trace;
use analysis::questions::stat::work::ModelProducts;
use analysis::questions::stat::{Stat, StatOptions, View, stat};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Argument, Choice, Choices, Command, Flag, FlagGroup, Usage};
use cli::output::{FORCE, MODE, OutputRules};
use cli::program::ArgumentChoices;
use cli::values::{any_of, choice, parsed, whole};
use pfi::Trace;
use render::stat::pictures;

pub const COMMAND: Command = Command {
    name: "stat",
    about: "Show how times depend on context, work, threads, experts and backends",
    text: "\
The time of an op is from its start to the start of the next op on thread 0, including the wait at the barrier; in the view
threads it ends at the barrier. Bytes and FLOPs come from the cost model.

--svg draws a view: time against context (tokens) or operations (ops), ops below the roofs (roofline), traffic and waiting by
number of threads (threads --beside), expert time by reuse distance (reuse), the experts of a layer over the tokens (activation),
one backend against another (shapes).",
    usage: &["[FILE [VIEW]] [OPTIONS]"],
    arguments: &[
        Argument { name: "FILE", help: "Trace to read; '-' is standard input [default: the newest *.pfi here]" },
        Argument { name: "VIEW", help: "View to show [default: all except activation]" },
    ],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
profinfer stat run.pfi                              all views
profinfer stat run.pfi tokens                       which op slows decoding down as the context grows
profinfer stat run.pfi roofline --peak peak.json    against the peaks measured by 'ggml-runner peak --json'
profinfer stat run.pfi --bandwidth 120 --context 8192   tok/s with faster memory and a longer context
profinfer stat a.pfi ops --beside b.pfi,c.pfi --svg models.svg   GB/s of several models or machines
profinfer stat run.pfi activation --layer 3 --svg experts.svg   the experts of layer 3
profinfer stat run.pfi shapes --beside other.pfi    each op in this trace and in another
profinfer stat run.pfi tokens --svg tokens.svg      a picture of token and attention times
profinfer stat t1.pfi threads --beside t2.pfi,t4.pfi --svg threads.svg   1, 2 and 4 threads
profinfer stat run.pfi ops --csv > ops.csv          for a spreadsheet",
    run,
};

impl Choice<crate::identity::Flags> for View {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("tokens", "time of calls and ops as the context grows", Self::Tokens),
        ("ops", "matrix multiplication time against bytes and FLOPs, with outliers", Self::Ops),
        ("roofline", "ops compared with the machine's memory and compute peaks (--peak)", Self::Roofline),
        (
            "threads",
            "how evenly ops are shared among threads; with --beside, by number of threads",
            Self::Threads,
        ),
        ("experts", "which experts each layer selects, how often, and how soon again", Self::Experts),
        ("reuse", "expert multiplication time by tokens since the expert's last use", Self::Reuse),
        ("activation", "experts selected by each layer, per token (long: on request only)", Self::Activation),
        ("backends", "graph splits by backend", Self::Backends),
        ("shapes", "the same ops on two backends, or in two traces (--beside)", Self::Shapes),
    ];
}

/// Values of VIEW.
pub const VIEW: ArgumentChoices =
    ArgumentChoices { command: "stat", argument: "VIEW", choices: Choices::of::<View, _>() };

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("phase", "PHASE", "Calls to show").default("decode").one_of::<Phase, _>(),
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
        Flag::value("bandwidth", "GB/S", "Predict tok/s at this memory bandwidth"),
        Flag::value("context", "N", "Predict tok/s at this context length"),
        Flag::value(
            "beside",
            "OTHER",
            "Trace to compare with in the view shapes, or traces in the views threads and ops (repeat, or separate by \
             commas; of each, the process with the most such calls); not '-'",
        )
        .many(),
        Flag::value("layer", "N", "Layer of the picture of activation [default: the first]"),
        Flag::value("top", "N", "Maximum rows per table").default("20"),
        Flag::switch("json", "Print JSON: nanoseconds, bytes, ratios (1 = 100 %)"),
        Flag::switch("csv", "Print the table of one VIEW as comma-separated values").excludes(&["json"]),
        Flag::value("svg", "OUT", "Write a picture of one VIEW to this file; '-' is standard output")
            .excludes(&["json", "csv"]),
        FORCE,
        MODE,
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
    let (file, one) = (named_or_newest(args.argument("FILE"))?, view(args)?);
    let mut options = StatOptions {
        pid: args.option("pid", parsed)?,
        peaks: args.option("peak", peaks::read)?.unwrap_or_default(),
        bandwidth: args.option("bandwidth", bandwidth)?,
        context: args.option("context", whole(1, u32::MAX.into()))?,
        ..StatOptions::new(args.needed("phase", choice)?, one.map_or(View::ALL.to_vec(), |one| vec![one]))
    };
    let top = args.needed("top", whole(1, u32::MAX.into()))?;
    let csv =
        if args.flag("csv") { Some(one.ok_or_else(|| Usage::new("--csv requires a VIEW"))?) } else { None };
    let picture = picture(args, one)?;
    let layer = layer(args, one, picture.is_some())?;
    if one == Some(View::Activation) && picture.is_some() {
        options.views.push(View::Reuse);
    }
    let others = beside(args, &options.views)?;
    if let Some((out, rules)) = &picture {
        others
            .iter()
            .map(PathBuf::as_path)
            .chain([file.as_path()])
            .try_for_each(|input| not_over(out, input))?;
        rules.check(out)?;
    }
    let trace = open(&file, "read")?;
    if let [other] = &*others
        && options.views.contains(&View::Shapes)
    {
        options.beside = Some(of_trace(&open(other, "read")?, options.phase, &LoadProgress::default()));
    }
    let progress = LoadProgress::default();
    let shown = file.to_string_lossy();
    let mut found = with_bar(&progress, || stat(&trace, &options, &progress))
        .with_context(|| shown.clone().into_owned())?;
    if let (Some(Some(shapes)), [other]) = (&mut found.shapes, &*others) {
        shapes.files = vec![shown.clone().into_owned(), other.to_string_lossy().into_owned()];
    }
    if one == Some(View::Ops) && !others.is_empty() {
        found.models = Some(models_of(&found, &shown, &others, options.phase)?);
    }
    if one == Some(View::Threads) && !others.is_empty() {
        found.scaling = Some(scaling_of(&trace, &shown, &others, &options)?);
    }
    if let (Some((out, rules)), Some(view)) = (picture, one) {
        let chart = pictures::picture(&found, view, layer, pictures::IN_FILE)
            .map_err(|why| anyhow!("cannot draw {shown}: {why}"))?;
        return super::dag::write(&out, rules, |out| render::chart::file(out, &chart));
    }
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

/// Where to write a picture, and the rules for that file.
fn picture(args: &Args, view: Option<View>) -> Result<Option<(PathBuf, OutputRules)>, Usage> {
    let Some(out) = args.path("svg")? else { return Ok(None) };
    let drawn = || {
        pictures::PICTURES
            .iter()
            .filter_map(|p| <View as Choice<_>>::ALL.iter().find(|(_, _, v)| v == p))
            .map(|(name, ..)| *name)
    };
    match view {
        Some(view) if pictures::PICTURES.contains(&view) => Ok(Some((out, OutputRules::read(args)?))),
        Some(_) => Err(Usage::new(format!("--svg: this view has no picture: expected {}", any_of(drawn())))),
        None => Err(Usage::new(format!("--svg requires a VIEW: {}", any_of(drawn())))),
    }
}

/// The other traces.
fn beside(args: &Args, views: &[View]) -> Result<Vec<PathBuf>, Usage> {
    let others = args.list("beside", |name| match name {
        "" => Err("empty file name in the list".into()),
        "-" => Err("give a file: standard input can be used for one trace only".into()),
        name => Ok(PathBuf::from(name)),
    })?;
    let several = matches!(views, [View::Threads | View::Ops]);
    if !others.is_empty() && !views.contains(&View::Shapes) && !several {
        return Err(Usage::new("--beside applies to the views shapes, threads and ops only"));
    }
    if others.len() > 1 && !several {
        return Err(Usage::new("--beside takes several traces in the views threads and ops only"));
    }
    Ok(others)
}

/// Which layer to draw.
fn layer(args: &Args, view: Option<View>, drawn: bool) -> Result<Option<u32>, Usage> {
    let layer = args.option("layer", whole(0, u32::MAX.into()))?;
    match layer {
        Some(_) if view != Some(View::Activation) || !drawn => {
            Err(Usage::new("--layer applies to the picture of the view activation (--svg) only"))
        }
        layer => Ok(layer),
    }
}

/// The multiplications of the first trace and of the others.
fn models_of(
    first: &Stat,
    name: &str,
    others: &[PathBuf],
    phase: Phase,
) -> anyhow::Result<Vec<ModelProducts>> {
    let of = |found: &Stat, file: &str| {
        let products = found.ops.clone().flatten();
        let products = products
            .with_context(|| format!("{file}: no matrix multiplication is known: record without --no-str"))?;
        anyhow::Ok(ModelProducts { file: file.to_owned(), threads: found.threads, products })
    };
    let mut all = vec![of(first, name)?];
    let options = StatOptions::new(phase, vec![View::Ops]);
    for other in others {
        let file = other.to_string_lossy();
        let found = stat(&open(other, "read")?, &options, &LoadProgress::default());
        all.push(of(&found.with_context(|| file.clone().into_owned())?, &file)?);
    }
    Ok(all)
}

/// The first trace and the others by number of threads. A process selected with --pid is one of the first trace.
fn scaling_of(
    first: &Trace,
    name: &str,
    others: &[PathBuf],
    options: &StatOptions,
) -> anyhow::Result<Scaling> {
    let progress = LoadProgress::default();
    let of = |trace: &Trace, name: &str, pid| {
        row(trace, name.to_owned(), options.phase, pid, &progress).with_context(|| name.to_owned())
    };
    let mut rows = vec![of(first, name, options.pid)?];
    for other in others {
        rows.push(of(&open(other, "read")?, &other.to_string_lossy(), None)?);
    }
    Ok(scaling(rows))
}
