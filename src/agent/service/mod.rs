//! The resident recorder: waits for engines, records each by its rule, keeps its files within a quota. May use the rest of
//! `agent` and `trace`.

pub mod clock;
mod facts;
pub mod finder;
pub mod glob;
pub mod metrics;
mod notice;
pub mod notify;
pub mod place;
mod polled;
mod recognise;
pub mod replace;
pub mod rules;
pub mod run;
pub mod settings;
pub mod socket;
pub mod status;
pub mod store;
mod symbols;
pub mod timer;
