//! Probes of BPF programs, placed in a file once and enabled for individual processes: the breakpoint is in the
//! memory of those processes only.
//!
//! A definition in tracefs is a probe that any number of perf events can share; each event adds it to one process.
//! The program is attached to the definition, so another process costs one perf event per probe, and needs no more
//! than the right to inspect that process. The kernel removes definitions one at a time, some 80 ms each.
//!
//! If the kernel has uprobe_multi links and few processes are expected, the first of them get one link each instead:
//! links are removed concurrently. But the kernel leaves their breakpoints in forked children, where a definition's
//! are removed at the first hit. Definitions without a program, as markers at other instructions of the outer functions,
//! still show whether a child ran.
//!
//! If definitions cannot be written (tracefs is read-only, or not accessible), each process gets a perf event with
//! its own probe, which also takes some 80 ms to remove.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::capture::error::ProbeError;
use crate::capture::multi;
use crate::capture::perf::event::{self, failed};
use crate::capture::source::{Guard, Probe};
use machine::diagnose::KernelError;
use machine::kernel::tracefs::{self, Definition, Tracefs, TracefsError};

/// Lowest number for descriptors that should be closed last when a process dies. The kernel closes descriptors in
/// ascending order, and closing one that holds a definition takes long. The breakpoints should be gone before that.
const HIGH: libc::c_int = 512;

/// Number of processes that get links. Removing more of them would take longer than removing a definition.
const LINKED: usize = 4;

/// Places probes.
pub struct Uprobes {
    tracefs: Result<Tracefs, TracefsError>,
    links: bool,
}

impl Uprobes {
    /// Opens tracefs. With `links`, the kernel has uprobe_multi links and programs are loaded for them.
    pub fn new(links: bool) -> Uprobes {
        event::allow_files();
        Uprobes { tracefs: Tracefs::open(), links }
    }

    /// What is missing for shared probes; None: nothing.
    pub fn lacks(&self) -> Option<&TracefsError> {
        self.tracefs.as_ref().err()
    }

    /// Whether a process can be probed with no more than the right to inspect it.
    pub fn are_shared(&self) -> bool {
        self.tracefs.is_ok() && !self.links
    }

    /// Places a probe of this program at an offset of a file. It is not in any process's memory yet.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn place(
        self: &Arc<Self>,
        program: BorrowedFd<'_>,
        ret: bool,
        file: &Path,
        offset: u64,
    ) -> Result<Box<dyn Probe>, ProbeError> {
        if !self.links {
            return self.share(program, ret, file, offset);
        }
        let program = program.try_clone_to_owned().map_err(ProbeError::Descriptor)?;
        let file = File::open(file).map_err(ProbeError::open(file))?;
        let uprobes = self.clone();
        Ok(Box::new(Linked { program, ret, file, offset, links: BTreeMap::new(), uprobes, rest: None }))
    }

    /// Whether probes are links. The kernel leaves their breakpoints in the children of a process.
    pub fn are_links(&self) -> bool {
        self.links
    }

    /// Places breakpoints without a program.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn place_markers(&self, sites: &[(PathBuf, u64)]) -> Result<Vec<Box<dyn Probe>>, ProbeError> {
        let marker = |(path, offset): &(PathBuf, u64)| -> Result<Box<dyn Probe>, ProbeError> {
            let (file, offset, events) =
                (File::open(path).map_err(ProbeError::open(path))?, *offset, BTreeMap::new());
            Ok(match &self.tracefs {
                Ok(tracefs) => {
                    let definition = tracefs.define(&file, offset, false, "")?;
                    let held = Held { holder: holder(&definition)?, definition };
                    Box::new(Shared { events, held: Some(held) })
                }
                Err(_) => Box::new(Own { program: None, ret: false, file, offset, events }),
            })
        };
        sites.iter().map(marker).collect()
    }

    /// Places a probe that any number of processes can share.
    fn share(
        &self,
        program: BorrowedFd<'_>,
        ret: bool,
        file: &Path,
        offset: u64,
    ) -> Result<Box<dyn Probe>, ProbeError> {
        let Ok(tracefs) = &self.tracefs else {
            let program = program.try_clone_to_owned().map_err(ProbeError::Descriptor)?;
            let file = File::open(file).map_err(ProbeError::open(file))?;
            return Ok(Box::new(Own { program: Some(program), ret, file, offset, events: BTreeMap::new() }));
        };
        let file = File::open(file).map_err(ProbeError::open(file))?;
        let definition = tracefs.define(&file, offset, ret, "")?;
        let holder = holder(&definition)?;
        event::bind(&holder, program).map_err(failed)?;
        Ok(Box::new(Shared { events: BTreeMap::new(), held: Some(Held { holder, definition }) }))
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

/// A process that has exited has nothing to probe.
fn unless_gone(opened: io::Result<OwnedFd>) -> Result<Option<OwnedFd>, KernelError> {
    match opened {
        Ok(event) => Ok(Some(event)),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

/// A definition, and the processes that have it. Fields are declared in the order in which they must be closed.
struct Shared {
    events: BTreeMap<u32, OwnedFd>,
    held: Option<Held>,
}

/// A definition with a program, if any. Fields are declared in the order in which they must be closed.
struct Held {
    /// Keeps it enabled while no process has it: closing a process's event is fast then, and only this one is slow.
    holder: OwnedFd,
    definition: Definition,
}

/// Enables a definition in this process, which does not map the file as executable.
fn holder(definition: &Definition) -> Result<OwnedFd, KernelError> {
    event::of_process(definition.id, 0).and_then(|e| high(&e)).map_err(failed)
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.events.clear();
        let Some(held) = self.held.take() else { return };
        if tracefs::close(&mut vec![held.holder]) {
            held.definition.leave();
        }
    }
}

impl Probe for Shared {
    fn enter(&mut self, pid: u32) -> Result<(), ProbeError> {
        let Some(held) = &self.held else { return Ok(()) };
        if let Some(event) = unless_gone(event::of_process(held.definition.id, pid))? {
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
    program: Option<OwnedFd>,
    ret: bool,
    file: File,
    offset: u64,
    events: BTreeMap<u32, OwnedFd>,
}

impl Probe for Own {
    fn enter(&mut self, pid: u32) -> Result<(), ProbeError> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        if let Some(event) = unless_gone(event::uprobe(&path, self.offset, self.ret, pid))? {
            if let Some(program) = &self.program {
                event::bind(&event, program.as_fd()).map_err(failed)?;
            }
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

/// A probe with one link in each of the first processes.
struct Linked {
    program: OwnedFd,
    ret: bool,
    file: File,
    offset: u64,
    links: BTreeMap<u32, OwnedFd>,
    uprobes: Arc<Uprobes>,
    /// Shared by all further processes.
    rest: Option<Box<dyn Probe>>,
}

impl Probe for Linked {
    fn enter(&mut self, pid: u32) -> Result<(), ProbeError> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        if self.links.len() < LINKED {
            if let Some(link) =
                unless_gone(multi::link(self.program.as_fd(), &path, self.offset, self.ret, pid))?
            {
                self.links.insert(pid, link);
            }
            return Ok(());
        }
        if self.rest.is_none() {
            let shared = self.uprobes.share(self.program.as_fd(), self.ret, Path::new(&path), self.offset)?;
            self.rest = Some(shared);
        }
        self.rest.as_mut().map_or(Ok(()), |rest| rest.enter(pid))
    }

    fn leave(&mut self, pid: u32) -> Option<Guard> {
        match self.links.remove(&pid) {
            Some(link) => Some(Box::new(link)),
            None => self.rest.as_mut().and_then(|rest| rest.leave(pid)),
        }
    }

    fn leave_all(&mut self) -> Vec<Guard> {
        let links = std::mem::take(&mut self.links).into_values().map(|link| Box::new(link) as Guard);
        let rest = self.rest.as_mut().map(|rest| rest.leave_all()).unwrap_or_default();
        links.chain(rest).collect()
    }
}
