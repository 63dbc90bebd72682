//! This machine: its processes and their memory, its CPUs, privileges, types (BTF), tracefs, sensors; what an error
//! from its kernel means. Knows nothing of engines and places no probes.

pub mod affinity;
pub mod btf;
pub mod budget;
pub mod capset;
pub mod cgroup;
pub mod check;
pub mod child;
pub mod diagnose;
pub mod event_format;
mod guard;
pub(crate) mod halt;
pub mod kallsyms;
pub mod kconfig;
pub mod machine;
pub mod maps;
pub mod memory;
pub mod namespaces;
pub mod open;
pub mod owner;
pub mod pages;
pub mod peaks;
pub mod privileges;
pub mod pulse;
pub mod ready;
pub mod root;
pub mod sensors;
pub mod stopped;
pub mod target;
pub mod target_state;
pub mod tracefs;
pub mod tracepoint;
pub mod tracing;
pub mod usage;
pub mod user;
pub mod wake;
