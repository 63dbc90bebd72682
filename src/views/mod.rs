//! How an answer looks: terminal tables, JSON, timelines, graphs. May use `analysis`; `doctor`
//! shows what `agent` found.

pub mod accuracy;
pub mod causes;
pub mod counters;
pub mod dag;
pub mod diff;
#[cfg(feature = "agent")]
pub mod doctor;
pub mod energy;
pub mod experts;
pub mod honesty;
pub mod html;
pub mod json;
pub mod levels;
pub mod predict;
pub mod runs;
#[cfg(feature = "agent")]
pub mod service;
pub mod stat;
pub mod table;
pub mod text;
pub mod timeline;
pub mod top;
pub mod units;
