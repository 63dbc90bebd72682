//! `profinfer tune`: finds the CPUs, threads and settings with which a command is fastest, or takes the least energy.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

use super::record::caller::Caller;
use super::record::flags::cpus;
use super::report::style;
use cli::args::{Args, Argument, Choice, Command, Flag, FlagGroup, Usage};
#[cfg(not(feature = "board"))]
use cli::output::{FORCE, MODE, OutputRules, whole as whole_file};
use cli::values::{any_of, choice, percent, time, whole};
use machine::peaks;
use render::json;
use render::table::clean;
use service::affinity::tuned::{NAME, TunedCpus, TunedResult, add, machine_name};
use trials::command::{Lengths, Tuned, Work};
use trials::knobs::Knob;
use trials::{TuneOptions, Watcher, huge_pages, tune};
use tune::Goal;
use tune::answer::Answer;

pub const COMMAND: Command = Command {
    name: "tune",
    about: "Find the CPUs, threads and flags that make a command fastest, or save energy",
    text: "\
Runs COMMAND again and again with other CPUs, threads and flags, records each run, and prints what is best with a command
line to copy. Knows llama-bench, llama-cli, llama-completion, llama-server and ggml-runner; in any other command {threads}
is replaced by a number, {cpus} by a list of CPUs and {mask} by a hexadecimal mask.

The CPUs are searched by cluster: first for the fastest set, then around it for one that decodes with less energy, at most
--slack slower; the best are run again in turn. The number of threads never exceeds the number of CPUs: threads that wait
for one another by spinning make an engine many times slower. Prefill is searched apart, for speed. Last come the engine's
own settings, as far as its --help has them.

Speed is the median time of the tokens in the recording. Joules come from the machine's sensors, or from the kernel's
Energy Model, and the output says which. A run does not count if its threads ran elsewhere than told, if the engine ignored
the number of threads, or if another program took more than --foreign-load.

Requires the privileges of profinfer record. Measurements are kept: the same call goes on where an earlier one ended.",
    usage: &["[OPTIONS] -- COMMAND...", "--restore"],
    arguments: &[],
    behind: Some(Argument { name: "COMMAND", help: "Command to tune" }),
    groups: &[SEARCH, RUNS, OUTPUT],
    notes: "",
    exits: &[
        ("0", "done"),
        ("1", "failed: no run had a result"),
        ("2", "wrong usage"),
        ("3", "cut short by --time, by another program's load or by a signal; what was found is printed"),
        ("4", "the kernel's tracing does not answer: only a reboot helps"),
    ],
    examples: "\
profinfer tune -- llama-bench -m model.gguf
profinfer tune --for energy --slack 5% -- llama-cli -m model.gguf -p 'Hello'
profinfer tune --phase decode --knobs none --time 2min -- llama-server -m model.gguf
profinfer tune --cpus 4-7 -- my-engine --threads {threads} --affinity {mask}
profinfer tune --json -- ggml-runner run -m model.gguf | jq -r '.lines[].command'",
    run,
};

const SEARCH: FlagGroup = FlagGroup {
    title: "Search",
    flags: &[
        Flag::value("for", "GOAL", "What the choice is to be best at").default("speed").one_of::<Goal, _>(),
        Flag::value("slack", "SHARE", "How much slower than the fastest a choice for energy may be").default("8%"),
        Flag::value("phase", "PHASE", "Tune this only [default: both]").one_of::<Work, _>(),
        Flag::value("time", "TIME", "Try nothing new after this time").default("5min"),
        Flag::value("cpus", "LIST", "Use these CPUs only, e.g. 4-7 [default: all that this process may use]"),
        Flag::value(
            "knobs",
            "LIST",
            "Settings to try besides: flash-attention, load-mode, ubatch, kv-type (changes results), huge-pages \
             (changes the machine, restored afterwards); 'all' or 'none'",
        )
        .default("flash-attention,load-mode,ubatch"),
        Flag::switch("exhaustive", "Try every set of CPUs instead of searching"),
        Flag::value("rounds", "N", "Run the best choices at most this many times more, in turn").default("12"),
        Flag::value(
            "alpha",
            "SHARE",
            "Weight of the capacity heuristic in the objective, against measured energy [default: by how well \
             each is known]",
        )
        .hidden(),
    ],
};

const RUNS: FlagGroup = FlagGroup {
    title: "Runs",
    flags: &[
        Flag::value("tokens", "N", "Tokens to decode in a run").default("64"),
        Flag::value("prompt", "N", "Tokens of a run's prompt, where the command does not bring its own")
            .default("256"),
        Flag::value("foreign-load", "SHARE", "Repeat a run if other programs used more than this of one CPU")
            .default("10%"),
        super::record::sensors::METER,
        Flag::switch("as-root", "Under sudo, run COMMAND as root [default: as the user who called sudo]")
            .cli_only(),
        Flag::switch("no-energy", "Do not measure energy").excludes(&["meter"]),
        Flag::switch("fresh", "Do not use what earlier calls have measured"),
        Flag::switch("no-keep", "Do not keep what is measured"),
        Flag::value("sysfs", "DIR", "Directory that describes the machine").default("/sys").hidden(),
        Flag::switch("restore", "Restore what a killed call left changed, and do nothing else"),
    ],
};

const OUTPUT: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::switch("json", "Print JSON"),
        #[cfg(not(feature = "board"))]
        Flag::value(
            "svg",
            "FILE",
            "Write the choices as a picture: speed against energy, or against threads",
        ),
        #[cfg(not(feature = "board"))]
        Flag::value("html", "FILE", "Write lines, pictures and tables as a page for a browser"),
        #[cfg(not(feature = "board"))]
        FORCE,
        #[cfg(not(feature = "board"))]
        MODE,
        Flag::value(
            "write-conf",
            "DIR",
            "Add the result to DIR/tuned.json: in the service's directory, rules with decode-cpus = \"auto\" use it",
        ),
        Flag::switch("quiet", "Print no progress").short('q'),
    ],
};

impl Choice<crate::identity::Flags> for Goal {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("speed", "most tokens per second", Goal::Speed),
        ("energy", "least energy per token, at most --slack slower than the fastest", Goal::Energy),
        ("balance", "least energy per token times time per token", Goal::Balance),
    ];
}

impl Choice<crate::identity::Flags> for Work {
    const ALL: &'static [(&'static str, &'static str, Self)] =
        &[("decode", "one token after another", Work::Decode), ("prefill", "the prompt", Work::Prefill)];
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sysfs = args.path("sysfs")?.unwrap_or_else(|| PathBuf::from("/sys"));
    if args.flag("restore") {
        return restore(&sysfs);
    }
    let options = options(args, sysfs)?;
    let json_wanted = args.flag("json");
    #[cfg(not(feature = "board"))]
    let (svg, page) = (args.path("svg")?, args.path("html")?);
    machine::tracing::answers()?;
    let mut watch = Terminal::install(args.flag("quiet"))?;
    let answer = tune(&options, &mut watch)?;
    watch.clear();
    #[cfg(not(feature = "board"))]
    if let Some(file) = svg {
        whole_file(
            &file,
            OutputRules::read(args)?.hint(" with --svg"),
            |()| true,
            |out| render::tune::svg(out, &answer),
        )?;
    }
    #[cfg(not(feature = "board"))]
    if let Some(file) = page {
        whole_file(
            &file,
            OutputRules::read(args)?.hint(" with --html"),
            |()| true,
            |out| render::html::choices::write(out, &answer, crate::identity::TOOL),
        )?;
    }
    if let Some(dir) = args.path("write-conf")? {
        let file = write_conf(&dir, &answer)?;
        watch.tell(&format!("the result is in {}", file.display()));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    match json_wanted {
        true => json::write(&mut out, &answer)?,
        false => render::tune::write(&mut out, &answer, &style())?,
    }
    out.flush()?;
    let whole = answer.works.len() == options.works.len() && answer.works.iter().all(|w| w.complete);
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Adds the choices to the file that rules of the service read.
fn write_conf(dir: &Path, answer: &Answer) -> anyhow::Result<PathBuf> {
    let unknown = |what: &str| {
        format!("--write-conf: the recordings do not show {what}, by which the service finds a result")
    };
    let of = |work: Work| {
        let found = answer.works.iter().find(|w| w.work == work.name())?;
        let row = found.tried.get(found.chosen?)?;
        Some(TunedCpus { cpus: row.cpus.clone(), threads: row.threads })
    };
    let result = TunedResult {
        machine: machine_name(),
        engine: answer.engine.clone().with_context(|| unknown("the engine's build id"))?,
        model: answer.model.clone().with_context(|| unknown("the model's name"))?,
        decode: of(Work::Decode),
        prefill: of(Work::Prefill),
    };
    add(dir, result).with_context(|| format!("cannot write {}", dir.join(NAME).display()))
}

fn restore(sysfs: &Path) -> anyhow::Result<ExitCode> {
    let mode = huge_pages::restore(sysfs).context("cannot restore transparent huge pages")?;
    let mut out = io::stdout().lock();
    match mode {
        Some(mode) => writeln!(out, "restored: transparent huge pages are at {mode}")?,
        None => writeln!(out, "nothing to restore")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &Args, sysfs: PathBuf) -> anyhow::Result<TuneOptions> {
    let tuned = Tuned::of(args.behind().to_vec()).map_err(|e| Usage::new(e.to_string()))?;
    let most = 1 << 20;
    let lengths = Lengths {
        prompt: args.needed("prompt", whole(2, most))?,
        // Fewer are no measurement.
        tokens: args.needed("tokens", whole(16, most))?,
    };
    let works = match args.option("phase", choice)? {
        Some(only) => vec![only],
        None => vec![Work::Decode, Work::Prefill],
    };
    let only = args.option("cpus", cpus)?;
    let (knobs, cautious) = args.needed("knobs", knobs)?;
    let keep = peaks::place().and_then(|file| Some(file.parent()?.join("tune")));
    Ok(TuneOptions {
        tuned,
        goal: args.needed("for", choice)?,
        slack: args.needed("slack", percent)?,
        alpha: args.option("alpha", percent)?,
        exhaustive: args.flag("exhaustive"),
        rounds: args.needed("rounds", whole(0, 100))?,
        time: args.needed("time", time)?,
        lengths,
        may_lengthen: args.given("tokens").is_none(),
        works,
        knobs,
        cautious,
        foreign: args.needed("foreign-load", load)?,
        sysfs,
        cpus: only.map(|cpus| cpus.into_iter().collect()),
        energy: !args.flag("no-energy"),
        keep: keep.filter(|_| !args.flag("no-keep")),
        fresh: args.flag("fresh"),
        user: Caller::read(args)?.map(Caller::user).transpose()?,
        record: record_flags(args)?,
    })
}

/// For the recorder of each run.
fn record_flags(args: &Args) -> anyhow::Result<Vec<OsString>> {
    let mut flags = Vec::new();
    if let Some(file) = args.path("meter")? {
        flags.extend(["--meter".into(), file.into()]);
    }
    if args.flag("as-root") {
        flags.push("--as-root".into());
    }
    Ok(flags)
}

/// `10%` of a CPU, `150%`.
fn load(text: &str) -> Result<f64, String> {
    let share = text.strip_suffix('%').and_then(|p| p.trim().parse::<f64>().ok());
    share
        .filter(|p| (0.0..=1e6).contains(p))
        .map(|p| p / 100.0)
        .ok_or("expected a percentage of a CPU, e.g. 10%".into())
}

/// Which settings, and whether those that change more than speed are only measured.
fn knobs(text: &str) -> Result<(Vec<Knob>, bool), String> {
    match text {
        "all" => return Ok((Knob::ALL.to_vec(), true)),
        "none" => return Ok((Vec::new(), true)),
        _ => {}
    }
    let named = |name: &str| Knob::ALL.into_iter().find(|k| k.name() == name.trim());
    let expected =
        || format!("expected a list of {}, or 'all' or 'none'", any_of(Knob::ALL.iter().map(|k| k.name())));
    let all: Option<Vec<Knob>> = text.split(',').map(named).collect();
    // What was named by itself is wanted.
    Ok((all.ok_or_else(expected)?, false))
}

static STOPS: AtomicU32 = AtomicU32::new(0);

/// Messages on standard error, and a line for the present run on a terminal.
pub(super) struct Terminal {
    quiet: bool,
    terminal: bool,
    shown: bool,
}

impl Terminal {
    /// Ctrl-C and SIGTERM end the search; a second one ends the program.
    pub(super) fn install(quiet: bool) -> anyhow::Result<Terminal> {
        ctrlc::set_handler(|| {
            if STOPS.fetch_add(1, Ordering::SeqCst) > 0 {
                // The recorder gets SIGTERM with the end of this process.
                std::process::exit(130);
            }
        })
        .context("cannot install handlers for Ctrl-C and SIGTERM")?;
        Ok(Terminal { quiet, terminal: io::stderr().is_terminal(), shown: false })
    }

    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Watcher for Terminal {
    fn stop(&self) -> bool {
        STOPS.load(Ordering::SeqCst) > 0
    }

    fn tell(&mut self, text: &str) {
        self.clear();
        if !self.quiet {
            let _ = writeln!(io::stderr(), "profinfer: {}", clean(text));
        }
    }

    fn progress(&mut self, text: &str) {
        if self.terminal && !self.quiet {
            self.clear();
            self.shown = true;
            let _ = write!(io::stderr(), "{} ...", clean(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_named_or_all() {
        assert_eq!(knobs("none"), Ok((vec![], true)));
        assert_eq!(knobs("kv-type, ubatch"), Ok((vec![Knob::KvType, Knob::Ubatch], false)));
        assert!(knobs("all").is_ok_and(|(all, cautious)| all.len() == Knob::ALL.len() && cautious));
        assert!(knobs("kv").is_err_and(|e| e.contains("kv-type")));
    }

    #[test]
    fn a_load_is_a_share_of_one_cpu() {
        assert_eq!((load("10%"), load("150 %"), load("0%")), (Ok(0.1), Ok(1.5), Ok(0.0)));
        for wrong in ["10", "-1%", "x%", "nan%", "inf%", ""] {
            assert!(load(wrong).is_err(), "{wrong}");
        }
    }
}
