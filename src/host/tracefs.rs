//! Probe event definitions in tracefs: writes, names and removes them, and cleans up those of dead recorders.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::host::guard;
use crate::host::tracepoint;

/// Groups of our events: `profinfer_PID_START`, where START is the start time of the process in clock ticks since
/// boot: pids are reused.
const PREFIX: &str = "profinfer_";
const EVENTS: &str = "uprobe_events";
/// Numbers of definitions: a process may use this more than once at the same time.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Attempts at removal: the kernel releases a closed event's definition slightly later.
const ATTEMPTS: u32 = 50;

/// Where events are defined.
pub struct Tracefs {
    root: PathBuf,
    group: String,
}

/// Why an event cannot be defined, with the next step.
#[derive(Debug, thiserror::Error)]
pub enum TracefsError {
    #[error("{} does not exist: this kernel has no uprobe events (CONFIG_UPROBE_EVENTS)", file.display())]
    Missing { file: PathBuf, source: io::Error },
    #[error(
        "{}: {source}: run as root; if that does not help, SELinux or kernel lockdown blocks it",
        file.display()
    )]
    Denied { file: PathBuf, source: io::Error },
    #[error("{}: {source}: mount tracefs read-write", file.display())]
    ReadOnly { file: PathBuf, source: io::Error },
    #[error("{}: {source}", file.display())]
    Io { file: PathBuf, source: io::Error },
    /// The kernel's own words about a definition.
    #[error("the kernel rejects the probe: {0}")]
    Rejected(String),
    #[error("the file is on a file system that does not support probes: copy it to a regular one")]
    FileSystem(#[source] io::Error),
    #[error("{}: not a number: {text:?}", file.display())]
    Number { file: PathBuf, text: String },
}

impl TracefsError {
    fn of(file: &Path, source: io::Error) -> TracefsError {
        let file = file.to_owned();
        match source.kind() {
            ErrorKind::NotFound => TracefsError::Missing { file, source },
            ErrorKind::PermissionDenied => TracefsError::Denied { file, source },
            ErrorKind::ReadOnlyFilesystem => TracefsError::ReadOnly { file, source },
            _ => TracefsError::Io { file, source },
        }
    }
}

/// Opening it for overwriting would remove the events of all users.
fn appending(events: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(events)
}

fn tell(events: &Path, command: &str) -> io::Result<()> {
    appending(events)?.write_all(format!("{command}\n").as_bytes())
}

/// Start time of a process, in clock ticks since boot (proc(5), field 22 of stat); None if it does not exist.
fn began(pid: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether a group belongs to a recorder that has ended.
fn stale(group: &str) -> bool {
    let Some((pid, start)) = group.strip_prefix(PREFIX).and_then(|g| g.split_once('_')) else { return false };
    let number = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    number(pid) && number(start) && began(pid).map(|b| b.to_string()).as_deref() != Some(start)
}

/// Names `group/event` in a listing of uprobe events whose recorders have ended.
fn left_over(listing: &str) -> Vec<&str> {
    // `p:group/event path:offset arguments`
    let names = listing.lines().filter_map(|line| line.get(2..)?.split(' ').next());
    names.filter(|name| name.split_once('/').is_some_and(|(group, _)| stale(group))).collect()
}

/// Removes probes left behind by killed recorders. Returns a message with their number; None: there were none.
pub fn sweep() -> Option<String> {
    let file = tracepoint::root().join(EVENTS);
    let listing = fs::read_to_string(&file).ok()?;
    // Those still in use (by a recorder in another PID namespace) cannot be removed, and stay.
    let swept =
        left_over(&listing).into_iter().filter(|name| tell(&file, &format!("-:{name}")).is_ok()).count();
    (swept > 0).then(|| format!("removed {swept} probes left by a killed recorder"))
}

/// Whether this process may define probes.
///
/// # Errors
/// What is missing.
pub fn offered() -> Result<(), TracefsError> {
    // If it cannot be mounted, opening the file below reports what is missing.
    let _ = tracepoint::ensure_mounted();
    let file = tracepoint::root().join(EVENTS);
    appending(&file).map(drop).map_err(|e| TracefsError::of(&file, e))
}

impl Tracefs {
    /// Finds tracefs, and mounts it if it is not mounted.
    ///
    /// # Errors
    /// What is missing.
    pub fn open() -> Result<Tracefs, TracefsError> {
        offered()?;
        let root = tracepoint::root();
        let group = format!("{PREFIX}{}_{}", std::process::id(), began("self").unwrap_or(0));
        // Without the guard, the next recorder removes what a killed one has left.
        let _ = guard::set(&root.join(EVENTS), &group);
        Ok(Tracefs { root, group })
    }

    fn events(&self) -> PathBuf {
        self.root.join(EVENTS)
    }

    fn command(&self, command: &str) -> io::Result<()> {
        tell(&self.events(), command)
    }

    /// Defines an event at an offset of a file.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn define(
        &self,
        file: &File,
        offset: u64,
        ret: bool,
        arguments: &str,
    ) -> Result<Definition, TracefsError> {
        let kind = if ret { 'r' } else { 'p' };
        let name = format!("{}/e{}", self.group, NEXT.fetch_add(1, Ordering::Relaxed));
        self.command(&format!("{kind}:{name} {}{arguments}", place(file, offset)))
            .map_err(|e| self.why_undefined(e))?;
        let number = self.root.join("events").join(&name).join("id");
        let mut definition = Definition { file: self.events(), name, id: 0 };
        let text = fs::read_to_string(&number).map_err(|e| TracefsError::of(&number, e))?;
        definition.id =
            text.trim().parse().map_err(|_| TracefsError::Number { file: number, text: text.clone() })?;
        Ok(definition)
    }

    /// Adds another place to an event that is not enabled yet.
    ///
    /// # Errors
    /// A message that says what the kernel refuses.
    pub fn append(&self, d: &Definition, file: &File, offset: u64) -> Result<(), TracefsError> {
        self.command(&format!("p:{} {}", d.name, place(file, offset))).map_err(|e| self.why_undefined(e))
    }

    fn why_undefined(&self, e: io::Error) -> TracefsError {
        // The kernel reports more than an error number if it can.
        let log = fs::read_to_string(self.root.join("error_log")).unwrap_or_default();
        let said = log.lines().rev().find_map(|l| l.split_once("trace_uprobe: error: ")).map(|l| l.1.trim());
        match (e.raw_os_error(), said.filter(|_| e.raw_os_error() == Some(libc::EINVAL))) {
            (_, Some(said)) => TracefsError::Rejected(said.to_owned()),
            (Some(libc::EIO), _) => TracefsError::FileSystem(e),
            _ => TracefsError::of(&self.events(), e),
        }
    }

    /// Byte offset of a field in the samples of an event.
    pub fn field(&self, d: &Definition, name: &str) -> Option<u32> {
        let (group, event) = d.name.split_once('/')?;
        tracepoint::field_offset(group, event, name).ok()
    }
}

/// A place in a definition. By descriptor: file names may contain blanks, which end the path, or may have been deleted.
fn place(file: &File, offset: u64) -> String {
    format!("/proc/self/fd/{}:{offset:#x}", file.as_raw_fd())
}

/// A defined event; removed when dropped.
pub struct Definition {
    file: PathBuf,
    name: String,
    /// The kernel's number for it, with which its samples start.
    pub id: u32,
}

impl Drop for Definition {
    fn drop(&mut self) {
        for _ in 0..ATTEMPTS {
            match tell(&self.file, &format!("-:{}", self.name)) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                // What cannot be removed now is cleaned up when the next recorder starts.
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_recorders_leave_something_over() {
        let me = format!("{PREFIX}{}_{}", std::process::id(), began("self").expect("our own"));
        let listing = format!(
            "p:{me}/e0 /proc/self/fd/5:0x0000000000005000 a=%di\nr:profinfer_1_99999999999/e1 /bin/x:0x10\n\
             p:profinfer_4194999_5/e7 /a b:0x10\np:other/e0 /x:0x0\np:profinfer_x_y/e0 /x:0x0\np\n"
        );
        assert_eq!(left_over(&listing), ["profinfer_1_99999999999/e1", "profinfer_4194999_5/e7"]);
    }

    #[test]
    fn refusals_say_what_is_missing() {
        let file = Path::new("/sys/kernel/tracing/uprobe_events");
        let said = |errno| TracefsError::of(file, io::Error::from_raw_os_error(errno)).to_string();
        assert!(said(libc::ENOENT).contains("CONFIG_UPROBE_EVENTS"));
        assert!(said(libc::EACCES).contains("run as root"));
        assert!(said(libc::EROFS).contains("read-write"));
    }
}
