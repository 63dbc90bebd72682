//! Small helpers for all crates: sorting, optional threads, dates, making foreign text safe to show, files owned by
//! others, secrets in command lines.

pub mod aside;
pub mod calendar;
pub mod cpus;
pub mod files;
pub mod filesize;
pub mod machine_peaks;
pub mod order;
pub mod plain;
pub mod redact;

/// Version and, if built from a commit, that commit: `0.1.0 (0123456789ab)`, with `, dirty` after the commit if
/// the sources differed from it.
pub const VERSION: &str = env!("PROFINFER_VERSION");

/// The profiler and its version.
pub const TOOL: &str = concat!("profinfer ", env!("PROFINFER_VERSION"));
