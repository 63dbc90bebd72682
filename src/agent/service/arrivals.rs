//! Processes that begin to run a program or library, for a recording of all of them: those that run it already, then whoever
//! maps it. No file of theirs is read. Uses `facts`, `notice`, `maps` and `recording`.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::facts;
use super::notice::{Notice, Watch};
use crate::agent::maps::FileId;
use crate::agent::recording::{Arrivals, RecordError};

/// Between two looks at all processes where the kernel does not tell who maps what, and after a loss.
const LOOK: Duration = Duration::from_millis(250);
/// Between two looks at which CPUs are on.
const RENEW: Duration = Duration::from_secs(1);

/// Looks for processes that run one file.
pub struct OfFile {
    /// None: the kernel does not tell.
    watch: Option<Watch>,
    file: FileId,
    /// When all processes are looked at next, and the CPUs.
    look: Option<Instant>,
    renew: Instant,
}

impl OfFile {
    /// Begins to look for those of the program or library at this path.
    ///
    /// # Errors
    /// There is no such file.
    pub fn new(path: &Path) -> Result<OfFile, RecordError> {
        let failed = |e: std::io::Error| RecordError::Arrivals(format!("{}: {e}", path.display()));
        let meta = fs::metadata(path).map_err(failed)?;
        let now = Instant::now();
        let watch = Watch::open().ok();
        Ok(OfFile { watch, file: (meta.dev(), meta.ino()), look: Some(now), renew: now + RENEW })
    }

    /// Processes that have the file mapped to be executed. The kernel's list of mappings has another device than stat on some
    /// file systems, so the inode counts.
    fn all(&self) -> Vec<u32> {
        let runs = |&pid: &u32| {
            let mut found = false;
            facts::images(pid, &mut |m| found |= m.inode == self.file.1);
            found
        };
        facts::processes().into_iter().filter(runs).collect()
    }

    /// Waits until the kernel has something to tell.
    fn pause(&self, most: Duration) {
        let fd = |fd: std::os::fd::BorrowedFd<'_>| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds: Vec<libc::pollfd> = self.watch.iter().flat_map(Watch::fds).map(fd).collect();
        let ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: as many entries as said, all open; an interruption leaves nothing to be done.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
    }
}

impl Arrivals for OfFile {
    fn wait(&mut self, most: Duration) -> Vec<u32> {
        self.pause(most);
        let (mut come, mut lost) = (Vec::new(), self.watch.is_none());
        let inode = self.file.1;
        if let Some(watch) = &mut self.watch {
            for place in 0..watch.cpus() {
                watch.read(place, &mut |notice| match notice {
                    Notice::Mapped { pid, mapping, .. } if mapping.inode == inode => come.push(pid),
                    Notice::Lost(_) => lost = true,
                    Notice::Mapped { .. } | Notice::Exec { .. } => {}
                });
            }
            if self.renew <= Instant::now() {
                self.renew = Instant::now() + RENEW;
                // Half the machine is worse than all of it a little later.
                match watch.renew() {
                    Ok(gap) => lost |= gap,
                    Err(_) => self.watch = None,
                }
            }
        }
        if lost {
            self.look.get_or_insert_with(|| Instant::now() + LOOK);
        }
        if self.look.take_if(|at| *at <= Instant::now()).is_some() {
            come.extend(self.all());
        }
        come
    }
}
