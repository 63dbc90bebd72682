//! Whether a file that a process has mapped is the base of a GGML engine.
//!
//! The mapped file counts, not what its path leads to by now. It is reached through the process's own root without
//! following links, then through the mapping itself, then as the process's program, and it is only opened once it
//! has proved to be a regular file with the right inode. An answer is kept with the file's size and change time, so
//! that a file is read once as long as nobody writes to it. Each user has a share of the answers: a user with very
//! many files loses their own.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::symbols;
use common::files;
use engine::discover::BASE;
use machine::capset;
use machine::maps::{FileId, Mapping};
use machine::proc;

/// Maximum files with kept answers: enough for a complete desktop session.
const MAX_FILES: usize = 2048;

/// Device and inode, as in the kernel's lists of mappings.
pub type MappingKey = (u32, u32, u64);

/// The mapped file.
fn key(m: &Mapping) -> MappingKey {
    (m.major, m.minor, m.inode)
}

/// A file's identity and the state of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileStamp {
    /// From `stat`; mappings do not always have the same (overlay, btrfs).
    id: FileId,
    size: u64,
    /// ctime, which nobody can set back: seconds and ns.
    changed: (i64, i64),
}

impl FileStamp {
    fn of(meta: &Metadata) -> FileStamp {
        FileStamp {
            id: (meta.dev(), meta.ino()),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// The file that a path leads to from here, if the kernel has it in memory: asks no file system and does not
    /// block. None also if the kernel does not support this (before 5.12).
    fn at_once(path: &Path) -> Option<FileStamp> {
        let flags = LOCATE | OFlags::NOFOLLOW;
        let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?.into();
        let stat = proc::status_at_once(&file)?;
        Some(FileStamp {
            id: (libc::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino),
            size: stat.stx_size,
            changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec.into()),
        })
    }
}

/// What was found about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecognisedFile {
    key: MappingKey,
    mark: FileStamp,
    base: bool,
    /// The user for whom it was examined first.
    user: u32,
}

struct CachedFile {
    answer: RecognisedFile,
    /// Round in which it was last used.
    used: u64,
}

/// Answers, with each file read once.
#[derive(Default)]
pub struct Recogniser {
    /// Sorted by key.
    table: Vec<CachedFile>,
    round: u64,
    /// Files read, and bytes read from them.
    pub read: u64,
    pub bytes: u64,
    /// Files that were too large to examine.
    pub large: u64,
    /// New answers.
    pub news: Vec<RecognisedFile>,
}

impl Recogniser {
    /// Begins a new round: files examined in earlier rounds may have changed.
    pub fn next_round(&mut self) {
        self.round += 1;
    }

    fn entry(&mut self, key: MappingKey) -> Option<&mut CachedFile> {
        let at = self.table.binary_search_by(|e| e.answer.key.cmp(&key)).ok()?;
        self.table.get_mut(at)
    }

    /// The known answer, if it needs no access to the file system; inside, the file's identity if it is the base of
    /// an engine.
    pub fn at_hand(&mut self, m: &Mapping) -> Option<Option<FileId>> {
        self.known(m, &FileStamp::at_once)
    }

    fn known(&mut self, m: &Mapping, mark: &dyn Fn(&Path) -> Option<FileStamp>) -> Option<Option<FileId>> {
        let round = self.round;
        let entry = self.entry(key(m))?;
        // Most paths lead to the same file from here, whatever the process's root.
        if entry.used != round && (m.deleted || mark(&m.path) != Some(entry.answer.mark)) {
            return None;
        }
        entry.used = round;
        Some(entry.answer.base.then_some(entry.answer.mark.id))
    }

    /// The file's identity, if it is the base of an engine; examined for this user. May block on the file system.
    ///
    /// # Errors
    /// The process or its mapping is gone, or we may not read it, or not now (`WouldBlock`).
    pub fn base(&mut self, pid: u32, m: &Mapping, user: u32) -> io::Result<Option<FileId>> {
        let stat = |path: &Path| std::fs::symlink_metadata(path).ok().map(|meta| FileStamp::of(&meta));
        if let Some(known) = self.known(m, &stat) {
            return Ok(known);
        }
        let (file, mark) = reach(pid, m)?;
        let (key, round) = (key(m), self.round);
        if let Some(entry) = self.entry(key).filter(|e| e.answer.mark == mark) {
            entry.used = round;
            return Ok(entry.answer.base.then_some(mark.id));
        }
        self.read += 1;
        let base = match symbols::defines(&reopen(&file)?, &BASE, &mut self.bytes) {
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                self.large += 1;
                false
            }
            base => base?,
        };
        let answer = RecognisedFile { key, mark, base, user };
        self.news.push(answer);
        self.learn(answer);
        Ok(base.then_some(mark.id))
    }

    /// Stores an answer.
    pub fn learn(&mut self, answer: RecognisedFile) {
        if self.table.len() >= MAX_FILES {
            self.make_room();
        }
        let entry = CachedFile { answer, used: self.round };
        match self.table.binary_search_by(|e| e.answer.key.cmp(&answer.key)) {
            Ok(at) => self.table[at] = entry,
            Err(at) => self.table.insert(at, entry),
        }
    }

    /// Removes the least recently used answers of the user with the most.
    fn make_room(&mut self) {
        let mut users: Vec<u32> = self.table.iter().map(|e| e.answer.user).collect();
        users.sort_unstable();
        let most = users.chunk_by(|a, b| a == b).max_by_key(|of| of.len());
        let Some((user, many)) = most.and_then(|of| Some((*of.first()?, of.len()))) else { return };
        let mut used: Vec<u64> =
            self.table.iter().filter(|e| e.answer.user == user).map(|e| e.used).collect();
        used.sort_unstable();
        let (limit, mut left) = (used.get(many / 2).copied().unwrap_or_default(), many / 2 + 1);
        self.table.retain(|e| {
            let goes = left > 0 && e.answer.user == user && e.used <= limit;
            left -= usize::from(goes);
            !goes
        });
    }
}

/// Locates the mapped file without opening it.
fn reach(pid: u32, m: &Mapping) -> io::Result<(File, FileStamp)> {
    let mut denied = None;
    let mut attempt = |located: io::Result<File>, exact: bool| {
        let regular = located.and_then(|file| {
            let meta = file.metadata()?;
            let same = meta.is_file() && (exact || meta.ino() == m.inode);
            same.then(|| (file, FileStamp::of(&meta))).ok_or_else(|| io::ErrorKind::NotFound.into())
        });
        match regular {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => denied = Some(e),
            Err(_) => {}
            Ok(found) => return Some(found),
        }
        None
    };
    let proc = |name: &str| files::locate(Path::new(&format!("/proc/{pid}/{name}")), OFlags::empty());
    // By path this may be another file that has taken the name; by mapping the kernel gives no other.
    let by_path = || locate_within(&proc("root")?, &m.path);
    let found = (!m.deleted && !m.path.as_os_str().is_empty()).then(|| attempt(by_path(), false)).flatten();
    let found = found
        .or_else(|| {
            // Needs CAP_SYS_ADMIN (or CAP_CHECKPOINT_RESTORE), otherwise it is not available.
            let _all = capset::raised();
            attempt(proc(&format!("map_files/{:x}-{:x}", m.start, m.end)), true)
        })
        .or_else(|| attempt(proc("exe"), false));
    found.ok_or_else(|| denied.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// To find a file without opening it.
const LOCATE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The same below a directory used as root, following no links: the kernel's paths contain none.
fn locate_within(root: &File, path: &Path) -> io::Result<File> {
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    match openat2(root, path, LOCATE, Mode::empty(), how) {
        // Some emulators and sandboxes do without this call.
        Err(Errno::NOSYS) => walk_within(root, path),
        found => Ok(found?.into()),
    }
}

/// The same, directory by directory. If the last name is that of a link, it is the link itself.
fn walk_within(root: &File, path: &Path) -> io::Result<File> {
    let mut at = root.try_clone()?;
    for part in path.components() {
        match part {
            Component::RootDir => {}
            Component::Normal(name) => at = files::locate_at(at.as_fd(), name.as_ref(), OFlags::NOFOLLOW)?,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(at)
}

/// Opens the located file for reading, and no other. Does not wait for the holder of a lease on it (`WouldBlock`).
fn reopen(located: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", located.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::maps;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    /// A mapping as if this process had the file mapped.
    fn mapping(path: &Path) -> Mapping {
        let meta = std::fs::metadata(path).expect("a file");
        Mapping {
            start: 0,
            end: 0,
            offset: 0,
            executable: true,
            major: 0,
            minor: 0,
            inode: meta.ino(),
            path: path.to_owned(),
            deleted: false,
        }
    }

    const US: fn() -> u32 = std::process::id;

    const USER: u32 = 1000;

    #[test]
    fn a_file_is_read_once_until_it_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().canonicalize().expect("real").join("lib.so");
        std::fs::write(&path, "no engine").expect("written");
        let m = mapping(&path);
        let mut files = Recogniser::default();
        assert_eq!(files.at_hand(&m), None);
        for read in [1, 1, 1] {
            files.next_round();
            assert_eq!(files.base(US(), &m, USER).expect("looked at"), None);
            assert_eq!(files.read, read);
            assert_eq!(files.at_hand(&m), Some(None));
        }
        std::fs::write(&path, "another text").expect("written");
        files.next_round();
        assert_eq!(files.at_hand(&m), None);
        assert_eq!(files.base(US(), &m, USER).expect("looked at"), None);
        assert_eq!(files.read, 2);
        // A recogniser that gets the answer need not examine the file.
        let mut other = Recogniser::default();
        std::mem::take(&mut files.news).into_iter().for_each(|answer| other.learn(answer));
        other.next_round();
        // If the kernel can resolve the path without blocking; otherwise the file system is asked.
        assert!(other.at_hand(&m) == Some(None) || FileStamp::at_once(&path).is_none());
        assert_eq!((other.base(US(), &m, USER).expect("looked at"), other.read), (None, 0));
    }

    #[test]
    fn a_mark_is_the_same_either_way() {
        let path = std::env::current_exe().expect("a program");
        let meta = std::fs::metadata(&path).expect("a file");
        if let Some(mark) = FileStamp::at_once(&path) {
            assert_eq!(mark, FileStamp::of(&meta));
        }
        assert_eq!(FileStamp::at_once(Path::new("/nowhere/at/all")), None);
    }

    #[test]
    fn neither_links_nor_pipes_nor_other_files_are_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().canonicalize().expect("real");
        let (real, link, pipe) = (dir.join("real"), dir.join("link"), dir.join("pipe"));
        std::fs::write(&real, "x").expect("written");
        symlink(&real, &link).expect("a link");
        let name = CString::new(pipe.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a NUL-terminated string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let mut files = Recogniser::default();
        for path in [&link, &pipe] {
            assert!(files.base(US(), &mapping(path), USER).is_err(), "{}", path.display());
        }
        let other = Mapping { inode: mapping(&real).inode + 1, ..mapping(&real) };
        assert!(files.base(US(), &other, USER).is_err());
        assert!(files.base(u32::MAX, &mapping(&real), USER).is_err());
        assert_eq!(files.read, 0);
    }

    #[test]
    fn without_openat2_a_file_is_reached_step_by_step() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().canonicalize().expect("real");
        std::fs::create_dir(dir.join("real")).expect("made");
        std::fs::write(dir.join("real/file"), "x").expect("written");
        symlink(dir.join("real"), dir.join("link")).expect("a link");
        let root = files::locate(&dir, OFlags::empty()).expect("a directory");
        let reached = |path: &str| walk_within(&root, Path::new(path)).and_then(|file| file.metadata());
        let real = std::fs::metadata(dir.join("real/file")).expect("a file").ino();
        for path in ["/real/file", "real/./file", "real//file"] {
            assert_eq!(reached(path).expect("reached").ino(), real, "{path}");
        }
        assert!(reached("/link").expect("the link itself").is_symlink());
        for path in ["/link/file", "/real/../real/file", "/nothing", "/real/file/x"] {
            assert!(reached(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_program_without_a_path_is_its_process_s() {
        let maps = maps::read(US()).expect("our own");
        let exe = std::fs::metadata("/proc/self/exe").expect("a program");
        let own = maps.iter().find(|m| m.executable && m.inode == exe.ino()).expect("it is mapped");
        let nameless = Mapping { deleted: true, start: 1, end: 2, ..own.clone() };
        let mut files = Recogniser::default();
        assert!(files.base(US(), &nameless, USER).is_ok());
        assert_eq!(files.read, 1);
    }

    fn answer(user: u32, inode: u64) -> RecognisedFile {
        let mark = FileStamp { id: (1, 1), size: 1, changed: (0, 0) };
        RecognisedFile { key: (8, 1, inode), mark, base: false, user }
    }

    #[test]
    fn the_table_stays_small() {
        let mut files = Recogniser::default();
        for inode in 0..3 * MAX_FILES as u64 {
            files.next_round();
            files.learn(answer(USER, inode));
            assert!(files.table.len() <= MAX_FILES);
        }
        assert!(files.entry((8, 1, 3 * MAX_FILES as u64 - 1)).is_some());
        assert!(files.entry((8, 1, 2 * MAX_FILES as u64)).is_none(), "the oldest go");
        // All in one round.
        let mut files = Recogniser::default();
        (0..=MAX_FILES as u64).for_each(|inode| files.learn(answer(USER, inode)));
        assert!(files.table.len() <= MAX_FILES && files.entry((8, 1, MAX_FILES as u64)).is_some());
    }

    #[test]
    fn a_user_with_very_many_files_loses_his_own() {
        let mut files = Recogniser::default();
        (0..300).for_each(|inode| files.learn(answer(0, inode)));
        for inode in 1000..1000 + 5 * MAX_FILES as u64 {
            files.next_round();
            files.learn(answer(USER, inode));
        }
        assert!((0..300).all(|inode| files.entry((8, 1, inode)).is_some()));
    }
}
