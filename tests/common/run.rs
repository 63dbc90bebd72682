//! The recorder as a child process, and its results.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use analysis::load::{LoadProgress, load};
use pfi::Trace;

use super::seen::Seen;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A finished recording.
pub struct Run {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub trace: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl Run {
    /// The trace of a recording that must have succeeded.
    pub fn seen(&self) -> Seen {
        assert!(self.status.success(), "{}: {}", self.status, self.stderr);
        Seen::read(&self.trace)
    }

    /// The last line of the target's output as JSON.
    pub fn said(&self) -> serde_json::Value {
        let line = self.stdout.lines().rfind(|l| l.starts_with('{')).unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {} / {}", self.stdout, self.stderr))
    }
}

/// As started by root itself, even if the tests run under sudo: files are accessible to root only.
pub fn profinfer() -> Command {
    let mut command = Command::new(super::profinfer());
    command.env_remove("SUDO_UID");
    command
}

/// `profinfer record -o FILE ARGS`, running; all its output is kept.
pub struct Recorder {
    pub child: Child,
    pub trace: PathBuf,
    dir: tempfile::TempDir,
}

impl Recorder {
    pub fn start<S: AsRef<OsStr>>(args: &[S]) -> Recorder {
        Recorder::start_as(profinfer(), args)
    }

    /// With a command that runs profinfer in another environment.
    pub fn start_as<S: AsRef<OsStr>>(mut command: Command, args: &[S]) -> Recorder {
        let dir = tempfile::tempdir().expect("a directory");
        let trace = dir.path().join("run.pfi");
        command.arg("record").arg("-o").arg(&trace).args(args);
        Recorder { child: spawn(&mut command, dir.path()), trace, dir }
    }

    pub fn signal(&self, signal: i32) {
        signal_to(self.child.id(), signal);
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }

    /// Waits until the trace has at least this many bytes after its file header: then probes are attached and
    /// events have arrived.
    pub fn wait_for_bytes(&mut self, least: u64) {
        let trace = self.trace.clone();
        wait_until("the trace grows", || {
            let ended = self.child.try_wait().ok().flatten();
            assert!(ended.is_none(), "ended early with {ended:?}: {}", self.stderr());
            std::fs::metadata(&trace).is_ok_and(|m| m.len() >= least)
        });
    }

    /// Waits until the recorder reports that the engine's probes are attached.
    pub fn wait_for_probes(&self) {
        wait_until("probes are attached", || self.stderr().contains("profinfer: ready: "));
    }

    /// Waits until the trace contains an engine's probes. Earlier ones may be the recorder's own, for calibration.
    pub fn wait_for_engine(&self) {
        wait_until("the trace tells of an engine", || {
            let trace = Trace::open(&self.trace);
            trace.is_ok_and(|t| !load(&t, &LoadProgress::default()).probes.is_empty())
        });
    }

    /// Waits until the trace has a probe in a file of this name.
    pub fn wait_for_probe_in(&self, file: &str) {
        wait_until("the trace tells of a probe there", || {
            let trace = Trace::open(&self.trace);
            let probed =
                |t: &Trace| load(t, &LoadProgress::default()).probes.iter().any(|p| p.module.ends_with(file));
            trace.is_ok_and(|t| probed(&t))
        });
    }

    pub fn finish(mut self) -> Run {
        let status = wait(&mut self.child);
        let text = |name: &str| std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        Run {
            status,
            stdout: text("stdout"),
            stderr: text("stderr"),
            trace: self.trace.clone(),
            _dir: Some(self.dir),
        }
    }
}

fn spawn(command: &mut Command, dir: &Path) -> Child {
    spawn_with(command, Stdio::null(), dir)
}

/// Runs a recording from start to finish.
pub fn record<S: AsRef<OsStr>>(args: &[S]) -> Run {
    Recorder::start(args).finish()
}

/// Runs a command to completion.
pub fn run(command: &mut Command) -> Run {
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = spawn(command, dir.path());
    let status = wait(&mut child);
    let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    Run { status, stdout: text("stdout"), stderr: text("stderr"), trace: PathBuf::new(), _dir: Some(dir) }
}

/// Waits for a child to end; if it hangs, it is killed and the test fails.
pub fn wait(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return status;
        }
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("process {} does not end", child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a condition that must become true.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn signal_to(pid: u32, signal: i32) {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "signal {signal} to {pid}");
}

/// A target that runs independently of the recorder, killed at the end of the test.
pub struct Target(pub Child, tempfile::TempDir);

/// Starts a command with this standard input.
fn spawn_with(command: &mut Command, stdin: Stdio, dir: &Path) -> Child {
    let file = |name: &str| std::fs::File::create(dir.join(name)).expect("a file for output");
    let command = command.stdin(stdin).stdout(file("stdout")).stderr(file("stderr"));
    command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

impl Target {
    pub fn start<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Target {
        Target::spawn(Command::new(program).args(args))
    }

    pub fn spawn(command: &mut Command) -> Target {
        let dir = tempfile::tempdir().expect("a directory");
        // In its own process group, so that its children end with it.
        Target(spawn(command.process_group(0), dir.path()), dir)
    }

    /// A target that takes commands on its standard input.
    pub fn controlled(command: &mut Command) -> Target {
        let dir = tempfile::tempdir().expect("a directory");
        Target(spawn_with(command.process_group(0), Stdio::piped(), dir.path()), dir)
    }

    /// Sends a line; waits for the target's `n`-th line of output in total, and returns it.
    pub fn tell(&mut self, line: &str, n: usize) -> serde_json::Value {
        let pipe = self.0.stdin.as_mut().expect("a controlled target");
        pipe.write_all(line.as_bytes()).expect("it listens");
        let mut text = String::new();
        wait_until("an answer", || {
            text = std::fs::read_to_string(self.1.path().join("stdout")).unwrap_or_default();
            let done = text.matches('\n').count() >= n;
            assert!(done || self.running(), "it ended: {}", self.stderr());
            done
        });
        serde_json::from_str(text.lines().nth(n - 1).unwrap_or_default()).expect("JSON")
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(self.1.path().join("stderr")).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn running(&mut self) -> bool {
        self.0.try_wait().expect("our own child").is_none()
    }

    /// Waits for it to exit; returns its last line as JSON.
    pub fn said(mut self) -> serde_json::Value {
        let status = wait(&mut self.0);
        let text = std::fs::read_to_string(self.1.path().join("stdout")).unwrap_or_default();
        let line = text.lines().rfind(|l| l.starts_with('{')).unwrap_or_default();
        serde_json::from_str(line)
            .unwrap_or_else(|e| panic!("{e}: target ended with {status}, said {text:?}"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|s| s.is_none()) {
            // SAFETY: a plain system call; the group was created for this child.
            unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
            let _ = self.0.wait();
        }
    }
}
