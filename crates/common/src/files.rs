//! Files that belong to others: located without being opened (open(2), O_PATH), so that pipes and devices neither
//! notice nor block, and read safely if they shrink meanwhile.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Without O_PATH, the file is opened.
#[cfg(target_os = "linux")]
const LOCATE: i32 = libc::O_PATH;
#[cfg(not(target_os = "linux"))]
const LOCATE: i32 = libc::O_RDONLY;

/// A descriptor that refers to a file without opening it; `flags` are added (`O_NOFOLLOW`, `O_DIRECTORY`).
///
/// Does not use the standard library's `custom_flags`, which drops the bits of the access mode: with musl O_PATH
/// is among them, and the file would be opened.
///
/// # Errors
/// There is no such file, or this user may not access it.
pub fn locate_at(directory: RawFd, path: &Path, flags: i32) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a NUL-terminated string, which the kernel only reads.
    let fd = unsafe { libc::openat(directory, path.as_ptr(), LOCATE | libc::O_CLOEXEC | flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor; nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Like [`locate_at`], from the current directory.
///
/// # Errors
/// Those of [`locate_at`].
pub fn locate(path: &Path, flags: i32) -> io::Result<File> {
    locate_at(libc::AT_FDCWD, path, flags)
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
    use std::os::fd::AsRawFd;

    #[test]
    fn nothing_is_opened() {
        let file = locate(Path::new("/dev/null"), 0).expect("it is there");
        // SAFETY: asks for the flags of an open descriptor.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(
            flags & 0o10_000_000,
            0o10_000_000,
            "O_PATH (include/uapi/asm-generic/fcntl.h): {flags:o}"
        );
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }, libc::FD_CLOEXEC);
        assert_eq!(locate(Path::new("/none"), 0).expect_err("none").kind(), io::ErrorKind::NotFound);
    }
}
