//! A recorder: a process forked from the service that records the runs of one rule and user, as a session that is fed with
//! them. When the service is gone it ends its recording cleanly. Uses `capset`, `channel`, `feed`, `pulse`, `settings`, `rules`
//! and `session`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::channel::{Channel, Said, Told};
use super::feed::Feed;
use super::rules::Rule;
use super::settings::Settings;
use crate::agent::pulse::{self, Pulse, Signs};
use crate::agent::recording::{Learnt, RecordError, Target};
use crate::agent::{capset, session, wake};
use crate::trace::WriteError;

/// The service's end of a recorder.
pub struct Recorder {
    /// Name of its rule.
    pub rule: String,
    pub pid: i32,
    channel: Channel,
    pulse: Pulse,
    /// It was waited for: its number may be another's by now.
    waited: bool,
}

/// Ends the forked process however it is left: nothing of the service's may run in it.
pub(super) struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        // SAFETY: ends the process, without what others have registered for its end.
        unsafe { libc::_exit(1) };
    }
}

impl Recorder {
    /// Forks one, that knows this of the machine; None: it learns it before it records, and says it.
    ///
    /// The service has one thread: what another would hold at the fork, a lock for one, would be held for ever.
    ///
    /// # Errors
    /// No more processes or descriptors can be had.
    pub fn start(settings: &Settings, rule: &Rule, learnt: Option<Learnt>) -> io::Result<Recorder> {
        let ((ours, theirs), pulse) = (Channel::pair()?, Pulse::new()?);
        // SAFETY: only this thread runs (above), so the child may do all that a program may.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let end = Leave;
                call_itself(c"profinfer-rec");
                close_all_but(theirs.fd());
                pulse.wear();
                be(settings, rule, learnt, theirs);
                drop(end);
                unreachable!("the process has ended")
            }
            pid => {
                // Where that is refused other recorders can write there: they could make it look alive, and no more.
                drop(pulse.keep());
                Ok(Recorder { rule: rule.name.clone(), pid, channel: ours, pulse, waited: false })
            }
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Tells it something.
    ///
    /// # Errors
    /// It is gone, or does not listen.
    pub fn tell(&mut self, what: &Told) -> io::Result<()> {
        self.channel.send(what)?;
        // It may be waiting for events; an engine that begins does not wait.
        self.signal(libc::SIGUSR1);
        Ok(())
    }

    fn signal(&self, signal: libc::c_int) {
        if self.pid > 0 && !self.waited {
            // SAFETY: a signal to a child that has not been waited for, whose number is therefore still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Its signs of life.
    pub fn signs(&self) -> Signs {
        self.pulse.read()
    }

    pub fn waited(&self) -> bool {
        self.waited
    }

    /// Its exit state was taken.
    pub fn set_waited(&mut self) {
        self.waited = true;
    }

    /// The next that it says; None: nothing just now.
    ///
    /// # Errors
    /// It has ended.
    pub fn hear(&mut self) -> io::Result<Option<Said>> {
        self.channel.receive()
    }

    /// Ends it at once. What it has written stays.
    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    /// One that a test plays, which has its end of the channel.
    #[cfg(test)]
    pub fn played(pid: i32) -> io::Result<(Recorder, Channel)> {
        let ((channel, theirs), pulse) = (Channel::pair()?, Pulse::new()?);
        Ok((Recorder { rule: String::new(), pid, channel, pulse, waited: false }, theirs))
    }

    #[cfg(test)]
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }
}

/// Names this process, which was forked from the service, for whoever lists processes.
pub(super) fn call_itself(name: &CStr) {
    // SAFETY: a string that ends in zero; the kernel takes 15 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Closes what is the service's: while a copy of its end of another recorder's channel is open, that one would not see it die.
/// Whoever owned the descriptors is never dropped in this process.
pub(super) fn close_all_but(kept: BorrowedFd<'_>) {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let fds: Vec<i32> = open.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    for fd in fds.into_iter().filter(|&fd| fd > 2 && fd != kept.as_raw_fd()) {
        // SAFETY: closes a number; nothing in this process uses it from here on.
        unsafe { libc::close(fd) };
    }
}

extern "C" fn wake(_: libc::c_int) {}

fn default_signals() {
    // SAFETY: a handler that does nothing but end a wait; a set of one signal, and signals whose handling becomes the usual one;
    // SIGTERM and SIGINT, which a terminal or an init sends to all of a group, are for the service, which tells its recorders.
    unsafe {
        let mut child = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut child);
        libc::sigaddset(&raw mut child, libc::SIGCHLD);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut woken = std::mem::zeroed::<libc::sigaction>();
        woken.sa_sigaction = wake as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const woken, std::ptr::null_mut());
        wake::block();
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const child, std::ptr::null_mut());
    }
}

/// The recorder's life. Returns at its end.
fn be(settings: &Settings, rule: &Rule, learnt: Option<Learnt>, channel: Channel) {
    default_signals();
    // The service has it permitted and not in effect. Where that cannot be changed the recording says what is missing.
    drop(capset::keep(u64::MAX));
    let mut feed = Feed::new(settings, rule, channel);
    let ended = record(settings, rule, learnt, &mut feed);
    feed.end(ended.err());
    // SAFETY: ends the process, without what others have registered for its end.
    unsafe { libc::_exit(0) };
}

/// Why it ended before it was told to, and whether for want of room.
pub(super) type Failure = (String, bool);

fn record(settings: &Settings, rule: &Rule, learnt: Option<Learnt>, feed: &mut Feed) -> Result<(), Failure> {
    let failed = |e: RecordError| failure(&e);
    // Hits are priced in one go.
    pulse::slow();
    let learnt = match learnt {
        Some(learnt) => learnt,
        None => feed.learnt(session::learn(&rule.record).map_err(failed)?),
    };
    if !feed.first() {
        return Ok(());
    }
    let mut options = rule.record.clone();
    options.learnt = Some(learnt);
    options.ring = rule.ring.map(|span| (span, settings.ring_bytes(rule)));
    let out = feed.place()?;
    pulse::slow();
    let recorded = session::record(Target::Fed, options, out, feed);
    recorded.map(drop).map_err(failed)
}

pub(super) fn failure(e: &RecordError) -> Failure {
    let full =
        matches!(e, RecordError::Write(WriteError::Io { source, .. }) if super::store::is_full(source));
    (e.to_string(), full)
}
