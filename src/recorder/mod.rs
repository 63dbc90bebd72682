//! A recording: attaching, turning events into a trace, detail levels and budget.

pub mod attached;
pub mod batches;
pub mod calls;
pub mod computing;
pub mod device;
mod device_kernels;
pub mod drain;
pub mod enqueue;
pub mod event_stats;
pub mod experts;
mod file_reads;
mod fork_race;
pub mod graphs;
pub mod meter;
pub mod nodes;
pub mod offload;
pub mod phases;
pub mod process_tree;
pub mod qos;
pub mod recording;
pub mod requests;
#[cfg(test)]
mod sample;
pub mod samplers;
pub mod sequences;
pub mod session;
pub mod submissions;
pub mod tally;
pub mod tasks;
pub mod thread_hits;
pub mod verify;
mod watched_states;
pub mod workers;
