//! Where the time went: ops, threads, causes, devices, bytes, over the calls of a phase.

pub mod attribution;
pub mod device_kernels;
pub mod file_reads;
pub mod offload;
pub mod op_cpus;
pub mod ops;
pub mod peaks;
pub mod series;
pub mod submissions;
pub mod tables;
pub mod time_series;
pub mod usage;
