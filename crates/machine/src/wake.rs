//! Signals that end a wait, and nothing else. They are blocked, so that none interrupts a system call (the kernel
//! would abort verification of a BPF program), and unblocked only during a wait, so that none is lost. By the C
//! library: rustix has no signal masks.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The signals that wake a recorder of the service, and those that end a recording.
const SIGNALS: [libc::c_int; 4] = [libc::SIGUSR1, libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Changes the blocked signals according to `how`, in this thread and those that it starts later. Returns the
/// earlier set.
fn change(how: libc::c_int, signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: the sets are filled before they are used; nothing else is written. Also allowed between fork and exec.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(how, &raw const set, &raw mut before);
        before
    }
}

/// From now on the signals arrive only while this thread, or one that it starts later, waits here.
pub fn block() {
    change(libc::SIG_BLOCK, &SIGNALS);
}

/// The signals arrive at any time, as a started program expects.
pub fn unblock() {
    change(libc::SIG_UNBLOCK, &SIGNALS);
}

/// The signals that stay blocked during a wait.
fn during() -> libc::sigset_t {
    let mut set = change(libc::SIG_BLOCK, &[]);
    for signal in SIGNALS {
        // SAFETY: an initialised set.
        unsafe { libc::sigdelset(&raw mut set, signal) };
    }
    set
}

/// Waits until one of these descriptors is ready or one of the signals arrives, at most for `most`.
pub fn poll(fds: &mut [libc::pollfd], most: Duration) {
    let time = libc::timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos() as _ };
    let mask = during();
    // SAFETY: the stated number of entries, and two structs that the kernel reads; an error or interruption needs
    // no handling.
    unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const time, &raw const mask) };
}

/// The same for an epoll, whose event is ignored.
pub fn epoll(fd: BorrowedFd<'_>, most: Duration) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let ms = most.as_millis().min(60_000) as libc::c_int;
    let mask = during();
    // SAFETY: room for one event, as stated; an error or interruption needs no handling.
    unsafe { libc::epoll_pwait(fd.as_raw_fd(), &raw mut event, 1, ms, &raw const mask) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    static CAME: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: libc::c_int) {
        CAME.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_signal_waits_for_the_wait_and_ends_it() {
        // SAFETY: a handler that increments a number; the signal goes to this thread.
        let send = || unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
        let handler = count as extern "C" fn(libc::c_int);
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGUSR1, handler as usize) };
        block();
        let long = Duration::from_secs(60);
        let begin = Instant::now();
        for came in 1..4 {
            assert_eq!(send(), 0);
            assert_eq!(CAME.load(Ordering::SeqCst), came - 1, "not before the wait");
            poll(&mut [], long);
            assert_eq!(CAME.load(Ordering::SeqCst), came);
        }
        assert_eq!(send(), 0);
        // SAFETY: a new descriptor that nothing else owns.
        let epoll_fd = unsafe { std::os::fd::OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        use std::os::fd::{AsFd, FromRawFd};
        epoll(epoll_fd.as_fd(), long);
        assert!(CAME.load(Ordering::SeqCst) == 4 && begin.elapsed() < long);
        poll(&mut [], Duration::from_millis(1));
        unblock();
        assert_eq!(send(), 0);
        assert_eq!(CAME.load(Ordering::SeqCst), 5);
    }
}
