//! Finding engines in the processes of all users, who may be hostile: what the kernel reports, what has to be examined, by
//! whom and in which order, and the small confined processes that do it. The service uses [`finder::Finder`] alone.

pub mod finder;
pub mod notice;
mod polled;
mod pool;
mod recognise;
pub mod symbols;
mod timer;
pub mod waiting;

#[cfg(test)]
#[path = "../../../tests/common/skips.rs"]
#[allow(clippy::expect_used, reason = "shared with the other tests")]
mod skips;
