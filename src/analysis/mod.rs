//! A recorded run and the questions asked of it. May use `trace` and `ggml`.

pub mod accuracy;
pub mod agreement;
pub mod books;
pub mod calls;
pub mod causes;
pub mod clusters;
pub mod cut;
pub mod dag;
pub mod describe;
pub mod diff;
pub mod gauges;
pub mod ground_truth;
pub mod lanes;
pub mod live;
pub mod load;
pub mod model;
pub mod opencl;
pub mod ops;
pub mod overview;
pub mod predict;
pub mod report;
pub mod series;
pub mod stat;
pub mod stats;
pub mod tables;
pub mod why;
