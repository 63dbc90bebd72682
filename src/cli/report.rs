//! `profinfer report`: where the time of a recorded run went. Uses `trace`, `analysis` and `views`.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

pub(super) mod peaks;

use anyhow::Context;

use super::args::{Args, Argument, Command, Flag, Group, Usage};
use super::reading::{open, with_bar};
use super::values::{one_of, parsed, whole};
use crate::analysis::calls::Phase;
use crate::analysis::load::Progress;
use crate::analysis::report::{By, Options, try_report};
use crate::views::table::Style;
use crate::views::{json, text};

pub const COMMAND: Command = Command {
    name: "report",
    about: "Says where the time of a recorded run went",
    text: "\
Prints the run and its model, prefill and decode (TTFT, TPOT, tokens/s), the operators by type, name and layer, the
threads, the graph splits by backend, and how far the record can be trusted: probes, losses, damage, own cost.

The time of an op is thread 0's. Where the barrier could be probed it is busy time (start to barrier entry) and the
wait is shown apart; else it is wall time to the next op's start. Shares are of the summed duration of the CPU
graphs; the row \"(gaps)\" is what no op covers, so that they add up to the whole.

Where the recording has the scheduler (--sched) or counters (--pmc), what threads did in each op follows, what was
counted, who was in the way, and what bounds each op: most of its threads' time, else the peaks of the machine (--peak),
else stalled cycles, else the best bandwidth of the same trace; where none of them says enough, nothing is said.",
    usage: &["FILE [OPTIONS]"],
    arguments: &[Argument { name: "FILE", help: "Trace to read; '-' is standard input" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: super::EXITS,
    examples: "\
profinfer report run.pfi                       everything
profinfer report run.pfi --phase decode        decode only
profinfer report run.pfi --by layer --top 50   one table, more rows
profinfer report run.pfi --json | jq .books    for a program
profinfer report run.pfi --by cause            what threads did in each op (record --sched)
profinfer report run.pfi --peak peak.json      beside what the machine can do
ssh board cat run.pfi | profinfer report -     from a pipe",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::switch("json", "Write JSON: all numbers in nanoseconds, bytes and shares of 1"),
        Flag::value("top", "N", "Rows of each table; the rest is summed up [default: 20, with --json all]"),
        Flag::value(
            "by",
            "TABLE",
            "Only this table, below the verdict on the recording [default: all but token, with --json all]",
        )
        .choices(&[
            ("op", "op types"),
            ("name", "tensor names, layer number folded"),
            ("layer", "layers"),
            ("thread", "threads of the engine's pool"),
            ("token", "calls of the engine"),
            ("cause", "what threads did: computing, barrier, preempted, idle, faulting (--sched)"),
            ("counter", "what was counted (--pmc)"),
            ("interference", "who had the CPU while the target's threads could have run (--sched)"),
            ("expert", "experts of each layer (--experts)"),
            ("phase", "load, tokenize, prefill, decode, sampling and so on (--phases)"),
            ("energy", "joules, frequencies, temperatures (--sensors)"),
            ("level", "how much was recorded when, and at what cost (--budget)"),
        ]),
        Flag::value(
            "pid",
            "PID[:N]",
            "Process to tell of, or its N-th context [default: the one with the most calls, with --json all]",
        ),
        Flag::value("phase", "PHASE", "Only this phase [default: all that were recorded]").choices(&[
            ("prefill", "calls with more than one token in a ubatch"),
            ("decode", "calls with one token"),
        ]),
        Flag::value(
            "peak",
            "PEAK",
            "Hold ops against this machine's GFLOP/s and GB/s, as in 280,61, or against a file that 'ggml-runner peak --json' wrote",
        ),
        Flag::value(
            "expert-cache",
            "N",
            "Tell the hits of a cache of N experts a layer [default: sizes that fit]",
        )
        .many(),
    ],
};

fn options(args: &Args) -> Result<Options, Usage> {
    let json = args.flag("json");
    let tables = one_of(&[
        ("op", By::Op),
        ("name", By::Name),
        ("layer", By::Layer),
        ("thread", By::Thread),
        ("token", By::Token),
        ("cause", By::Cause),
        ("counter", By::Counter),
        ("interference", By::Interference),
        ("expert", By::Expert),
        ("phase", By::Phase),
        ("energy", By::Energy),
        ("level", By::Level),
    ]);
    let tables = match args.option("by", tables)? {
        Some(one) => vec![one],
        None => By::ALL.into_iter().filter(|by| json || *by != By::Token).collect(),
    };
    let top = args.option("top", whole(1, u32::MAX.into()))?;
    let phase = args.option("phase", one_of(&[("prefill", Phase::Prefill), ("decode", Phase::Decode)]))?;
    let top = top.or(if json { None } else { Some(20) });
    let expert_cache = args.list("expert-cache", whole(1, u32::MAX.into()))?;
    let peaks = args.option("peak", peaks::read)?.unwrap_or_default();
    let pid = args.option("pid", parsed)?;
    // A program that names no run gets them all.
    let others = json && pid.is_none();
    Ok(Options { top, tables, phase, expert_cache, peaks, pid, others })
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (file, options) = (args.needed_argument("FILE")?, options(args)?);
    let trace = open(Path::new(file), "report on")?;
    let progress = Progress::default();
    let report = with_bar(&progress, || try_report(&trace, &options, &progress));
    let report = report.with_context(|| format!("cannot report on {}", file.to_string_lossy()))?;
    let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    if args.flag("json") {
        json::write(&mut out, &report)?;
    } else {
        text::write(&mut out, &report, &style())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// How standard output may be drawn on.
pub(super) fn style() -> Style {
    let terminal = std::io::stdout().is_terminal();
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let width = terminal.then(|| terminal_size::terminal_size().map_or(100, |(w, _)| usize::from(w.0)));
    Style { width, color: terminal && !no_color }
}
