//! Waits for descriptors to become ready.

use std::time::Duration;

use rustix::event::{PollFd, Timespec};

/// Waits until one of these descriptors is ready, at most for `most`. True: one is. An interruption by a signal ends
/// the wait and needs no handling.
pub fn wait(fds: &mut [PollFd<'_>], most: Duration) -> bool {
    // What the kernel cannot express is as good as no limit.
    let most = Timespec::try_from(most).ok();
    rustix::event::poll(fds, most.as_ref()).is_ok_and(|ready| ready > 0)
}
