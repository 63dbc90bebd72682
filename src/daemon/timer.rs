//! A timer that wakes a poll.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Readable when its time has come. Closed on exec.
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Timer> {
        // SAFETY: takes numbers only.
        match unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) } {
            // SAFETY: a descriptor that the kernel has just created; nobody else has it.
            fd if fd >= 0 => Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets it to fire once, counted from now, replacing any earlier setting; until then it is not readable.
    pub fn set(&self, after: Duration) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would disarm it.
        let after = after.max(Duration::from_nanos(1));
        let (tv_sec, tv_nsec) = (after.as_secs() as _, after.subsec_nanos() as _);
        let value = libc::itimerspec { it_interval: zero, it_value: libc::timespec { tv_sec, tv_nsec } };
        // SAFETY: the descriptor is open, the kernel reads one itimerspec.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const value, std::ptr::null_mut()) };
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
