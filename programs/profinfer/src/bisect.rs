//! `profinfer bisect`: which of the differences between two commands makes one of them slower.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;

use super::report::style;
use super::tune::Terminal;
use analysis::questions::diff::DiffOptions;
use analysis::recorded::calls::Phase;
use analysis::recorded::idents::OpKey;
use cli::args::{Args, Command, Flag, FlagGroup, Usage};
use cli::values::{choice, parsed, percent, whole};
use render::table::{Style, Table, clean, number, text as left};
use render::units::{count, pct};
use trials::bisect::{BisectOptions, Bisected, Both, Comparison, Difference, Ended, bisect};

pub const COMMAND: Command = Command {
    name: "bisect",
    about: "Find which of the differences between two commands makes one slower",
    text: "\
Takes a command that is fast and one that is slow, and finds out which of their differences costs the time: variables in
front, a wrapper, the program (another build), and flags with their values. First both are run in turn, --runs times each;
then the fast command with a part of the differences, halved while one half alone brings most of the slowdown. Each run is
recorded, and recordings are compared by the test of profinfer diff.

The commands must end by themselves and run the same model. They are given as a shell takes them, each in quotes; nothing in
them is expanded. Requires the privileges of profinfer record.",
    usage: &["--good COMMAND --bad COMMAND [OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: &[
        ("0", "found"),
        ("1", "failed: a command does not run, or its recordings cannot be compared"),
        ("2", "wrong usage"),
        ("3", "the bad command is not slower"),
        ("4", "the kernel's tracing does not answer: only a reboot helps"),
        ("5", "undecided: too few calls, or too much variation"),
        ("130", "interrupted; what was found is printed"),
    ],
    examples: "\
profinfer bisect --good 'llama-bench -m m.gguf -t 4' --bad 'llama-bench -m m.gguf -t 8 -fa 0'
profinfer bisect --good 'old/llama-bench -m m.gguf' --bad 'GGML_NO_BACKTRACE=1 new/llama-bench -m m.gguf'
profinfer bisect --good \"$GOOD\" --bad \"$BAD\" --phase prefill --json | jq -r .slow_command",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("good", "COMMAND", "The fast command, in quotes").cli_only(),
        Flag::value("bad", "COMMAND", "The slow command, in quotes").cli_only(),
        Flag::value("phase", "PHASE", "Calls to compare").default("decode").one_of::<Phase, _>(),
        Flag::value("runs", "N", "Runs of each side of a comparison").default("3"),
        Flag::value("least", "SHARE", "Slower by less than this share of a call is not slower").default("3%"),
        Flag::value("keep", "DIR", "Keep the recordings in this directory [default: they are removed]"),
        Flag::switch(
            "as-root",
            "Under sudo, run the commands as root [default: as the user who called sudo]",
        )
        .cli_only(),
        Flag::switch("json", "Print JSON: times is how many times as long a call takes"),
        Flag::switch("quiet", "Print no progress").short('q'),
    ],
};

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let [good, bad] = ["good", "bad"].map(|name| args.needed(name, parsed::<String>));
    let both = Both::new(&good?, &bad?).map_err(|why| Usage::new(why.to_string()))?;
    let keep = args.path("keep")?;
    if let Some(dir) = &keep {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let options = BisectOptions {
        both,
        diff: DiffOptions {
            phase: args.needed("phase", choice)?,
            by: OpKey::Op,
            false_discovery: 0.05,
            least: 0.01,
            pids: Vec::new(),
        },
        runs: args.needed("runs", whole(1, 100))?,
        least: args.needed("least", percent)?,
        record: if args.flag("as-root") { vec!["--as-root".into()] } else { Vec::new() },
        keep,
    };
    machine::tracing::answers()?;
    let mut watch = Terminal::install(args.flag("quiet"))?;
    let found = bisect(&options, &mut watch)?;
    watch.clear();
    let mut out = BufWriter::new(io::stdout().lock());
    match args.flag("json") {
        true => render::json::write(&mut out, &found)?,
        false => write(&mut out, &found, options.runs, &style())?,
    }
    out.flush()?;
    Ok(match found.ended {
        Ended::Found => ExitCode::SUCCESS,
        Ended::NotSlower => ExitCode::from(3),
        Ended::Undecided => ExitCode::from(5),
        Ended::Interrupted => ExitCode::from(130),
    })
}

fn write(out: &mut dyn Write, found: &Bisected, runs: u32, style: &Style) -> io::Result<()> {
    let mut line = |name: &str, text: &str| writeln!(out, "{name:<10} {}", style.fold(&clean(text), 11));
    let in_turn = format!("{}; {} of each in turn", found.phase.name(), count(runs.into(), "run"));
    match (found.ended, found.comparisons.first()) {
        (_, Some(all)) => line("Bad", &format!("{}, {in_turn}", taken(all)))?,
        (_, None) => line("Bad", &in_turn)?,
    }
    let because = found.culprits.iter().filter_map(|i| found.differences.get(*i)).map(difference);
    let because: Vec<String> = because.collect();
    match found.ended {
        Ended::Found => {
            let share = found.explained.filter(|_| found.comparisons.len() > 1);
            let share =
                share.map_or_else(String::new, |share| format!(": {:.0} % of the slowdown", share * 100.0));
            let together = if because.len() > 1 { ", together: no half of them does it alone" } else { "" };
            line("Because", &format!("{}{share}{together}", because.join("; ")))?;
        }
        Ended::NotSlower => line("Because", "the bad command is not slower: nothing to look for")?,
        Ended::Undecided => {
            line(
                "Because",
                "undecided: too few calls or too much variation; more --runs or longer ones tell more",
            )?;
        }
        Ended::Interrupted => line("Because", &format!("interrupted; left: {}", because.join("; ")))?,
    }
    let culprit = found.comparisons.iter().rev().find(|c| c.with == found.culprits);
    if let Some(c) = culprit.filter(|_| found.ended == Ended::Found) {
        line("Longer", &longer(c))?;
    }
    if let Some(command) = &found.slow_command {
        line("Command", command)?;
    }
    let mut table = Table::new(vec![left("with"), number("times", 0), left("95 % interval"), left("slower")]);
    for c in &found.comparisons {
        table.row(row(found, c));
    }
    writeln!(out)?;
    write!(out, "{}", table.render(style))
}

fn row(found: &Bisected, c: &Comparison) -> Vec<String> {
    let names = c.with.iter().filter_map(|i| found.differences.get(*i)).map(difference);
    let r = &c.result;
    let slower = match (&r.failed, r.slower) {
        (Some(why), _) => format!("does not run: {why}"),
        (None, Some(true)) => "yes".into(),
        (None, Some(false)) => "no".into(),
        (None, None) => "undecided".into(),
    };
    vec![
        clean(&names.collect::<Vec<_>>().join("; ")),
        r.times.map_or_else(|| "-".into(), |times| format!("{times:.2}")),
        r.interval.map_or_else(|| "-".into(), |[low, high]| format!("{low:.2} to {high:.2}")),
        clean(&slower),
    ]
}

/// How long a call takes.
fn taken(c: &Comparison) -> String {
    match (c.result.times, c.result.interval) {
        (Some(times), Some([low, high])) => {
            format!("a call takes {times:.2} times as long ({low:.2} to {high:.2})")
        }
        (Some(times), None) => format!("a call takes {times:.2} times as long"),
        (None, _) => "not known how long a call takes".to_owned(),
    }
}

/// The ops that make a call longer, if they bring most of it.
fn longer(c: &Comparison) -> String {
    let all: f64 = c.result.ops.iter().map(|(_, share)| share).sum();
    if all * 2.0 < c.result.times.unwrap_or(1.0) - 1.0 {
        return "no operator by itself: all alike, or the threads wait for each other (--keep, profinfer diff, report)"
            .to_owned();
    }
    let one = |(name, share): &(String, f64)| format!("{name} by {} % of a call", pct(*share));
    c.result.ops.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// `-t 4 instead of -t 1`.
fn difference(d: &Difference) -> String {
    match (&d.good, &d.bad) {
        (Some(good), Some(bad)) => format!("{bad} instead of {good}"),
        (None, Some(bad)) => bad.clone(),
        (Some(good), None) => format!("without {good}"),
        (None, None) => String::new(),
    }
}
