//! Small helpers for all crates: sorting, optional threads, dates, making foreign text safe to show, files owned by
//! others, secrets in command lines, SHA-256.

pub mod aside;
pub mod calendar;
pub mod cpus;
pub mod files;
pub mod filesize;
pub mod machine_peaks;
pub mod order;
pub mod plain;
pub mod redact;
pub mod sha256;
#[cfg(panic = "abort")]
mod unwinder;

/// Whether a value is zero, false or empty: serde leaves it out then.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
