//! What is shown as it happens, or along a time axis.

pub mod gauges;
pub mod lanes;
pub mod live;
pub mod overview;
pub mod stacks;
pub mod token_lanes;
