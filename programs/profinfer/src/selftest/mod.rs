//! `profinfer selftest`: records ggml-runner at every level and compares with its own account.

mod scratch;
mod started;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde::Serialize;

use self::scratch::ScratchDir;
use self::started::{last_line, output, succeed};
use agent::capture::source::BackendChoice;
use analysis::questions::accuracy::{self, AccuracyComparison};
use analysis::questions::agreement;
use analysis::questions::ground_truth::{self, GroundTruth};
use analysis::questions::quality::RecordingQuality;
use analysis::recorded::load::{LoadProgress, Loaded, load};
use engine::elf::{ElfError, ElfFile, ElfMachine};
use engine::search::Launch;
use machine::kernel::btf::Btf;
use machine::owner;
use pfi::Trace;
use pfi::record::{SourceKind, TransportKind};

use super::record::flags::{self, SOURCE};
use cli::args::{Args, Command as Subcommand, Flag, FlagGroup};

const RUNNER: &str = "ggml-runner";
/// Minimum accuracy, by median, so that other load on the machine causes no failure. A token of the smallest model
/// takes about 0.2 ms, and entering the kernel takes about 0.2 us longer at a function's entry than at its return.
const PHASES: f64 = 0.999;
const TOKENS: f64 = 0.995;
const OPS: f64 = 0.97;
const OVER_50: &str = "ops over 50 us";

pub const COMMAND: Subcommand = Subcommand {
    name: "selftest",
    about: "Record ggml-runner with a generated model, and check the recordings",
    text: "\
Checks at every level that nothing is lost, that calls and graphs match the runner's own counts, the order of ops on every
thread, tensor names and ops, splits, experts, and how close the times are to the runner's own clock readings. Prints one
line per check: ok, FAILED or skipped.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FlagGroup {
        title: "Options",
        flags: &[
            Flag::value(
                "runner",
                "PATH",
                "Path of ggml-runner [default: next to this program, else from PATH]",
            ),
            SOURCE,
            Flag::value(
                "btf",
                "FILE",
                "BTF file of the running kernel, if the kernel does not provide BTF; also check that the \
                 recordings use it",
            ),
            Flag::switch("json", "Print JSON"),
        ],
    }],
    notes: "",
    exits: &[("0", "no check failed"), ("1", "a check failed"), ("2", "wrong usage"), ("4", "the kernel's tracing does not answer: only a reboot helps")],
    examples: "\
sudo profinfer selftest                     can this board be profiled?
sudo profinfer selftest --json | jq .ok     for a program",
    run,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum TestVerdict {
    Ok,
    Failed,
    Skipped,
}

#[derive(Debug, Serialize)]
struct SelftestCheck {
    check: String,
    verdict: TestVerdict,
    detail: String,
}

/// The quality of one recording, for programs: what a table row about a machine needs.
#[derive(Debug, Serialize)]
struct Recording {
    name: &'static str,
    level: &'static str,
    transport: &'static str,
    threads: usize,
    complete: bool,
    /// Events seen by the programs in the kernel, and the lost ones among them.
    events: u64,
    lost: u64,
    /// Op hits expected from the graphs, and those seen; 0 if there is nothing to check them against.
    hits_expected: u64,
    hits_seen: u64,
    /// Rung in use by role.
    rungs: BTreeMap<String, String>,
    /// Peak memory of the recorder, bytes, including its view of the buffer; null: unknown.
    peak_rss: Option<f64>,
}

/// The checks so far; in text form each is printed when it is done.
struct Checks {
    json: bool,
    list: Vec<SelftestCheck>,
    recordings: Vec<Recording>,
}

impl Checks {
    fn note(&mut self, check: &str, verdict: TestVerdict, detail: String) -> io::Result<()> {
        let word = match verdict {
            TestVerdict::Ok => "ok",
            TestVerdict::Failed => "FAILED",
            TestVerdict::Skipped => "skipped",
        };
        let detail = render::table::clean(&detail);
        if !self.json {
            let mut out = io::stdout().lock();
            writeln!(out, "{word:<7}  {check:<28}  {detail}")?;
            out.flush()?;
        }
        self.list.push(SelftestCheck { check: check.to_owned(), verdict, detail });
        Ok(())
    }

    fn answer(&mut self, check: &str, answer: SelftestAnswer) -> io::Result<()> {
        match answer {
            Ok(detail) => self.note(check, TestVerdict::Ok, detail),
            Err(why) => self.note(check, TestVerdict::Failed, why),
        }
    }
}

/// What to record.
struct SelftestCase {
    name: &'static str,
    model: &'static str,
    level: &'static str,
    threads: usize,
    /// Prompt and tokens to generate.
    tokens: (u32, u32),
    record: &'static [&'static str],
    run: &'static [&'static str],
    checks: &'static [SelftestKind],
}

#[derive(Debug, Clone, Copy)]
enum SelftestKind {
    Calls,
    Graphs,
    Order,
    Structure,
    Experts,
    Scheduler,
    Accuracy,
}

impl SelftestKind {
    fn name(self) -> &'static str {
        match self {
            SelftestKind::Calls => "calls",
            SelftestKind::Graphs => "graphs",
            SelftestKind::Order => "order of ops",
            SelftestKind::Structure => "structure",
            SelftestKind::Experts => "experts",
            SelftestKind::Scheduler => "time off the CPU",
            SelftestKind::Accuracy => "accuracy",
        }
    }
}

const NO_STRUCTURE: &str = "--no-str";
const PERF_BUFFERS: &str = "--pbuf";
const CHOSEN: &str = "--experts";
const TINY: &str = "tiny";
const MOE: &str = "moe";
use SelftestKind::{Accuracy, Calls, Experts, Graphs, Order, Scheduler, Structure};

const fn case(
    name: &'static str,
    level: &'static str,
    threads: usize,
    checks: &'static [SelftestKind],
) -> SelftestCase {
    SelftestCase { name, model: TINY, level, threads, tokens: (16, 6), record: &[], run: &[], checks }
}

const CASES: [SelftestCase; 9] = [
    case("token", "token", 1, &[Calls]),
    case("graph", "graph", 1, &[Calls, Graphs]),
    SelftestCase {
        tokens: (256, 32),
        ..case("op, 1 thread", "op", 1, &[Calls, Graphs, Order, Structure, Accuracy])
    },
    SelftestCase {
        tokens: (256, 32),
        ..case("op, 2 threads", "op", 2, &[Calls, Graphs, Order, Structure, Accuracy])
    },
    SelftestCase { record: &[NO_STRUCTURE], ..case("op, no structure", "op", 1, &[Calls, Graphs, Order]) },
    SelftestCase {
        record: &[PERF_BUFFERS],
        ..case("op, perf buffers", "op", 2, &[Calls, Graphs, Order, Structure])
    },
    SelftestCase {
        run: &["--two-backends"],
        ..case("two backends", "op", 1, &[Calls, Graphs, Order, Structure])
    },
    SelftestCase { record: &["--sched"], ..case("scheduler", "token", 2, &[Calls, Scheduler]) },
    SelftestCase {
        model: MOE,
        record: &[CHOSEN],
        ..case("experts", "op", 1, &[Calls, Graphs, Order, Structure, Experts])
    },
];

/// What all recordings have in common.
#[derive(Debug, Clone, Copy)]
struct SelftestOptions<'a> {
    /// By its name in `record`.
    source: &'a str,
    btf: Option<&'a Path>,
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let json = args.flag("json");
    let source = match flags::source(args)? {
        BackendChoice::Auto => "auto",
        BackendChoice::Bpf => "bpf",
        BackendChoice::Perf => "perf",
        BackendChoice::Inside => "inside",
    };
    // `record` would use it.
    if let Some(set) =
        flags::COMMAND.flags().map(Flag::variable).find(|name| std::env::var_os(name).is_some())
    {
        anyhow::bail!("{set} is set: unset it, because the selftest needs its own recording options");
    }
    machine::tracing::answers()?;
    let (given, btf) = (args.path("runner")?, args.path("btf")?);
    let mut checks = Checks { json, list: Vec::new(), recordings: Vec::new() };
    let btf = btf.as_deref().map(Btf::read).transpose()?;
    let how = SelftestOptions { source, btf: btf.as_ref().map(|btf| btf.path.as_path()) };
    let scratch = ScratchDir::new()?;
    if let Some(runner) = find(given, &mut checks)? {
        for model in [TINY, MOE] {
            checks.answer(&format!("model {model}"), synth(&runner, model, &scratch))?;
        }
        for case in &CASES {
            one(&runner, case, how, &scratch, &mut checks)?;
        }
    }
    let count = |v| checks.list.iter().filter(|c| c.verdict == v).count();
    let failed = count(TestVerdict::Failed);
    if json {
        #[derive(Serialize)]
        struct SelftestOutput<'a> {
            ok: bool,
            checks: &'a [SelftestCheck],
            recordings: &'a [Recording],
        }
        render::json::write(
            &mut io::stdout().lock(),
            &SelftestOutput { ok: failed == 0, checks: &checks.list, recordings: &checks.recordings },
        )?;
    } else {
        let (ok, skipped) = (count(TestVerdict::Ok), count(TestVerdict::Skipped));
        writeln!(io::stdout(), "{ok} ok, {failed} failed, {skipped} skipped")?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The runner: as given, next to this program, or in PATH.
fn find(given: Option<PathBuf>, checks: &mut Checks) -> io::Result<Option<PathBuf>> {
    let beside = std::env::current_exe().ok().and_then(|me| Some(me.parent()?.join(RUNNER)));
    let beside = beside.filter(|p| p.is_file());
    let checked = match (&given, &beside) {
        (None, Some(path)) => trusted(path),
        _ => Ok(()),
    };
    let path = given.or(beside).unwrap_or_else(|| RUNNER.into());
    let answer = checked.and_then(|()| version(&path));
    let found = answer.is_ok();
    checks.answer("runner", answer)?;
    Ok(found.then_some(path))
}

/// Whether a runner that was found, not given, may be run: this program may be in a directory of all users, as /tmp.
fn trusted(path: &Path) -> Result<(), String> {
    owner::only_ours(path).map_err(|why| {
        format!(
            "{} is not run: {why}; change that, or give it with --runner if it is the right one",
            path.display()
        )
    })
}

/// A detail, or what is wrong, for people.
type SelftestAnswer = Result<String, String>;

/// The runner's version, or why it cannot be used and what to do.
fn version(path: &Path) -> SelftestAnswer {
    let shown = path.display();
    foreign(path)?;
    match output(Command::new(path).arg("--version")) {
        Ok(out) if out.status.success() => {
            Ok(format!("{shown}: {}", String::from_utf8_lossy(&out.stdout).trim()))
        }
        Ok(out) => Err(format!("{shown} --version: {}", last_line(&out.stderr))),
        Err(e) => Err(format!(
            "{shown} cannot be run: {}",
            match e.kind() {
                io::ErrorKind::NotFound =>
                    "not found; put ggml-runner next to profinfer, or give its path with --runner".to_owned(),
                io::ErrorKind::PermissionDenied =>
                    "permission denied; use chmod +x, or copy it to a file system that is not mounted \
                     noexec"
                        .to_owned(),
                _ => format!("{e}; use --runner to give another path"),
            }
        )),
    }
}

/// A program for another machine may start if an emulator is set up, but cannot be recorded.
fn foreign(path: &Path) -> Result<(), String> {
    let Some(launch) = Launch::of_command(&[path.into()]) else { return Ok(()) };
    let copy = "use the ggml-runner of the same release and architecture as this program";
    match ElfFile::open(&launch.program) {
        Ok(elf) if ElfMachine::host().is_some_and(|host| host != elf.machine) => Err(format!(
            "{} is for {}, this machine is {}: {copy}",
            path.display(),
            elf.machine.name(),
            std::env::consts::ARCH
        )),
        Err(e @ (ElfError::Class32 { .. } | ElfError::OtherMachine { .. } | ElfError::Malformed { .. })) => {
            Err(format!("{e}: {copy}"))
        }
        _ => Ok(()),
    }
}

fn synth(runner: &Path, model: &str, scratch: &ScratchDir) -> SelftestAnswer {
    let path = scratch.file(model);
    let made = succeed(Command::new(runner).args(["synth", model]).arg(&path).args(["--type", "q4_0"]));
    made.map_err(|why| format!("{why}; {}", scratch.advice()))?;
    let bytes = fs::metadata(&path).map_err(|e| e.to_string())?.len();
    Ok(format!("made, {} MB", bytes.div_ceil(1_000_000)))
}

/// Records one case and makes its checks.
fn one(
    runner: &Path,
    case: &SelftestCase,
    how: SelftestOptions<'_>,
    scratch: &ScratchDir,
    checks: &mut Checks,
) -> io::Result<()> {
    let label = |kind: &str| format!("{}: {kind}", case.name);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let skip = |why: String, checks: &mut Checks| checks.note(&label("record"), TestVerdict::Skipped, why);
    if case.threads > cpus {
        return skip(format!("only {cpus} CPU available to this process"), checks);
    }
    if !scratch.file(case.model).exists() {
        return skip(format!("no model {}", case.model), checks);
    }
    let (trace, truth) = match record(runner, case, how, scratch) {
        Ok(both) => both,
        Err(why) => return checks.note(&label("record"), TestVerdict::Failed, why),
    };
    let structure = !case.record.contains(&NO_STRUCTURE);
    let quality = agreement::quality(&trace);
    checks.answer(&label("complete"), agreement::complete(&quality, structure).map_err(|e| e.to_string()))?;
    let loaded = load(&trace, &LoadProgress::default());
    checks.recordings.push(recording(case, quality, &loaded));
    if let Some(btf) = how.btf {
        checks.answer(&label("BTF"), used(btf, &loaded))?;
    }
    for kind in case.checks {
        checks.answer(&label(kind.name()), check(*kind, &trace, &loaded, &truth))?;
    }
    Ok(())
}

fn recording(case: &SelftestCase, quality: RecordingQuality, loaded: &Loaded<'_>) -> Recording {
    let transport = match loaded.header.as_ref().map(|h| (h.source, h.transport)) {
        Some((SourceKind::Perf, _)) => "perf events",
        Some((SourceKind::Inside, _)) => "from inside",
        Some((SourceKind::Bpf, TransportKind::Perf)) => "perf buffers",
        Some((SourceKind::Bpf, TransportKind::Ring)) => "ring buffer",
        None => "unknown",
    };
    // Collecting into a map would bring in a sort routine.
    let mut rungs = BTreeMap::new();
    rungs.extend(quality.rungs.into_iter().filter(|r| r.used).map(|r| (r.role, r.name)));
    Recording {
        name: case.name,
        level: case.level,
        transport,
        threads: case.threads,
        complete: quality.complete,
        events: quality.events.iter().map(|e| e.seen).sum(),
        lost: quality.events.iter().map(|e| e.lost).sum(),
        hits_expected: quality.hits.expected,
        hits_seen: quality.hits.seen,
        rungs,
        peak_rss: quality.agent_peak_rss_bytes.value,
    }
}

fn check(kind: SelftestKind, trace: &Trace, loaded: &Loaded<'_>, truth: &GroundTruth) -> SelftestAnswer {
    let answer = match kind {
        Calls => agreement::calls(loaded, truth),
        Graphs => agreement::graphs(loaded, truth),
        Order => agreement::order(loaded, truth),
        Structure => agreement::structure(loaded, truth),
        Experts => agreement::experts(loaded, truth),
        Scheduler => agreement::scheduler(loaded),
        Accuracy => return accurate(&accuracy::compare(trace, truth).map_err(|e| e.to_string())?),
    };
    answer.map_err(|e| e.to_string())
}

/// Whether children were followed with the given BTF: if not, the recording has a notice.
fn used(btf: &Path, loaded: &Loaded<'_>) -> SelftestAnswer {
    let name = btf.display().to_string();
    match loaded.notices.iter().find(|n| n.text.contains(&name)) {
        Some(n) => Err(n.text.to_owned()),
        None => Ok(format!("{name} matches this kernel")),
    }
}

/// Records the runner with this program.
fn record(
    runner: &Path,
    case: &SelftestCase,
    how: SelftestOptions<'_>,
    scratch: &ScratchDir,
) -> Result<(Trace, GroundTruth), String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let (trace, truth) = (scratch.file("trace.pfi"), scratch.file("truth.tsv"));
    let (prompt, generate) = case.tokens;
    let mut command = Command::new(me);
    command.args(["record", "--force", "--level", case.level, "-o"]).arg(&trace).args(case.record);
    // Under sudo too: the directory of model and measurements is accessible to root only.
    command.args(["--as-root", "--source", how.source]);
    if let Some(btf) = how.btf {
        command.arg("--btf").arg(btf);
    }
    command
        .arg("--")
        .arg(runner)
        .args(["run", "--no-roofline", "-m"])
        .arg(scratch.file(case.model))
        .args(case.run);
    command.args(["-p", &prompt.to_string(), "-n", &generate.to_string(), "-t", &case.threads.to_string()]);
    succeed(command.args(["--force", "--ground-truth"]).arg(&truth))?;
    let trace = Trace::open(&trace).map_err(|e| format!("trace: {e}"))?;
    let file = File::open(&truth).map_err(|e| format!("ground truth: {e}"))?;
    let truth = ground_truth::read(BufReader::new(file)).map_err(|e| format!("ground truth: {e}"))?;
    match truth.dropped {
        0 => Ok((trace, truth)),
        n => Err(format!("the runner could not store {n} of its readings")),
    }
}

/// Whether the times are close enough to the true ones.
fn accurate(c: &AccuracyComparison) -> SelftestAnswer {
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
    // The smallest model may have no op of 50 us; calls and phases are required.
    let missed = figures.iter().find(|(what, got, least)| got.map_or(*what != OVER_50, |got| got < *least));
    match missed {
        Some((what, _, least)) => Err(format!("{all}; {what} should reach {} %", least * 100.0)),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_runner_that_others_can_change_is_not_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let runner = dir.path().join(RUNNER);
        fs::write(&runner, "x").expect("written");
        assert_eq!(trusted(&runner), Ok(()));
        fs::set_permissions(&runner, fs::Permissions::from_mode(0o666)).expect("its mode");
        let said = trusted(&runner).expect_err("everybody can change it");
        assert!(said.contains("is not run: other users can change") && said.contains("--runner"), "{said}");
    }
}
