//! Files that belong to others: located without being opened (open(2), O_PATH), so that pipes and devices neither
//! notice nor block, and read safely if they shrink meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

/// Without O_PATH, the file is opened.
#[cfg(target_os = "linux")]
const LOCATE: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const LOCATE: OFlags = OFlags::RDONLY;

/// A descriptor that refers to a file without opening it; `flags` are added (`NOFOLLOW`, `DIRECTORY`).
///
/// Does not use the standard library's `custom_flags`, which drops the bits of the access mode: with musl O_PATH
/// is among them, and the file would be opened.
///
/// # Errors
/// There is no such file, or this user may not access it.
pub fn locate_at(directory: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<File> {
    Ok(rustix::fs::openat(directory, path, LOCATE | OFlags::CLOEXEC | flags, Mode::empty())?.into())
}

/// Like [`locate_at`], from the current directory.
///
/// # Errors
/// Those of [`locate_at`].
pub fn locate(path: &Path, flags: OFlags) -> io::Result<File> {
    locate_at(CWD, path, flags)
}

/// Reads from `at` until the buffer is full or the file ends; returns the number of bytes read.
///
/// # Errors
/// Those of pread(2).
pub fn read_up_to(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::fs::fcntl_getfl;
    use rustix::io::{FdFlags, fcntl_getfd};

    #[test]
    fn nothing_is_opened() {
        let file = locate(Path::new("/dev/null"), OFlags::empty()).expect("it is there");
        let flags = fcntl_getfl(&file).expect("open").bits();
        assert_eq!(
            flags & 0o10_000_000,
            0o10_000_000,
            "O_PATH (include/uapi/asm-generic/fcntl.h): {flags:o}"
        );
        assert_eq!(fcntl_getfd(&file).expect("open"), FdFlags::CLOEXEC);
        assert_eq!(
            locate(Path::new("/none"), OFlags::empty()).expect_err("none").kind(),
            io::ErrorKind::NotFound
        );
    }
}
