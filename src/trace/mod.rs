//! The `.pfi` trace format: records, block writer, reader. docs/FORMAT.md is its specification.
//! Uses nothing else of this crate.

pub mod record;
