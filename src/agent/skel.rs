//! The generated libbpf-rs skeleton of src/bpf/ops.bpf.c. Uses nothing of this crate.
#![allow(clippy::all, dead_code, non_camel_case_types, missing_docs)]

include!(concat!(env!("OUT_DIR"), "/ops.skel.rs"));
