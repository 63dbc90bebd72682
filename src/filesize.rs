//! The signal that a file beyond the limit of sizes brings (setrlimit(2), RLIMIT_FSIZE): it would end a program without a
//! word. Ignored, the write fails, and the error is told. Uses nothing of this crate.

use std::sync::atomic::{AtomicBool, Ordering};

static IGNORED_BEFORE: AtomicBool = AtomicBool::new(false);

/// Ignores it, for the rest of the process.
pub fn ignore_signal() {
    // SAFETY: no handler is run: the signal is ignored.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    IGNORED_BEFORE.store(before == libc::SIG_IGN, Ordering::Relaxed);
}

/// Makes it what it was before. A plain system call, fit for a child before its exec.
pub fn restore_signal() {
    if !IGNORED_BEFORE.load(Ordering::Relaxed) {
        // SAFETY: the usual handling, which is no code of ours.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    }
}
