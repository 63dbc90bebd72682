//! Runs the program of a rule when its trigger fires: as its own user, one at a time, with a time limit.
//!
//! A process forked from the service before it gives up its privileges does this: it keeps those for becoming another user
//! and for killing that user's processes, and it reads nothing but orders of the service. It is the parent of
//! everything that the program leaves behind, so that it can end that, too.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, getpid, set_child_subreaper, waitpid};
use serde::{Deserialize, Serialize};

use crate::rules::Hook;
use machine::helper::channel::Channel;
use machine::user::User;
use machine::{capset, helper, target, wake};

/// The only environment of the program.
const ENVIRONMENT: [&str; 2] = ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"];
/// Interval of looks at the running program.
const LOOK: Duration = Duration::from_millis(20);
/// Time for ending what a program leaves. A killed process needs CPU time to end.
const KILLING: Duration = Duration::from_secs(10);
/// Longest event, bytes: it fits into a pipe that nobody reads yet.
pub const MOST: usize = 4096;

/// Order to the runner.
#[derive(Debug, Serialize, Deserialize)]
struct HookOrder {
    argv: Vec<String>,
    uid: u32,
    timeout_ns: u64,
    /// One line of JSON.
    event: String,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookEnd {
    Exited(i32),
    Signalled(i32),
    /// It was killed at the limit.
    TimedOut,
    /// It could not be started.
    NotStarted(String),
}

/// How often programs were run, for the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HookCounts {
    /// Started, or tried to.
    pub runs: u64,
    /// Ended with another exit code than 0, by a signal, at the time limit, or could not be started.
    pub failed: u64,
    /// Of those, killed at the time limit.
    pub timed_out: u64,
    /// Not run, because another one was still running.
    pub skipped: u64,
    /// How the last one that failed did so.
    pub last_failure: Option<String>,
}

/// The service's end.
pub struct HookRunner {
    channel: Option<Channel>,
    pid: i32,
    /// The rule whose program is running.
    running: Option<String>,
    pub counts: HookCounts,
}

impl HookRunner {
    /// Starts the process that runs programs, if `wanted`. Call before privileges are given up.
    ///
    /// # Errors
    /// No more processes or descriptors are available.
    pub fn start(wanted: bool) -> io::Result<HookRunner> {
        let (pid, channel) =
            if wanted { fork_runner().map(|(pid, channel)| (pid, Some(channel)))? } else { (0, None) };
        Ok(HookRunner { channel, pid, running: None, counts: HookCounts::default() })
    }

    /// Readable when a program has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(Channel::fd)
    }

    /// Whether this is the process that runs programs.
    pub fn is(&self, pid: i32) -> bool {
        self.pid == pid
    }

    /// Runs a rule's program with this event on its standard input. Returns what to log.
    pub fn run(&mut self, rule: &str, hook: &Hook, event: &str) -> Option<String> {
        if self.running.is_some() {
            self.counts.skipped += 1;
            return None;
        }
        let timeout_ns = u64::try_from(hook.timeout.as_nanos()).unwrap_or(u64::MAX);
        let event = event.to_owned();
        let order = HookOrder { argv: hook.argv.clone(), uid: hook.user.uid, timeout_ns, event };
        self.counts.runs += 1;
        let why = match &mut self.channel {
            None => "no rule had on-trigger when the service was started: restart it".to_owned(),
            Some(channel) => match channel.send(&order) {
                Ok(()) => {
                    self.running = Some(rule.to_owned());
                    return None;
                }
                Err(e) => format!("the process that runs it does not take orders: {e}"),
            },
        };
        Some(self.failed(rule, &why))
    }

    /// Takes the ends of programs. Returns what to log.
    pub fn hear(&mut self) -> Option<String> {
        let heard = self.channel.as_mut()?.receive::<HookEnd>();
        let why = match heard {
            Ok(None) => return None,
            Ok(Some(end)) => {
                let rule = self.running.take()?;
                let why = match end {
                    HookEnd::Exited(0) => return None,
                    HookEnd::Exited(code) => format!("it ended with exit code {code}"),
                    HookEnd::Signalled(signal) => format!("it was ended by signal {signal}"),
                    HookEnd::TimedOut => {
                        self.counts.timed_out += 1;
                        "it was killed at its time limit (on-trigger-timeout)".to_owned()
                    }
                    HookEnd::NotStarted(why) => format!("it could not be started: {why}"),
                };
                return Some(self.failed(&rule, &why));
            }
            Err(e) => format!("the process that runs it has ended: {e}"),
        };
        self.channel = None;
        let rule = self.running.take()?;
        Some(self.failed(&rule, &why))
    }

    fn failed(&mut self, rule: &str, why: &str) -> String {
        let why = crate::lines::plain(why, 300);
        self.counts.failed += 1;
        self.counts.last_failure = Some(format!("rule {rule}: {why}"));
        format!("rule {rule}: on-trigger failed: {why}; {} failures so far", self.counts.failed)
    }
}

fn fork_runner() -> io::Result<(i32, Channel)> {
    let (ours, theirs) = Channel::pair()?;
    // SAFETY: the service has only this thread.
    let pid = unsafe {
        helper::fork(c"profinfer-hook", &[theirs.fd().as_raw_fd()], || {
            drop(capset::keep(capset::ACT));
            be(theirs);
        })
    }?;
    Ok((pid, ours))
}

/// The runner's main loop, until the service is gone.
fn be(mut channel: Channel) {
    // The service's end shows at the channel.
    helper::leave_session();
    let _ = set_child_subreaper(Some(getpid()));
    loop {
        match channel.receive::<HookOrder>() {
            Ok(Some(order)) => {
                let end = carry_out(&order, &channel);
                if channel.send(&end).is_err() {
                    return;
                }
            }
            Ok(None) => channel.wait(Duration::from_secs(3600)),
            Err(_) => return,
        }
    }
}

fn carry_out(order: &HookOrder, channel: &Channel) -> HookEnd {
    let end = match start(order) {
        Ok(pid) => wait_for(pid, Duration::from_nanos(order.timeout_ns), channel),
        Err(e) => HookEnd::NotStarted(e.to_string()),
    };
    end_all();
    end
}

/// Starts the program.
fn start(order: &HookOrder) -> io::Result<libc::pid_t> {
    let word = |text: &str| CString::new(text).map_err(io::Error::other);
    let argv: Vec<CString> = order.argv.iter().map(|w| word(w)).collect::<io::Result<_>>()?;
    let environment: Vec<CString> = ENVIRONMENT.iter().map(|w| word(w)).collect::<io::Result<_>>()?;
    let pointers = |all: &[CString]| -> Vec<*const libc::c_char> {
        all.iter().map(|w| w.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, variables) = (pointers(&argv), pointers(&environment));
    let program = argv.first().ok_or(io::ErrorKind::InvalidInput)?;
    let user = User::or_bare(order.uid)?;
    let (input, mut event) = io::pipe()?;
    let (failed, tell) = io::pipe()?;
    // It is less than a pipe holds.
    event.write_all(order.event.as_bytes())?;
    drop(event);
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: the child makes system calls on what was prepared above, and either becomes the program or ends.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let e = become_it(&user, input.as_raw_fd(), null.as_raw_fd(), program, &arguments, &variables);
            let code = e.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
            let _ = (&tell).write_all(&code);
            // SAFETY: ends the child without running exit handlers.
            unsafe { libc::_exit(127) }
        }
        _ => {
            drop(tell);
            let mut code = [0; 4];
            match io::Read::read_exact(&mut &failed, &mut code) {
                // Closed by a successful exec.
                Err(_) => Ok(pid),
                Ok(()) => {
                    // SAFETY: waits for the child just created.
                    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
                    Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code)))
                }
            }
        }
    }
}

/// Becomes the program, in the child. Returns only with an error.
fn become_it(
    user: &User,
    input: i32,
    null: i32,
    program: &CString,
    arguments: &[*const libc::c_char],
    variables: &[*const libc::c_char],
) -> io::Error {
    let own = rustix::process::geteuid().as_raw() == user.uid && user.uid != 0;
    // SAFETY: plain system calls; the arrays end with null and point to strings that outlive them.
    unsafe {
        libc::setsid();
        libc::dup2(input, 0);
        libc::dup2(null, 1);
        libc::dup2(null, 2);
        libc::chdir(c"/".as_ptr());
        libc::umask(0o077);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_DFL);
        }
        // A service that is no superuser can only run it as itself.
        if !own && let Err(e) = user.enter() {
            return e;
        }
        if let Err(e) = capset::keep(0).and_then(|()| Ok(rustix::thread::set_no_new_privs(true)?)) {
            return e;
        }
        // Set anew: a change of the user clears it. The program does not outlive the process that limits its time.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::execve(program.as_ptr(), arguments.as_ptr(), variables.as_ptr());
    }
    io::Error::last_os_error()
}

/// Waits for the program, and kills it at its limit, or when the service is gone.
fn wait_for(pid: libc::pid_t, limit: Duration, channel: &Channel) -> HookEnd {
    let begin = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one number.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if begin.elapsed() >= limit => return HookEnd::TimedOut,
            0 if gone(channel) => return HookEnd::TimedOut,
            0 => std::thread::sleep(LOOK.min(limit)),
            n if n == pid && libc::WIFEXITED(status) => return HookEnd::Exited(libc::WEXITSTATUS(status)),
            n if n == pid => return HookEnd::Signalled(libc::WTERMSIG(status)),
            _ => return HookEnd::NotStarted(io::Error::last_os_error().to_string()),
        }
    }
}

/// Whether the service is gone.
fn gone(channel: &Channel) -> bool {
    let mut fd = [libc::pollfd { fd: channel.fd().as_raw_fd(), events: 0, revents: 0 }];
    wake::poll(&mut fd, Duration::ZERO);
    fd[0].revents & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Ends everything that a program has started and left: orphans are this process's children.
fn end_all() {
    let own = std::process::id();
    let begin = Instant::now();
    while begin.elapsed() < KILLING {
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        let children: Vec<u32> =
            machine::proc::all().filter(|&pid| target::parent(pid) == Some(own)).collect();
        if children.is_empty() {
            return;
        }
        for pid in children {
            // SAFETY: a signal to a child, whose number is its own until it is waited for.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests;
