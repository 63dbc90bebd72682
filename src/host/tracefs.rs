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

/// What prevents it, with the next step.
fn refused(file: &Path, e: &io::Error) -> String {
    let file = file.display();
    match e.kind() {
        ErrorKind::NotFound => {
            format!("{file} does not exist: this kernel has no uprobe events (CONFIG_UPROBE_EVENTS)")
        }
        ErrorKind::PermissionDenied => {
            format!("{file}: {e}: run as root; if that does not help, SELinux or kernel lockdown blocks it")
        }
        ErrorKind::ReadOnlyFilesystem => format!("{file}: {e}: mount tracefs read-write"),
        _ => format!("{file}: {e}"),
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
/// A message that says what is missing.
pub fn offered() -> Result<(), String> {
    // If it cannot be mounted, opening the file below reports what is missing.
    let _ = tracepoint::ensure_mounted();
    let file = tracepoint::root().join(EVENTS);
    appending(&file).map(drop).map_err(|e| refused(&file, &e))
}

impl Tracefs {
    /// Finds tracefs, and mounts it if it is not mounted.
    ///
    /// # Errors
    /// A message that says what is missing.
    pub fn open() -> Result<Tracefs, String> {
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
    /// A message that says what the kernel refuses.
    pub fn define(&self, file: &File, offset: u64, ret: bool, arguments: &str) -> Result<Definition, String> {
        let kind = if ret { 'r' } else { 'p' };
        let name = format!("{}/e{}", self.group, NEXT.fetch_add(1, Ordering::Relaxed));
        // By descriptor: file names may contain blanks, which end the path in a definition, or may have been deleted.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.command(&format!("{kind}:{name} {path}:{offset:#x}{arguments}"))
            .map_err(|e| self.why_undefined(&e))?;
        let number = self.root.join("events").join(&name).join("id");
        let mut definition = Definition { file: self.events(), name, id: 0 };
        let text = fs::read_to_string(&number).map_err(|e| refused(&number, &e))?;
        definition.id =
            text.trim().parse().map_err(|_| format!("{}: not a number: {text:?}", number.display()))?;
        Ok(definition)
    }

    fn why_undefined(&self, e: &io::Error) -> String {
        // The kernel reports more than an error number if it can.
        let log = fs::read_to_string(self.root.join("error_log")).unwrap_or_default();
        let said = log.lines().rev().find_map(|l| l.split_once("trace_uprobe: error: ")).map(|l| l.1.trim());
        match (e.raw_os_error(), said.filter(|_| e.raw_os_error() == Some(libc::EINVAL))) {
            (_, Some(said)) => format!("the kernel rejects the probe: {said}"),
            (Some(libc::EIO), _) => {
                "the file is on a file system that does not support probes: copy it to a regular one".into()
            }
            _ => refused(&self.events(), e),
        }
    }

    /// Byte offset of a field in the samples of an event.
    pub fn field(&self, d: &Definition, name: &str) -> Option<u32> {
        let (group, event) = d.name.split_once('/')?;
        tracepoint::field_offset(group, event, name).ok()
    }
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
        let said = |errno| refused(file, &io::Error::from_raw_os_error(errno));
        assert!(said(libc::ENOENT).contains("CONFIG_UPROBE_EVENTS"));
        assert!(said(libc::EACCES).contains("run as root"));
        assert!(said(libc::EROFS).contains("read-write"));
    }
}
