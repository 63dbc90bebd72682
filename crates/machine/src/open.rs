//! Opening files that others have named or may replace at any time.
//!
//! A file is first located by a descriptor that does not open it, so that a pipe or device neither notices nor blocks.
//! The file type is checked on that descriptor, and the same descriptor is then opened: no name is looked up twice.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};

use rustix::fs::OFlags;

use common::files;

/// A descriptor that refers to a file without opening it; links are followed.
///
/// # Errors
/// There is no such file, or this user may not access its path.
pub fn located(path: &Path) -> io::Result<File> {
    files::locate(path, OFlags::empty())
}

/// The same under a directory that serves as root. Resolves one component at a time and follows no links: the
/// kernel's paths of mapped files contain none, so a link was put there later.
///
/// # Errors
/// There is no such file, a link is on the way, or this user may not access its path.
pub fn within(root: &File, path: &Path) -> io::Result<File> {
    let mut at: Option<File> = None;
    for part in path.components() {
        let name = match part {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => Path::new(name),
            Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let next = files::locate_at(at.as_ref().unwrap_or(root).as_fd(), name, OFlags::NOFOLLOW)?;
        at = Some(next);
    }
    at.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Opens a located file for reading, if it is a regular file.
///
/// # Errors
/// It is not a regular file ([`io::ErrorKind::InvalidInput`]), or this user may not read it.
pub fn reopened(located: &File) -> io::Result<File> {
    if !located.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    // Without blocking: another process may hold a lease on the file.
    let path = format!("/proc/self/fd/{}", located.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// Opens a regular file for reading.
///
/// # Errors
/// As for [`located`] and [`reopened`].
pub fn regular(path: &Path) -> io::Result<File> {
    reopened(&located(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn pipe(path: &Path) {
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a string that ends in zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, fifo) = (dir.path().join("file"), dir.path().join("fifo"));
        std::fs::write(&file, "text").expect("written");
        pipe(&fifo);
        assert!(regular(&file).is_ok());
        for path in [fifo.as_path(), dir.path(), Path::new("/dev/null")] {
            let refused = regular(path).expect_err("no regular file");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        assert_eq!(regular(&dir.path().join("none")).expect_err("none").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_link_leads_nowhere_within_a_root() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = located(dir.path()).expect("a directory");
        let below = dir.path().join("below");
        std::fs::create_dir(&below).expect("made");
        std::fs::write(below.join("file"), "text").expect("written");
        symlink("/etc", dir.path().join("etc")).expect("a link");
        symlink("below/file", dir.path().join("link")).expect("a link");
        let found = within(&root, Path::new("/below/file")).expect("there");
        let same = std::fs::metadata(below.join("file")).expect("there");
        assert_eq!(found.metadata().expect("there").ino(), same.ino());
        assert!(within(&root, Path::new("/etc/passwd")).is_err());
        assert!(within(&root, Path::new("/below/../below/file")).is_err());
        assert!(within(&root, Path::new("/")).is_err());
        // The link itself is found, but is not a readable file.
        assert!(within(&root, Path::new("/link")).and_then(|link| reopened(&link)).is_err());
    }
}
