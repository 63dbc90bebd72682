//! The resident recorder: waits for engines, records each by its rule, keeps its files within a quota. May use the rest of
//! `agent` and `trace`.

pub mod clock;
mod facts;
pub mod finder;
pub mod glob;
mod notice;
pub mod place;
mod polled;
mod recognise;
pub mod replace;
pub mod rules;
pub mod run;
pub mod settings;
pub mod store;
mod symbols;
pub mod timer;
