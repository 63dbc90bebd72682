//! Signs of life of a process that another one watches: a counter in memory that both have. Any step that is done counts, so
//! that one who attaches, looks through files or detaches is alive as well. Where nobody watches it costs an addition. Uses
//! nothing of this crate.

use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

/// What both have. Whoever watches takes it for numbers that may be anything.
#[derive(Debug)]
struct Page {
    beats: AtomicU64,
    at: AtomicU32,
    slow: AtomicU32,
}

static NOBODY: Page = Page { beats: AtomicU64::new(0), at: AtomicU32::new(0), slow: AtomicU32::new(0) };
static OURS: AtomicPtr<Page> = AtomicPtr::new(null_mut());

fn page() -> &'static Page {
    // SAFETY: `wear` has put a page there that is never unmapped in this process, or it is null.
    unsafe { OURS.load(Relaxed).as_ref() }.unwrap_or(&NOBODY)
}

/// This process has done a step.
pub fn beat() {
    page().slow.store(0, Relaxed);
    page().beats.fetch_add(1, Relaxed);
}

/// This process begins a step that may take very long, as the kernel's check of programs does; until the next [`beat`].
pub fn slow() {
    beat();
    page().slow.store(1, Relaxed);
}

/// What is done until it is dropped is done for this process.
#[must_use]
pub struct At(u32);

/// This process looks at another, or attaches to it.
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

/// How a process stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signs {
    /// Steps so far.
    pub beats: u64,
    /// The process that it looks at or attaches to; 0: none.
    pub at: u32,
    /// It says that this step may take very long.
    pub slow: bool,
}

/// The watcher's view.
#[derive(Debug)]
pub struct Pulse {
    page: NonNull<Page>,
}

impl Pulse {
    /// For a process that is about to be forked.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> io::Result<Pulse> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, of zeros, which a page may be.
        let at = unsafe { libc::mmap(null_mut(), size_of::<Page>(), rights, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast()).map(|page| Pulse { page }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// In the forked process: from now on its steps count here.
    pub fn wear(self) {
        OURS.store(self.page.as_ptr(), Relaxed);
        std::mem::forget(self);
    }

    /// Behind the fork: processes that are forked later do not get it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn keep(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, with this size.
        match unsafe { libc::madvise(self.page.as_ptr().cast(), size_of::<Page>(), libc::MADV_DONTFORK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped until self is dropped; atomics, whoever writes to them.
        unsafe { self.page.as_ref() }
    }

    /// How it stands.
    pub fn read(&self) -> Signs {
        let page = self.page();
        Signs {
            beats: page.beats.load(Relaxed),
            at: page.at.load(Relaxed),
            slow: page.slow.load(Relaxed) != 0,
        }
    }

    /// Another process's steps, for tests.
    #[cfg(test)]
    pub fn set(&self, signs: Signs) {
        self.page().beats.store(signs.beats, Relaxed);
        self.page().at.store(signs.at, Relaxed);
        self.page().slow.store(u32::from(signs.slow), Relaxed);
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, with this size, and nobody has a reference to it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), size_of::<Page>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_wears_it_is_seen() {
        let pulse = Pulse::new().expect("memory");
        assert_eq!(pulse.read(), Signs::default());
        beat();
        assert_eq!(pulse.read().beats, 0, "nobody watches this one");
        // SAFETY: the child only writes to the page, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            pulse.wear();
            beat();
            drop(at(7));
            std::mem::forget(at(9));
            slow();
            // SAFETY: ends the child without what the test has registered.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: waits for the child just made; its state is not wanted.
        assert_eq!(unsafe { libc::waitpid(pid, null_mut(), 0) }, pid);
        pulse.keep().expect("advice");
        assert_eq!(pulse.read(), Signs { beats: 5, at: 9, slow: true });
    }
}
