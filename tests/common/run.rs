//! The recorder as a child process, and its results.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use analysis::recorded::load::{LoadProgress, Loaded, load};
use pfi::Trace;
use serde_json::Value;

use super::seen::Seen;
pub use super::waiting::wait;
use super::waiting::{EventPipe, OwnChild, PATIENCE, wait_for_change};

/// A finished recording.
pub struct Run {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub trace: PathBuf,
    /// Of [`Recorder::start`].
    pub events: Vec<Value>,
    _dir: Option<tempfile::TempDir>,
}

impl Run {
    /// The trace of a recording that must have succeeded.
    pub fn seen(&self) -> Seen {
        assert!(self.status.success(), "{}: {}", self.status, self.stderr);
        Seen::read(&self.trace)
    }

    /// The last line of the target's output as JSON.
    pub fn said(&self) -> Value {
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
    pub child: OwnChild,
    pub trace: PathBuf,
    events: Option<EventPipe>,
    dir: tempfile::TempDir,
}

impl Recorder {
    /// With its events.
    pub fn start<S: AsRef<OsStr>>(args: &[S]) -> Recorder {
        Recorder::new(profinfer(), args, true)
    }

    /// With a command that runs profinfer in another environment; without events.
    pub fn start_as<S: AsRef<OsStr>>(command: Command, args: &[S]) -> Recorder {
        Recorder::new(command, args, false)
    }

    fn new<S: AsRef<OsStr>>(mut command: Command, args: &[S], events: bool) -> Recorder {
        let dir = tempfile::tempdir().expect("a directory");
        let trace = dir.path().join("run.pfi");
        command.arg("record").arg("-o").arg(&trace);
        let events = events.then(|| EventPipe::given_to(&mut command));
        Recorder { child: OwnChild(spawn(command.args(args), dir.path())), trace, events, dir }
    }

    pub fn signal(&self, signal: i32) {
        signal_to(self.child.id(), signal);
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }

    /// Waits until standard error contains this.
    pub fn wait_for_stderr(&self, text: &str) {
        self.wait_for_output(text, || self.stderr().contains(text));
    }

    /// The first event of this name, also if it has come before.
    pub fn wait_for_event(&self, name: &str) -> Value {
        self.wait_for_event_where(name, |event| event["event"] == name)
    }

    /// The first event that is wanted, also if it has come before.
    pub fn wait_for_event_where(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let events = self.events.as_ref().expect("a recorder with events");
        events.wait_for(what, wanted, || self.stderr())
    }

    /// Waits until this process is probed.
    pub fn wait_for_attached(&self, pid: u32) -> Value {
        let of_it = |event: &Value| event["event"] == "attached" && event["pid"] == pid;
        self.wait_for_event_where(&format!("process {pid} is probed"), of_it)
    }

    /// Waits until two processes are probed.
    pub fn wait_for_two_attached(&self) {
        let one = self.wait_for_event("attached");
        let other = |event: &Value| event["event"] == "attached" && event["pid"] != one["pid"];
        self.wait_for_event_where("a second process is probed", other);
    }

    /// Waits for something that its files show: trace and output.
    fn wait_for_output(&self, what: &str, done: impl FnMut() -> bool) {
        wait_for_change(what, self.dir.path(), Some(self.child.id()), done, || self.stderr());
    }

    /// Waits until the trace has operators.
    pub fn wait_for_slices(&self) {
        self.wait_for_trace("operators are recorded", |all| all.runs.iter().any(|run| run.n > 0));
    }

    /// Waits until the recorder reports that the engine's probes are attached.
    pub fn wait_for_probes(&self) {
        self.wait_for_stderr("profinfer: ready: ");
    }

    /// Waits until the trace contains what is wanted.
    pub fn wait_for_trace(&self, what: &str, wanted: impl Fn(&Loaded<'_>) -> bool) {
        let has = |trace: Trace| wanted(&load(&trace, &LoadProgress::default()));
        self.wait_for_output(what, || Trace::open(&self.trace).is_ok_and(has));
    }

    /// Waits until the trace has more than this many tokens.
    pub fn wait_for_tokens(&self, more_than: usize) {
        self.wait_for_trace("tokens are recorded", |all| all.tokens.len() > more_than);
    }

    /// Waits until the trace contains an engine's probes. Earlier ones may be the recorder's own, for calibration.
    pub fn wait_for_engine(&self) {
        self.wait_for_trace("the trace tells of an engine", |all| !all.probes.is_empty());
    }

    /// Waits until the trace has a probe in a file of this name.
    pub fn wait_for_probe_in(&self, file: &str) {
        let probed = |all: &Loaded<'_>| all.probes.iter().any(|p| p.module.ends_with(file));
        self.wait_for_trace("the trace tells of a probe there", probed);
    }

    pub fn finish(mut self) -> Run {
        let status = wait(&mut self.child);
        let text = |name: &str| std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        Run {
            status,
            stdout: text("stdout"),
            stderr: text("stderr"),
            trace: self.trace.clone(),
            events: self.events.as_ref().map(EventPipe::so_far).unwrap_or_default(),
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
    Run {
        status,
        stdout: text("stdout"),
        stderr: text("stderr"),
        trace: PathBuf::new(),
        events: Vec::new(),
        _dir: Some(dir),
    }
}

/// Waits for a state of the kernel or of a foreign process that no event reports, which must come. Anything of a
/// recorder, a child's end or a file has its own wait above and in [`super::waiting`].
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
    pub fn tell(&mut self, line: &str, n: usize) -> Value {
        let pipe = self.0.stdin.as_mut().expect("a controlled target");
        pipe.write_all(line.as_bytes()).expect("it listens");
        let text = || std::fs::read_to_string(self.1.path().join("stdout")).unwrap_or_default();
        let answered = || text().matches('\n').count() >= n;
        wait_for_change("an answer", self.1.path(), Some(self.pid()), answered, || self.stderr());
        let text = text();
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
    pub fn said(mut self) -> Value {
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
