//! Fields of a kernel tracepoint, from its `format` file, so that the programs need no BTF.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::kernel::event_format::EventFormat;
use rustix::mount::{MountFlags, mount};

/// Where tracefs may be mounted.
const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Mounts tracefs at its usual place if it is not mounted, as perf does: its files contain the tracepoints' numbers
/// and fields.
pub fn ensure_mounted() -> io::Result<()> {
    if ROOTS.iter().any(|root| Path::new(root).join("events").exists()) {
        return Ok(());
    }
    Ok(mount(c"tracefs", c"/sys/kernel/tracing", c"tracefs", MountFlags::empty(), None)?)
}

/// Offset of the child's pid in the fork event.
pub fn fork_child() -> io::Result<u32> {
    ensure_mounted()?;
    field_offset("sched", "sched_process_fork", "child_pid")
}

/// The kernel's number of the tracepoint `category/name`.
pub fn id(category: &str, name: &str) -> io::Result<u32> {
    let text = fs::read_to_string(root().join("events").join(category).join(name).join("id"))?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{name} has no ID")))
}

/// Offset of the next thread in the switch event.
pub fn switch_next() -> io::Result<u32> {
    ensure_mounted()?;
    field_offset("sched", "sched_switch", "next_pid")
}

/// Where tracefs is mounted, or should be.
pub fn root() -> PathBuf {
    let found = ROOTS.iter().find(|root| Path::new(root).join("events").exists());
    PathBuf::from(found.unwrap_or(&ROOTS[0]))
}

/// Byte offset of a field of `category/name` within the event, in this kernel's layout.
pub fn field_offset(category: &str, name: &str, field: &str) -> io::Result<u32> {
    let found = format(category, name)?.field(field).map(|f| f.offset);
    found.ok_or_else(|| io::Error::other(format!("{name} has no field {field}")))
}

/// The fields of `category/name`, in this kernel's layout.
///
/// # Errors
/// There is no such tracepoint, or tracefs is not mounted.
pub fn format(category: &str, name: &str) -> io::Result<EventFormat> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for root in ROOTS {
        match fs::read_to_string(Path::new(root).join("events").join(category).join(name).join("format")) {
            Ok(text) => return Ok(EventFormat::parse(&text)),
            Err(e) => last = e,
        }
    }
    Err(last)
}
