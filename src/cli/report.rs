//! `profinfer report`: where the time of a recorded run went. Uses `trace`, `analysis` and `views`.

use std::io::{BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;

use crate::analysis::calls::Phase;
use crate::analysis::load::Progress;
use crate::analysis::report::{By, Options, report};
use crate::trace::{ReadError, Trace};
use crate::views::table::Style;
use crate::views::{json, text};

const EXAMPLES: &str = "\
Examples:
  profinfer report run.pfi                     everything
  profinfer report run.pfi --phase decode      decode only
  profinfer report run.pfi --by layer --top 50 one table, more rows
  profinfer report run.pfi --json | jq .books  for a program
  profinfer report run.pfi --by cause          what threads did in each op (record --sched)
  ssh board cat run.pfi | profinfer report -   from a pipe";

/// Say where the time of a recorded run went.
///
/// Prints the run and its model, prefill and decode (TTFT, TPOT, tokens/s), the operators by type, name and layer, the
/// threads, the graph splits by backend, and how far the record can be trusted: probes, losses, damage, own cost.
///
/// The time of an op is thread 0's. Where the barrier could be probed it is busy time (start to barrier entry) and the
/// wait is shown apart; else it is wall time to the next op's start. Shares are of the summed duration of the CPU
/// graphs; the row "(gaps)" is what no op covers, so that they add up to the whole.
///
/// Where the recording has the scheduler (--sched) or counters (--pmc), what threads did in each op follows, what was
/// counted, and who was in the way.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Trace to read; "-" is standard input.
    pub file: PathBuf,
    /// Write JSON: all numbers in nanoseconds, bytes and shares of 1.
    #[arg(long)]
    pub json: bool,
    /// Rows of each table; the rest is summed up [default: 20, with --json all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub top: Option<u32>,
    /// Only this table [default: op, name, layer and thread; with --json all].
    #[arg(long, value_enum, value_name = "TABLE")]
    pub by: Option<ByArg>,
    /// Only this phase [default: all that were recorded].
    #[arg(long, value_enum)]
    pub phase: Option<PhaseArg>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ByArg {
    /// Op types.
    Op,
    /// Tensor names, layer number folded.
    Name,
    /// Layers.
    Layer,
    /// Threads of the engine's pool.
    Thread,
    /// Calls of the engine.
    Token,
    /// What threads did: computing, barrier, preempted, idle, faulting (--sched).
    Cause,
    /// What was counted (--pmc).
    Counter,
    /// Who had the CPU while the target's threads could have run (--sched).
    Interference,
    /// Experts of each layer (--experts).
    Expert,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PhaseArg {
    /// Calls with more than one token in a ubatch.
    Prefill,
    /// Calls with one token.
    Decode,
}

impl Args {
    fn options(&self) -> Options {
        let tables = match self.by {
            Some(ByArg::Op) => vec![By::Op],
            Some(ByArg::Name) => vec![By::Name],
            Some(ByArg::Layer) => vec![By::Layer],
            Some(ByArg::Thread) => vec![By::Thread],
            Some(ByArg::Token) => vec![By::Token],
            Some(ByArg::Cause) => vec![By::Cause],
            Some(ByArg::Counter) => vec![By::Counter],
            Some(ByArg::Interference) => vec![By::Interference],
            Some(ByArg::Expert) => vec![By::Expert],
            None => {
                let all = By::ALL.into_iter();
                all.filter(|by| self.json || *by != By::Token).collect()
            }
        };
        let top = self.top.or(if self.json { None } else { Some(20) });
        let phase = self.phase.map(|p| match p {
            PhaseArg::Prefill => Phase::Prefill,
            PhaseArg::Decode => Phase::Decode,
        });
        Options { top: top.map(|n| n as usize), tables, phase, expert_cache: Vec::new() }
    }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let trace = open(&args.file)?;
    let progress = Progress::default();
    let report = with_bar(&progress, || report(&trace, &args.options(), &progress));
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let mut out = BufWriter::with_capacity(64 << 10, stdout.lock());
    if args.json {
        json::write(&mut out, &report)?;
    } else {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let width = terminal.then(|| terminal_size::terminal_size().map_or(100, |(w, _)| usize::from(w.0)));
        text::write(&mut out, &report, &Style { width, color: terminal && !no_color })?;
    }
    out.flush()?;
    Ok(())
}

fn open(file: &Path) -> anyhow::Result<Trace> {
    if file.as_os_str() != "-" {
        return told(Trace::open(file)).with_context(|| format!("cannot report on {}", file.display()));
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    told(Trace::from_bytes(bytes)).context("cannot report on standard input")
}

/// Adds what to do next where the error alone does not say it.
fn told(opened: Result<Trace, ReadError>) -> anyhow::Result<Trace> {
    opened.map_err(|e| match e {
        ReadError::NotATrace(_) | ReadError::Empty => {
            anyhow::anyhow!("{e}; `profinfer record` writes traces")
        }
        other => other.into(),
    })
}

/// Work that takes longer than this gets a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs `work`; where it takes long and someone watches, a bar on standard error shows how far it is.
fn with_bar<T>(progress: &Progress, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(progress, &done));
        let result = work();
        done.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        result
    })
}

fn watch(progress: &Progress, done: &AtomicBool) {
    let start = Instant::now();
    let mut shown = false;
    while !done.load(Ordering::Relaxed) {
        if start.elapsed() >= PATIENCE {
            shown = true;
            let total = progress.total.load(Ordering::Relaxed).max(1);
            bar(progress.done.load(Ordering::Relaxed).min(total).saturating_mul(100) / total);
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    if shown {
        // Back to the first column, and the line is empty again.
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Draws over the line that the bar stood on; a terminal that is gone is no matter.
fn bar(percent: u64) {
    let _ = write!(std::io::stderr(), "\rreading [{:<50}] {percent:>3} %", "=".repeat(percent as usize / 2));
}
