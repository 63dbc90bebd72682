//! `profinfer report`: where the time of a recorded run went.

use std::io::{BufWriter, IsTerminal, Write};
use std::process::ExitCode;

pub(super) mod peaks;

use anyhow::Context;

use super::reading::{named_or_newest, open, with_bar};
use analysis::questions::report::{By, ReportOptions, try_report};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Argument, Choice, Command, Flag, FlagGroup, Usage};
use cli::terminal;
use cli::values::{choice, parsed, whole};
use render::table::Style;
use render::{json, markdown, text, verdict};

pub const COMMAND: Command = Command {
    name: "report",
    about: "Show where the time of a recorded run went",
    text: "\
Prints the verdict: how fast the run was against the ceiling of its machine, where the time went, what limits it, and what
to change (see profinfer advise). The ceiling needs the machine's peaks: measured once by profinfer doctor --peaks, or given
by --peak.

With --all, prints the run and its model, prefill and decode (TTFT, TPOT, tok/s), operators by type, name and layer,
threads, graph splits by backend, and the recording quality: probes, losses, damage, overhead. With --by, prints one table.

The time of an op is that of thread 0. If the barrier was probed, it is busy time (start to barrier entry) and waiting time
is shown separately; otherwise it is wall time until the next op starts. Percentages refer to the summed duration of the
CPU graphs; the row \"(gaps)\" is the time that no op covers, so that the rows add up to 100 %.

If the recording has scheduling (--sched) or counters (--pmc), --all also shows what threads did in each op, the
counters, CPU interference, and the bottleneck of each op. The bottleneck is derived from where its threads spent most of
their time, else from the machine's peaks (--peak), else from stalled cycles, else from the best bandwidth in the same
trace; if none of them is conclusive, no bottleneck is shown.",
    usage: &["[FILE] [OPTIONS]"],
    arguments: &[Argument { name: "FILE", help: "Trace to read; '-' is standard input [default: the newest *.pfi here]" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
profinfer report run.pfi                       the verdict, in about ten lines
profinfer report run.pfi --all                 all tables
profinfer report run.pfi --all --phase decode  decode only
profinfer report run.pfi --by layer --top 50   one table, more rows
profinfer report run.pfi --json | jq .quality  for a program
profinfer report run.pfi --markdown > run.md   verdict and tables, for an issue
profinfer report run.pfi --by cause            what threads did in each op (record --sched)
profinfer report run.pfi --peak peak.json      against the machine's peaks
ssh board cat run.pfi | profinfer report -     from a pipe",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::switch("all", "Print all tables instead of the verdict"),
        Flag::switch(
            "verbose",
            "With --all: print every figure of the recording quality, even if it is complete",
        ),
        Flag::switch("json", "Print JSON: nanoseconds, bytes, ratios (1 = 100 %)"),
        Flag::switch(
            "markdown",
            "Print Markdown: the verdict and the tables, e.g. for an issue or a pull request",
        )
        .excludes(&["json"]),
        Flag::value(
            "top",
            "N",
            "Maximum rows per table; the remaining rows are summed up [default: 20, with --json all]",
        ),
        Flag::value("by", "TABLE", "Print only this table [with --all: all but token; with --json: all]")
            .one_of::<By, _>(),
        Flag::value(
            "pid",
            "PID[:N]",
            "Process to show, or its N-th context [default: the one with the most calls, with --json all]",
        ),
        Flag::value("phase", "PHASE", "Show only this phase [default: all recorded phases]")
            .one_of::<Phase, _>(),
        Flag::value(
            "peak",
            "PEAK",
            "Compare ops with this machine's GFLOP/s and GB/s, e.g. 280,61, or with a file written by \
             'ggml-runner peak --json'",
        ),
        Flag::value(
            "expert-cache",
            "N",
            "Show the hit rate of a cache of N experts per layer [default: sizes that fit]",
        )
        .many(),
    ],
};

impl Choice<crate::identity::Flags> for By {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("op", "op types", Self::Op),
        ("name", "tensor names, layers combined", Self::Name),
        ("layer", "layers", Self::Layer),
        ("thread", "threads of the engine", Self::Thread),
        ("token", "calls of the engine", Self::Token),
        ("cause", "what threads did: computing, barrier, preempted, idle, faulting (--sched)", Self::Cause),
        ("counter", "counters (--pmc)", Self::Counter),
        (
            "interference",
            "what ran on the CPU while engine threads were runnable (--sched)",
            Self::Interference,
        ),
        ("expert", "experts of each layer (--experts)", Self::Expert),
        ("phase", "load, tokenize, prefill, decode, sampling, etc. (--phases)", Self::Phase),
        ("energy", "joules, frequencies, temperatures (--sensors)", Self::Energy),
        ("cpu", "CPUs and clusters that ops ran on, and migrations", Self::Cpu),
        ("level", "level of detail over time, and its cost (--budget)", Self::Level),
        ("request", "requests: prompt, cached tokens, TTFT, time per token, drafts", Self::Request),
        ("sequence", "sequences (a server's slots)", Self::Sequence),
        ("batch", "calls by the number of sequences they compute, and drafts", Self::Batch),
    ];
}

impl Choice<crate::identity::Flags> for Phase {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("prefill", "calls with more than one token in a ubatch", Self::Prefill),
        ("decode", "calls with one token", Self::Decode),
    ];
}

fn options(args: &Args) -> Result<ReportOptions, Usage> {
    let json = args.flag("json");
    let tables = match args.option("by", choice)? {
        Some(one) => vec![one],
        None => By::ALL.into_iter().filter(|by| json || *by != By::Token).collect(),
    };
    let top = args.option("top", whole(1, u32::MAX.into()))?;
    let phase = args.option("phase", choice)?;
    let top = top.or(if json { None } else { Some(20) });
    let expert_cache = args.list("expert-cache", whole(1, u32::MAX.into()))?;
    let peaks = args.option("peak", peaks::read)?.unwrap_or_default();
    let pid = args.option("pid", parsed)?;
    // A program that names no run gets all of them.
    let others = json && pid.is_none();
    Ok(ReportOptions { top, tables, phase, expert_cache, peaks, verdict: true, pid, others })
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (file, options) = (named_or_newest(args.argument("FILE"))?, options(args)?);
    let trace = open(&file, "report on")?;
    let progress = LoadProgress::default();
    let report = with_bar(&progress, || try_report(&trace, &options, &progress));
    let report = report.with_context(|| format!("cannot report on {}", file.to_string_lossy()))?;
    let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    if args.flag("json") {
        json::write(&mut out, &report)?;
    } else if args.flag("markdown") {
        markdown::write(&mut out, &report, &file.to_string_lossy(), args.flag("verbose"))?;
    } else {
        // What selects rows of tables asks for the tables.
        let tables =
            ["all", "verbose", "by", "phase", "top", "expert-cache"].iter().any(|name| args.flag(name));
        match tables {
            true => text::all(&mut out, &report, args.flag("verbose"), &style())?,
            false => verdict::write(&mut out, &report, &file.to_string_lossy(), &style())?,
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The style for standard output.
pub(super) fn style() -> Style {
    style_of(&std::io::stdout())
}

/// The style for an output stream.
pub(super) fn style_of(out: &impl IsTerminal) -> Style {
    let is_terminal = out.is_terminal();
    let width = is_terminal.then(|| terminal_size::terminal_size().map_or(100, |(w, _)| usize::from(w.0)));
    Style { width, color: is_terminal && terminal::colour(), ..Style::default() }
}
