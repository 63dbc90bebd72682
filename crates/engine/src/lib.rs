//! A GGML engine in a file or a process: its modules, functions, structs and tables, and where it can be probed.
//! Reads untrusted files; places no probes.
// A target's files and memory are untrusted bytes.
#![warn(clippy::indexing_slicing)]

pub mod backends;
mod beside;
mod callees;
pub mod discover;
pub mod elf;
pub mod enqueue;
pub mod examine;
mod functions;
pub mod ladder;
pub mod layer;
pub mod layout;
pub mod probes;
pub mod prologue;
mod returned;
mod roles;
pub mod samplers;
pub mod search;
pub mod sequences;
pub mod symtab;
pub mod tables;
pub mod version;
