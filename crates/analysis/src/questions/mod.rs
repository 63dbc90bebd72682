//! What is asked of a recording: the report, the verdict and its advice, a comparison, a prediction.

pub mod accuracy;
pub mod advice;
pub mod agreement;
pub mod dag;
pub mod diff;
pub mod experts;
pub mod ground_truth;
pub mod invariants;
pub mod predict_model;
pub mod quality;
pub mod recording_overhead;
pub mod report;
pub mod score;
pub mod stat;
pub mod verdict;
