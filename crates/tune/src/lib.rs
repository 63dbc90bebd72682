//! Which CPUs and how many threads decode fastest, or with the least energy: a search that asks for measurements. Knows
//! nothing of how they are made.
//!
//! The search is that of MNN-AECS ("Tuning" stage, Algorithm 1) with repairs: it does not give up at the first set that is
//! not faster, tries each cluster alone, looks around the two fastest sets, and measures the best again in turn.

pub mod answer;
pub mod machine;
mod model;
pub mod objective;
pub mod published;
pub mod search;
pub mod sets;
mod types;

pub use machine::{Cluster, Machine};
pub use search::{Measure, Outcome, Refused, Stage, Tried, search};
pub use types::{Candidate, Goal, Options, Sample};
