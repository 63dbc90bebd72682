//! The resident recorder: waits for engines, records each by its rule, keeps its files within a quota. May use the rest of
//! `agent` and `trace`.

pub mod clock;
pub mod glob;
pub mod place;
pub mod replace;
pub mod rules;
pub mod run;
pub mod settings;
pub mod store;
