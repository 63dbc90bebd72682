//! Analysis of a recorded run: loads a trace and computes the reports.
//!
//! Four folders, each of which imports only those before it (`tests/imports.py`): [`recorded`], [`sums`], [`questions`],
//! [`streams`].
pub mod questions;
pub mod recorded;
pub mod streams;
pub mod sums;
