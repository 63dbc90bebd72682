//! This machine: its processes and their memory, its CPUs, privileges, types (BTF), tracefs, sensors; what an error
//! from its kernel means. Knows nothing of engines and places no probes.

pub mod affinity;
pub mod budget;
mod byte_lock;
pub mod capset;
pub mod cgroup;
pub mod check;
pub mod child;
pub mod diagnose;
mod guard;
pub mod halt;
pub mod hardware;
pub mod helper;
pub mod kernel;
pub mod maps;
pub mod memory;
pub mod open;
pub mod owner;
pub mod pages;
pub mod peaks;
pub mod privileges;
pub mod proc;
pub mod ready;
pub mod root;
pub mod sensors;
pub mod stopped;
pub mod target;
pub mod target_state;
pub mod threads;
pub mod tracing;
pub mod usage;
pub mod user;
pub mod wake;

#[cfg(test)]
#[path = "../../../tests/common/skips.rs"]
#[allow(clippy::expect_used, reason = "shared with the other tests")]
mod skips;
#[cfg(test)]
#[path = "../../../tests/common/until.rs"]
mod until;
