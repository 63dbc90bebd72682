//! `profinfer diff`: what changed from one run to another.

use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::reading::{open, with_bar};
use super::report::style;
use analysis::questions::diff::{DiffOptions, Incomparable, Judgement, diff};
use analysis::recorded::calls::Phase;
use analysis::recorded::idents::OpKey;
use analysis::recorded::load::LoadProgress;
use analysis::recorded::runs::RunId;
use cli::args::{Args, Argument, Choice, Command, Flag, FlagGroup, Usage};
use cli::values::{choice, parsed, percent, whole};
use pfi::Trace;
use render::units::count;

pub const COMMAND: Command = Command {
    name: "diff",
    about: "Show which operators changed between recorded runs",
    text: "\
Compares the k-th decoded token of run B with the k-th of run A, op by op. Ops are matched by name (all layers combined) and
by the types and dimensions of their tensors; ops that only one run has are listed separately.

A change is reported if it is statistically significant. The confidence intervals cover the variation between tokens of a
run and between starts of the same program. A drift that an op shares with similar ops (those that stream weights from
memory, or all others) is not attributed to the op. On average, at most the share --fdr of the reported changes are false
positives; if nothing changed, it is the probability that any change is reported.

Memory placement differs from start to start, which makes single ops faster or slower for a complete run. With one
recording per side, this variation is estimated from how differently ops of a kind changed. Give several recordings per
side, separated by commas, to measure it per op and detect smaller changes. Record them alternately, A B A B A B: the k-th
of A is compared with the k-th of B. The column 'finds %' shows the smallest change that can be detected.",
    usage: &["A B [OPTIONS]", "A1,A2,... B1,B2,... [OPTIONS]"],
    arguments: &[
        Argument { name: "A", help: "Traces of the baseline runs, separated by commas; '-' is standard input" },
        Argument { name: "B", help: "The same number of traces to compare with the baseline" },
    ],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: &[
        ("0", "compared; with --fail-above: not slower than the limit, with 95 % confidence"),
        ("1", "failed"),
        ("2", "wrong usage"),
        ("3", "slower than --fail-above allows, because of ops or of what only B has"),
        ("4", "slower than that, but all ops alike: the machine, or the build as a whole"),
        ("5", "undecided: too few calls, or too much variation (with --allow-undecided: 0)"),
    ],
    examples: "\
profinfer diff old.pfi new.pfi                        what became slower or faster
profinfer diff old.pfi new.pfi --by layer             layer by layer
profinfer diff o1.pfi,o2.pfi,o3.pfi n1.pfi,n2.pfi,n3.pfi   three starts of each, recorded alternately
profinfer diff both.pfi both.pfi --pid 4711,4712      two processes of one recording
profinfer diff old.pfi new.pfi --fail-above 3%        exit code 3 if ops make a token slower by more than 3 %
profinfer diff old.pfi new.pfi --fail-above 3% --markdown   the same, for a comment
profinfer diff old.pfi new.pfi --json | jq '.ops[0]'  for a program",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("by", "TABLE", "What each row is").default("name").one_of::<OpKey, _>(),
        Flag::value("phase", "PHASE", "Calls to compare").default("decode").one_of::<Phase, _>(),
        Flag::value(
            "pid",
            "PID,...",
            "Processes to compare: one per trace, A's first, or one for all traces that have it [default: \
             the one with the most such calls in each trace]",
        )
        .many(),
        Flag::value("fail-above", "SHARE", "Fail if B is slower by more than this share of a call, e.g. 3%"),
        Flag::switch("allow-undecided", "Let --fail-above pass if it is undecided whether B is slower"),
        Flag::value("fdr", "SHARE", "Expected share of false positives among reported changes").default("5%"),
        Flag::value("least", "SHARE", "Ignore changes smaller than this").default("1%"),
        Flag::value("top", "N", "Maximum rows; reported changes are always shown").default("20"),
        Flag::switch("json", "Print JSON: nanoseconds per call, ratios (1 = 100 %)"),
        Flag::switch("csv", "Print one table of all ops as comma-separated values").excludes(&["json"]),
        Flag::switch("markdown", "Print Markdown with the verdict first, such as for a comment on a change")
            .excludes(&["json", "csv"]),
    ],
};

impl Choice<crate::identity::Flags> for OpKey {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("op", "op types", Self::Op),
        ("name", "tensor names (layers combined) and shapes", Self::Name),
        ("layer", "layers", Self::Layer),
    ];
}

/// The files of one side: a single file if that name exists, otherwise the comma-separated list.
fn files(given: &OsStr) -> Vec<PathBuf> {
    let one = Path::new(given);
    if one.exists() || given.to_str().is_none() {
        return vec![one.to_path_buf()];
    }
    given.to_string_lossy().split(',').map(PathBuf::from).collect()
}

/// The files of both sides, and the selected processes.
fn asked(args: &Args) -> Result<([Vec<PathBuf>; 2], Vec<RunId>), Usage> {
    let sides = [files(args.needed_argument("A")?), files(args.needed_argument("B")?)];
    let [a, b] = sides.each_ref().map(Vec::len);
    if a != b {
        let why = format!("A has {} and B {}: give the same number of each", count(a as u64, "trace"), b);
        return Err(Usage::new(why));
    }
    if sides.iter().flatten().filter(|f| f.as_os_str() == "-").count() > 1 {
        return Err(Usage::new("standard input can be used for one trace only: give files for the others"));
    }
    if sides.iter().flatten().any(|f| f.as_os_str().is_empty()) {
        return Err(Usage::new("empty file name in the list"));
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
    let options = DiffOptions {
        phase: args.needed("phase", choice)?,
        by: args.needed("by", choice)?,
        false_discovery: args.needed("fdr", percent)?,
        least: args.needed("least", percent)?,
        pids,
    };
    let (top, most) = (args.needed("top", whole(1, u32::MAX.into()))?, args.option("fail-above", percent)?);
    let open = |files: &[PathBuf]| files.iter().map(|f| open(f, "compare")).collect::<Result<Vec<_>, _>>();
    let [a, b] = [open(&sides[0])?, open(&sides[1])?];
    let progress = LoadProgress::default();
    let [a, b] = [&a, &b].map(|side| side.iter().collect::<Vec<&Trace>>());
    let found = match with_bar(&progress, || diff(&a, &b, &options, &progress)) {
        Err(why @ Incomparable::Models { .. }) => return Err(Usage::new(why.to_string()).into()),
        found => found?,
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        render::json::write(&mut out, &found)?;
    } else if args.flag("csv") {
        render::diff::csv(&mut out, &found)?;
    } else if args.flag("markdown") {
        let limit = most.map(|most| (most, args.flag("allow-undecided")));
        render::diff::markdown(&mut out, &found, limit, top)?;
    } else {
        let names = sides.map(|side| side.iter().map(|f| f.to_string_lossy().into_owned()).collect());
        render::diff::write(&mut out, &found, &names, top, &style())?;
    }
    out.flush()?;
    let Some(most) = most else { return Ok(ExitCode::SUCCESS) };
    let Some(why) = render::diff::failure(&found, most) else { return Ok(ExitCode::SUCCESS) };
    // Nothing can be done if even this fails.
    let _ = writeln!(std::io::stderr(), "profinfer: {why}");
    Ok(match found.judged(most) {
        Judgement::NotSlower => ExitCode::SUCCESS,
        Judgement::Ops => ExitCode::from(3),
        Judgement::Call => ExitCode::from(4),
        Judgement::Undecided(_) if args.flag("allow-undecided") => ExitCode::SUCCESS,
        Judgement::Undecided(_) => ExitCode::from(5),
    })
}
