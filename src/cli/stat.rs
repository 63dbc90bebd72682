//! `profinfer stat`: statistics across tokens, ops, threads, experts and backends of a run. Uses `trace`, `analysis` and
//! `views`.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::args::{Args, Argument, Command, Flag, Group, Usage};
use super::reading::{open, with_bar};
use super::report::{peaks, style};
use super::values::{one_of, parsed, whole};
use crate::analysis::calls::Phase;
use crate::analysis::load::Progress;
use crate::analysis::stat::shapes::of_trace;
use crate::analysis::stat::{Options, View, stat};
use crate::views;

pub const COMMAND: Command = Command {
    name: "stat",
    about: "Says how times depend on context, work, threads, experts and backends",
    text: "\
tokens    a call's and each op's time against the length of the context: what makes decoding slower
ops       matrix multiplications' time against bytes and FLOPs: the line through them, and those off it
roofline  each op beside what memory and arithmetic of the machine allow (--roof)
threads   how evenly each op is shared out
experts   which experts each layer chose, how often, and how soon again
reuse     time of the experts' multiplications against tokens since a layer used its experts last
activation   which experts each layer chose, token by token (only where it is asked for: it is long)
backends  splits of graphs by backend
shapes    the same ops on two backends, or here and in another trace (--beside)

An op's time is that from its start to the next op's on thread 0, the wait at the barrier included; for threads it is
that until the barrier. Bytes and FLOPs are those of the cost model.",
    usage: &["FILE [WHAT] [OPTIONS]"],
    arguments: &[
        Argument { name: "FILE", help: "Trace to read; '-' is standard input" },
        Argument { name: "WHAT", help: "One of the above [default: all but activation]" },
    ],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: super::EXITS,
    examples: "\
profinfer stat run.pfi                              everything
profinfer stat run.pfi tokens                       which op makes decoding slower as the context grows
profinfer stat run.pfi roofline --roof peak.json    under what 'ggml-runner peak --json' measured
profinfer stat run.pfi --bandwidth 120 --context 8192   tokens/s on a faster memory, in a longer context
profinfer stat run.pfi shapes --beside other.pfi    each op here and there
profinfer stat run.pfi ops --csv > ops.csv          for a spreadsheet",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::value("phase", "PHASE", "Calls to tell of").default("decode").choices(&[
            ("prefill", "calls with more than one token in a ubatch"),
            ("decode", "calls with one token"),
        ]),
        Flag::value(
            "pid",
            "PID[:N]",
            "Process to tell of, or its N-th context [default: the one with the most such calls]",
        ),
        Flag::value(
            "roof",
            "PEAK",
            "This machine's GFLOP/s and GB/s, as in 280,61, or a file that 'ggml-runner peak --json' wrote",
        ),
        Flag::value("bandwidth", "GB/S", "Foretell tokens/s with this memory bandwidth"),
        Flag::value("context", "N", "Foretell tokens/s at this length of the context"),
        Flag::value(
            "beside",
            "OTHER",
            "Trace to lay beside in shapes, of its process with the most such calls; not '-'",
        ),
        Flag::value("top", "N", "Rows of each table").default("20"),
        Flag::switch("json", "Write JSON: nanoseconds, bytes, shares of 1"),
        Flag::switch("csv", "Write the table of one WHAT as comma-separated values").excludes(&["json"]),
    ],
};

fn bandwidth(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| "wanted: 10^9 bytes a second, as in 61.5".into())
}

fn view(args: &Args) -> Result<Option<View>, Usage> {
    let views = one_of(&[
        ("tokens", View::Tokens),
        ("ops", View::Ops),
        ("roofline", View::Roofline),
        ("threads", View::Threads),
        ("experts", View::Experts),
        ("reuse", View::Reuse),
        ("activation", View::Activation),
        ("backends", View::Backends),
        ("shapes", View::Shapes),
    ]);
    let Some(given) = args.argument("WHAT") else { return Ok(None) };
    let given = given.to_string_lossy();
    views(&given).map(Some).map_err(|why| Usage::new(format!("'{given}': {why}")))
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (file, one) = (args.needed_argument("FILE")?, view(args)?);
    let mut options = Options {
        phase: args.needed("phase", one_of(&[("prefill", Phase::Prefill), ("decode", Phase::Decode)]))?,
        views: one.map_or(View::ALL.to_vec(), |one| vec![one]),
        pid: args.option("pid", parsed)?,
        peaks: args.option("roof", peaks::read)?.unwrap_or_default(),
        bandwidth: args.option("bandwidth", bandwidth)?,
        context: args.option("context", whole(1, u32::MAX.into()))?,
        beside: None,
    };
    let top = args.needed("top", whole(1, u32::MAX.into()))?;
    let csv = if args.flag("csv") {
        Some(one.ok_or_else(|| Usage::new("--csv needs WHAT beside it"))?)
    } else {
        None
    };
    let other = args.path("beside")?;
    if other.is_some() && !options.views.contains(&View::Shapes) {
        return Err(Usage::new("--beside is for shapes").into());
    }
    let trace = open(Path::new(file), "read")?;
    if let Some(path) = other {
        let other = open(&path, "read")?;
        options.beside = Some(of_trace(&other, options.phase, &Progress::default()));
    }
    let progress = Progress::default();
    let shown = file.to_string_lossy();
    let found =
        with_bar(&progress, || stat(&trace, &options, &progress)).with_context(|| shown.into_owned())?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        views::json::write(&mut out, &found)?;
    } else if let Some(view) = csv {
        if !views::stat::csv(&mut out, &found, view)? {
            bail!(
                "{}: this recording has nothing of it; without --csv it is said why",
                file.to_string_lossy()
            );
        }
    } else {
        views::stat::write(&mut out, &found, &options.views, top, &style())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
