//! The generated libbpf-rs skeletons of src/bpf/*.bpf.c. Uses nothing of this crate.
#![allow(clippy::all, dead_code, non_camel_case_types, missing_docs)]

pub mod ops {
    include!(concat!(env!("OUT_DIR"), "/ops.skel.rs"));
}
pub mod process {
    include!(concat!(env!("OUT_DIR"), "/process.skel.rs"));
}
pub mod process_tp {
    include!(concat!(env!("OUT_DIR"), "/process_tp.skel.rs"));
}

pub use ops::types;
