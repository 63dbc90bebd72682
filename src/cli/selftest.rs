//! `profinfer selftest`: records ggml-runner at every level and compares with what it says of itself. Uses `analysis`,
//! and the other subcommands as a user would: by starting programs.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;

use crate::analysis::accuracy::{self, Comparison};
use crate::analysis::agreement::{self, Answer};
use crate::analysis::ground_truth::{self, GroundTruth};
use crate::analysis::load::{Loaded, Progress, load};
use crate::trace::Trace;

const RUNNER: &str = "ggml-runner";
/// Longest that one recording may take; it takes about a second.
const PATIENCE: Duration = Duration::from_secs(120);
/// Least accuracy, by median, so that what else the machine does fails nothing. A token of the smallest model takes about
/// 0.2 ms, and the way into the kernel is some 0.2 us longer at the entry of a function than at its return.
const PHASES: f64 = 0.999;
const TOKENS: f64 = 0.995;
const OPS: f64 = 0.97;
const OVER_50: &str = "ops over 50 us";

const EXAMPLES: &str = "\
Examples:
  sudo profinfer selftest                     is this board fit to be profiled?
  sudo profinfer selftest --json | jq .ok     for a program";

/// Record ggml-runner on a generated model, and check what was recorded.
///
/// Checks, at every level: nothing lost, calls and graphs as the runner counts them, the order of ops on every thread,
/// names and ops of their tensors, splits, experts, and how near the times are to the runner's own clock readings. One line
/// for each check: ok, FAILED or skipped. Exit code: 0 nothing failed, 1 something did, 2 wrong usage.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The runner [default: ggml-runner beside this program, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub runner: Option<PathBuf>,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Failed,
    Skipped,
}

#[derive(Debug, Serialize)]
struct Check {
    check: String,
    verdict: Verdict,
    detail: String,
}

/// The checks so far; in text form each is printed when it is done.
struct Checks {
    json: bool,
    list: Vec<Check>,
}

impl Checks {
    fn note(&mut self, check: &str, verdict: Verdict, detail: String) -> io::Result<()> {
        let word = match verdict {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        };
        let detail = crate::views::table::clean(&detail);
        if !self.json {
            let mut out = io::stdout().lock();
            writeln!(out, "{word:<7}  {check:<28}  {detail}")?;
            out.flush()?;
        }
        self.list.push(Check { check: check.to_owned(), verdict, detail });
        Ok(())
    }

    fn answer(&mut self, check: &str, answer: Answer) -> io::Result<()> {
        match answer {
            Ok(detail) => self.note(check, Verdict::Ok, detail),
            Err(why) => self.note(check, Verdict::Failed, why),
        }
    }
}

/// A directory that goes away with its content.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Scratch> {
        let me = std::process::id();
        // Numbers of processes come again, and one that was killed leaves its directory.
        for attempt in 0..1000 {
            let path = std::env::temp_dir().join(format!("profinfer-selftest-{me}-{attempt}"));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch(path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e).with_context(|| format!("cannot make {}", path.display())),
            }
        }
        bail!(
            "{} is full of left-over directories profinfer-selftest-*: remove them",
            std::env::temp_dir().display()
        )
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing is left to do where it cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What to record.
struct Case {
    name: &'static str,
    model: &'static str,
    level: &'static str,
    threads: usize,
    /// Prompt and tokens to generate.
    tokens: (u32, u32),
    record: &'static [&'static str],
    run: &'static [&'static str],
    checks: &'static [Kind],
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Calls,
    Graphs,
    Order,
    Structure,
    Experts,
    Accuracy,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Calls => "calls",
            Kind::Graphs => "graphs",
            Kind::Order => "order of ops",
            Kind::Structure => "structure",
            Kind::Experts => "experts",
            Kind::Accuracy => "accuracy",
        }
    }
}

const NO_STRUCTURE: &str = "--no-str";
const TINY: &str = "tiny";
const MOE: &str = "moe";
use Kind::{Accuracy, Calls, Experts, Graphs, Order, Structure};

const fn case(name: &'static str, level: &'static str, threads: usize, checks: &'static [Kind]) -> Case {
    Case { name, model: TINY, level, threads, tokens: (16, 6), record: &[], run: &[], checks }
}

const CASES: [Case; 7] = [
    case("token", "token", 1, &[Calls]),
    case("graph", "graph", 1, &[Calls, Graphs]),
    Case { tokens: (256, 32), ..case("op, 1 thread", "op", 1, &[Calls, Graphs, Order, Structure, Accuracy]) },
    Case {
        tokens: (256, 32),
        ..case("op, 2 threads", "op", 2, &[Calls, Graphs, Order, Structure, Accuracy])
    },
    Case { record: &[NO_STRUCTURE], ..case("op, no structure", "op", 1, &[Calls, Graphs, Order]) },
    Case { run: &["--two-backends"], ..case("two backends", "op", 1, &[Calls, Graphs, Order, Structure]) },
    Case { model: MOE, ..case("experts", "op", 1, &[Calls, Graphs, Order, Structure, Experts]) },
];

/// Runs the subcommand.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut checks = Checks { json: args.json, list: Vec::new() };
    let scratch = Scratch::new()?;
    if let Some(runner) = find(args, &mut checks)? {
        for model in [TINY, MOE] {
            checks.answer(&format!("model {model}"), synth(&runner, model, &scratch))?;
        }
        for case in &CASES {
            one(&runner, case, &scratch, &mut checks)?;
        }
    }
    let count = |v| checks.list.iter().filter(|c| c.verdict == v).count();
    let failed = count(Verdict::Failed);
    if args.json {
        #[derive(Serialize)]
        struct Answer<'a> {
            ok: bool,
            checks: &'a [Check],
        }
        crate::views::json::write(
            &mut io::stdout().lock(),
            &Answer { ok: failed == 0, checks: &checks.list },
        )?;
    } else {
        let (ok, skipped) = (count(Verdict::Ok), count(Verdict::Skipped));
        writeln!(io::stdout(), "{ok} ok, {failed} failed, {skipped} skipped")?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The runner: as told, beside this program, or in PATH.
fn find(args: &Args, checks: &mut Checks) -> anyhow::Result<Option<PathBuf>> {
    let beside = std::env::current_exe().ok().and_then(|me| Some(me.parent()?.join(RUNNER)));
    let beside = beside.filter(|p| p.is_file());
    let path = args.runner.clone().or(beside).unwrap_or_else(|| RUNNER.into());
    let said = output(Command::new(&path).arg("--version"));
    let answer = match said {
        Ok(out) if out.status.success() => {
            Ok(format!("{}: {}", path.display(), String::from_utf8_lossy(&out.stdout).trim()))
        }
        Ok(out) => Err(format!("{} --version: {}", path.display(), last_line(&out.stderr))),
        Err(e) => Err(format!("{} cannot be run: {e}; --runner PATH names it", path.display())),
    };
    let found = answer.is_ok();
    checks.answer("runner", answer)?;
    Ok(found.then_some(path))
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
}

/// What a program says, if it ends in time: a board that is to be tested may be one where it does not.
fn output(command: &mut Command) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (out, err) = (listen(child.stdout.take()), listen(child.stderr.take()));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            // Its own children may hold the pipes: whoever listens there is left behind.
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("did not end within {} s", PATIENCE.as_secs()),
            ));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |listener: JoinHandle<Vec<u8>>| listener.join().unwrap_or_default();
    Ok(Output { status, stdout: text(out), stderr: text(err) })
}

/// Collects what comes out of a pipe, on a thread of its own.
fn listen(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut text = Vec::new();
        // What came before an error is what there is to show.
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        text
    })
}

/// Runs a program; what it said last on standard error when it fails, with the last word of the program that it ran.
fn succeed(command: &mut Command) -> Result<(), String> {
    let out = output(command).map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let other = said.lines().rfind(|l| !l.trim().is_empty() && !l.starts_with("profinfer: "));
    Err([last_line(&out.stderr).as_str()]
        .into_iter()
        .chain(other.map(str::trim))
        .collect::<Vec<_>>()
        .join("; "))
}

fn synth(runner: &Path, model: &str, scratch: &Scratch) -> Answer {
    let path = scratch.file(model);
    succeed(Command::new(runner).args(["synth", model]).arg(&path).args(["--type", "q4_0"]))?;
    let bytes = fs::metadata(&path).map_err(|e| e.to_string())?.len();
    Ok(format!("made, {} MB", bytes.div_ceil(1_000_000)))
}

/// Records one case and makes its checks.
fn one(runner: &Path, case: &Case, scratch: &Scratch, checks: &mut Checks) -> io::Result<()> {
    let label = |kind: &str| format!("{}: {kind}", case.name);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let skip = |why: String, checks: &mut Checks| checks.note(&label("record"), Verdict::Skipped, why);
    if case.threads > cpus {
        return skip(format!("{cpus} CPU for this process"), checks);
    }
    if !scratch.file(case.model).exists() {
        return skip(format!("no model {}", case.model), checks);
    }
    let (trace, truth) = match record(runner, case, scratch) {
        Ok(both) => both,
        Err(why) => return checks.note(&label("record"), Verdict::Failed, why),
    };
    let structure = !case.record.contains(&NO_STRUCTURE);
    checks.answer(&label("complete"), agreement::complete(&trace, structure))?;
    let loaded = load(&trace, &Progress::default());
    for kind in case.checks {
        checks.answer(&label(kind.name()), check(*kind, &trace, &loaded, &truth))?;
    }
    Ok(())
}

fn check(kind: Kind, trace: &Trace, loaded: &Loaded<'_>, truth: &GroundTruth) -> Answer {
    match kind {
        Calls => agreement::calls(loaded, truth),
        Graphs => agreement::graphs(loaded, truth),
        Order => agreement::order(loaded, truth),
        Structure => agreement::structure(loaded, truth),
        Experts => agreement::experts(loaded, truth),
        Accuracy => accuracy::compare(trace, truth).map_err(|e| e.to_string()).and_then(|c| accurate(&c)),
    }
}

/// Records the runner with this program.
fn record(runner: &Path, case: &Case, scratch: &Scratch) -> Result<(Trace, GroundTruth), String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let (trace, truth) = (scratch.file("trace.pfi"), scratch.file("truth.tsv"));
    let (prompt, generate) = case.tokens;
    let mut command = Command::new(me);
    command.args(["record", "--force", "--level", case.level, "-o"]).arg(&trace).args(case.record);
    command
        .arg("--")
        .arg(runner)
        .args(["run", "--no-roofline", "-m"])
        .arg(scratch.file(case.model))
        .args(case.run);
    command.args(["-p", &prompt.to_string(), "-n", &generate.to_string(), "-t", &case.threads.to_string()]);
    succeed(command.arg("--ground-truth").arg(&truth))?;
    let trace = Trace::open(&trace).map_err(|e| format!("trace: {e}"))?;
    let file = File::open(&truth).map_err(|e| format!("ground truth: {e}"))?;
    let truth = ground_truth::read(BufReader::new(file)).map_err(|e| format!("ground truth: {e}"))?;
    match truth.dropped {
        0 => Ok((trace, truth)),
        n => Err(format!("the runner had no room for {n} of its readings")),
    }
}

/// Whether the times are near enough to the true ones.
fn accurate(c: &Comparison) -> Answer {
    let line =
        |level: &str| c.levels.iter().chain(&c.classes).find(|l| l.level == level).and_then(|l| l.accuracy);
    let figures = [
        ("phases", line("phase").map(|a| a.median), PHASES),
        ("tokens", line("token").map(|a| a.median), TOKENS),
        (OVER_50, line("op > 50 us").map(|a| a.median), OPS),
    ];
    let text = |(what, got, _): &(&str, Option<f64>, f64)| match got {
        Some(got) => format!("{what} {:.3} %", got * 100.0),
        None => format!("{what}: none"),
    };
    let all = figures.iter().map(text).collect::<Vec<_>>().join(", ");
    // The smallest model may have no op of 50 us; calls and phases it must have.
    let missed = figures.iter().find(|(what, got, least)| got.map_or(*what != OVER_50, |got| got < *least));
    match missed {
        Some((what, _, least)) => Err(format!("{all}; {what} should reach {} %", least * 100.0)),
        None => Ok(all),
    }
}
