//! Ctrl-C, SIGTERM and SIGHUP while another machine records: the first ends the recording, the second gives up and
//! leaves the other machine in order, the third exits at once.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

static CAME: AtomicU32 = AtomicU32::new(0);

/// Installs the handlers for the rest of the process.
///
/// # Errors
/// The system refuses.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if CAME.fetch_add(1, Ordering::SeqCst) >= 2 {
            // The other machine notices that the connection is closed.
            std::process::exit(130);
        }
    })
    .context("cannot install handlers for Ctrl-C and SIGTERM")
}

/// Whether the recording is to end.
pub fn is_stop() -> bool {
    CAME.load(Ordering::SeqCst) > 0
}

/// Whether everything is to end.
pub fn is_abort() -> bool {
    CAME.load(Ordering::SeqCst) > 1
}
