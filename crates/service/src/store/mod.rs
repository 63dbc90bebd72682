//! The service's directory of traces: names and opens them, and removes the oldest to keep the total within a
//! quota.
//!
//! Every process that writes a file holds flock(2) on it; a file without a holder is complete, or was
//! left by a process that died. Files are created and removed under a lock of the directory. The kernel releases
//! all these locks when a process ends, however it ends. A file being written counts with the maximum size it may
//! reach, so that the quota holds although nobody asks before a write.

pub mod ages;
pub mod calibration_cache;
pub mod quota;

use std::cell::Cell;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use self::ages::{Ages, Up};
use self::quota::TraceOwner;
use crate::clock;
use crate::place::{OpenDir, PlaceError};
use crate::replace::replace;
use common::order;
use machine::usage;
use pfi::{End, Output};

/// Suffix of the files.
const SUFFIX: &str = ".pfi";
/// Held while files are created and removed; contains the number of removed files.
const LOCK: &str = ".lock";
/// Held by the service as long as it lives.
const INSTANCE: &str = ".instance";
/// Maximum bytes of a program's name in a file name.
const NAME_BYTES: usize = 32;
/// Number of attempts to get the directory's lock, and the time between them.
const TRIES: (u32, Duration) = (20_000, Duration::from_micros(200));

/// Why the directory is refused, or gives no file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(
        "the quota of {} is less than the {} that one file may take: raise the quota, or use smaller files",
        size(*quota), size(*reserve)
    )]
    TooSmall { quota: u64, reserve: u64 },
    #[error(
        "no room for another file within the quota of {}: {writing} are being written, each up to {}, and \
         other users' files within their shares are kept; raise the quota, or use smaller files",
        size(*quota), size(*reserve)
    )]
    NoRoom { quota: u64, reserve: u64, writing: u64 },
    #[error("cannot {what} {name}: {source}")]
    File { what: &'static str, name: String, source: io::Error },
    #[error("{path} is used by another service{}: stop it, or give this one its own directory", process(*pid))]
    Second { path: String, pid: u32 },
    #[error("another process takes too long to free space in {path}")]
    Busy { path: String },
}

impl StoreError {
    /// The file system or the quota is full: this may pass, and nothing is wrong with the directory.
    pub fn is_full(&self) -> bool {
        match self {
            StoreError::Place(PlaceError::Io { source, .. }) | StoreError::File { source, .. } => {
                is_full(source)
            }
            StoreError::NoRoom { .. } => true,
            _ => false,
        }
    }
}

/// True if the file system, or the user's share of it, is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

fn process(pid: u32) -> String {
    if pid == 0 { String::new() } else { format!(" (process {pid})") }
}

/// Bytes in the largest unit that divides them evenly.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or(format!("{bytes} bytes"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

/// How full the directory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DirectoryUsage {
    /// Traces, and how many of them are being written.
    pub files: u64,
    pub writing: u64,
    /// Their size, and the bytes that count towards the quota: a file being written counts with its maximum size.
    pub bytes: u64,
    pub counted: u64,
    pub quota: u64,
    /// Traces removed since the directory was created, for the quota or their age.
    pub removed: u64,
}

/// What an earlier service has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Traces without readable contents: removed.
    pub empty: Vec<String>,
    /// Replacement files that were never renamed: removed.
    pub temporary: Vec<String>,
    /// Traces that did not end cleanly: kept, `report` reads them up to their last complete block.
    pub unfinished: u64,
}

/// The directory.
#[derive(Debug)]
pub struct Store {
    place: Rc<OpenDir>,
    quota: u64,
    reserve: u64,
    keep: Option<Duration>,
    /// This boot, and the time since it, ns.
    boot: String,
    uptime: fn() -> u64,
    seen: Cell<Option<TidyResult>>,
}

/// The result of `tidy` when nothing was being written: valid until the directory changes, or a file is too old.
#[derive(Debug, Clone, Copy)]
struct TidyResult {
    changed: SystemTime,
    /// In the time of `uptime`.
    until: u64,
    usage: DirectoryUsage,
}

/// One trace in the directory.
struct StoredTrace {
    name: String,
    bytes: u64,
    changed: SystemTime,
    writing: bool,
    /// When it ended, by the clock of `ages`.
    ended: u64,
}

impl Store {
    /// Opens the directory, creating it if missing. Its files take up to `quota` bytes together and `reserve` each;
    /// those that ended longer ago than `keep` are removed.
    ///
    /// # Errors
    /// It is not a directory of ours alone, or is not writable, or the quota is less than one file.
    pub fn open(path: &Path, quota: u64, reserve: u64, keep: Option<Duration>) -> Result<Store, StoreError> {
        if quota < reserve {
            return Err(StoreError::TooSmall { quota, reserve });
        }
        let place = Rc::new(OpenDir::open(path)?);
        // If it cannot be read, no earlier time counts as the same boot.
        let boot =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let uptime = || usage::clock_ns(libc::CLOCK_BOOTTIME);
        let store = Store { place, quota, reserve, keep, boot, uptime, seen: Cell::new(None) };
        // Shows that the directory is writable.
        store.lock()?;
        Ok(store)
    }

    /// The directory, for files outside the quota.
    pub fn place(&self) -> &OpenDir {
        &self.place
    }

    /// The same, for those who need it as long as they live.
    pub fn place_shared(&self) -> Rc<OpenDir> {
        self.place.clone()
    }

    /// The directory's path, for messages.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Makes this process the only service that uses the directory, as long as the file lives. This does not extend
    /// to a forked process: this kind of lock stays with the process that took it.
    ///
    /// # Errors
    /// There is another service; with its pid if visible.
    pub fn only(&self) -> Result<File, StoreError> {
        let file = self.place.keep(INSTANCE).map_err(|e| self.place.failed("write to", e))?;
        // Retry if the other one ended just between the two calls.
        for _ in 0..3 {
            if record_lock(&file, libc::F_SETLK).map_err(|e| self.place.failed("lock", e))?.is_none() {
                return Ok(file);
            }
            let other = record_lock(&file, libc::F_GETLK).map_err(|e| self.place.failed("lock", e))?;
            if let Some(pid) = other {
                return Err(StoreError::Second { path: self.path().display().to_string(), pid });
            }
        }
        Err(StoreError::Busy { path: self.path().display().to_string() })
    }

    /// Name of a trace that begins now: time, user, program and process.
    pub fn name(program: &str, uid: u32, pid: u32) -> String {
        let short = cleaned(program.rsplit('/').next().unwrap_or_default());
        let short = short.get(..NAME_BYTES).unwrap_or(&short);
        let short = if short.is_empty() { "engine" } else { short };
        format!("{}-u{uid}-{short}-{pid}", clock::compact(SystemTime::now()))
    }

    /// Makes room, then creates a file: `name` has no suffix, and gets a number if it exists.
    ///
    /// # Errors
    /// The files being written leave no room; or the system refuses.
    pub fn create(&self, name: &str) -> Result<TraceFile, StoreError> {
        let name = cleaned(name);
        let lock = self.lock()?;
        self.make_room(&lock, Some((owner(&name), self.reserve)))?;
        let mut full = format!("{name}{SUFFIX}");
        let mut n = 1;
        let made = loop {
            match self.place.create(&full) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && n < 1000 => {
                    n += 1;
                    full = format!("{name}-{n}{SUFFIX}");
                }
                made => break made,
            }
        };
        let failed = |source| StoreError::File { what: "create", name: full.clone(), source };
        let file = made.map_err(failed)?;
        file.try_lock().map_err(|e| failed(e.into()))?;
        self.seen.set(None);
        Ok(TraceFile { file, place: self.place.clone(), name: full, bytes: 0, most: self.reserve })
    }

    /// Removes what is too old, and then the oldest until the quota holds; returns the usage. Costs one system call
    /// if nothing is being written and nothing has changed.
    ///
    /// # Errors
    /// A file cannot be removed, or the directory cannot be read.
    pub fn tidy(&self) -> Result<DirectoryUsage, StoreError> {
        let (now, up) = (SystemTime::now(), (self.uptime)());
        let changed = self.changed()?;
        if let Some(seen) = self.seen.get()
            && seen.changed == changed
            && up < seen.until
        {
            return Ok(seen.usage);
        }
        let lock = self.lock()?;
        let (left, ages) = self.make_room(&lock, None)?;
        let kept = self.keep_ages(&ages)?;
        let removed = removed(&lock);
        let mut usage = DirectoryUsage { quota: self.quota, removed, ..DirectoryUsage::default() };
        for entry in &left {
            usage.files += 1;
            usage.writing += u64::from(entry.writing);
            usage.bytes += entry.bytes;
            usage.counted += self.counted(entry);
        }
        let changed = self.changed()?;
        let rest = if ages.changed() && !kept { nanoseconds(ages::REST) } else { u64::MAX };
        let until = up.saturating_add(self.until(&left, &ages).min(rest));
        // A change within the file system's timestamp granularity would not show.
        let settled = now.duration_since(changed).is_ok_and(|d| d > Duration::from_secs(1));
        self.seen.set((usage.writing == 0 && settled).then_some(TidyResult { changed, until, usage }));
        Ok(usage)
    }

    /// How long nothing needs to be done without changes, ns: until the first file is too old, or the clock must be
    /// saved.
    fn until(&self, left: &[StoredTrace], ages: &Ages) -> u64 {
        let keep = self.keep.map(nanoseconds);
        let age = left.iter().map(|e| ages.now().saturating_sub(e.ended)).max();
        let old = keep.zip(age).map(|(keep, age)| keep.saturating_sub(age).saturating_add(1));
        nanoseconds(ages::KEPT).min(old.unwrap_or(u64::MAX))
    }

    /// Finds what an earlier service has left, and removes what is useless. Files being written are left alone.
    ///
    /// # Errors
    /// A file cannot be removed, or the directory cannot be read.
    pub fn leftovers(&self) -> Result<Leftovers, StoreError> {
        let lock = self.lock()?;
        let mut found = Leftovers::default();
        for entry in self.entries()?.iter().filter(|e| !e.writing) {
            let failed = |source| StoreError::File { what: "read", name: entry.name.clone(), source };
            let mut file = self.place.read(&entry.name).map_err(failed)?;
            match End::of(&mut file).map_err(failed)? {
                End::Empty => {
                    self.remove(&entry.name)?;
                    found.empty.push(entry.name.clone());
                }
                End::Cut => found.unfinished += 1,
                End::Clean => {}
            }
        }
        for name in
            self.names()?.into_iter().filter(|n| n.starts_with('.') && n.ends_with(crate::replace::SUFFIX))
        {
            self.remove(&name)?;
            found.temporary.push(name);
        }
        drop(lock);
        Ok(found)
    }

    /// Removes the files that are too old, and then what [`share`] says until there is room for a file of this user
    /// and size. Returns the rest.
    fn make_room(
        &self,
        lock: &File,
        wanted: Option<(TraceOwner, u64)>,
    ) -> Result<(Vec<StoredTrace>, Ages), StoreError> {
        let mut ages = Ages::read(&self.ages(), &self.up());
        let mut all = self.entries()?;
        for entry in &mut all {
            entry.ended = if entry.writing { ages.now() } else { ages.ended(&entry.name) };
        }
        order::by(&mut all, |a, b| {
            a.ended.cmp(&b.ended).then_with(|| a.changed.cmp(&b.changed)).then_with(|| a.name.cmp(&b.name))
        });
        let keep = self.keep.map_or(u64::MAX, nanoseconds);
        let items: Vec<quota::StoredRecording> = all
            .iter()
            .map(|e| quota::StoredRecording {
                owner: owner(&e.name),
                bytes: self.counted(e),
                writing: e.writing,
                old: ages.now().saturating_sub(e.ended) > keep,
            })
            .collect();
        let Some(going) = quota::going(&items, self.quota, wanted) else {
            let writing = all.iter().filter(|e| e.writing).count() as u64;
            return Err(StoreError::NoRoom { quota: self.quota, reserve: self.reserve, writing });
        };
        let mut gone = vec![false; all.len()];
        for &i in &going {
            self.remove(&all[i].name)?;
            gone[i] = true;
        }
        let mut gone = gone.into_iter();
        all.retain(|_| !gone.next().unwrap_or(false));
        if !going.is_empty() {
            // A failure to save the counter must not stop recording.
            let _ = lock.write_all_at(format!("{:020}\n", removed(lock) + going.len() as u64).as_bytes(), 0);
        }
        let mut names: Vec<&str> = all.iter().filter(|e| !e.writing).map(|e| e.name.as_str()).collect();
        order::by(&mut names, |a, b| a.cmp(b));
        ages.retain(|name| names.binary_search(&name).is_ok());
        Ok((all, ages))
    }

    fn up(&self) -> Up {
        Up { boot: self.boot.clone(), ns: (self.uptime)() }
    }

    /// The file of ages; empty if there is none, or it cannot be read.
    fn ages(&self) -> String {
        let mut text = String::new();
        let read = self.place.read(ages::NAME).and_then(|f| f.take(ages::LARGEST).read_to_string(&mut text));
        if read.is_ok() { text } else { String::new() }
    }

    /// True: it is written. Not done when a file is created, which would keep others from the lock: the periodic
    /// tidying does it anyway.
    fn keep_ages(&self, ages: &Ages) -> Result<bool, StoreError> {
        let Some(text) = ages.news(&self.up()) else { return Ok(false) };
        match replace(&self.place.at(ages::NAME), 0o600, text.as_bytes()) {
            // It is written once there is room; the recordings show that there is none.
            Err(source) if !is_full(&source) => {
                Err(StoreError::File { what: "write", name: ages::NAME.to_owned(), source })
            }
            done => Ok(done.is_ok()),
        }
    }

    fn counted(&self, entry: &StoredTrace) -> u64 {
        if entry.writing { entry.bytes.max(self.reserve) } else { entry.bytes }
    }

    fn entries(&self) -> Result<Vec<StoredTrace>, StoreError> {
        let mut all = Vec::new();
        for name in self.names()?.into_iter().filter(|n| n.ends_with(SUFFIX)) {
            match self.entry(&name) {
                Ok(Some(found)) => all.push(found),
                Ok(None) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(StoreError::File { what: "inspect", name, source }),
            }
        }
        Ok(all)
    }

    /// None: it is not a regular file, so not one of ours.
    fn entry(&self, name: &str) -> io::Result<Option<StoredTrace>> {
        if !fs::symlink_metadata(self.place.at(name))?.is_file() {
            return Ok(None);
        }
        let file = self.place.read(name)?;
        // Its writer may release it at any moment; nobody locks a released one again.
        let writing = match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(e)) => return Err(e),
        };
        let found = file.metadata()?;
        Ok(Some(StoredTrace {
            name: name.to_owned(),
            bytes: found.len(),
            changed: found.modified()?,
            writing,
            ended: 0,
        }))
    }

    /// All names; names that are not text are not ours and are left out.
    fn names(&self) -> Result<Vec<String>, StoreError> {
        let listed = fs::read_dir(self.place.here()).and_then(|entries| {
            entries.map(|e| Ok(e?.file_name().into_string().ok())).collect::<io::Result<Vec<_>>>()
        });
        Ok(listed.map_err(|e| self.place.failed("list", e))?.into_iter().flatten().collect())
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        let failed = |source| StoreError::File { what: "remove", name: name.to_owned(), source };
        self.place.remove(name).map_err(failed)
    }

    fn changed(&self) -> Result<SystemTime, StoreError> {
        let changed = self.place.metadata().and_then(|m| m.modified());
        Ok(changed.map_err(|e| self.place.failed("inspect", e))?)
    }

    /// Takes the directory's lock on a newly opened file: both processes would hold the lock of one opened before a
    /// fork.
    fn lock(&self) -> Result<File, StoreError> {
        let failed = |e| StoreError::from(self.place.failed("write to", e));
        let file = self.place.keep(LOCK).map_err(failed)?;
        for _ in 0..TRIES.0 {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => std::thread::sleep(TRIES.1),
                Err(TryLockError::Error(e)) => return Err(failed(e)),
            }
        }
        Err(StoreError::Busy { path: self.path().display().to_string() })
    }
}

/// The number of removed files, from the lock file.
fn removed(mut lock: &File) -> u64 {
    let mut text = String::new();
    let read = io::Seek::rewind(&mut lock).and_then(|()| lock.take(20).read_to_string(&mut text));
    read.ok().and_then(|_| text.parse().ok()).unwrap_or(0)
}

/// The user in a file's name; see [`Store::name`]. It comes before the program's name, whatever that is.
fn owner(name: &str) -> TraceOwner {
    let (time, rest) = name.split_once('-')?;
    let (uid, _) = rest.strip_prefix('u').filter(|_| time.ends_with('Z'))?.split_once('-')?;
    uid.parse().ok().filter(|_| uid.bytes().all(|b| b.is_ascii_digit()))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A name that is safe in the directory: characters outside a small alphabet become `_`.
fn cleaned(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name.chars().take(120).map(|c| if plain(c) { c } else { '_' }).collect();
    // Neither hidden nor mistaken for an option by a program.
    if name.starts_with(['.', '-']) { format!("_{name}") } else { name }
}

/// Takes or queries a lock on the complete file (fcntl_locking(2)); Some: another process has it, 0 if that is not
/// visible. Uses the C library: rustix does not expect the holder -1, which is reported for a lock of an open file.
fn record_lock(file: &File, command: libc::c_int) -> io::Result<Option<u32>> {
    // SAFETY: all zeros is a valid value of the struct: the complete file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    // SAFETY: a plain system call with our own struct, on an open descriptor.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == 0 {
        let other = command == libc::F_GETLK && lock.l_type != libc::F_UNLCK as libc::c_short;
        return Ok(other.then(|| u32::try_from(lock.l_pid).unwrap_or(0)));
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(Some(0)),
        e => Err(e),
    }
}

/// A trace being written. No other process removes it until it is dropped.
#[derive(Debug)]
pub struct TraceFile {
    file: File,
    place: Rc<OpenDir>,
    name: String,
    bytes: u64,
    most: u64,
}

impl TraceFile {
    /// Its name in the directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that it can still take; a larger write is refused.
    pub fn left(&self) -> u64 {
        self.most.saturating_sub(self.bytes)
    }

    /// Removes it, as if it had never been.
    ///
    /// # Errors
    /// The system refuses.
    pub fn discard(self) -> io::Result<()> {
        self.place.remove(&self.name)
    }
}

impl Write for TraceFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.len() as u64 > self.left() {
            let why = format!("{} may not exceed {}", self.name, size(self.most));
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let n = self.file.write(buf)?;
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Output for TraceFile {
    fn seekable(&self) -> bool {
        true
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        let end = pos.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Output::write_at(&mut self.file, pos, bytes)
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        // A full disk still has room for names.
        if self.bytes == 0 {
            let _ = self.place.remove(&self.name);
        }
        // Immediately, even if a process forked meanwhile has the file open too.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests;
