//! `profinfer dag`: the graph that an engine computed. Uses `trace`, `analysis` and `views`.

use std::ffi::OsStr;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::args::{Args, Argument, Command, Flag, Group, Usage};
use super::output;
use super::reading::{not_over, open, with_bar};
use super::values::{any_of, one_of, parsed, whole};
use crate::analysis::calls::Phase;
use crate::analysis::dag::compare::compare;
use crate::analysis::dag::fold::{fold, only};
use crate::analysis::dag::{Dag, METRICS, Metric, Options, dag};
use crate::analysis::load::Progress;
use crate::views::dag::{self as view, Format};
use crate::views::table::{Style, clean};

pub const COMMAND: Command = Command {
    name: "dag",
    about: "Draws the graph that an engine computed, coloured by time or what else was recorded",
    text: "\
Writes the operators of a batch in the order in which they ran, with an edge from each tensor to the operators that take
it: views, weights, caches and inputs as they are, and two operators that the engine computes as one in one node. Every
node has all that is known of it: type, dimensions, time, bytes and operations by the cost model, and what was counted.

Without --token the figures are means over all graphs of the phase that have the structure most of them have; a note on
standard error says how many are left out. What a trace does not hold is left empty and said: it is never a zero.

--fold makes one of all layers that are equal, with the median over them, the lowest and the highest: a model of 28 layers
fits on a page. An SVG is laid out here and needs no other program; in it constants are told in the boxes that take them.

--against compares the structure of two models: operators that only one of them has, and where they stand.",
    usage: &["FILE [OPTIONS]", "--against OTHER FILE [OPTIONS]"],
    arguments: &[Argument { name: "FILE", help: "Trace to read; '-' is standard input" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: super::EXITS,
    examples: "\
profinfer dag run.pfi --fold -o model.svg            the model on a page, by time
profinfer dag run.pfi --layer 3 -o layer3.svg        one layer, and what it takes
profinfer dag run.pfi --metric gbps --fold -o g.svg  by bandwidth
profinfer dag run.pfi --token 12 | dot -Tpdf -o t.pdf
profinfer dag run.pfi --format json | jq '.nodes[] | select(.order == 0)'
profinfer dag --against qwen2.pfi llama.pfi          what the one has and the other has not",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::value("token", "N", "The graph of one batch, by its number in `report --by token --json`")
            .excludes(&["phase"]),
        Flag::value("phase", "PHASE", "All graphs of a phase [default: decode, else prefill]").choices(&[
            ("prefill", "calls with more than one token in a ubatch"),
            ("decode", "calls with one token"),
        ]),
        Flag::value("metric", "METRIC", "What colours the nodes and stands in them").default("time").choices(
            &[
                ("time", "mean time of a call on thread 0"),
                ("gbps", "bytes of the cost model over that time"),
                ("bytes", "bytes by the cost model"),
                ("flops", "operations by the cost model"),
                ("stall", "cycles in which the back end was stalled (record --pmc)"),
                ("faults", "page faults (record --faults)"),
                ("imbalance", "slowest thread over the mean of the threads"),
            ],
        ),
        Flag::switch("fold", "Make one of all layers that are equal").excludes(&["layer"]),
        Flag::value("layer", "L", "Only this layer and what it takes"),
        Flag::value("format", "FORMAT", "[default: by the ending of -o, else dot; text with --against]")
            .choices(&[
                ("dot", "for Graphviz"),
                ("graphml", "for yEd, Gephi, networkx"),
                ("json", "for a program; all metrics"),
                ("svg", "a drawing"),
                ("text", "with --against alone"),
            ]),
        Flag::value("output", "OUT", "Write to this file; '-' is standard output").short('o').default("-"),
        output::MODE,
        Flag::value("pid", "PID[:N]", "The process, where several were recorded, or its N-th context"),
        Flag::value("against", "OTHER", "Compare the structure of this trace with FILE's")
            .excludes(&["fold", "layer", "metric"]),
    ],
};

fn metric(text: &str) -> Result<Metric, String> {
    let found = METRICS.iter().find(|m| m.name == text).map(|m| m.metric);
    found.ok_or_else(|| format!("wanted: {}", any_of(METRICS.iter().map(|m| m.name))))
}

/// What is asked for by flag or by the name of the output.
fn format(args: &Args, output: &Path) -> Result<Format, Usage> {
    const ALL: [(&str, Format); 4] =
        [("dot", Format::Dot), ("graphml", Format::Graphml), ("json", Format::Json), ("svg", Format::Svg)];
    let ending = output.extension().and_then(OsStr::to_str).unwrap_or_default();
    let of_name = ALL.iter().find(|(name, _)| *name == ending).map_or(Format::Dot, |(_, f)| *f);
    Ok(args.option("format", one_of(&ALL))?.unwrap_or(of_name))
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = Path::new(args.needed_argument("FILE")?);
    let output = args.path("output")?.unwrap_or_else(|| "-".into());
    let phase = args.option("phase", one_of(&[("prefill", Phase::Prefill), ("decode", Phase::Decode)]))?;
    let options =
        Options { pid: args.option("pid", parsed)?, token: args.option("token", whole(0, u64::MAX))?, phase };
    not_over(&output, file)?;
    if let Some(other) = args.path("against")? {
        not_over(&output, &other)?;
        return against(args, file, &other, &options, &output);
    }
    let (metric, format) = (args.needed("metric", metric)?, format(args, &output)?);
    let mode = args.needed("mode", output::mode)?;
    let layer = args.option("layer", whole(0, u32::MAX.into()))?;
    let mut graph = read(file, &options)?;
    if args.flag("fold") {
        graph = fold(&graph);
    }
    if let Some(layer) = layer {
        graph = only(&graph, layer).with_context(|| format!("cannot draw {}", file.display()))?;
    }
    notes(&graph.notes);
    if !graph.has(metric) {
        notes(&[view::legend(metric, None)]);
    }
    write(&output, mode, |out| view::write(out, &graph, metric, format))
}

fn read(file: &Path, options: &Options) -> anyhow::Result<Dag> {
    let trace = open(file, "draw")?;
    let progress = Progress::default();
    let graph = with_bar(&progress, || dag(&trace, options, &progress));
    graph.with_context(|| format!("cannot draw {}", file.display()))
}

/// Tells what a reader of the drawing should know. A terminal that is gone is no matter.
fn notes(notes: &[String]) {
    for note in notes {
        let _ = writeln!(io::stderr(), "profinfer: note: {}", clean(note));
    }
}

fn against(
    args: &Args,
    file: &Path,
    other: &Path,
    options: &Options,
    output: &Path,
) -> anyhow::Result<ExitCode> {
    let json = match args.option("format", one_of(&[("text", false), ("json", true)]))? {
        Some(json) => json,
        None => output.extension() == Some(OsStr::new("json")),
    };
    let a = read(file, options)?;
    // A pid is one of the first file; the other must have one process only.
    let b = read(other, &Options { pid: None, ..*options })?;
    notes(&a.notes);
    notes(&b.notes);
    let told = compare(&a, &b).context("cannot compare")?;
    let names = [file, other].map(|f| f.to_string_lossy().into_owned());
    let names = [names[0].as_str(), names[1].as_str()];
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let style = Style { width: None, color: colour && output == Path::new("-") };
    write(output, args.needed("mode", output::mode)?, |out| match json {
        true => view::compare::json(out, &told, names),
        false => view::compare::text(out, &told, names, &style),
    })
}

/// Writes to a file, or to standard output.
fn write(
    path: &Path,
    mode: u32,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitCode> {
    if path == Path::new("-") {
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        content(&mut out)?;
        out.flush()?;
    } else {
        output::whole(path, mode, |()| true, content)?;
    }
    Ok(ExitCode::SUCCESS)
}
