//! A recording that is controlled from another machine (`record --on`): it ends when a file is gone, as with SIGTERM.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, getpid, kill_process};

use cli::args::{Args, Flag, FlagGroup};

/// Polling interval: the delay of a stop, and a system call that costs the recorded machine about a microsecond.
const LOOK: Duration = Duration::from_millis(200);

pub const NAME: &str = "while-exists";

pub const FLAGS: FlagGroup = FlagGroup {
    title: "Control",
    flags: &[Flag::value(NAME, "FILE", "Stop when FILE no longer exists; print no verdict")
        .hidden()
        .cli_only()],
};

/// Whether the recording is controlled from elsewhere.
pub fn is_remote(args: &Args) -> bool {
    args.flag(NAME)
}

/// Watches the file, if one is given. To be called when the handlers of signals are installed.
///
/// # Errors
/// It does not exist any more, or no thread can be started.
pub fn watch(args: &Args) -> Result<()> {
    let Some(file) = args.path(NAME)? else { return Ok(()) };
    if !file.exists() {
        bail!("the session that started this recording has ended: {} does not exist", file.display());
    }
    thread::Builder::new()
        .name("lifeline".to_owned())
        .spawn(move || until_gone(file))
        .map(drop)
        .context("cannot start a thread")
}

fn until_gone(file: PathBuf) {
    while file.exists() {
        thread::sleep(LOOK);
    }
    // The process exists as long as this thread.
    let _ = kill_process(getpid(), Signal::TERM);
}
