//! `profinfer dag`: the graph that an engine computed.

use std::ffi::OsStr;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::reading::{not_over, open, with_bar};
use analysis::questions::dag::compare::compare;
use analysis::questions::dag::fold::{fold, only};
use analysis::questions::dag::{Dag, DagOptions, METRICS, Metric, dag};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Argument, Choices, Command, Flag, FlagGroup, Usage};
use cli::output::{self, OutputRules};
use cli::values::{any_of, choice, one_of, parsed, whole};
use render::dag::{self as view, GraphFormat};
use render::table::{Style, clean};

pub const COMMAND: Command = Command {
    name: "dag",
    about: "Draw the graph that an engine computed, coloured by time or another metric",
    text: "\
Writes the operators of a batch in execution order, with an edge from each tensor to the operators that use it. Views,
weights, caches and inputs are shown as such; two operators that the engine fuses are one node. Each node has type,
dimensions, time, bytes and FLOPs from the cost model, and recorded counters.

Without --token, the figures are medians or means over all graphs of the phase that have the most common structure; a note
on standard error says how many are left out. Data that a trace does not have is left empty and reported, never shown as zero.

--fold combines identical layers into one, with median, minimum and maximum: a model of 28 layers fits on a page. SVG output
needs no other program; constants are shown in the boxes of the operators that use them.

Several traces are drawn side by side, with one scale of colours, as SVG.

--against compares the structure of two models: operators that only one of them has, and where they are.",
    usage: &["FILE... [OPTIONS]", "--against OTHER FILE [OPTIONS]"],
    arguments: &[Argument { name: TRACES, help: "Trace to read; '-' is standard input" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
profinfer dag run.pfi --fold -o model.svg            the model on a page, by time
profinfer dag a.pfi b.pfi --fold -o models.svg       two models side by side
profinfer dag run.pfi --layer 3 -o layer3.svg        one layer and its inputs
profinfer dag run.pfi --metric gbps --fold -o g.svg  by bandwidth
profinfer dag run.pfi --token 12 | dot -Tpdf -o t.pdf
profinfer dag run.pfi --format json | jq '.nodes[] | select(.order == 0)'
profinfer dag --against qwen2.pfi llama.pfi          structural differences between two models",
    run,
};

/// The traces.
const TRACES: &str = "FILE...";

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("token", "N", "Draw the graph of one batch, by its number in `report --by token --json`")
            .excludes(&["phase"]),
        Flag::value("phase", "PHASE", "Draw all graphs of a phase [default: decode, else prefill]")
            .one_of::<Phase, _>(),
        Flag::value("metric", "METRIC", "Metric to colour and label the nodes with")
            .default("median")
            .choices(METRIC_CHOICES),
        Flag::switch("fold", "Combine identical layers into one").excludes(&["layer"]),
        Flag::value("layer", "L", "Draw only this layer and its inputs"),
        Flag::value(
            "format",
            "FORMAT",
            "Output format [default: by the extension of -o, else dot; text with --against]",
        )
        .choices(Choices::from_fn(|i| FORMATS.get(i).map(|(name, help, _)| (*name, *help)))),
        Flag::value("output", "OUT", "Write to this file; '-' is standard output").short('o').default("-"),
        output::FORCE,
        output::MODE,
        Flag::value("pid", "PID[:N]", "Process to draw, or its N-th context, if several were recorded"),
        Flag::value("against", "OTHER", "Compare the structure of this trace with FILE's")
            .excludes(&["fold", "layer", "metric"]),
    ],
};

/// The help of each metric, in the order of [`METRICS`].
const METRIC_HELP: [&str; METRICS.len()] = [
    "median time of a call on thread 0",
    "mean time per call on thread 0",
    "bytes from the cost model, divided by that time",
    "bytes counted by a counter of memory traffic, else those of the cost model; the legend says which",
    "FLOPs from the cost model",
    "cycles with a stalled back end (record --pmc)",
    "page faults (record --faults)",
    "slowest thread divided by the mean of all threads",
    "bytes of missed cache lines (record --pmc ll_cache_miss or cache-misses)",
    "95th percentile of that time divided by the median",
];

const METRIC_CHOICES: Choices = Choices::from_fn(|i| Some((METRICS.get(i)?.name, METRIC_HELP.get(i)?)));

/// Name, help, and the format of a drawing; None: not a drawing.
const FORMATS: [(&str, &str, Option<GraphFormat>); 5] = [
    ("dot", "for Graphviz", Some(GraphFormat::Dot)),
    ("graphml", "for yEd, Gephi, networkx", Some(GraphFormat::Graphml)),
    ("json", "for a program; all metrics", Some(GraphFormat::Json)),
    ("svg", "a drawing", Some(GraphFormat::Svg)),
    ("text", "only with --against", None),
];

fn metric(text: &str) -> Result<Metric, String> {
    let found = METRICS.iter().find(|m| m.name == text).map(|m| m.metric);
    found.ok_or_else(|| format!("expected {}", any_of(METRICS.iter().map(|m| m.name))))
}

/// The format given by flag or by the output's extension.
fn format(args: &Args, output: &Path) -> Result<GraphFormat, Usage> {
    let all: Vec<_> = FORMATS.iter().filter_map(|(name, _, format)| Some((*name, (*format)?))).collect();
    let ending = output.extension().and_then(OsStr::to_str).unwrap_or_default();
    let of_name = all.iter().find(|(name, _)| *name == ending).map_or(GraphFormat::Dot, |(_, f)| *f);
    Ok(args.option("format", one_of(&all))?.unwrap_or(of_name))
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files: Vec<&Path> = args.needed_arguments(TRACES)?.iter().map(Path::new).collect();
    let output = args.path("output")?.unwrap_or_else(|| "-".into());
    let phase = args.option("phase", choice)?;
    let options = DagOptions {
        pid: args.option("pid", parsed)?,
        token: args.option("token", whole(0, u64::MAX))?,
        phase,
    };
    let rules = OutputRules::read(args)?;
    files.iter().try_for_each(|file| not_over(&output, file))?;
    if let Some(other) = args.path("against")? {
        not_over(&output, &other)?;
        rules.check(&output)?;
        let [file] = files[..] else {
            return Err(Usage::new("--against compares one trace with one other").into());
        };
        return against(args, file, &other, &options, (&output, rules));
    }
    rules.check(&output)?;
    let (metric, format) = (args.needed("metric", metric)?, format(args, &output)?);
    if files.len() > 1 && format != GraphFormat::Svg {
        return Err(
            Usage::new("several traces are drawn as SVG only: give --format svg or -o OUT.svg").into()
        );
    }
    let layer = args.option("layer", whole(0, u32::MAX.into()))?;
    let mut graphs = Vec::new();
    for file in &files {
        let mut graph = read(file, &options)?;
        if args.flag("fold") {
            graph = fold(&graph);
        }
        if let Some(layer) = layer {
            graph = only(&graph, layer).with_context(|| format!("cannot draw {}", file.display()))?;
        }
        notes(&graph.notes);
        graphs.push((clean(&file.to_string_lossy()), graph));
    }
    let metric = match metric {
        Metric::Bytes if graphs.iter().all(|(_, graph)| graph.has(Metric::Counted)) => Metric::Counted,
        other => other,
    };
    for (_, graph) in graphs.iter().filter(|(_, graph)| !graph.has(metric)) {
        notes(&[view::legend(graph, metric, None)]);
    }
    write(&output, rules, |out| match &graphs[..] {
        [(_, graph)] => view::write(out, graph, metric, format),
        several => view::svg::beside(out, several, metric),
    })
}

fn read(file: &Path, options: &DagOptions) -> anyhow::Result<Dag> {
    let trace = open(file, "draw")?;
    let progress = LoadProgress::default();
    let graph = with_bar(&progress, || dag(&trace, options, &progress));
    graph.with_context(|| format!("cannot draw {}", file.display()))
}

/// Prints notes for the reader of the drawing. A closed terminal is no error.
fn notes(notes: &[String]) {
    for note in notes {
        let _ = writeln!(io::stderr(), "profinfer: note: {}", clean(note));
    }
}

fn against(
    args: &Args,
    file: &Path,
    other: &Path,
    options: &DagOptions,
    (output, rules): (&Path, OutputRules),
) -> anyhow::Result<ExitCode> {
    let json = match args.option("format", one_of(&[("text", false), ("json", true)]))? {
        Some(json) => json,
        None => output.extension() == Some(OsStr::new("json")),
    };
    let a = read(file, options)?;
    // A pid refers to the first file; the other must have a single process.
    let b = read(other, &DagOptions { pid: None, ..*options })?;
    notes(&a.notes);
    notes(&b.notes);
    let told = compare(&a, &b).context("cannot compare")?;
    let names = [file, other].map(|f| f.to_string_lossy().into_owned());
    let names = [names[0].as_str(), names[1].as_str()];
    let colour = io::stdout().is_terminal() && cli::terminal::colour();
    let style = Style { color: colour && output == Path::new("-"), ..Style::default() };
    write(output, rules, |out| match json {
        true => view::compare::json(out, &told, names),
        false => view::compare::text(out, &told, names, &style),
    })
}

/// Writes to a file, or to standard output.
pub(super) fn write(
    path: &Path,
    rules: OutputRules,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitCode> {
    if path == Path::new("-") {
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        content(&mut out)?;
        out.flush()?;
    } else {
        output::whole(path, rules, |()| true, content)?;
    }
    Ok(ExitCode::SUCCESS)
}
