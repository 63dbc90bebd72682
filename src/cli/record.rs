//! `profinfer record`: attach, record, write a trace. Uses `agent` and `trace`.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use self::flags::Asked;
use super::args::Args;
use super::conf;
use crate::agent::recording::{Options, Progress, Streams, Summary, Target, Watch};
use crate::agent::session;
use crate::trace;
use crate::views::table::clean;

pub mod budget;
pub mod flags;
pub mod inner;
pub mod outer;
pub mod pmc;
pub mod sensors;

pub use flags::COMMAND;

fn run(args: &Args) -> Result<ExitCode> {
    let args = &conf::settled(args)?;
    if pmc::lists(args)? {
        return pmc::list(args);
    }
    let asked = Asked::read(args)?;
    let to_stdout = asked.options.streams == Streams::StdoutTaken;
    if to_stdout && io::stdout().is_terminal() {
        bail!("standard output is a terminal: redirect it, or give a file with -o");
    }
    let signals = Signals::install()?;
    let mut watch = Status::new(asked.quiet, signals);
    let Asked { target, output, force, quiet, options } = asked;
    let recorded = match to_stdout {
        true => write_to(target, options, Box::new(io::stdout()), None, &mut watch),
        false => {
            let out = Box::new(Output::create(&output, force)?);
            write_to(target, options, out, Some(&output), &mut watch)
        }
    };
    watch.clear();
    finish(&output, quiet, &recorded?)
}

/// Records into `out`, which is the file at `path` if there is one; one that came to nothing is removed.
///
/// # Errors
/// What stands in the way of a recording, and that no engine was seen.
pub fn write_to(
    target: Target,
    options: Options,
    out: Box<dyn trace::Output>,
    path: Option<&Path>,
    watch: &mut dyn Watch,
) -> Result<Summary> {
    let recorded = session::record(target, options, out, watch);
    let file = path.and_then(|p| Some((p, std::fs::metadata(p).ok().filter(std::fs::Metadata::is_file)?)));
    // A file with no block in it is of no use to anybody.
    let empty = |bytes| recorded.as_ref().map_or(bytes <= trace::FILE_HEADER as u64, |s| s.engines == 0);
    if let Some((path, _)) = file.filter(|(_, m)| empty(m.len())) {
        let _ = std::fs::remove_file(path);
    }
    // As text: a closed pipe is no error of a view, but a recording has lost its only copy.
    let s = recorded.map_err(|e| anyhow!("{e}"))?;
    if s.engines == 0 {
        bail!("nothing recorded ({}): {}", s.end, s.missing.as_deref().unwrap_or("no engine was seen"));
    }
    Ok(s)
}

fn finish(output: &Path, quiet: bool, s: &Summary) -> Result<ExitCode> {
    if !quiet {
        eprintln!("{}", summary_line(output, s));
    }
    if s.totals.events == 0 {
        eprintln!("profinfer: the probes were attached and nothing hit them: was the engine at work?");
        return Ok(ExitCode::FAILURE);
    }
    Ok(exit_code(s))
}

/// That of the command recorded, where there is one.
pub fn exit_code(s: &Summary) -> ExitCode {
    match s.status {
        Some(code) if code != 0 => {
            eprintln!("profinfer: the command ended with status {code}");
            ExitCode::from(code.clamp(1, 255) as u8)
        }
        _ => ExitCode::SUCCESS,
    }
}

fn summary_line(output: &Path, s: &Summary) -> String {
    let lost = match s.lost {
        0 => "none lost".to_owned(),
        n => format!(
            "{n} LOST ({:.2} %): a larger --buffer-size keeps more",
            n as f64 * 100.0 / s.seen.max(1) as f64
        ),
    };
    let name = output.display().to_string();
    let file = if name == "-" { "standard output".to_owned() } else { clean(&name) };
    let next = if name == "-" { String::new() } else { format!("; next: profinfer report {file}") };
    format!(
        "profinfer: {} calls, {} op hits, {} events, {lost}; {} bytes in {file} (ended: {}){next}",
        s.totals.calls, s.ops, s.seen, s.bytes, s.end
    )
}

/// The file being written.
pub struct Output(File);

impl Output {
    /// Creates it; one that exists is replaced only with `force`.
    ///
    /// # Errors
    /// It exists, or cannot be written; with its name.
    pub fn create(path: &Path, force: bool) -> Result<Output> {
        let mut how = OpenOptions::new();
        how.write(true);
        match force {
            true => how.create(true).truncate(true),
            false => how.create_new(true),
        };
        match how.open(path) {
            Ok(file) => Ok(Output(file)),
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
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl trace::Output for Output {
    fn seekable(&self) -> bool {
        self.0.seekable()
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(pos, bytes)
    }
}

static STOPS: AtomicU32 = AtomicU32::new(0);

/// Ctrl-C, SIGTERM and SIGHUP: the first ends the recording, a second ends the program.
pub struct Signals;

impl Signals {
    /// Takes them over, for the rest of the process.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn install() -> Result<Signals> {
        ctrlc::set_handler(|| {
            if STOPS.fetch_add(1, Ordering::SeqCst) > 0 {
                super::screen::restore();
                // The kernel removes the probes with the process; blocks already written are whole.
                std::process::exit(130);
            }
        })
        .context("cannot take over Ctrl-C and SIGTERM")?;
        Ok(Signals)
    }

    /// Whether one has come.
    pub fn came(&self) -> bool {
        STOPS.load(Ordering::SeqCst) > 0
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
    signals: Signals,
}

impl Status {
    fn new(quiet: bool, signals: Signals) -> Status {
        let terminal = io::stderr().is_terminal();
        Status { quiet, terminal, shown: false, last: Instant::now(), decoded: 0, signals }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

impl Watch for Status {
    fn stop(&self) -> bool {
        self.signals.came()
    }

    fn tell(&mut self, text: &str) {
        self.clear();
        if !self.quiet {
            eprintln!("profinfer: {}", clean(text));
        }
    }

    fn progress(&mut self, now: &Progress) {
        if self.quiet || !self.terminal || self.last.elapsed() < Duration::from_millis(250) {
            return;
        }
        // The rate of the last moments: the engine may have loaded its model for long before.
        let Progress { totals: t, lost, bytes, .. } = now;
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
