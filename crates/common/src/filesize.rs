//! SIGXFSZ, sent when a file would exceed the size limit (setrlimit(2), RLIMIT_FSIZE). It would kill the program
//! without a message. If it is ignored, the write fails and the error is reported. signal(2) has no safe interface.

use std::sync::atomic::{AtomicBool, Ordering};

static IGNORED_BEFORE: AtomicBool = AtomicBool::new(false);

/// Ignores the signal for the rest of the process.
pub fn ignore_signal() {
    // SAFETY: no handler runs: the signal is ignored.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    IGNORED_BEFORE.store(before == libc::SIG_IGN, Ordering::Relaxed);
}

/// Restores the earlier disposition. A plain system call, safe in a child before exec.
pub fn restore_signal() {
    if !IGNORED_BEFORE.load(Ordering::Relaxed) {
        // SAFETY: the default action, which runs no code of ours.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    }
}
