//! The resident recorder: waits for engines, records each by its rule, keeps its files within a quota.

pub mod affinity;
pub mod arrivals;
pub mod clock;
pub mod hook;
pub mod lines;
pub mod metrics;
pub mod model;
pub mod net;
mod page_faults;
pub mod place;
#[doc(hidden)]
pub mod readers;
pub mod recorder;
pub mod replace;
pub mod resident;
pub mod rules;
pub mod run;
pub mod socket;
pub mod status;
pub mod store;
pub mod supervisor;
pub mod totals;
pub mod watch;

#[cfg(test)]
#[path = "../../../tests/common/skips.rs"]
#[allow(clippy::expect_used, reason = "shared with the other tests")]
mod skips;
#[cfg(test)]
#[path = "../../../tests/common/until.rs"]
mod until;
