//! Processes that begin to run a program or library, for a recording of all of them: those that run it already, then whoever
//! maps it. No file of theirs is read. Uses `facts`, `notice`, `maps`, `recording` and `search`.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::facts;
use super::notice::{Notice, Watch};
use crate::agent::budget::Budget;
use crate::agent::maps::{FileId, Mapping};
use crate::agent::recording::{Arrivals, RecordError};
use crate::agent::{capset, open, search};

/// Between two looks at all processes where the kernel does not tell who maps what, and after a loss.
const LOOK: Duration = Duration::from_millis(250);
/// Between two looks at which CPUs are on.
const RENEW: Duration = Duration::from_secs(1);

/// Looks for processes that run one file, or one of a directory's.
pub struct OfFile {
    /// None: the kernel does not tell.
    watch: Option<Watch>,
    files: Files,
    /// Processes that have begun another program.
    changed: Vec<u32>,
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
        let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let meta = fs::metadata(path).map_err(failed)?;
        let ids = match meta.is_dir() {
            true => {
                let all = search::below(path, &Budget::default());
                all.iter().filter_map(|file| fs::metadata(file).ok()).map(id).collect()
            }
            false => vec![id(meta)],
        };
        let now = Instant::now();
        let watch = Watch::open().ok();
        Ok(OfFile { watch, files: Files(ids), changed: Vec::new(), look: Some(now), renew: now + RENEW })
    }

    /// Processes that have a file mapped to be executed.
    fn all(&self) -> Vec<u32> {
        facts::processes().into_iter().filter(|&pid| self.runs(pid)).collect()
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
        let files = &self.files;
        if let Some(watch) = &mut self.watch {
            for place in 0..watch.cpus() {
                watch.read(place, &mut |notice| match notice {
                    Notice::Mapped { pid, mapping, .. } if files.have(pid, &mapping) => come.push(pid),
                    Notice::Lost(_) => lost = true,
                    Notice::Exec { pid, .. } => self.changed.push(pid),
                    Notice::Mapped { .. } => {}
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

    fn changed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.changed)
    }

    fn runs(&self, pid: u32) -> bool {
        let mut found = false;
        facts::images(pid, &mut |m| found = found || self.files.have(pid, &m));
        found
    }
}

/// The files that are looked for.
struct Files(Vec<FileId>);

impl Files {
    /// Whether a process has mapped one of them.
    ///
    /// The inode alone is another file's on another file system. The kernel's list of mappings has another device than stat on
    /// some of them (overlay, btrfs), and then the mapped file itself is asked, which it is in the process only as long as it
    /// runs: of one that is gone, or that we may not look at, nothing could be recorded.
    fn have(&self, pid: u32, m: &Mapping) -> bool {
        let alike = |id: &FileId| id.1 == m.inode;
        if !self.0.iter().any(alike) {
            return false;
        }
        let device = libc::makedev(m.major, m.minor);
        self.0.contains(&(device, m.inode)) || mapped(pid, m).is_some_and(|id| self.0.contains(&id))
    }
}

/// What stat says of the mapped file. It is located, not opened.
fn mapped(pid: u32, m: &Mapping) -> Option<FileId> {
    let _all = capset::raised();
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", m.start, m.end);
    let meta = open::located(Path::new(&path)).ok()?.metadata().ok()?;
    Some((meta.dev(), meta.ino()))
}
