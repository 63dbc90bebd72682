//! `profinfer record`: attach, record, write a trace. Uses `agent` and `trace`.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use self::flags::Asked;
use super::args::Args;
use crate::agent::drain::Totals;
use crate::agent::recording::{Summary, Watch};
use crate::agent::session;
use crate::trace;
use crate::views::table::clean;

mod budget;
pub mod flags;
mod inner;
mod outer;
mod pmc;
mod sensors;

pub use flags::COMMAND;

fn run(args: &Args) -> Result<ExitCode> {
    if pmc::lists(args)? {
        return pmc::list(args);
    }
    let asked = Asked::read(args)?;
    let to_stdout = asked.options.stdout_taken;
    if to_stdout && io::stdout().is_terminal() {
        bail!("standard output is a terminal: redirect it, or give a file with -o");
    }
    let signals = Signals::install()?;
    let mut watch = Status::new(asked.quiet, signals);
    let Asked { target, output, force, quiet, options } = asked;
    let recorded = match to_stdout {
        true => session::record(target, options, Box::new(io::stdout()), &mut watch),
        false => {
            let out = Output::create(&output, force)?;
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
    finish(&output, quiet, &summary)
}

fn finish(output: &Path, quiet: bool, s: &Summary) -> Result<ExitCode> {
    if s.engines == 0 {
        if output.as_os_str() != "-" {
            let _ = std::fs::remove_file(output);
        }
        bail!("nothing recorded ({}): {}", s.end, s.missing.as_deref().unwrap_or("no engine was seen"));
    }
    if !quiet {
        eprintln!("{}", summary_line(output, s));
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
