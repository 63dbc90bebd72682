//! Getting events out of the kernel: BPF programs or perf events, counters, their cost, and why one was refused.
//! Knows where probes may go, not what a recording needs.

pub mod backend;
pub mod bpf;
pub mod calibrate;
pub mod calibration_target;
pub mod checkup;
pub mod error;
pub mod event;
pub mod features;
pub mod file_reads;
pub mod inside;
mod multi;
pub mod object;
pub mod perf;
pub mod pmc;
pub mod process;
pub mod sched;
pub mod sched_cost;
pub(crate) mod skel;
pub mod source;
pub mod structure;
pub mod submissions;
pub mod transport;
mod uprobe;
