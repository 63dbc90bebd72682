//! Probes of BPF programs, placed in a file once and switched on for single processes: the breakpoint is in their memory and
//! in nobody else's. Uses `perf::event`, `refusal`, `source` and `tracefs`.
//!
//! A definition in tracefs is a probe that any number of perf events may share, each of which has it in one process. The
//! program is bound to the definition, so that another process costs one perf event for each probe, and needs no right but
//! to look at that process. Where definitions cannot be written (tracefs is read-only, or not ours), each process gets a
//! perf event with a probe of its own: the same, but each takes the kernel some 80 ms to remove.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::perf::event;
use super::privileges;
use super::refusal::{self, Act};
use super::source::{Guard, Probe};
use super::tracefs::{Definition, Tracefs};

/// Descriptors that are closed last when a process dies: those are closed in ascending order, and one that keeps a definition
/// takes long. Breakpoints are to be gone before.
const HIGH: libc::c_int = 512;

/// Where probes are placed.
pub struct Uprobes {
    tracefs: Result<Tracefs, String>,
}

impl Uprobes {
    /// Asks for tracefs.
    pub fn new() -> Uprobes {
        event::allow_files();
        Uprobes { tracefs: Tracefs::open() }
    }

    /// What probes cannot do here, in words; None: all.
    pub fn lacks(&self) -> Option<&str> {
        self.tracefs.as_ref().err().map(String::as_str)
    }

    /// Whether a process can be probed with no right but to look at it.
    pub fn are_shared(&self) -> bool {
        self.tracefs.is_ok()
    }

    /// Places a probe of this program at an offset of a file. It is in no process's memory yet.
    ///
    /// # Errors
    /// What the kernel refuses, in words.
    pub fn place(
        &self,
        program: BorrowedFd<'_>,
        ret: bool,
        file: &Path,
        offset: u64,
    ) -> Result<Box<dyn Probe>, String> {
        let Ok(tracefs) = &self.tracefs else {
            let program = program.try_clone_to_owned().map_err(|e| e.to_string())?;
            let file = File::open(file).map_err(|e| format!("{}: {e}", file.display()))?;
            return Ok(Box::new(Own { program, ret, file, offset, events: BTreeMap::new() }));
        };
        let file = File::open(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let definition = tracefs.define(&file, offset, ret, "")?;
        // It has the probe in this process's memory, where the file is not mapped to be executed.
        let holder = event::of_process(definition.id, 0).and_then(|e| high(&e)).map_err(|e| failed(&e))?;
        event::bind(&holder, program).map_err(|e| failed(&e))?;
        Ok(Box::new(Shared { events: BTreeMap::new(), _holder: holder, definition }))
    }
}

/// The same event under a high number.
fn high(event: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: a descriptor that is open, and numbers.
    match unsafe { libc::fcntl(event.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) } {
        // The limit is lower.
        -1 => event.try_clone(),
        // SAFETY: a descriptor that the kernel has just made for us; nobody else has it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn failed(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(errno) => refusal::reason(Act::Probe, errno, &privileges::read()),
        None => e.to_string(),
    }
}

/// A process that is not there any more has nothing to be probed.
fn unless_gone(opened: io::Result<OwnedFd>) -> Result<Option<OwnedFd>, String> {
    match opened {
        Ok(event) => Ok(Some(event)),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(failed(&e)),
    }
}

/// A definition, and the processes that it is in. What is closed first is written first.
struct Shared {
    events: BTreeMap<u32, OwnedFd>,
    /// Keeps the program bound to the definition while it is in no process.
    _holder: OwnedFd,
    definition: Definition,
}

impl Probe for Shared {
    fn enter(&mut self, pid: u32) -> Result<(), String> {
        if let Some(event) = unless_gone(event::of_process(self.definition.id, pid))? {
            self.events.insert(pid, event);
        }
        Ok(())
    }

    fn leave(&mut self, pid: u32) -> Option<Guard> {
        drop(self.events.remove(&pid));
        None
    }

    fn leave_all(&mut self) -> Vec<Guard> {
        self.events.clear();
        Vec::new()
    }
}

/// A probe that is placed anew for each process.
struct Own {
    program: OwnedFd,
    ret: bool,
    file: File,
    offset: u64,
    events: BTreeMap<u32, OwnedFd>,
}

impl Probe for Own {
    fn enter(&mut self, pid: u32) -> Result<(), String> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        if let Some(event) = unless_gone(event::uprobe(&path, self.offset, self.ret, pid))? {
            event::bind(&event, self.program.as_fd()).map_err(|e| failed(&e))?;
            self.events.insert(pid, event);
        }
        Ok(())
    }

    fn leave(&mut self, pid: u32) -> Option<Guard> {
        self.events.remove(&pid).map(|event| Box::new(event) as Guard)
    }

    fn leave_all(&mut self) -> Vec<Guard> {
        std::mem::take(&mut self.events).into_values().map(|event| Box::new(event) as Guard).collect()
    }
}
