//! Probes of BPF programs, placed in a file once and enabled for individual processes: the breakpoint is in the
//! memory of those processes only.
//!
//! A definition in tracefs is a probe that any number of perf events can share; each event adds it to one process.
//! The program is attached to the definition, so another process costs one perf event per probe, and needs no more
//! than the right to inspect that process. If definitions cannot be written (tracefs is read-only, or not
//! accessible), each process gets a perf event with its own probe. The effect is the same, but the kernel takes
//! some 80 ms to remove each one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::capture::perf::event;
use crate::capture::source::{Guard, Probe};
use crate::host::diagnose::{self, Act};
use crate::host::privileges;
use crate::host::tracefs::{Definition, Tracefs};

/// Lowest number for descriptors that should be closed last when a process dies. The kernel closes descriptors in
/// ascending order, and closing one that holds a definition takes long. The breakpoints should be gone before that.
const HIGH: libc::c_int = 512;

/// Places probes.
pub struct Uprobes {
    tracefs: Result<Tracefs, String>,
}

impl Uprobes {
    /// Opens tracefs.
    pub fn new() -> Uprobes {
        event::allow_files();
        Uprobes { tracefs: Tracefs::open() }
    }

    /// What is missing for shared probes; None: nothing.
    pub fn lacks(&self) -> Option<&str> {
        self.tracefs.as_ref().err().map(String::as_str)
    }

    /// Whether a process can be probed with no more than the right to inspect it.
    pub fn are_shared(&self) -> bool {
        self.tracefs.is_ok()
    }

    /// Places a probe of this program at an offset of a file. It is not in any process's memory yet.
    ///
    /// # Errors
    /// A message that says what the kernel refuses.
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
        // Enables the probe in this process, which does not map the file as executable.
        let holder = event::of_process(definition.id, 0).and_then(|e| high(&e)).map_err(|e| failed(&e))?;
        event::bind(&holder, program).map_err(|e| failed(&e))?;
        Ok(Box::new(Shared { events: BTreeMap::new(), _holder: holder, definition }))
    }
}

/// Duplicates the event to a high descriptor number.
fn high(event: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: an open descriptor, and numbers.
    match unsafe { libc::fcntl(event.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) } {
        // The descriptor limit is lower than that.
        -1 => event.try_clone(),
        // SAFETY: a descriptor that the kernel has just created for us; nothing else owns it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn failed(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(errno) => diagnose::reason(Act::Probe, errno, &privileges::read()),
        None => e.to_string(),
    }
}

/// A process that has exited has nothing to probe.
fn unless_gone(opened: io::Result<OwnedFd>) -> Result<Option<OwnedFd>, String> {
    match opened {
        Ok(event) => Ok(Some(event)),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(failed(&e)),
    }
}

/// A definition, and the processes that have it. Fields are declared in the order in which they must be closed.
struct Shared {
    events: BTreeMap<u32, OwnedFd>,
    /// Keeps the program attached to the definition while no process has it.
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

/// A probe that is placed separately for each process.
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
