//! Waits for what the kernel reports: the end of a process, a change of a file, bytes in a pipe. A bound says when to
//! give up: nothing here takes that long unless it hangs.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

pub const PATIENCE: Duration = Duration::from_secs(120);

/// Readable once the process has ended; None: it has ended and was reaped.
pub fn pidfd(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()
}

/// Waits until one of them is readable; false: none was in time.
pub fn readable(fds: &[BorrowedFd<'_>], until: Instant) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).expect("a time");
        match rustix::event::poll(&mut fds, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.expect("poll") > 0,
        }
    }
}

/// Reports that files in a directory have changed.
pub struct Changes(File);

impl Changes {
    pub fn of(dir: &Path) -> Changes {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("inotify");
        let what = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        inotify::add_watch(&fd, dir, what).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        Changes(fd.into())
    }

    fn take(&mut self) {
        while self.0.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
    }
}

/// Waits until `done`, which is asked again whenever a file in `dir` has changed. `pid` has ended without it: `why` is
/// the test's failure.
pub fn wait_for_change(
    what: &str,
    dir: &Path,
    pid: Option<u32>,
    mut done: impl FnMut() -> bool,
    why: impl Fn() -> String,
) {
    let (mut changes, until) = (Changes::of(dir), Instant::now() + PATIENCE);
    let process = pid.map(pidfd);
    loop {
        // What is seen now is all that it did, if it has ended by now.
        let ended = match &process {
            None => false,
            Some(None) => true,
            Some(Some(fd)) => readable(&[fd.as_fd()], Instant::now()),
        };
        changes.take();
        if done() {
            return;
        }
        assert!(!ended, "in vain: {what}: the process has ended: {}", why());
        let fds = [Some(changes.0.as_fd()), process.iter().flatten().map(AsFd::as_fd).next()];
        let fds: Vec<_> = fds.into_iter().flatten().collect();
        assert!(readable(&fds, until), "in vain: {what}: {}", why());
    }
}

/// Waits until a file exists and has what is wanted; its directory must exist.
pub fn wait_for_file(path: &Path, wanted: impl Fn(&str) -> bool) -> String {
    let dir = path.parent().expect("a directory");
    let text = || fs::read_to_string(path).ok();
    let done = || text().is_some_and(|text| wanted(&text));
    wait_for_change(&path.display().to_string(), dir, None, done, || format!("{:?}", text()));
    text().unwrap_or_default()
}

/// The time of the events, CLOCK_MONOTONIC, ns.
pub fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Makes `command`, which runs `profinfer record`, write events there.
pub fn give_events(command: &mut Command, writer: PipeWriter) {
    command.arg("--events").arg(writer.as_raw_fd().to_string());
    let inherit = move || -> io::Result<()> { Ok(rustix::io::fcntl_setfd(&writer, FdFlags::empty())?) };
    // SAFETY: it makes one system call, on a descriptor that it owns.
    unsafe { command.pre_exec(inherit) };
}

/// Events of a recorder (`record --events`).
pub struct EventPipe {
    pipe: PipeReader,
    /// The events so far, and the beginning of the next.
    read: RefCell<(Vec<Value>, Vec<u8>)>,
}

impl EventPipe {
    /// Makes `command`, which runs `profinfer record`, write them.
    pub fn given_to(command: &mut Command) -> EventPipe {
        let (pipe, writer) = io::pipe().expect("a pipe");
        give_events(command, writer);
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK).expect("its flags");
        EventPipe { pipe, read: RefCell::default() }
    }

    /// Takes what has arrived. False: no more comes.
    fn take(&self) -> bool {
        let (events, rest) = &mut *self.read.borrow_mut();
        let end = (&self.pipe).read_to_end(rest);
        while let Some(n) = rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=n).collect();
            let event = serde_json::from_slice(&line);
            events.push(event.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&line))));
        }
        end.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
    }

    /// All events so far.
    pub fn so_far(&self) -> Vec<Value> {
        self.take();
        self.read.borrow().0.clone()
    }

    /// The first event that is wanted, also if it has come before; the test fails, with `why`, if none comes.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool, why: impl Fn() -> String) -> Value {
        let (mut looked, until) = (0, Instant::now() + PATIENCE);
        loop {
            let more = self.take();
            let (events, _) = &*self.read.borrow();
            if let Some(event) = events[looked..].iter().find(|event| wanted(event)) {
                return event.clone();
            }
            looked = events.len();
            assert!(
                more && readable(&[self.pipe.as_fd()], until),
                "in vain: {what}, of {events:#?}: {}",
                why()
            );
        }
    }
}

/// The end of a child; if it hangs, it is killed and the test fails.
pub fn wait(child: &mut Child) -> std::process::ExitStatus {
    let ended = match pidfd(child.id()) {
        Some(fd) => readable(&[fd.as_fd()], Instant::now() + PATIENCE),
        None => true,
    };
    if !ended {
        let _ = child.kill();
    }
    let status = child.wait().expect("our own child");
    assert!(ended, "process {} does not end", child.id());
    status
}

/// A child that does not outlive its test, also one that fails: others would meet its probes.
pub struct OwnChild(pub Child);

impl std::ops::Deref for OwnChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for OwnChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        if !self.0.try_wait().is_ok_and(|status| status.is_none()) {
            return;
        }
        // A recorder then removes its probes and ends its command; one that stands still must go on for it.
        for signal in [libc::SIGTERM, libc::SIGCONT] {
            // SAFETY: a plain system call; the child is ours and was not reaped.
            unsafe { libc::kill(self.0.id() as i32, signal) };
        }
        if let Some(fd) = pidfd(self.0.id()) {
            readable(&[fd.as_fd()], Instant::now() + PATIENCE);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
