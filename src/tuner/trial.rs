//! One run of a command under `profinfer record`: where its threads ran, what else was running, and how it ended.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::host::child::die_with_parent;
use crate::tuner::command::Lengths;
use crate::tuner::foreign::ForeignLoad;
use crate::tuner::placement::Placement;
use crate::tuner::server;

/// Interval between two looks at a run.
const LOOK: Duration = Duration::from_millis(50);
/// Time that a recorder has to end after a signal.
const GRACE: Duration = Duration::from_secs(20);
/// Maximum length of a message taken from a log.
const MESSAGE: usize = 300;

/// What to run.
pub struct Trial {
    pub argv: Vec<OsString>,
    /// CPUs to run it on; None: wherever this process may run, or as the command says itself.
    pub cpus: Option<Vec<u32>>,
    /// Maximum duration.
    pub limit: Option<Duration>,
    /// A server on this port gets one request.
    pub request: Option<(u16, Lengths)>,
}

/// How to record.
pub struct Recorder {
    /// The program.
    pub program: PathBuf,
    /// For the trace and the log.
    pub dir: PathBuf,
    /// Directory of sensors; None: they are not recorded.
    pub sensors: Option<PathBuf>,
    /// Further flags of `record`.
    pub flags: Vec<OsString>,
}

/// A run that has ended.
pub struct Ran {
    pub trace: PathBuf,
    /// It was ended because it took too long.
    pub cut: bool,
    /// CPUs that other programs kept busy.
    pub foreign: Option<f64>,
    pub placement: Placement,
    pub took: Duration,
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error("cannot run profinfer record: {0}")]
    Start(io::Error),
    #[error("interrupted")]
    Interrupted,
    /// What the recorder said last.
    #[error("{0}")]
    Failed(String),
}

impl Recorder {
    /// Runs it to its end.
    ///
    /// # Errors
    /// It cannot be started, ended with an error, or `stop` said so.
    pub fn run(&self, trial: &Trial, stop: &dyn Fn() -> bool) -> Result<Ran, TrialError> {
        let (trace, log) = (self.dir.join("run.pfi"), self.dir.join("run.log"));
        let foreign = ForeignLoad::start();
        let begin = Instant::now();
        let mut child = self.start(trial, &trace, &log).map_err(TrialError::Start)?;
        let mut placement = Placement::default();
        let mut over = || begin.elapsed() >= trial.limit.unwrap_or(Duration::MAX);
        let answered = match trial.request {
            Some((port, lengths)) => self.serve(&mut child, (port, lengths), &mut placement, stop, &mut over),
            None => Ok(()),
        };
        let status = if trial.request.is_some() {
            end(&mut child)
        } else {
            watch(&mut child, &mut placement, &|| stop() || over())
        };
        let cut = over();
        let status = match status {
            Some(status) => Some(status),
            None => end(&mut child),
        };
        if stop() {
            return Err(TrialError::Interrupted);
        }
        answered.map_err(TrialError::Failed)?;
        // A command that was ended here may have a status of its own.
        if !status.is_some_and(|s| s.success()) && !cut && trial.request.is_none() || !trace.exists() {
            return Err(TrialError::Failed(last_words(&log)));
        }
        Ok(Ran { trace, cut, foreign: foreign.cpus(), placement, took: begin.elapsed() })
    }

    fn start(&self, trial: &Trial, trace: &Path, log: &Path) -> io::Result<Child> {
        // An earlier run's trace must not be taken for this one's.
        match fs::remove_file(trace) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let out = File::create(log)?;
        let mut command = Command::new(&self.program);
        // A graph's width tells prefill from decode; ops would cost time.
        command
            .args(["record", "--level", "graph", "--no-sched", "--force", "-o"])
            .arg(trace)
            .args(&self.flags);
        if let Some(cpus) = &trial.cpus {
            command.arg("--cpus").arg(common::cpus::ranges(cpus.iter().copied()));
        }
        if let Some(sysfs) = &self.sensors {
            command.arg("--sensors").arg("--sysfs").arg(sysfs);
        }
        command.arg("--").args(&trial.argv);
        command.stdin(std::process::Stdio::null()).stdout(out.try_clone()?).stderr(out);
        die_with_parent(&mut command);
        command.spawn()
    }

    /// Sends the request while watching the server.
    fn serve(
        &self,
        child: &mut Child,
        (port, lengths): (u16, Lengths),
        placement: &mut Placement,
        stop: &dyn Fn() -> bool,
        over: &mut dyn FnMut() -> bool,
    ) -> Result<(), String> {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (ended, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let asked = server::ask(port, lengths, Duration::from_secs(300), &|| {
                    given_up.load(Ordering::Relaxed)
                });
                ended.store(true, Ordering::Relaxed);
                asked
            });
            while !ended.load(Ordering::Relaxed) {
                if stop() || over() || !matches!(child.try_wait(), Ok(None)) {
                    given_up.store(true, Ordering::Relaxed);
                    // The end of the server ends the request.
                    end(child);
                    break;
                }
                placement.look(child.id());
                thread::sleep(LOOK);
            }
            match asking.join() {
                Ok(Ok(())) => Ok(()),
                Ok(Err(e)) if given_up.load(Ordering::Relaxed) => {
                    Err(format!("{e}; {}", last_words(&self.dir.join("run.log"))))
                }
                Ok(Err(e)) => Err(e.to_string()),
                Err(_) => Err("the thread that asks the server died".to_owned()),
            }
        })
    }
}

/// Waits for its end; None: `enough` came first.
fn watch(child: &mut Child, placement: &mut Placement, enough: &dyn Fn() -> bool) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if !enough() => {}
            _ => return None,
        }
        placement.look(child.id());
        thread::sleep(LOOK);
    }
}

/// Ends a recording as Ctrl-C does; kills it if that takes too long.
fn end(child: &mut Child) -> Option<ExitStatus> {
    for signal in [Signal::INT, Signal::TERM] {
        // It has not been waited for, so its pid is still its own.
        let _ = kill_process(Pid::from_child(child), signal);
        let begin = Instant::now();
        while begin.elapsed() < GRACE {
            match child.try_wait() {
                Ok(None) => thread::sleep(LOOK),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
    let _ = child.kill();
    child.wait().ok()
}

/// The last lines of a log, as one.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let own = lines.iter().rev().find(|l| l.starts_with("profinfer: "));
    let said = own.or(lines.last()).map_or("it said nothing", |l| l);
    let said = said.strip_prefix("profinfer: ").unwrap_or(said);
    said.chars().take(MESSAGE).collect()
}
