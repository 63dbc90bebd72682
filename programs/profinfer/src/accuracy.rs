//! `profinfer accuracy`: compares a trace with the engine's own timing.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use analysis::questions::accuracy::{self, AccuracyComparison};
use analysis::questions::ground_truth;
use cli::args::{Args, Argument, Command, Flag, FlagGroup};
use pfi::Trace;
use render::table::Style;

pub const COMMAND: Command = Command {
    name: "accuracy",
    about: "Compare a trace with the engine's own clock readings",
    text: "\
The readings are written by `ggml-runner run --ground-truth`. For each level (phase, token, graph, op) and for ops by
duration, prints how close the recorded durations are to the true ones: 1 - |measured - true| / true.",
    usage: &["TRACE TRUTH [OPTIONS]"],
    arguments: &[
        Argument { name: "TRACE", help: "Trace of the run" },
        Argument { name: "TRUTH", help: "Ground truth of the same run" },
    ],
    behind: None,
    groups: &[FlagGroup {
        title: "Options",
        flags: &[Flag::switch("json", "Print JSON: ratios (1 = 100 %), nanoseconds")],
    }],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
profinfer record -o run.pfi -- ggml-runner run -m model.gguf -p 32 -n 64 --ground-truth truth.tsv
profinfer accuracy run.pfi truth.tsv",
    run,
};

/// Reads both files and compares them.
pub fn compare(trace: &Path, truth: &Path) -> anyhow::Result<AccuracyComparison> {
    let cannot = |path: &Path| format!("cannot use {}", path.display());
    let opened = Trace::open(trace).with_context(|| cannot(trace))?;
    let file = File::open(truth).with_context(|| cannot(truth))?;
    let truth = ground_truth::read(BufReader::new(file)).with_context(|| cannot(truth))?;
    accuracy::compare(&opened, &truth).with_context(|| format!("cannot compare with {}", trace.display()))
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (trace, truth) = (args.needed_argument("TRACE")?, args.needed_argument("TRUTH")?);
    let comparison = compare(Path::new(trace), Path::new(truth))?;
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let mut out = BufWriter::new(stdout.lock());
    if args.flag("json") {
        render::json::write(&mut out, &comparison)?;
    } else {
        render::accuracy::write(
            &mut out,
            &comparison,
            &Style { color: terminal && cli::terminal::colour(), ..Style::default() },
        )?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
