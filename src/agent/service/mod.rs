//! The resident recorder: waits for engines, records each by its rule, keeps its files within a quota. May use the rest of
//! `agent` and `trace`.

pub mod ages;
pub mod arrivals;
pub mod channel;
pub mod clock;
pub mod crew;
mod facts;
pub mod feed;
pub mod finder;
pub mod glob;
mod hand;
pub mod known;
pub mod later;
pub mod lessons;
pub mod limits;
pub mod lines;
mod looking;
pub mod metrics;
mod notice;
pub mod notify;
pub mod own;
pub mod place;
mod polled;
pub mod quota;
#[doc(hidden)]
pub mod readers;
mod recognise;
pub mod recorder;
pub mod replace;
pub mod resident;
pub mod rules;
pub mod run;
pub mod settings;
pub mod shares;
pub mod shun;
pub mod signals;
pub mod socket;
pub mod status;
pub mod store;
mod symbols;
pub mod timer;
pub mod trigger;
pub mod vitals;
pub mod waiting;
