//! A group of processes with limited memory.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup with limited memory; removed when dropped.
pub struct Cage(PathBuf);

impl Cage {
    pub fn new(bytes: u64) -> Result<Cage, String> {
        let root = PathBuf::from("/sys/fs/cgroup");
        let old = root.join("memory");
        let (dir, limit) = if old.join("memory.limit_in_bytes").exists() {
            (old, "memory.limit_in_bytes")
        } else {
            (root, "memory.max")
        };
        let cage = Cage(dir.join(format!("profinfer-test-{}", std::process::id())));
        let made = fs::create_dir(&cage.0).and_then(|()| fs::write(cage.0.join(limit), bytes.to_string()));
        made.map_err(|e| format!("no cgroup with a limit of memory: {e}")).map(|()| cage)
    }

    /// The command will run in it.
    pub fn holds(&self, command: &mut Command) {
        let list = self.0.join("cgroup.procs");
        let mut entry = File::options().write(true).open(list).expect("its list of processes");
        // SAFETY: between fork and exec only one write to a descriptor; 0 is the writer itself.
        unsafe { command.pre_exec(move || entry.write_all(b"0")) };
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Has the kernel forget a file of at least this size.
pub fn forget(path: &Path, least: u64) {
    let file = File::open(path).expect("the model");
    assert!(file.metadata().expect("its size").len() > least);
    file.sync_all().expect("written");
    // SAFETY: advice on an open descriptor.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}
