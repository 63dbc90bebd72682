//! The search of `profinfer tune`: which CPUs, with how many threads, decode fastest, or with the least energy within a
//! slack of the fastest. Pure: it measures through [`Measure`], reads no file and no clock, and is deterministic, so that a
//! search can be resumed by answering from kept samples.
//!
//! The shape is that of AECS (MNN-AECS paper): first the fastest set, then sets that save energy, then the least
//! E_h = (1 - alpha) E + alpha h t. Against noise, and for devices whose fastest set is not a prefix of the cores, it is
//! changed as follows (benches/published.rs has the original to compare):
//!
//! - a law of speed and one of power are fitted to the samples (module `law`); instead of a tree, the set that they promise
//!   most of is tried next. They propose, and smooth what was measured: a set is chosen for its own samples;
//! - what two sets have in common in the laws counts as uncertain of neither when they are compared;
//! - the best set and its rival, and the fastest where speed decides, are measured again in turn (a race), as long as that
//!   promises anything;
//! - a set is outside the slack only if it is so by more than the scatter of its speed and of the fastest's.

// The closed-form boards of the bench use this crate by its name.
#[cfg(test)]
extern crate self as tune;

pub mod answer;
mod estimate;
mod fit;
mod goal;
mod law;
mod ln;
mod machine;
mod options;
mod outcome;
mod sample;
mod search;
#[cfg(test)]
mod tests;

pub use machine::{Candidate, Cluster, Machine};
pub use options::{Goal, Options};
pub use outcome::{Basis, Ended, Figure, Outcome, Rival, Test, Tried};
pub use sample::{Measure, Refused, Sample, Stage};
pub use search::search;
