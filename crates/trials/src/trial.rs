//! One run of a command under `profinfer record`: where its threads ran, what else was running, and how it ended.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::foreign::ForeignLoad;
use crate::listener;
use crate::placement::Placement;
use crate::server::{self, Request};
use machine::child::die_with_parent;

/// Interval between two looks at a run.
const LOOK: Duration = Duration::from_millis(50);
/// Time that a recorder has to end after a signal.
const GRACE: Duration = Duration::from_secs(20);
/// Maximum length of a message taken from a log.
const MESSAGE: usize = 300;

/// How much of a run is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// A graph's width tells prefill from decode; ops would cost time.
    Graphs,
    /// Where ops ran, and how threads are bound.
    Ops,
}

/// What to run.
pub struct Trial {
    pub detail: Detail,
    pub argv: Vec<OsString>,
    /// CPUs to run it on; None: wherever this process may run, or as the command says itself.
    pub cpus: Option<Vec<u32>>,
    /// Maximum duration.
    pub limit: Option<Duration>,
    /// A server gets this.
    pub request: Option<Request>,
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
        let mut placement = Placement::new(trial.detail == Detail::Ops);
        let mut over = || begin.elapsed() >= trial.limit.unwrap_or(Duration::MAX);
        let answered = match &trial.request {
            Some(request) => self.serve(&mut child, request, &mut placement, stop, &mut over),
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
        if !cut {
            answered.map_err(TrialError::Failed)?;
        }
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
        let level = match trial.detail {
            Detail::Graphs => "graph",
            Detail::Ops => "op",
        };
        command
            .args(["record", "--level", level, "--no-sched", "--force", "-o"])
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
        request: &Request,
        placement: &mut Placement,
        stop: &dyn Fn() -> bool,
        over: &mut dyn FnMut() -> bool,
    ) -> Result<(), String> {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (ended, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let recorder = child.id();
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let within = Duration::from_secs(300);
                let is_ours = || listener::is_below(recorder, request.port);
                let asked = server::ask(request, within, &is_ours, &|| given_up.load(Ordering::Relaxed));
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
                Ok(Err(_)) if given_up.load(Ordering::Relaxed) => {
                    let words = last_words(&self.dir.join("run.log"));
                    Err(format!("the server ended before it had answered: {words}"))
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
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
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

/// What a log says of a failure: the recorder's last message, and what the engine said.
fn last_words(log: &Path) -> String {
    words(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()))
}

fn words(log: &str) -> String {
    let lines = || log.lines().map(str::trim).filter(|l| !l.is_empty());
    let of_recorder = lines().rev().find_map(|l| l.strip_prefix("profinfer: "));
    let engines = || lines().filter(|l| !l.starts_with("profinfer: "));
    // The first error is the cause of those after it.
    let is_error = |l: &&str| ["error", "failed", "invalid"].iter().any(|w| l.to_lowercase().contains(w));
    let of_engine = engines().find(is_error).or(engines().next_back());
    let short = |text: &str| text.chars().take(MESSAGE).collect::<String>();
    match (of_recorder, of_engine) {
        (Some(said), Some(engine)) => format!("{}; the engine said: {}", short(said), short(engine)),
        (Some(said), None) | (None, Some(said)) => short(said),
        (None, None) => "it said nothing".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_with_the_engines_first_error() {
        let log = "profinfer: ready: recording x\nloading\n E failed to open m.gguf\nError: it ends\nbye\n\
                   profinfer: nothing recorded\n";
        assert_eq!(words(log), "nothing recorded; the engine said: E failed to open m.gguf");
        assert_eq!(words("profinfer: nothing recorded\nbye\n\n"), "nothing recorded; the engine said: bye");
        assert_eq!(words("profinfer: nothing recorded"), "nothing recorded");
        assert_eq!((&*words("bye"), &*words("\n")), ("bye", "it said nothing"));
    }

    #[test]
    fn a_child_that_has_been_waited_for_gets_no_signal() {
        let mut child = Command::new("false").spawn().expect("it runs");
        let status = child.wait().expect("waited");
        assert_eq!(end(&mut child), Some(status));
    }
}
