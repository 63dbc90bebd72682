//! A lock on one byte of a file, of an open file description (fcntl(2), `F_OFD_SETLK`, Linux 3.15): processes in all namespaces
//! see it, and it ends with the last descriptor, however its holders end.

use std::os::fd::RawFd;

/// The byte, which the file need not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteLock(libc::off_t);

impl ByteLock {
    pub const fn new(at: libc::off_t) -> ByteLock {
        ByteLock(at)
    }

    /// Takes it, shared, as long as the file is open; true if that was possible. Makes system calls only.
    pub fn take(self, file: RawFd) -> bool {
        self.call(file, libc::F_OFD_SETLK, libc::F_RDLCK).is_some()
    }

    /// Whether somebody holds it, through another open file; `None` if that cannot be told.
    pub fn held(self, file: RawFd) -> Option<bool> {
        Some(self.call(file, libc::F_OFD_GETLK, libc::F_WRLCK)? != libc::F_UNLCK)
    }

    /// The kind of lock that the kernel answers with.
    fn call(self, file: RawFd, what: libc::c_int, kind: libc::c_int) -> Option<libc::c_int> {
        // SAFETY: zeros are a valid flock.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_whence) = (kind as _, libc::SEEK_SET as _);
        (lock.l_start, lock.l_len) = (self.0, 1);
        // SAFETY: the kernel reads and writes one flock; a number that is no descriptor is refused.
        let done = unsafe { libc::fcntl(file, what, &raw mut lock) };
        (done == 0).then(|| lock.l_type.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_byte_is_held_as_long_as_any_copy_of_the_descriptor_is_open() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || File::open(file.path()).expect("opened");
        let (holder, asker, last) = (open(), open(), ByteLock::new((1 << 60) - 1));
        let held = |at: ByteLock| at.held(asker.as_raw_fd());
        assert_eq!(held(last), Some(false));
        assert!(last.take(holder.as_raw_fd()) && last.take(open().as_raw_fd()), "it is shared");
        assert_eq!((held(last), held(ByteLock::new(7))), (Some(true), Some(false)));
        let copy = holder.try_clone().expect("a copy");
        drop(holder);
        assert_eq!(held(last), Some(true), "as a forked process has it");
        drop(copy);
        assert_eq!(held(last), Some(false));
        assert_eq!(last.held(-1), None);
    }
}
