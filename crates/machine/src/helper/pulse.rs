//! Heartbeat of a process that another one watches: a counter in shared memory. Every completed step counts, so
//! that a process that attaches, searches files or detaches is seen as alive, too. If no process watches, it costs
//! one addition. Mapping memory is unsafe in rustix, too.

use std::io;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The shared memory. The watcher treats its contents as untrusted numbers.
#[derive(Debug)]
struct PulsePage {
    beats: AtomicU64,
    at: AtomicU32,
    slow: AtomicU32,
    follows: AtomicU64,
}

static NOBODY: PulsePage = PulsePage {
    beats: AtomicU64::new(0),
    at: AtomicU32::new(0),
    slow: AtomicU32::new(0),
    follows: AtomicU64::new(0),
};
static OURS: AtomicPtr<PulsePage> = AtomicPtr::new(null_mut());

fn page() -> &'static PulsePage {
    // SAFETY: null, or a page stored by `wear` that is never unmapped in this process.
    unsafe { OURS.load(Relaxed).as_ref() }.unwrap_or(&NOBODY)
}

/// This process has completed a step.
pub fn beat() {
    page().slow.store(0, Relaxed);
    page().beats.fetch_add(1, Relaxed);
}

/// This process starts a step that may take very long, such as verification of programs in the kernel; lasts until
/// the next [`beat`].
pub fn slow() {
    beat();
    page().slow.store(1, Relaxed);
}

/// Everything that the watched engines began before `t` (CLOCK_MONOTONIC, ns) has been reported; 0: it follows nothing at
/// the moment.
pub fn follows(t: u64) {
    page().follows.store(t, Relaxed);
}

/// Until it is dropped, work is attributed to this process.
#[must_use]
pub struct At(u32);

/// This process examines another, or attaches to it.
pub fn at(pid: u32) -> At {
    beat();
    At(page().at.swap(pid, Relaxed))
}

impl Drop for At {
    fn drop(&mut self) {
        page().at.store(self.0, Relaxed);
        beat();
    }
}

/// State of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signs {
    /// Steps so far.
    pub beats: u64,
    /// The process that it examines or attaches to; 0: none.
    pub at: u32,
    /// It has announced that this step may take very long.
    pub slow: bool,
    /// As last given to [`follows`].
    pub follows: u64,
}

/// The watcher's side.
#[derive(Debug)]
pub struct Pulse {
    page: NonNull<PulsePage>,
}

impl Pulse {
    /// For a process that is about to be forked.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> io::Result<Pulse> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, of zeros, which are a valid page.
        let at = unsafe { libc::mmap(null_mut(), size_of::<PulsePage>(), rights, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast()).map(|page| Pulse { page }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// In the forked process: its steps are counted here from now on.
    pub fn wear(self: Rc<Self>) {
        OURS.store(self.page.as_ptr(), Relaxed);
        // The page stays.
        std::mem::forget(self);
    }

    /// After the fork: processes forked later do not inherit it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn keep(&self) -> io::Result<()> {
        // SAFETY: our own mapping, of this size.
        match unsafe { libc::madvise(self.page.as_ptr().cast(), size_of::<PulsePage>(), libc::MADV_DONTFORK) }
        {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn page(&self) -> &PulsePage {
        // SAFETY: mapped until self is dropped; atomics, whichever process writes to them.
        unsafe { self.page.as_ref() }
    }

    /// The current state.
    pub fn read(&self) -> Signs {
        let page = self.page();
        Signs {
            beats: page.beats.load(Relaxed),
            at: page.at.load(Relaxed),
            slow: page.slow.load(Relaxed) != 0,
            follows: page.follows.load(Relaxed),
        }
    }

    /// Sets another process's state, for tests.
    #[doc(hidden)]
    pub fn set(&self, signs: Signs) {
        self.page().beats.store(signs.beats, Relaxed);
        self.page().at.store(signs.at, Relaxed);
        self.page().slow.store(u32::from(signs.slow), Relaxed);
        self.page().follows.store(signs.follows, Relaxed);
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of this size, without any remaining reference.
        unsafe { libc::munmap(self.page.as_ptr().cast(), size_of::<PulsePage>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_wears_it_is_seen() {
        let pulse = Rc::new(Pulse::new().expect("memory"));
        assert_eq!(pulse.read(), Signs::default());
        beat();
        assert_eq!(pulse.read().beats, 0, "nobody watches this one");
        // SAFETY: the child only writes to the page, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            Rc::clone(&pulse).wear();
            beat();
            drop(at(7));
            std::mem::forget(at(9));
            slow();
            follows(77);
            // SAFETY: ends the child without running the test's exit handlers.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: waits for the child just created; its status is not needed.
        assert_eq!(unsafe { libc::waitpid(pid, null_mut(), 0) }, pid);
        pulse.keep().expect("advice");
        assert_eq!(pulse.read(), Signs { beats: 5, at: 9, slow: true, follows: 77 });
    }
}
