//! `profinfer diff`: what changed from one run to another. Uses `trace`, `analysis` and `views`.

use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::args::{Args, Argument, Command, Flag, Group, Usage};
use super::reading::{open, with_bar};
use super::report::style;
use super::values::{one_of, parsed, percent, whole};
use crate::analysis::calls::Phase;
use crate::analysis::diff::{Judgement, Options, diff};
use crate::analysis::load::Progress;
use crate::analysis::runs::RunId;
use crate::analysis::tables::OpKey;
use crate::trace::Trace;
use crate::views;
use crate::views::units::count;

pub const COMMAND: Command = Command {
    name: "diff",
    about: "Says which operators changed from one recorded run to another",
    text: "\
Holds the k-th decoded token of run B against the k-th of run A, op by op. Ops are matched by name, layers taken together,
and by the types and dimensions of their tensors; what only one run has is shown apart.

A change is told where chance does not explain it. Tokens of a run are alike, and two starts of one program differ: both
are in the intervals. The drift that an op shares with others of its kind (those that stream weights from memory, or all
others) is not its own change. Of the changes told, on average at most the share --fdr is none; where nothing changed,
that is the chance that anything is told.

Each start places its memory anew, which makes single ops faster or slower as long as it runs. With one recording a side,
how much is judged by how unlike ops of a kind changed. Give several of each side, with commas between them, and it is
measured, op by op, and smaller changes are found. Record them in turn, A B A B A B: the k-th of A is held against the
k-th of B. The smallest change that is found stands in the column 'finds %'.",
    usage: &["A B [OPTIONS]", "A1,A2,... B1,B2,... [OPTIONS]"],
    arguments: &[
        Argument { name: "A", help: "Traces of runs before, with commas between them; '-' is standard input" },
        Argument { name: "B", help: "As many of runs after" },
    ],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: &[
        ("0", "compared; with --fail-above, not slower than that with 95 % confidence"),
        ("1", "failed"),
        ("2", "wrong usage"),
        ("3", "ops, or what only B has, make a call slower than --fail-above allows"),
        ("4", "a call is slower than that, but all ops alike: the machine, or all of the build"),
        ("5", "whether it is slower than that is undecided: too few calls, or they scatter (--allow-undecided: 0)"),
    ],
    examples: "\
profinfer diff old.pfi new.pfi                        what became slower or faster
profinfer diff old.pfi new.pfi --by layer             layer by layer
profinfer diff o1.pfi,o2.pfi,o3.pfi n1.pfi,n2.pfi,n3.pfi   three starts of each, recorded in turn
profinfer diff both.pfi both.pfi --pid 4711,4712      two processes of one recording
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
            "pid",
            "PID,...",
            "Processes to compare: one of each trace, A's first, or one that is meant in all traces that have it \
             [default: of each trace the one with the most such calls]",
        )
        .many(),
        Flag::value(
            "fail-above",
            "SHARE",
            "Fail where B is slower by more than this share of a call, as in 3%",
        ),
        Flag::switch("allow-undecided", "Pass --fail-above where it is undecided whether B is slower"),
        Flag::value("fdr", "SHARE", "False discovery rate: of the changes told, so many may be none")
            .default("5%"),
        Flag::value("least", "SHARE", "Tell no change of an op that may be this small").default("1%"),
        Flag::value("top", "N", "Rows; changes that are told are always shown").default("20"),
        Flag::switch("json", "Write JSON: nanoseconds a call and shares of 1"),
        Flag::switch("csv", "Write one table of all ops as comma-separated values").excludes(&["json"]),
    ],
};

/// The files of a side: one where it is there by that name, else those between commas.
fn files(given: &OsStr) -> Vec<PathBuf> {
    let one = Path::new(given);
    if one.exists() || given.to_str().is_none() {
        return vec![one.to_path_buf()];
    }
    given.to_string_lossy().split(',').map(PathBuf::from).collect()
}

/// The files of both sides, and the processes meant in them.
fn asked(args: &Args) -> Result<([Vec<PathBuf>; 2], Vec<RunId>), Usage> {
    let sides = [files(args.needed_argument("A")?), files(args.needed_argument("B")?)];
    let [a, b] = sides.each_ref().map(Vec::len);
    if a != b {
        let why = format!("A is {} and B {}: give as many of each", count(a as u64, "trace"), b);
        return Err(Usage::new(why));
    }
    if sides.iter().flatten().filter(|f| f.as_os_str() == "-").count() > 1 {
        return Err(Usage::new("standard input is one trace: give files for the others"));
    }
    if sides.iter().flatten().any(|f| f.as_os_str().is_empty()) {
        return Err(Usage::new("a name between the commas is empty"));
    }
    let pids = args.list("pid", parsed)?;
    if pids.len() > 1 && pids.len() != a + b {
        let why =
            format!("--pid: give one process, or one for each of the {} traces, those of A first", a + b);
        return Err(Usage::new(why));
    }
    Ok((sides, pids))
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (sides, pids) = asked(args)?;
    let options = Options {
        phase: args.needed("phase", one_of(&[("prefill", Phase::Prefill), ("decode", Phase::Decode)]))?,
        by: args
            .needed("by", one_of(&[("op", OpKey::Op), ("name", OpKey::Name), ("layer", OpKey::Layer)]))?,
        false_discovery: args.needed("fdr", percent)?,
        least: args.needed("least", percent)?,
        pids,
    };
    let (top, most) = (args.needed("top", whole(1, u32::MAX.into()))?, args.option("fail-above", percent)?);
    let open = |files: &[PathBuf]| files.iter().map(|f| open(f, "compare")).collect::<Result<Vec<_>, _>>();
    let [a, b] = [open(&sides[0])?, open(&sides[1])?];
    let progress = Progress::default();
    let [a, b] = [&a, &b].map(|side| side.iter().collect::<Vec<&Trace>>());
    let found = with_bar(&progress, || diff(&a, &b, &options, &progress))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        views::json::write(&mut out, &found)?;
    } else if args.flag("csv") {
        views::diff::csv(&mut out, &found)?;
    } else {
        let names = sides.map(|side| side.iter().map(|f| f.to_string_lossy().into_owned()).collect());
        views::diff::write(&mut out, &found, &names, top, &style())?;
    }
    out.flush()?;
    let Some(most) = most else { return Ok(ExitCode::SUCCESS) };
    let Some(why) = views::diff::failure(&found, most) else { return Ok(ExitCode::SUCCESS) };
    // Nothing is left to do when even this can't be written.
    let _ = writeln!(std::io::stderr(), "profinfer: {why}");
    Ok(match found.judged(most) {
        Judgement::NotSlower => ExitCode::SUCCESS,
        Judgement::Ops => ExitCode::from(3),
        Judgement::Call => ExitCode::from(4),
        Judgement::Undecided(_) if args.flag("allow-undecided") => ExitCode::SUCCESS,
        Judgement::Undecided(_) => ExitCode::from(5),
    })
}
