//! Whether a file that a process has mapped is the base of a GGML engine. Uses `capset`, `discover` (names),
//! `maps` and `symbols`.
//!
//! The mapped file counts, not what its path leads to by now: it is reached through the process's own root, following no
//! link, then through the mapping itself, then as the process's program, and it is not opened before it has shown to be
//! a regular file of the right inode. An answer is kept with the file's size and time of change, so that a file is read
//! once as long as nobody writes it.

use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::symbols;
use crate::agent::capset;
use crate::agent::discover::BASE;
use crate::agent::maps::{FileId, Mapping};

/// Most files whose answers are kept: those of a desktop's whole session.
const MAX_FILES: usize = 2048;

/// Device and inode, as the kernel's lists of mappings have them.
type Key = (u32, u32, u64);

/// A file's identity and the state of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// As `stat` has it, which is not always how mappings do (overlay, btrfs).
    id: FileId,
    size: u64,
    /// Of status, which nobody can set back: seconds and ns.
    changed: (i64, i64),
}

impl Mark {
    fn of(meta: &Metadata) -> Mark {
        Mark { id: (meta.dev(), meta.ino()), size: meta.size(), changed: (meta.ctime(), meta.ctime_nsec()) }
    }
}

struct Entry {
    key: Key,
    mark: Mark,
    base: bool,
    /// Round in which it was last asked for.
    used: u64,
}

/// Answers, each file read once.
#[derive(Default)]
pub struct Recogniser {
    /// Ascending by key.
    table: Vec<Entry>,
    round: u64,
    /// Files read.
    pub read: u64,
}

impl Recogniser {
    /// A new round of questions begins: what was looked at in earlier ones may have changed.
    pub fn next_round(&mut self) {
        self.round += 1;
    }

    /// The file's identity, if it is the base of an engine.
    ///
    /// # Errors
    /// The process or its mapping is gone, or we may not look at it.
    pub fn base(&mut self, pid: u32, m: &Mapping) -> io::Result<Option<FileId>> {
        let key = (m.major, m.minor, m.inode);
        let place = self.table.binary_search_by(|e| e.key.cmp(&key));
        if let Some(entry) = place.ok().and_then(|at| self.table.get_mut(at)) {
            // Most paths lead to the same file from here, whatever the process's root is; one system call tells.
            let here =
                || !m.deleted && std::fs::symlink_metadata(&m.path).is_ok_and(|s| Mark::of(&s) == entry.mark);
            if entry.used == self.round || here() {
                entry.used = self.round;
                return Ok(entry.base.then_some(entry.mark.id));
            }
        }
        let (file, mark) = reach(pid, m)?;
        let base = match place.ok().and_then(|at| self.table.get(at)).filter(|e| e.mark == mark) {
            Some(entry) => entry.base,
            None => {
                self.read += 1;
                symbols::defines(&reopen(&file)?, &BASE)?
            }
        };
        self.keep(Entry { key, mark, base, used: self.round });
        Ok(base.then_some(mark.id))
    }

    fn keep(&mut self, entry: Entry) {
        if self.table.len() >= MAX_FILES {
            // Those not asked for in longer than the others.
            let mean = self.table.iter().map(|e| e.used).sum::<u64>() / self.table.len() as u64;
            self.table.retain(|e| e.used > mean);
        }
        match self.table.binary_search_by(|e| e.key.cmp(&entry.key)) {
            Ok(at) => self.table[at] = entry,
            Err(at) => self.table.insert(at, entry),
        }
    }
}

/// The mapped file, located but not opened.
fn reach(pid: u32, m: &Mapping) -> io::Result<(File, Mark)> {
    let mut denied = None;
    let mut attempt = |located: io::Result<File>, exact: bool| {
        let regular = located.and_then(|file| {
            let meta = file.metadata()?;
            let same = meta.is_file() && (exact || meta.ino() == m.inode);
            same.then(|| (file, Mark::of(&meta))).ok_or_else(|| io::ErrorKind::NotFound.into())
        });
        match regular {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => denied = Some(e),
            Err(_) => {}
            Ok(found) => return Some(found),
        }
        None
    };
    let proc = |name: &str| locate(Path::new(&format!("/proc/{pid}/{name}")), 0);
    // Here the file may be another that has taken the path; of a mapping the kernel gives no other.
    let by_path = || locate_within(&proc("root")?, &m.path);
    let found = (!m.deleted && !m.path.as_os_str().is_empty()).then(|| attempt(by_path(), false)).flatten();
    let found = found
        .or_else(|| {
            // CAP_SYS_ADMIN, or none of it (CAP_CHECKPOINT_RESTORE would do as well).
            let _all = capset::raised();
            attempt(proc(&format!("map_files/{:x}-{:x}", m.start, m.end)), true)
        })
        .or_else(|| attempt(proc("exe"), false));
    found.ok_or_else(|| denied.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// A descriptor that stands for a file without opening it: no device or pipe notices.
fn locate(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | flags).open(path)
}

/// The same below a directory that stands for a root, following no link on the way: the kernel's paths have none.
fn locate_within(root: &File, path: &Path) -> io::Result<File> {
    const IN_ROOT: u64 = 0x10;
    const NO_SYMLINKS: u64 = 0x04;
    let path = CString::new(path.as_os_str().as_bytes())?;
    // struct open_how: flags, mode, how to resolve.
    let how = [(libc::O_PATH | libc::O_CLOEXEC) as u64, 0, IN_ROOT | NO_SYMLINKS];
    // SAFETY: a string that ends in zero and a block of the size that is said; the kernel only reads them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_fd().as_raw_fd(),
            path.as_ptr(),
            how.as_ptr(),
            size_of_val(&how),
        )
    };
    match i32::try_from(fd) {
        // SAFETY: a descriptor that the kernel has just made for us; nobody else has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens for reading what was located, and nothing else.
fn reopen(located: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", located.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::maps;
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

    #[test]
    fn a_file_is_read_once_until_it_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().canonicalize().expect("real").join("lib.so");
        std::fs::write(&path, "no engine").expect("written");
        let m = mapping(&path);
        let mut files = Recogniser::default();
        for read in [1, 1, 1] {
            files.next_round();
            assert_eq!(files.base(US(), &m).expect("looked at"), None);
            assert_eq!(files.read, read);
        }
        std::fs::write(&path, "another text").expect("written");
        files.next_round();
        assert_eq!(files.base(US(), &m).expect("looked at"), None);
        assert_eq!(files.read, 2);
    }

    #[test]
    fn neither_links_nor_pipes_nor_other_files_are_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().canonicalize().expect("real");
        let (real, link, pipe) = (dir.join("real"), dir.join("link"), dir.join("pipe"));
        std::fs::write(&real, "x").expect("written");
        symlink(&real, &link).expect("a link");
        let name = CString::new(pipe.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a string that ends in zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let mut files = Recogniser::default();
        for path in [&link, &pipe] {
            assert!(files.base(US(), &mapping(path)).is_err(), "{}", path.display());
        }
        let other = Mapping { inode: mapping(&real).inode + 1, ..mapping(&real) };
        assert!(files.base(US(), &other).is_err());
        assert!(files.base(u32::MAX, &mapping(&real)).is_err());
        assert_eq!(files.read, 0);
    }

    #[test]
    fn a_program_without_a_path_is_its_process_s() {
        let maps = maps::read(US()).expect("our own");
        let exe = std::fs::metadata("/proc/self/exe").expect("a program");
        let own = maps.iter().find(|m| m.executable && m.inode == exe.ino()).expect("it is mapped");
        let nameless = Mapping { deleted: true, start: 1, end: 2, ..own.clone() };
        let mut files = Recogniser::default();
        assert!(files.base(US(), &nameless).is_ok());
        assert_eq!(files.read, 1);
    }

    #[test]
    fn the_table_stays_small() {
        let mut files = Recogniser::default();
        let mark = Mark { id: (1, 1), size: 1, changed: (0, 0) };
        for inode in 0..3 * MAX_FILES as u64 {
            files.next_round();
            files.keep(Entry { key: (8, 1, inode), mark, base: false, used: files.round });
            assert!(files.table.len() <= MAX_FILES);
        }
        assert!(files.table.iter().any(|e| e.key.2 == 3 * MAX_FILES as u64 - 1));
        // All of one round: all go, but for the new one.
        let mut files = Recogniser::default();
        for inode in 0..=MAX_FILES as u64 {
            files.keep(Entry { key: (8, 1, inode), mark, base: false, used: 1 });
        }
        assert_eq!(files.table.len(), 1);
    }
}
