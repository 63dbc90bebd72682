//! A child process that does not outlive its parent, or runs as another user. Between fork and exec there is no safe
//! interface.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::user::User;

/// The started command gets SIGTERM when the thread that starts it ends, by SIGKILL too (PR_SET_PDEATHSIG).
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: runs in the child between fork and exec; two plain system calls and no memory of the parent's.
    unsafe {
        command.pre_exec(move || {
            crate::wake::unblock();
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // It may have ended before the call.
            let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
            match now == i32::try_from(parent).ok() {
                true => Ok(()),
                false => Err(std::io::Error::other("the parent process has ended")),
            }
        })
    };
}

/// The started command runs as `user`, with that user's environment. To be called before [`die_with_parent`]: the kernel
/// forgets that signal when a process changes its user (prctl(2)).
pub fn run_as(command: &mut Command, user: User) {
    command.envs(user.environment());
    // SAFETY: runs in the child between fork and exec; plain system calls on memory that was made before the fork.
    unsafe { command.pre_exec(move || user.enter()) };
}
