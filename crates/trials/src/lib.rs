//! Tuning a command, and what differs between a fast and a slow one: commands are run with other CPUs, threads and settings,
//! each run is recorded, and the recordings decide.
//!
//! Uses `profinfer record` as a process of its own, [`analysis`] to read its traces, and `tune` to choose what to try
//! next. Changes nothing in a process that it has not started.

pub mod bisect;
mod both;
pub mod clusters;
pub mod command;
mod figures;
mod foreign;
pub mod guards;
mod help;
pub mod huge_pages;
pub mod knobs;
mod lines;
mod listener;
pub mod measure;
mod placement;
mod scratch;
mod server;
mod session;
mod settings;
pub mod store;
mod trial;

pub use self::session::{TuneError, TuneOptions, Watcher, tune};
