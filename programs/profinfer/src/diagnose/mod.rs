//! `profinfer diagnose`: records what runs or a command, and says what is slow and what to change; for programs and agents.

mod answer;
mod engines;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::reading::{open, with_bar};
use super::record::flags::{FORCE, RecordArgs, SOURCE, TARGET, UNTIL};
use super::record::{self, StopSignals, budget, events::Events};
use super::report::{peaks, style};
use super::{conf, record::flags::COMMAND as RECORD};
use agent::recorder::recording::{Streams, Target};
use analysis::questions::report::{ReportOptions, try_report};
use analysis::recorded::load::LoadProgress;
use answer::Diagnosis;
use cli::args::{Args, Argument, Command, Flag, FlagGroup, Parsed, Usage};
use cli::output::MODE;
use render::{json, verdict};

/// The schema of `--json`; docs/AGENTS.md describes it.
pub const SCHEMA: &str = include_str!("../../../../docs/diagnosis.schema.json");
/// Increased when a field changes its meaning or goes; fields may be added without that.
const VERSION: u32 = 1;
/// Of engines that run already; a command is recorded to its end.
const DURATION: Duration = Duration::from_secs(10);

pub const COMMAND: Command = Command {
    name: "diagnose",
    about: "Record what runs or a command, and say what limits it and what to change",
    text: "\
Records the engines that run for ten seconds, or a command until it exits, and prints the verdict: how fast the run was, what
limits it, and what to change. With --json, prints one object with the verdict, the advice with its evidence and what would
show it to be wrong, whether the recording is complete, and the commands that show more; its schema has a name and a version.
With FILE, does the same for a recording that exists.

Without a target, all engines that run and that this user may see are recorded; --list prints them. Standard output has
nothing but the answer: that of COMMAND goes to standard error. Other options of record are taken from its configuration and
its environment variables, e.g. PROFINFER_LEVEL=graph.",
    usage: &[
        "[OPTIONS] -- COMMAND...",
        "[OPTIONS] [-p PID | --exe PATH]",
        "FILE [--json] [--peak PEAK]",
        "--list [--json]",
    ],
    arguments: &[Argument { name: "FILE", help: "Recording that exists; '-' is standard input" }],
    behind: Some(Argument { name: "COMMAND", help: "Command to run and diagnose" }),
    groups: &[TARGET, OUTPUT, HOW, UNTIL, budget::FLAGS],
    notes: "",
    exits: &[
        ("0", "diagnosed"),
        ("1", "nothing recorded, nothing to say of it, or an error"),
        ("2", "wrong usage"),
        ("4", "the kernel's tracing does not answer: only a reboot helps"),
        ("130", "stopped by a second Ctrl-C"),
        ("N", "COMMAND failed: its exit status, after the diagnosis"),
    ],
    examples: "\
profinfer diagnose                                     what runs, for ten seconds
profinfer diagnose --json --duration 30s -p $(pidof llama-server)
profinfer diagnose --json -- llama-cli -m model.gguf -p 'Hello' -n 64 | jq '.verdict.advice[0]'
profinfer diagnose run.pfi --json                      a recording that exists
profinfer diagnose --list --json                       the engines that run",
    run,
};

const OUTPUT: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::switch("json", "Print JSON: nanoseconds, bytes, ratios (1 = 100 %)"),
        Flag::switch("list", "List the engines that run; record nothing"),
        Flag::switch("schema", "Print the JSON Schema of --json").excludes(&["list", "json"]),
        Flag::value(
            "peak",
            "PEAK",
            "This machine's GFLOP/s and GB/s, e.g. 280,61, or a file written by 'ggml-runner peak --json'",
        ),
    ],
};

const HOW: FlagGroup = FlagGroup {
    title: "Recording",
    flags: &[
        Flag::value(
            "output",
            "FILE",
            "Write the recording to FILE. Without it, a name that exists is numbered: run.1.pfi",
        )
        .short('o')
        .default("run.pfi"),
        FORCE,
        MODE,
        SOURCE,
    ],
};

/// Groups whose flags are those of `record`.
const RECORDS: [&FlagGroup; 4] = [&TARGET, &HOW, &UNTIL, &budget::FLAGS];

/// Name and version of what is printed.
#[derive(Serialize)]
struct Schema {
    name: &'static str,
    version: u32,
}

impl Schema {
    fn new(name: &'static str) -> Schema {
        Schema { name, version: VERSION }
    }
}

/// A recording to diagnose.
struct Recording {
    file: PathBuf,
    /// The exit code of its command, and what this program exits with.
    status: Option<i32>,
    code: ExitCode,
}

fn run(args: &Args) -> Result<ExitCode> {
    if args.flag("schema") {
        io::stdout().lock().write_all(SCHEMA.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.flag("list") {
        nothing_recorded(args, "--list")?;
        return engines::list(args.flag("json"));
    }
    let peaks = args.option("peak", peaks::read)?.unwrap_or_default();
    let Recording { file, status, code } = match args.argument("FILE") {
        Some(file) => {
            nothing_recorded(args, "FILE")?;
            Recording { file: file.into(), status: None, code: ExitCode::SUCCESS }
        }
        None => recorded(args)?,
    };
    let trace = open(&file, "diagnose")?;
    let options = ReportOptions { peaks, verdict: true, ..ReportOptions::default() };
    let progress = LoadProgress::default();
    let report = with_bar(&progress, || try_report(&trace, &options, &progress));
    let report = report.with_context(|| format!("cannot diagnose {}", file.display()))?;
    let Some(v) = &report.verdict else { bail!("no verdict was made") };
    let mut out = BufWriter::new(io::stdout().lock());
    match args.flag("json") {
        true => json::write(&mut out, &Diagnosis::new(&file, &report, v, status))?,
        false => verdict::write(&mut out, &report, &file.to_string_lossy(), &style())?,
    }
    out.flush()?;
    if v.phases.is_empty() {
        bail!("{}", v.missing.first().map_or("no engine call was recorded", String::as_str));
    }
    Ok(code)
}

/// Refuses flags and a command of a recording, where none is made.
fn nothing_recorded(args: &Args, instead: &str) -> Result<(), Usage> {
    let given = RECORDS.iter().flat_map(|group| group.flags).find(|flag| args.flag(flag.name));
    match given.map(Flag::shown).or_else(|| args.behind().first().map(|_| "COMMAND".to_owned())) {
        Some(what) => Err(Usage::new(format!("{what} is for a recording: not with {instead}"))),
        None => Ok(()),
    }
}

/// Records what is asked for, as `record` does.
fn recorded(args: &Args) -> Result<Recording> {
    let mut words: Vec<OsString> = Vec::new();
    if !args.flag("pid") && !args.flag("exe") && args.behind().is_empty() {
        words.extend(engines::pids()?.iter().map(|pid| format!("--pid={pid}").into()));
    }
    words.extend(words_of_record(args)?);
    let Parsed::Run(of_record) = Args::parse(&RECORD, words)? else { bail!("no recording was asked for") };
    let mut asked = RecordArgs::read(&conf::settled(&of_record)?)?;
    if record::is_stdout(&asked.output) {
        return Err(Usage::new("-o -: standard output has the diagnosis; give a file").into());
    }
    asked.quiet |= args.flag("json");
    let options = &mut asked.options;
    options.streams = Streams::StdoutTaken;
    if options.duration.is_none() && options.tokens.is_none() && !matches!(asked.target, Target::Command(_)) {
        options.duration = Some(DURATION);
    }
    let (file, signals) = (asked.output.clone(), StopSignals::install(|| {})?);
    let summary = record::recorded(asked, signals, &Events::default())?;
    Ok(Recording { file, status: summary.status, code: record::exit_code(&summary) })
}

/// The flags that are `record`'s, and the command, as words of its command line.
fn words_of_record(args: &Args) -> Result<Vec<OsString>> {
    let mut words = Vec::new();
    for flag in RECORDS.iter().flat_map(|group| group.flags).filter(|flag| args.flag(flag.name)) {
        let name = format!("--{}", flag.name);
        if flag.value.is_empty() {
            words.push(name.into());
        } else if flag.many {
            words.extend(args.words(flag.name).into_iter().map(|value| format!("{name}={value}").into()));
        } else if let Some(value) = args.text(flag.name)? {
            let mut word = OsString::from(name + "=");
            word.push(value);
            words.push(word);
        }
    }
    if !args.behind().is_empty() {
        words.push("--".into());
        words.extend_from_slice(args.behind());
    }
    Ok(words)
}
