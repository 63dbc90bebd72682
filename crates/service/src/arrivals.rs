//! Processes that begin to run a program or library, for a recording of all of them: first those that run it
//! already, then any that map it. None of their files is read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use agent::capture::error::RecordError;
use agent::recorder::recording::Arrivals;
use engine::search;
use inspector::notice::{ProcessEvent, ProcessWatch};
use machine::budget::Budget;
use machine::maps::{FileId, Mapping};
use machine::proc;
use machine::{capset, open, ready};

/// Interval between scans of all processes where the kernel does not report mappings, and delay after a loss.
const LOOK: Duration = Duration::from_millis(250);
/// Interval between checks for CPUs that came online.
const RENEW: Duration = Duration::from_secs(1);

/// Looks for processes that run one file, or any file of a directory.
pub struct OfFile {
    /// None: the kernel does not report mappings.
    watch: Option<ProcessWatch>,
    files: WantedFiles,
    /// Processes that have started another program.
    changed: Vec<u32>,
    /// Time of the next scan of all processes, and of the next check of the CPUs.
    look: Option<Instant>,
    renew: Instant,
}

impl OfFile {
    /// Begins to look for processes that run the program or library at this path.
    ///
    /// # Errors
    /// There is no such file.
    pub fn new(path: &Path) -> Result<OfFile, RecordError> {
        let failed = |source| RecordError::Arrivals { path: path.to_owned(), source };
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
        let watch = ProcessWatch::open().ok();
        Ok(OfFile {
            watch,
            files: WantedFiles(ids),
            changed: Vec::new(),
            look: Some(now),
            renew: now + RENEW,
        })
    }

    /// Processes that have one of the files mapped executable.
    fn all(&self) -> Vec<u32> {
        proc::processes().into_iter().filter(|&pid| self.runs(pid)).collect()
    }

    /// Waits until the kernel has something to report.
    fn pause(&self, most: Duration) {
        let fds = self.watch.iter().flat_map(ProcessWatch::fds);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        ready::wait(&mut fds, most);
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
                    ProcessEvent::Mapped { pid, mapping, .. } if files.have(pid, &mapping) => come.push(pid),
                    ProcessEvent::Lost(_) => lost = true,
                    ProcessEvent::Exec { pid, .. } => self.changed.push(pid),
                    ProcessEvent::Mapped { .. } => {}
                });
            }
            if self.renew <= Instant::now() {
                self.renew = Instant::now() + RENEW;
                // Watching only some CPUs is worse than scanning all processes a little later.
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
        proc::images(pid, &mut |m| found = found || self.files.have(pid, &m));
        found
    }
}

/// The wanted files.
struct WantedFiles(Vec<FileId>);

impl WantedFiles {
    /// Whether a process has mapped one of them.
    ///
    /// An inode alone may belong to another file on another file system. On some (overlay, btrfs) the kernel's list
    /// of mappings has a different device than stat. Then the mapped file itself is checked, which works only while
    /// the process lives: a process that is gone, or that we may not inspect, could not be recorded anyway.
    fn have(&self, pid: u32, m: &Mapping) -> bool {
        let alike = |id: &FileId| id.1 == m.inode;
        if !self.0.iter().any(alike) {
            return false;
        }
        let device = libc::makedev(m.major, m.minor);
        self.0.contains(&(device, m.inode)) || mapped(pid, m).is_some_and(|id| self.0.contains(&id))
    }
}

/// stat of the mapped file. It is located, not opened.
fn mapped(pid: u32, m: &Mapping) -> Option<FileId> {
    let _all = capset::raised();
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", m.start, m.end);
    let meta = open::located(Path::new(&path)).ok()?.metadata().ok()?;
    Some((meta.dev(), meta.ino()))
}
