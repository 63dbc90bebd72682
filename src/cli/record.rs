//! `profinfer record`: attach, record, write a trace. Uses `agent` and `trace`.

mod inner;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;

use crate::agent::attached::Site;
use crate::agent::btf::Btf;
use crate::agent::drain::Totals;
use crate::agent::machine::AgentCpu;
use crate::agent::recording::{Options, Summary, Target, Watch};
use crate::agent::session;
use crate::agent::source::Wish;
use crate::agent::verify::OpEnd;
use crate::trace;
use crate::trace::record::Level;
use crate::views::table::clean;

/// Records a run of an unmodified llama.cpp, or of any GGML program, into a trace.
///
/// Attaches probes to the engine's functions from outside: nothing is rebuilt, restarted or slowed more than the probes
/// cost. Ends when the target ends, on Ctrl-C or SIGTERM, after --duration or after --tokens; what was recorded until
/// then is in the file. A second Ctrl-C ends at once. Needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  profinfer record -o run.pfi -- llama-cli -m model.gguf -p 'Hello' -n 64
  profinfer record -o run.pfi -p $(pidof llama-server) --duration 30s
  profinfer record -o run.pfi --exe /usr/bin/llama-server --tokens 200
  profinfer record -o - --level graph -p 1234 | ssh desk 'profinfer report -'

Exit status: 0 recorded; that of COMMAND if it failed; 1 nothing recorded or an error; 2 wrong usage; 130 ended by a
second Ctrl-C.")]
pub struct Args {
    /// Running processes to record (repeat or separate by commas); their children are recorded as well
    #[arg(short, long, value_name = "PID", value_delimiter = ',', num_args = 1)]
    pid: Vec<u32>,
    /// Record every process that runs this program or library, from now on
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    exe: Option<PathBuf>,
    /// File to write, '-' for standard output (COMMAND's own output then goes to standard error)
    #[arg(short, long, value_name = "FILE", default_value = "profinfer.pfi")]
    output: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    /// How deep to look
    #[arg(long, value_enum, default_value = "op")]
    level: LevelArg,
    /// Record tensors: name, op, type, dims, strides, sources; sent only when they change [default]
    #[arg(long = "str", overrides_with = "no_structure")]
    structure: bool,
    /// Do not record tensors: ops are then known by position only
    #[arg(long = "no-str")]
    no_structure: bool,
    /// How the end of an op is told
    #[arg(long, value_enum, default_value = "auto")]
    op_end: OpEndArg,
    #[command(flatten)]
    inner: inner::InnerArgs,
    /// Use perf buffers, one for each CPU, instead of the ring buffer
    #[arg(long)]
    pbuf: bool,
    /// Where events come from
    #[arg(long, value_enum, default_value = "auto")]
    source: SourceArg,
    /// Size of the kernel's event buffer (each CPU's, with --pbuf or perf events); rounded up to a power of two
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = size)]
    buffer_size: u64,
    /// CPU on which the recorder itself runs: a number, `any`, or `auto`: a small core where cores differ, else one that
    /// the engine leaves free
    #[arg(long, value_name = "CPU", default_value = "auto", value_parser = agent_cpu)]
    agent_cpu: AgentCpu,
    /// The running kernel's BTF, where it has none of its own: tells processes from threads when following children
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// End after this time: 500ms, 30s, 10min
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// End after this many decoded tokens
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// Say nothing while recording
    #[arg(short, long)]
    quiet: bool,
    /// Where probes sit; `first` and `published` are for comparing costs
    #[arg(long, value_enum, default_value = "cheapest", hide = true)]
    site: SiteArg,
    /// Command to run and record
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LevelArg {
    /// Calls of llama_decode and its kin
    Token,
    /// and graphs and splits by backend
    Graph,
    /// and every op on every thread
    Op,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OpEndArg {
    /// By barrier where it fires and more than one thread runs, else by interval
    Auto,
    /// By the barrier behind the op: time busy and time waited are told apart
    Barrier,
    /// By the next op: fewer probe hits, waiting included
    Interval,
}

/// Where events come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceArg {
    /// BPF, or, on a kernel without bpf(), perf events
    Auto,
    /// BPF programs on uprobes
    Bpf,
    /// Uprobe events through perf's rings: no bpf() needed, more work for the recorder
    Perf,
}

impl SourceArg {
    pub fn wish(self) -> Wish {
        match self {
            SourceArg::Auto => Wish::Auto,
            SourceArg::Bpf => Wish::Bpf,
            SourceArg::Perf => Wish::Perf,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SiteArg {
    Cheapest,
    First,
    Published,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let target = target(args)?;
    args.inner.check(args.level, args.no_structure)?;
    let to_stdout = args.output.as_os_str() == "-";
    if to_stdout && io::stdout().is_terminal() {
        bail!("standard output is a terminal: redirect it, or give a file with -o");
    }
    let btf = args.btf.as_deref().map(Btf::read).transpose()?;
    let signals = Signals::install()?;
    let mut watch = Status::new(args.quiet, signals);
    let options = Options { btf, ..options(args, to_stdout) };
    let recorded = match to_stdout {
        true => session::record(target, options, Box::new(io::stdout()), &mut watch),
        false => {
            let out = Output::create(&args.output, args.force)?;
            let path = out.path.clone();
            session::record(target, options, Box::new(out), &mut watch).inspect_err(|_| {
                // A file with no block in it is of no use to anybody.
                if std::fs::metadata(&path).is_ok_and(|m| m.len() <= crate::trace::FILE_HEADER as u64) {
                    let _ = std::fs::remove_file(&path);
                }
            })
        }
    };
    watch.clear();
    // As text: a closed pipe is no error of a view, but a recording has lost its only copy.
    let summary = recorded.map_err(|e| anyhow!("{e}"))?;
    finish(args, &summary)
}

fn finish(args: &Args, s: &Summary) -> Result<ExitCode> {
    if s.engines == 0 {
        if args.output.as_os_str() != "-" {
            let _ = std::fs::remove_file(&args.output);
        }
        bail!("nothing recorded ({}): {}", s.end, s.missing.as_deref().unwrap_or("no engine was seen"));
    }
    if !args.quiet {
        eprintln!("{}", summary_line(args, s));
    }
    if s.totals.events == 0 {
        eprintln!("profinfer: the probes were attached and nothing hit them: was the engine at work?");
        return Ok(ExitCode::FAILURE);
    }
    Ok(match s.status {
        Some(code) if code != 0 => {
            eprintln!("profinfer: the command ended with status {code}");
            ExitCode::from(code.clamp(1, 255) as u8)
        }
        _ => ExitCode::SUCCESS,
    })
}

fn summary_line(args: &Args, s: &Summary) -> String {
    let lost = match s.lost {
        0 => "none lost".to_owned(),
        n => format!(
            "{n} LOST ({:.2} %): a larger --buffer-size keeps more",
            n as f64 * 100.0 / s.seen.max(1) as f64
        ),
    };
    let name = args.output.display().to_string();
    let file = if name == "-" { "standard output".to_owned() } else { clean(&name) };
    let next = if name == "-" { String::new() } else { format!("; next: profinfer report {file}") };
    format!(
        "profinfer: {} calls, {} op hits, {} events, {lost}; {} bytes in {file} (ended: {}){next}",
        s.totals.calls, s.ops, s.seen, s.bytes, s.end
    )
}

fn target(args: &Args) -> Result<Target> {
    match (&args.exe, args.pid.is_empty(), args.command.is_empty()) {
        (Some(path), true, true) => Ok(Target::Exe(path.clone())),
        (None, false, true) => Ok(Target::Pids(args.pid.clone())),
        (None, true, false) => Ok(Target::Command(args.command.clone())),
        (None, true, true) => bail!("what to record? give -p PID, --exe PATH, or -- COMMAND"),
        _ => bail!("give only one of -p PID, --exe PATH and -- COMMAND"),
    }
}

fn options(args: &Args, stdout_taken: bool) -> Options {
    Options {
        level: match args.level {
            LevelArg::Token => Level::Token,
            LevelArg::Graph => Level::Graph,
            LevelArg::Op => Level::Op,
        },
        structure: !args.no_structure,
        experts: args.inner.experts,
        pbuf: args.pbuf,
        source: args.source.wish(),
        buffer_bytes: args.buffer_size,
        agent_cpu: args.agent_cpu,
        op_end: match args.op_end {
            OpEndArg::Auto => OpEnd::Auto,
            OpEndArg::Barrier => OpEnd::Barrier,
            OpEndArg::Interval => OpEnd::Interval,
        },
        site: match args.site {
            SiteArg::Cheapest => Site::Cheapest,
            SiteArg::First => Site::First,
            SiteArg::Published => Site::FirstAndReturn,
        },
        btf: None,
        duration: args.duration,
        tokens: args.tokens,
        stdout_taken,
        tool: concat!("profinfer ", env!("CARGO_PKG_VERSION")).to_owned(),
        command_line: command_line(),
    }
}

fn command_line() -> String {
    let quote = |a: String| match a.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c))
        && !a.is_empty()
    {
        true => a,
        false => format!("'{}'", a.replace('\'', r"'\''")),
    };
    std::env::args_os().map(|a| quote(a.to_string_lossy().into_owned())).collect::<Vec<_>>().join(" ")
}

/// The file being written, with its name in every error.
struct Output {
    file: File,
    path: PathBuf,
}

impl Output {
    fn create(path: &Path, force: bool) -> Result<Output> {
        let mut how = OpenOptions::new();
        how.write(true);
        match force {
            true => how.create(true).truncate(true),
            false => how.create_new(true),
        };
        match how.open(path) {
            Ok(file) => Ok(Output { file, path: path.to_owned() }),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Err(anyhow!("{} exists: give another name with -o, or --force to replace it", path.display()))
            }
            Err(e) => {
                Err(e).with_context(|| format!("cannot write {}: give another place with -o", path.display()))
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl trace::Output for Output {
    fn seekable(&self) -> bool {
        self.file.seekable()
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(pos, bytes)
    }
}

static STOPS: AtomicU32 = AtomicU32::new(0);

/// Ctrl-C, SIGTERM and SIGHUP: the first ends the recording, a second ends the program.
struct Signals;

impl Signals {
    fn install() -> Result<Signals> {
        ctrlc::set_handler(|| {
            if STOPS.fetch_add(1, Ordering::SeqCst) > 0 {
                // The kernel removes the probes with the process; blocks already written are whole.
                std::process::exit(130);
            }
        })
        .context("cannot take over Ctrl-C and SIGTERM")?;
        Ok(Signals)
    }
}

/// The status line, and the messages.
struct Status {
    quiet: bool,
    terminal: bool,
    shown: bool,
    last: Instant,
    /// Tokens decoded when the line was last shown.
    decoded: u64,
    _signals: Signals,
}

impl Status {
    fn new(quiet: bool, signals: Signals) -> Status {
        let terminal = io::stderr().is_terminal();
        Status { quiet, terminal, shown: false, last: Instant::now(), decoded: 0, _signals: signals }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

impl Watch for Status {
    fn stop(&self) -> bool {
        STOPS.load(Ordering::SeqCst) > 0
    }

    fn tell(&mut self, text: &str) {
        self.clear();
        if !self.quiet {
            eprintln!("profinfer: {}", clean(text));
        }
    }

    fn progress(&mut self, t: &Totals, lost: u64, bytes: u64) {
        if self.quiet || !self.terminal || self.last.elapsed() < Duration::from_millis(250) {
            return;
        }
        // The rate of the last moments: the engine may have loaded its model for long before.
        let rate = (t.decoded - self.decoded) as f64 / self.last.elapsed().as_secs_f64();
        (self.last, self.decoded) = (Instant::now(), t.decoded);
        self.shown = true;
        eprint!(
            "\r\x1b[K{} tokens  {rate:.1} tok/s  {} events  {lost} lost  {} kB",
            t.decoded,
            t.events,
            bytes / 1000
        );
        let _ = io::stderr().flush();
    }
}

/// `64MiB`, `8M`, `4096`: bytes.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1000,
        "mb" => 1_000_000,
        _ => return Err(format!("unknown unit '{unit}': use KiB, MiB or GiB")),
    };
    let number: u64 = number.parse().map_err(|_| "not a size; write it like 4MiB".to_owned())?;
    match number.checked_mul(factor) {
        Some(n @ 4096..=0x4000_0000) => Ok(n),
        _ => Err("must lie between 4KiB and 1GiB".to_owned()),
    }
}

/// `500ms`, `30s`, `10min`, `2h`, or seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit '{unit}': use ms, s, min or h")),
    };
    let number: f64 = number.parse().map_err(|_| "not a time; write it like 30s".to_owned())?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|d| !d.is_zero())
        .ok_or("must be more than 0".to_owned())
}

fn split_unit(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..at], text[at..].trim())
}

fn agent_cpu(text: &str) -> Result<AgentCpu, String> {
    match text {
        "auto" => Ok(AgentCpu::Auto),
        "any" => Ok(AgentCpu::Any),
        n => n.parse().map(AgentCpu::Cpu).map_err(|_| "a CPU number, 'auto' or 'any'".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_as_people_write_them() {
        assert_eq!(size("8MiB"), Ok(8 << 20));
        assert_eq!(size("4096"), Ok(4096));
        assert!(
            size("12").is_err()
                && size("8 parsec").is_err()
                && size("99999999999G").is_err()
                && size("").is_err()
        );
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5min"), Ok(Duration::from_secs(90)));
        assert!(
            duration("0s").is_err()
                && duration("-1s").is_err()
                && duration("1e99h").is_err()
                && duration("x").is_err()
        );
    }
}
