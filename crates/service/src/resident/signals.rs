//! Signals as a descriptor that can be polled with others. By the C library: rustix has neither signalfd(2) nor signal
//! masks.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

use rustix::process::Signal;

/// The signals that the service handles.
const SIGNALS: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD];

/// Pending signals, kept by the kernel until they are read.
pub struct SignalFd(File);

/// A request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal {
    pub signal: Signal,
    /// It came from a terminal, to all processes there.
    pub shared: bool,
}

impl StopSignal {
    pub const TERM: StopSignal = StopSignal { signal: Signal::TERM, shared: false };
}

/// The signals read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Came {
    /// SIGTERM or SIGINT.
    pub stop: Option<StopSignal>,
    /// SIGHUP.
    pub reload: bool,
    /// A child has ended.
    pub child: bool,
}

impl SignalFd {
    /// Takes over the signals for the rest of the process.
    ///
    /// # Errors
    /// The system refuses.
    pub fn take() -> io::Result<SignalFd> {
        // SAFETY: the set is filled before it is used; the descriptor is new and ours.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            for signal in SIGNALS {
                libc::sigaddset(&raw mut set, signal);
            }
            // It wakes recorders; it must not end one that has just been forked.
            libc::signal(libc::SIGUSR1, libc::SIG_IGN);
            let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if blocked != 0 {
                return Err(io::Error::from_raw_os_error(blocked));
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(SignalFd(File::from_raw_fd(fd))),
            }
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The signals since the last call.
    pub fn read(&mut self) -> Came {
        let mut came = Came::default();
        let mut one = [0; size_of::<libc::signalfd_siginfo>()];
        while self.0.read_exact(&mut one).is_ok() {
            // signalfd_siginfo begins with ssi_signo, ssi_errno and ssi_code, which is positive if the kernel sends it.
            let [signal, _, code, ..] = *one.as_chunks::<4>().0 else { break };
            match i32::from_ne_bytes(signal) {
                libc::SIGTERM => came.stop = Some(StopSignal::TERM),
                libc::SIGINT => {
                    came.stop =
                        Some(StopSignal { signal: Signal::INT, shared: i32::from_ne_bytes(code) > 0 });
                }
                libc::SIGHUP => came.reload = true,
                _ => came.child = true,
            }
        }
        came
    }
}
