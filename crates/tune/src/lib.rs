//! The search of `profinfer tune`: which CPUs, with how many threads, decode fastest, or with the least energy within a
//! slack of the fastest. Pure: it measures through [`Measure`], reads no file and no clock, and is deterministic, so that a
//! search can be resumed by answering from kept samples.
//!
//! The shape is that of AECS (MNN-AECS paper): first the fastest set, then a tree of sets that save energy, then the least
//! E_h = (1 - alpha) E + alpha h t. Against noise, and for devices whose fastest set is not a prefix of the cores, it is
//! changed as follows (benches/published.rs has the original to compare):
//!
//! - the first stage ends after two steps in a row without a gain, and each cluster is tried alone;
//! - the tree starts from the two fastest sets, and its sets are tried in the order of what a fitted law promises of them
//!   (module `law`); a law also proposes sets outside the tree. It proposes only: a set is chosen for its own samples;
//! - the best sets and the fastest are measured again in turn (a race), as long as they are close;
//! - a set is within the slack only if it is so with a margin for the scatter of its speed and of the fastest's.

// The closed-form boards of the bench use this crate by its name.
#[cfg(test)]
extern crate self as tune;

pub mod answer;
mod estimate;
mod fit;
mod goal;
mod law;
mod machine;
mod outcome;
mod sample;
mod search;
#[cfg(test)]
mod tests;

pub use machine::{Candidate, Cluster, Machine};
pub use outcome::{Basis, Ended, Figure, Outcome, Rival, Test, Tried};
pub use sample::{Measure, Refused, Sample, Stage};
pub use search::{Goal, Options, search};
