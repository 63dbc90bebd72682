//! A recorder: a process forked from the service that records the runs of one rule and user, as a session driven by
//! the service. When the service is gone it ends its recording cleanly.
//!
//! Signal handlers have no safe interface.

pub mod channel;
pub mod figures;
pub mod limits;
pub mod observed;
pub mod session_driver;
pub mod trigger;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;

use rustix::process::{Pid, Signal, kill_process};

use self::channel::{RecorderCommand, WorkerEvent};
use self::limits::Exceeded;
use self::session_driver::SessionDriver;
use crate::rules::Rule;
use crate::rules::settings::ServiceSettings;
use crate::store::StoreError;
use agent::capture::error::RecordError;
use agent::recorder::recording::{Calibration, Target};
use agent::recorder::session;
use machine::helper;
use machine::helper::channel::Channel;
use machine::helper::pulse::{self, Pulse, Signs};
use machine::{capset, wake};
use pfi::WriteError;

/// What a recorder knows of the cost of its probes when it begins.
pub enum Calibrated {
    Known(Box<Calibration>),
    /// It calibrates before it records, and reports the result.
    First,
    /// Another one does: the service passes the result on.
    Later,
}

/// The service's end of a recorder.
pub struct Recorder {
    /// Name of its rule.
    pub rule: String,
    pub pid: i32,
    channel: Channel,
    pulse: Rc<Pulse>,
    /// It was waited for: its pid may be another's by now.
    waited: bool,
}

impl Recorder {
    /// Forks a recorder.
    ///
    /// The service is single-threaded: anything that another thread held at the fork, such as a lock, would be held
    /// forever.
    ///
    /// # Errors
    /// No more processes or descriptors are available.
    pub fn start(settings: &ServiceSettings, rule: &Rule, calibration: Calibrated) -> io::Result<Recorder> {
        let ((ours, theirs), pulse) = (Channel::pair()?, Rc::new(Pulse::new()?));
        let (fd, worn) = (theirs.fd().as_raw_fd(), Rc::clone(&pulse));
        // SAFETY: only this thread runs (see above).
        let pid = unsafe {
            helper::fork(c"profinfer-rec", &[fd], || {
                worn.wear();
                be(settings, rule, calibration, theirs);
            })
        }?;
        // If this is refused, other recorders can write there: they could make it look alive, nothing more.
        drop(pulse.keep());
        Ok(Recorder { rule: rule.name.clone(), pid, channel: ours, pulse, waited: false })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Sends it a command.
    ///
    /// # Errors
    /// It is gone, or is not reading.
    pub fn tell(&mut self, what: &RecorderCommand) -> io::Result<()> {
        self.channel.send(what)?;
        // It may be waiting for events; an engine that starts does not wait.
        self.signal(Signal::USR1);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        // Until it has been waited for, its pid is its own.
        if self.pid > 0
            && !self.waited
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Its signs of life.
    pub fn signs(&self) -> Signs {
        self.pulse.read()
    }

    pub fn waited(&self) -> bool {
        self.waited
    }

    /// Its exit status was taken.
    pub fn set_waited(&mut self) {
        self.waited = true;
    }

    /// Its next message; None: none at the moment.
    ///
    /// # Errors
    /// It has ended.
    pub fn hear(&mut self) -> io::Result<Option<WorkerEvent>> {
        self.channel.receive()
    }

    /// Kills it immediately. What it has written stays.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// A recorder simulated by a test, which gets the other end of the channel.
    #[cfg(test)]
    pub fn played(pid: i32) -> io::Result<(Recorder, Channel)> {
        let ((channel, theirs), pulse) = (Channel::pair()?, Rc::new(Pulse::new()?));
        Ok((Recorder { rule: String::new(), pid, channel, pulse, waited: false }, theirs))
    }

    #[cfg(test)]
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }
}

/// Capabilities that the service may have and no recorder uses.
const UNUSED: u64 = capset::NICE | capset::BECOME;

extern "C" fn wake(_: libc::c_int) {}

fn default_signals() {
    // SAFETY: a handler that only interrupts a wait, a set of one signal, and signals reset to their defaults.
    // SIGTERM and SIGINT, which a terminal or an init sends to the entire group, are for the service, which stops
    // its recorders. A command has the defaults again, unlike for what was ignored before.
    unsafe {
        let mut child = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut child);
        libc::sigaddset(&raw mut child, libc::SIGCHLD);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut woken = std::mem::zeroed::<libc::sigaction>();
        woken.sa_sigaction = wake as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const woken, std::ptr::null_mut());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let mut before = std::mem::zeroed::<libc::sigaction>();
            libc::sigaction(signal, &raw const woken, &raw mut before);
            if before.sa_sigaction == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
        wake::block();
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const child, std::ptr::null_mut());
    }
}

/// A recorder's main function. Returns at its end.
fn be(settings: &ServiceSettings, rule: &Rule, calibration: Calibrated, channel: Channel) {
    default_signals();
    // The service has them permitted but not effective. If that cannot be changed, the recording says what is
    // missing. A command gets what the service was started with.
    if settings.command.is_none() {
        drop(capset::keep(!UNUSED));
    }
    let mut feed = SessionDriver::new(settings, rule, channel);
    let ended = record(settings, rule, calibration, &mut feed);
    feed.end(ended.err());
    // SAFETY: ends the process without running registered exit handlers.
    unsafe { libc::_exit(0) };
}

/// Why a recorder ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Limit(#[from] Exceeded),
}

impl Failure {
    /// There is no room; this may change later.
    pub fn is_full(&self) -> bool {
        match self {
            Failure::Record(e) => is_full(e),
            Failure::Store(e) => e.is_full(),
            Failure::Limit(_) => false,
        }
    }
}

/// Whether a recording failed for lack of room.
pub(super) fn is_full(e: &RecordError) -> bool {
    matches!(e, RecordError::Write(WriteError::Io { source, .. }) if crate::store::is_full(source))
}

fn record(
    settings: &ServiceSettings,
    rule: &Rule,
    calibration: Calibrated,
    feed: &mut SessionDriver,
) -> Result<(), Failure> {
    // Pricing hits gives no signs of life in between.
    pulse::slow();
    let command = settings.command.as_ref();
    let later = matches!(calibration, Calibrated::Later);
    let calibration = match calibration {
        Calibrated::Known(calibration) => Some(*calibration),
        Calibrated::First => Some(feed.calibration(session::learn(&rule.record, command.is_some())?)),
        Calibrated::Later => None,
    };
    if command.is_none() && !feed.first() {
        return Ok(());
    }
    let mut options = rule.record.clone();
    (options.calibration, options.calibrated_later) = (calibration, later);
    options.ring = rule.ring.map(|span| (span, settings.ring_bytes(rule)));
    pulse::slow();
    match command {
        None => {
            let out = feed.place()?;
            session::record(Target::Managed(None), options, out, feed)?;
        }
        Some(command) => {
            options.user.clone_from(&command.user);
            // Its file has its process's number, and so begins when that is known.
            let target = Target::Managed(Some(command.argv.clone()));
            let done = session::record(target, options, Box::new(io::sink()), feed)?;
            feed.recorded(&done);
        }
    }
    Ok(())
}
