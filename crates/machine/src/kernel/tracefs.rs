//! Probe event definitions in tracefs: writes, names and removes them, and cleans up those of dead recorders.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::byte_lock::ByteLock;
use crate::guard::Guard;
use crate::kernel::tracepoint;

/// Groups of our events: `profinfer_PID_RANDOM`, with [`DIGITS`] hexadecimal digits. Pids repeat, in time and in other
/// namespaces. RANDOM is also where the group is locked, as an offset of a file: it fits into one.
const PREFIX: &str = "profinfer_";
const DIGITS: usize = 15;
const EVENTS: &str = "uprobe_events";
/// Attempts at removal: the kernel releases a closed event's definition slightly later.
const ATTEMPTS: u32 = 50;

/// Where events are defined. Each is one place: the kernel (5.10 to 7.2, `unregister_trace_uprobe`) lets anyone remove
/// a place of an event that has several while it is in use, and then uses freed memory at its next hit.
pub struct Tracefs {
    root: PathBuf,
    ours: Arc<Group>,
}

/// The group of this process. Fields are declared in the order in which they must be closed.
struct Group {
    name: String,
    /// A forked child needs its own.
    pid: u32,
    /// Without it, a later recorder removes what a killed one has left.
    guard: Option<Guard>,
    /// Definitions, where there is no guard that counts them.
    unguarded: AtomicU32,
    /// Locked, so that no recorder takes our definitions for left over; see [`abandoned`].
    _alive: Option<File>,
}

static GROUP: Mutex<Weak<Group>> = Mutex::new(Weak::new());

impl Group {
    /// That of this process, as long as anything has it.
    fn of_this_process(events: &Path) -> Arc<Group> {
        let mut shared = GROUP.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        if let Some(group) = shared.upgrade().filter(|group| group.pid == pid) {
            return group;
        }
        let random = (RandomState::new().build_hasher().finish() >> (u64::BITS as usize - 4 * DIGITS)) as i64;
        let name = format!("{PREFIX}{pid}_{random:0DIGITS$x}");
        let lock = ByteLock::new(random);
        let alive = File::open(events).ok().filter(|file| lock.take(file.as_raw_fd()));
        let group = Arc::new(Group {
            pid,
            guard: Guard::start(events, &name, lock).ok(),
            unguarded: AtomicU32::new(0),
            _alive: alive,
            name,
        });
        *shared = Arc::downgrade(&group);
        group
    }
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

/// Names `group/event` of ours in a listing of uprobe events, with the group's lock. Recorders of older versions lock otherwise, and have
/// other numbers of digits: theirs are left alone.
fn ours(listing: &str) -> impl Iterator<Item = (&str, ByteLock)> {
    let random = |group: &str| {
        let (_, random) = group.strip_prefix(PREFIX)?.split_once('_')?;
        let random = (random.len() == DIGITS).then(|| i64::from_str_radix(random, 16).ok())??;
        Some(ByteLock::new(random))
    };
    // `p:group/event path:offset arguments`
    let names = listing.lines().filter_map(|line| line.get(2..)?.split(' ').next());
    names.filter_map(move |name| Some((name, random(name.split_once('/')?.0)?)))
}

/// Definitions whose recorder has ended. None: the listing cannot be read.
///
/// A recorder, and its guard, holds a lock on one byte of the listing, at RANDOM, as long as it may have definitions.
/// Processes of another PID namespace cannot be looked up, but the kernel has this file, and so its locks, once.
fn abandoned(events: &Path) -> Option<Vec<String>> {
    let file = File::open(events).ok()?;
    let listing = io::read_to_string(&file).ok()?;
    let dead = |lock: ByteLock| lock.held(file.as_raw_fd()) == Some(false);
    Some(ours(&listing).filter(|(_, lock)| dead(*lock)).map(|(name, _)| name.to_owned()).collect())
}

/// Number of definitions left behind by killed recorders. None: it cannot be read.
pub fn left_over() -> Option<usize> {
    Some(abandoned(&tracepoint::root().join(EVENTS))?.len())
}

/// Removes them. Returns a message with their number; None: there were none.
pub fn sweep() -> Option<String> {
    let events = tracepoint::root().join(EVENTS);
    // The kernel refuses to remove one in use; it can tell, because each definition is one place.
    let gone = |name: &String| tell(&events, &format!("-:{name}")).is_ok();
    let swept = abandoned(&events)?.iter().filter(|name| gone(name)).count();
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

/// Closes descriptors that the kernel takes long to close, by this process's guard. False: some are left, or all.
pub fn close<T: AsFd>(fds: &mut Vec<T>) -> bool {
    let shared = GROUP.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    let guard = shared
        .as_ref()
        .filter(|group| group.pid == std::process::id())
        .and_then(|group| group.guard.as_ref());
    guard.is_some_and(|guard| guard.close(fds).is_ok())
}

impl Tracefs {
    /// Finds tracefs, and mounts it if it is not mounted.
    ///
    /// # Errors
    /// What is missing.
    pub fn open() -> Result<Tracefs, TracefsError> {
        offered()?;
        let root = tracepoint::root();
        let ours = Group::of_this_process(&root.join(EVENTS));
        Ok(Tracefs { root, ours })
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
        let number = self.ours.guard.as_ref().map_or(&self.ours.unguarded, Guard::defined);
        let name = format!("{}/e{}", self.ours.name, number.fetch_add(1, Ordering::Relaxed));
        self.command(&format!("{kind}:{name} {}{arguments}", place(file, offset)))
            .map_err(|e| self.why_undefined(e))?;
        let number = self.root.join("events").join(&name).join("id");
        let mut definition = Definition { file: self.events(), name, left: AtomicBool::new(false), id: 0 };
        let text = fs::read_to_string(&number).map_err(|e| TracefsError::of(&number, e))?;
        definition.id =
            text.trim().parse().map_err(|_| TracefsError::Number { file: number, text: text.clone() })?;
        Ok(definition)
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

/// A defined event; removed when dropped, unless it is left to the guard.
pub struct Definition {
    file: PathBuf,
    name: String,
    left: AtomicBool,
    /// The kernel's number for it, with which its samples start.
    pub id: u32,
}

impl Definition {
    /// Leaves it to the guard, which removes it after this process.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }
}

impl Drop for Definition {
    fn drop(&mut self) {
        if *self.left.get_mut() {
            return;
        }
        for _ in 0..ATTEMPTS {
            match tell(&self.file, &format!("-:{}", self.name)) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                // What cannot be removed now, the guard removes.
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_definitions_are_not_ours() {
        let listing = "p:profinfer_7_0123456789abcde/e0 /proc/self/fd/5:0x5000 a=%di\n\
                       r:profinfer_1_0000000000000ff/e1 /bin/x:0x10\n\
                       p:profinfer_7_0123456789abcdef/e0 /bin/x:0x20\n\
                       p:profinfer_1_99999/e1 /x:0x10\np:other/e0 /x:0x0\np:profinfer_x /x:0x0\np\n";
        let names = [
            ("profinfer_7_0123456789abcde/e0", ByteLock::new(0x0012_3456_789a_bcde)),
            ("profinfer_1_0000000000000ff/e1", ByteLock::new(0xff)),
        ];
        assert_eq!(ours(listing).collect::<Vec<_>>(), names);
    }

    #[test]
    fn what_is_left_over_is_told_by_its_own_recorder_alone() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let last = (1i64 << (4 * DIGITS)) - 1;
        for random in [0xff, last] {
            writeln!(file, "p:{PREFIX}7_{random:0DIGITS$x}/e0 /x:0x10").expect("written");
        }
        let [dies, lives] = [0xff, last].map(|at| {
            let recorder = File::open(file.path()).expect("opened");
            assert!(ByteLock::new(at).take(recorder.as_raw_fd()));
            recorder
        });
        assert_eq!(abandoned(file.path()), Some(vec![]));
        drop(dies);
        let left = abandoned(file.path()).expect("read");
        assert_eq!(left, ["profinfer_7_0000000000000ff/e0"], "though another one lives");
        drop(lives);
        assert_eq!(abandoned(file.path()).expect("read").len(), 2);
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
