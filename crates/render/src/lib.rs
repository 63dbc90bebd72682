//! Output formats for results: terminal tables, JSON, timelines, graphs.

pub mod accuracy;
pub mod attribution;
pub mod counters;
pub mod dag;
pub mod diff;
pub mod energy;
pub mod experts;
pub mod html;
pub mod json;
pub mod levels;
pub mod offload;
pub mod ops_csv;
pub mod predict;
mod proto;
pub mod quality;
pub mod runs;
pub mod section;
pub mod service;
pub mod stacks;
pub mod stat;
pub mod submissions;
pub mod table;
pub mod text;
pub mod timeline;
pub mod top;
pub mod units;
