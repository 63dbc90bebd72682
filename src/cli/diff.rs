//! `profinfer diff`: what changed from one run to another. Uses `trace`, `analysis` and `views`.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use super::args::{Args, Argument, Command, Flag, Group};
use super::reading::{open, with_bar};
use super::report::style;
use super::values::{one_of, percent, whole};
use crate::analysis::calls::Phase;
use crate::analysis::diff::{Options, diff};
use crate::analysis::load::Progress;
use crate::analysis::tables::OpKey;
use crate::views;

pub const COMMAND: Command = Command {
    name: "diff",
    about: "Says which operators changed from one recorded run to another",
    text: "\
Holds the k-th decoded token of run B against the k-th of run A, op by op. Ops are matched by name, layers taken together,
and by the types and dimensions of their tensors; what only one run has is shown apart.

A change is told where chance does not explain it. Tokens of a run are alike, and two starts of one program differ: both
are in the intervals. The drift that an op shares with others of its kind (those that stream weights from memory, or all
others) is not its own change. Of the changes told, on average at most the share --fdr is none; where nothing changed,
that is the chance that anything is told.",
    usage: &["A B [OPTIONS]"],
    arguments: &[
        Argument { name: "A", help: "Trace of the run before; '-' is standard input" },
        Argument { name: "B", help: "Trace of the run after" },
    ],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: &[
        ("0", "compared; with --fail-above, not slower than that"),
        ("1", "failed"),
        ("2", "wrong usage"),
        ("3", "ops, or what only B has, make a call slower than --fail-above allows"),
        ("4", "a call is slower than that, but all ops alike: the machine, or all of the build"),
    ],
    examples: "\
profinfer diff old.pfi new.pfi                        what became slower or faster
profinfer diff old.pfi new.pfi --by layer             layer by layer
profinfer diff old.pfi new.pfi --fail-above 3%        exit code 3 if ops add more than that to a token
profinfer diff old.pfi new.pfi --json | jq '.ops[0]'  for a program",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::value("by", "TABLE", "Rows are").default("name").choices(&[
            ("op", "op types"),
            ("name", "tensor names, layer number folded, and shapes"),
            ("layer", "layers"),
        ]),
        Flag::value("phase", "PHASE", "Calls to compare").default("decode").choices(&[
            ("prefill", "calls with more than one token in a ubatch"),
            ("decode", "calls with one token"),
        ]),
        Flag::value(
            "fail-above",
            "SHARE",
            "Fail where B is slower by more than this share of a call, as in 3%",
        ),
        Flag::value("fdr", "SHARE", "False discovery rate: of the changes told, so many may be none")
            .default("5%"),
        Flag::value("least", "SHARE", "Tell no change of an op that may be this small").default("1%"),
        Flag::value("top", "N", "Rows; changes that are told are always shown").default("20"),
        Flag::switch("json", "Write JSON: nanoseconds a call and shares of 1"),
        Flag::switch("csv", "Write one table of all ops as comma-separated values").excludes(&["json"]),
    ],
};

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files = [args.needed_argument("A")?, args.needed_argument("B")?];
    let options = Options {
        phase: args.needed("phase", one_of(&[("prefill", Phase::Prefill), ("decode", Phase::Decode)]))?,
        by: args
            .needed("by", one_of(&[("op", OpKey::Op), ("name", OpKey::Name), ("layer", OpKey::Layer)]))?,
        false_discovery: args.needed("fdr", percent)?,
        least: args.needed("least", percent)?,
    };
    let (top, most) = (args.needed("top", whole(1, u32::MAX.into()))?, args.option("fail-above", percent)?);
    if files == ["-", "-"] {
        bail!("standard input is one trace: give a file for the other");
    }
    let [a, b] = [open(Path::new(files[0]), "compare")?, open(Path::new(files[1]), "compare")?];
    let progress = Progress::default();
    let found = with_bar(&progress, || diff(&a, &b, &options, &progress))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        views::json::write(&mut out, &found)?;
    } else if args.flag("csv") {
        views::diff::csv(&mut out, &found)?;
    } else {
        let [a, b] = files.map(|f| f.to_string_lossy());
        views::diff::write(&mut out, &found, [&a, &b], top, &style())?;
    }
    out.flush()?;
    let Some(most) = most else { return Ok(ExitCode::SUCCESS) };
    if !found.enough() {
        bail!("{} of {} are too few to say whether B is slower", found.pairs, options.phase.name());
    }
    let Some(why) = views::diff::failure(&found, most) else { return Ok(ExitCode::SUCCESS) };
    // Nothing is left to do when even this can't be written.
    let _ = writeln!(std::io::stderr(), "profinfer: {why}");
    Ok(ExitCode::from(if found.slower().0 > most { 3 } else { 4 }))
}
