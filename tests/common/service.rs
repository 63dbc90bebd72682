//! The service as a child process, in its own directory, and engines that only this service records.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use machine::ready;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use service::socket::{self, ServiceRequest};

use super::run::{Run, run, signal_to, wait};
use super::seen::Seen;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// The state is looked at again after this time without an event: of tokens a recorder reports twice a second, and there is
/// an event each second; of runs that wait or are left out there is none.
const WITHOUT: Duration = Duration::from_millis(250);

/// A service; stopped, with its recorders, after the test.
pub struct Service {
    pub child: Child,
    /// What `profinfer watch` prints.
    events: UnixStream,
    /// Recorders of killed services in whose place this one is.
    left: Vec<OwnedFd>,
    dir: tempfile::TempDir,
}

/// Rules cover engines of this test only; engines of others are ignored.
const OTHERS: &str = "\n[[rule]]\nname = \"others\"\nignore = true\n";

fn readable(fd: &impl AsFd, most: Duration) -> bool {
    ready::wait(&mut [PollFd::new(fd, PollFlags::IN)], most)
}

/// Readable when the process has ended. None: it has already, and was waited for.
pub fn pidfd(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()
}

/// Waits for the end of a process that may be no child.
pub fn wait_for_exit(of: &OwnedFd) {
    assert!(readable(of, PATIENCE) || std::thread::panicking(), "a process does not end");
}

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Processes with this name.
fn named(name: &str) -> impl Iterator<Item = u32> {
    let is = move |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is)
}

/// Waits until the probes of recorders that have ended are removed: the kernel removes one at a time and delays new ones
/// meanwhile. Each recorder has a guard that ends when that is done; its only descriptor is a pipe from the recorder.
fn wait_for_removal() {
    let hangs_up = |fd: fs::DirEntry| {
        let end = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(fd.path());
        end.is_ok_and(|end| readable(&end, Duration::ZERO))
    };
    for pid in named("profinfer-guard") {
        let mut fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        if let Some(guard) = pidfd(pid)
            && fds.any(hangs_up)
        {
            wait_for_exit(&guard);
        }
    }
}

impl Service {
    /// With these lines in `[service]`, and these rules; `ENGINE` in them is replaced with the engine's path.
    pub fn start(own: &str, rules: &str) -> Service {
        Service::start_in(tempfile::tempdir().expect("a directory"), own, rules)
    }

    pub fn start_in(dir: tempfile::TempDir, own: &str, rules: &str) -> Service {
        let service = Service::start_as_told(dir, own, rules);
        service.wait_for_log("ready to record", 1);
        service
    }

    /// Started as far as it tells a service manager.
    pub fn start_as_told(dir: tempfile::TempDir, own: &str, rules: &str) -> Service {
        wait_for_removal();
        configure(dir.path(), own, rules);
        let (child, events) = spawn(dir.path());
        Service { child, events, left: Vec::new(), dir }
    }

    pub fn configure(&self, own: &str, rules: &str) {
        configure(self.dir.path(), own, rules);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The engine's program: a private copy for this test.
    pub fn engine(&self) -> PathBuf {
        self.path("engine/fakellama")
    }

    /// `profinfer WHAT --socket ... ARGS`.
    pub fn ask(&self, what: &str, args: &[&str]) -> Run {
        run(super::run::profinfer().arg(what).arg("--socket").arg(self.path("sock/control")).args(args))
    }

    pub fn state(&self) -> Value {
        let state = socket::ask(&self.path("sock/control"), ServiceRequest::Status, PATIENCE);
        state.unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    /// Waits for the given state.
    pub fn wait_for(&self, what: &str, mut done: impl FnMut(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let state = self.state();
            if done(&state) {
                return state;
            }
            assert!(begin.elapsed() < PATIENCE, "in vain: {what}: {state}\n{}", self.log());
            self.wait_for_event();
        }
    }

    /// Waits until something has happened since the last call.
    fn wait_for_event(&self) {
        let (mut events, mut most) = (&self.events, WITHOUT);
        while readable(events, most) {
            most = Duration::ZERO;
            let n = events.read(&mut [0; 4096]).expect("events");
            assert!(n > 0, "the service has ended: {}", self.log());
        }
    }

    /// Waits until the log has this text at least so many times.
    pub fn wait_for_log(&self, text: &str, times: usize) {
        self.wait_for(text, |_| self.log().matches(text).count() >= times);
    }

    /// Its events from now on; the first is `hello`.
    pub fn events(&self) -> Events {
        let stream = socket::watch(&self.path("sock/control")).expect("it answers");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Events(BufReader::new(stream))
    }

    /// Waits until this many runs have been recorded, none is running, and no file is being written.
    pub fn wait_for_runs(&self, n: u64) -> Value {
        self.wait_for("runs are recorded", |s| {
            s["counts"]["recorded"] == n && s["state"] == "waiting" && s["store"]["writing"] == 0
        })
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Traces, oldest first.
    pub fn traces(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("d")).into_iter().flatten().flatten();
        let mut traces: Vec<PathBuf> =
            entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "pfi")).collect();
        traces.sort();
        traces
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.traces().iter().map(|t| Seen::read(t)).collect()
    }

    /// Its processes with this name, whoever's children they are: they have its command line.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        let conf = self.path("conf.toml").display().to_string();
        let has =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains(&conf));
        named(name).filter(has).collect()
    }

    /// Its recorders. What one has just forked has its name, too, and is no child of the service.
    pub fn recorders(&self) -> Vec<u32> {
        let own = children(self.child.id());
        self.processes("profinfer-rec").into_iter().filter(|pid| own.contains(pid)).collect()
    }

    pub fn signal(&self, signal: i32) {
        signal_to(self.child.id(), signal);
    }

    /// Stops it with a signal; returns its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        wait(&mut self.child).code()
    }

    /// Kills it and starts another in its place.
    pub fn succeed(&mut self) {
        self.left.extend(children(self.child.id()).into_iter().filter_map(pidfd));
        self.signal(libc::SIGKILL);
        wait(&mut self.child);
        (self.child, self.events) = spawn(self.dir.path());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Recorders are in its process group; those of a service killed earlier end by themselves.
        self.left.extend(children(self.child.id()).into_iter().filter_map(pidfd));
        // SAFETY: a signal to a group led by the child.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
        self.left.iter().for_each(wait_for_exit);
    }
}

/// Events of a service, in their order.
pub struct Events(BufReader<UnixStream>);

impl Events {
    /// The next event.
    pub fn any(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).expect("an event in time") > 0, "it has ended");
        serde_json::from_str(&line).expect("JSON")
    }

    /// The next event that is so.
    pub fn wait_for(&mut self, mut is: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let event = self.any();
            if is(&event) {
                return event;
            }
        }
    }
}

fn configure(dir: &Path, own: &str, rules: &str) {
    let engine = dir.join("engine");
    if !engine.exists() {
        let from = super::fixture_dir("modern").expect("the fixture");
        let copied = Command::new("cp").arg("-r").arg(from).arg(&engine).status().expect("cp");
        assert!(copied.success());
    }
    let at = |name: &str| dir.join(name).display().to_string();
    let rules = rules.replace("ENGINE", &at("engine/fakellama"));
    let text = format!(
        "[service]\ndirectory = \"{}\"\nstatus = \"{}\"\nsocket = \"{}\"\n{own}\n{rules}{OTHERS}",
        at("d"),
        at("status.json"),
        at("sock/control")
    );
    fs::write(dir.join("conf.toml"), text).expect("written");
}

/// Starts a service. Returns it with its events when it is ready, which it tells as it would tell systemd.
fn spawn(dir: &Path) -> (Child, UnixStream) {
    let log = fs::File::options().create(true).append(true).open(dir.join("log")).expect("a log");
    let notify = dir.join("notify");
    let _ = fs::remove_file(&notify);
    let manager = UnixDatagram::bind(&notify).expect("a socket");
    let mut command = super::run::profinfer();
    // What it measures of the machine stays in the test's directory.
    command.env("XDG_CACHE_HOME", dir.join("cache")).env("NOTIFY_SOCKET", &notify);
    command.arg("serve").arg("--conf").arg(dir.join("conf.toml"));
    // A machine that the test has made: `sys`, and `proc` beside it.
    let sysfs = dir.join("sys");
    if sysfs.exists() {
        command.args(["--sensors", "--sysfs"]).arg(sysfs);
    }
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    let mut child = command.spawn().expect("started");
    let ended = pidfd(child.id()).expect("our own child");
    let mut fds = [PollFd::new(&manager, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
    ready::wait(&mut fds, PATIENCE);
    if !readable(&manager, Duration::ZERO) {
        let _ = child.kill();
        let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
        panic!("the service does not start: {}: {log}", wait(&mut child));
    }
    (child, socket::watch(&dir.join("sock/control")).expect("it answers"))
}
