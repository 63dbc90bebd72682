//! Closes what the kernel takes long to close, and removes a recorder's probe definitions after the recorder has ended,
//! in whatever way: the kernel owns and keeps them. A small process waits for either.
//!
//! The process comes from a fork without an exec, of a program that may have threads. So it only makes system calls
//! on memory that existed before: no allocation, no lock, no panic. They are raw, on descriptors by number, which nothing
//! may own twice. It is not a child of the recorder, so that a recorder's only child is the command that it records.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::byte_lock::ByteLock;

/// Attempts at removal, and the wait between two, ns: the kernel takes some 80 ms for each probe of a dead process.
const ATTEMPTS: u32 = 1500;
static BETWEEN: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Longest command, bytes.
const COMMAND: usize = 128;

/// Descriptors handed over at a time.
const HANDED: usize = 32;
/// Bytes of a control message that passes them (cmsg(3)), and a buffer for it, aligned as `struct cmsghdr` must be.
const CONTROL: usize = control_space();
type Control = [u64; CONTROL.div_ceil(8)];

const fn control_space() -> usize {
    // SAFETY: computes a size.
    unsafe { libc::CMSG_SPACE((HANDED * size_of::<RawFd>()) as libc::c_uint) as usize }
}

/// The waiting process. It takes descriptors over this socket, and proceeds when the socket is closed, which happens when
/// this process ends.
pub struct Guard {
    socket: Mutex<OwnedFd>,
    defined: Shared,
}

/// A number that a process of [`fork`] has in common with this one.
struct Shared(*mut libc::c_void);

// SAFETY: a mapping of its own, used as an atomic number only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> io::Result<Shared> {
        // SAFETY: a new mapping, which no other value has.
        let at = unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), size_of::<AtomicU32>(), access, kind, -1, 0)
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Shared(at)) }
    }

    fn number(&self) -> &AtomicU32 {
        // SAFETY: a mapping of at least this size, aligned to pages and zero at first, which lives as long as `self`.
        unsafe { &*self.0.cast() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which no reference is left.
        unsafe { libc::munmap(self.0, size_of::<AtomicU32>()) };
    }
}

impl Guard {
    /// Makes sure that the definitions `group/eN` in the file `events`, with N below [`Guard::defined`], are removed after
    /// this process has ended, or this is dropped. They are known by number: while other recorders come and go, the
    /// kernel's list skips lines. The process holds `lock`, too, and longer.
    ///
    /// # Errors
    /// No process or descriptor is available.
    pub fn start(events: &Path, group: &str, lock: ByteLock) -> io::Result<Guard> {
        let events = CString::new(events.as_os_str().as_bytes())?;
        let remove = [b"-:", group.as_bytes(), b"/e"].concat();
        let defined = Shared::new()?;
        let (wait, alive) = UnixStream::pair()?;
        let (wait, alive) = (OwnedFd::from(wait), OwnedFd::from(alive));
        let wait = wait.into_raw_fd();
        // SAFETY: the children only make system calls (`watch`), on their own copy of memory, and do not return.
        // The first one ends immediately and is waited for here, so that the second becomes a child of init.
        unsafe {
            match fork() {
                -1 => {
                    let e = io::Error::last_os_error();
                    libc::close(wait);
                    return Err(e);
                }
                0 => {
                    if fork() == 0 {
                        watch(wait, &events, lock, (&remove, defined.number()));
                    }
                    libc::_exit(0)
                }
                pid => {
                    libc::close(wait);
                    while libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) < 0
                        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
                    {
                    }
                }
            }
        }
        Ok(Guard { socket: Mutex::new(alive), defined })
    }

    /// Number of definitions that may exist. Increment it before a definition is made.
    pub fn defined(&self) -> &AtomicU32 {
        self.defined.number()
    }

    /// Closes descriptors that the kernel takes long to close, without waiting for it: the process has them too, and is
    /// the last to close them. What could not be handed over stays in `fds`.
    ///
    /// # Errors
    /// The process is gone, or descriptors cannot be passed.
    pub fn close<T: AsFd>(&self, fds: &mut Vec<T>) -> io::Result<()> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        while !fds.is_empty() {
            let some = fds.len() - fds.len().min(HANDED);
            pass(&socket, &fds[some..])?;
            fds.truncate(some);
            pass::<T>(&socket, &[])?;
        }
        Ok(())
    }
}

/// Sends up to HANDED descriptors, or, without any, that those sent before are closed here.
fn pass<T: AsFd>(socket: &OwnedFd, fds: &[T]) -> io::Result<()> {
    let numbers: Vec<RawFd> = fds.iter().map(|fd| fd.as_fd().as_raw_fd()).collect();
    let mut control: Control = [0; CONTROL.div_ceil(8)];
    let (mut byte, bytes) = (0u8, size_of_val(numbers.as_slice()));
    // SAFETY: one byte and a control message within `control`, which has room for HANDED descriptors.
    let sent = unsafe {
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message = message(&mut part, &mut control);
        if bytes == 0 {
            message.msg_controllen = 0;
        } else {
            message.msg_controllen = libc::CMSG_SPACE(bytes as libc::c_uint) as _;
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(bytes as libc::c_uint) as _;
            std::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), libc::CMSG_DATA(head), bytes);
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A message of one part with a control message.
fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: a struct of numbers and pointers, of which none is used before it is set.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(control) as _);
    message
}

/// Receives descriptors, and closes them once the other end has: when it says so, or is closed.
///
/// # Safety
/// Callable where only system calls are allowed.
unsafe fn close_handed(socket: RawFd) {
    // SAFETY: buffers of the stated lengths; the descriptors received belong to nobody else.
    unsafe {
        let (mut held, mut n) = ([-1; HANDED], 0);
        loop {
            let (mut byte, mut control): (u8, Control) = (0, [0; CONTROL.div_ceil(8)]);
            let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            let mut message = message(&mut part, &mut control);
            let received = libc::recvmsg(socket, &raw mut message, 0);
            if received == -1 && *libc::__errno_location() == libc::EINTR {
                continue;
            }
            for &fd in held.iter().take(n) {
                libc::close(fd);
            }
            n = 0;
            if received != 1 {
                return;
            }
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            if head.is_null() || (*head).cmsg_type != libc::SCM_RIGHTS {
                continue;
            }
            let bytes = ((*head).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            for (i, slot) in held.iter_mut().enumerate().take(bytes / size_of::<RawFd>()) {
                *slot = libc::CMSG_DATA(head).cast::<RawFd>().add(i).read_unaligned();
                n = i + 1;
            }
        }
    }
}

/// Waits for a process of [`fork`] to end, at most for `ms`. Whether it has.
pub(super) fn wait(pid: libc::pid_t, ms: libc::c_int) -> bool {
    // SAFETY: our own child, which nobody else waits for; a descriptor that is used and closed here; one entry.
    unsafe {
        // Since kernel 5.3. A negative descriptor, as of a refusal, only lets the time pass.
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as RawFd;
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // It has ended, though a tracer may have to wait for it before us.
        let ended = libc::poll(&raw mut entry, 1, ms) == 1 && entry.revents & libc::POLLIN != 0;
        libc::close(fd);
        libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) == pid || ended
    }
}

/// Like fork(2), without the handlers that libraries have registered for it, and without a signal at its end.
///
/// # Safety
/// The child may only make system calls.
pub(super) unsafe fn fork() -> libc::pid_t {
    // SAFETY: no flags, no separate stack: a copy, as the caller states.
    unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) as libc::pid_t }
}

/// Main function of the waiting process.
fn watch(wait: RawFd, events: &CStr, lock: ByteLock, (remove, defined): (&[u8], &AtomicU32)) {
    // SAFETY: plain system calls on numbers and on buffers of the stated lengths.
    unsafe {
        // Signals to the recorder's group or terminal must not reach this process.
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"profinfer-guard".as_ptr());
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        close_all_but(wait);
        // As the recorder's own lock, which ends before this process: what is not removed yet is not left over.
        lock.take(libc::open(events.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC));
        close_handed(wait);
        let mut attempts = ATTEMPTS;
        for number in 0..defined.load(Ordering::Relaxed) {
            while busy(events, remove, number) && attempts > 0 {
                attempts -= 1;
                libc::nanosleep(&raw const BETWEEN, std::ptr::null_mut());
            }
        }
    }
}

/// Closes all other descriptors: one of the recorder's left open here would keep its probes alive.
///
/// # Safety
/// After this, nothing in this process may use a descriptor other than `kept`.
pub(super) unsafe fn close_all_but(kept: RawFd) {
    // SAFETY: as the caller states; numbers that are not open are refused.
    unsafe {
        let range = |first: RawFd, last: libc::c_uint| libc::syscall(libc::SYS_close_range, first, last, 0);
        // Since kernel 5.9.
        if range(0, (kept - 1) as libc::c_uint) == 0 && range(kept + 1, libc::c_uint::MAX) == 0 {
            return;
        }
        let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for fd in (0..limit.rlim_cur.min(1 << 20) as RawFd).filter(|&fd| fd != kept) {
            libc::close(fd);
        }
    }
}

/// Removes a definition: `remove`, a command without the number. Whether the kernel still uses it.
///
/// # Safety
/// Callable where only system calls are allowed.
unsafe fn busy(events: &CStr, remove: &[u8], number: u32) -> bool {
    let mut command = [0u8; COMMAND];
    let mut digits = [0u8; 10];
    let (mut rest, mut first) = (number, digits.len());
    while first == digits.len() || rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let digits = &digits[first..];
    let len = remove.len() + digits.len() + 1;
    let Some(text) = command.get_mut(..len) else { return false };
    text[..remove.len()].copy_from_slice(remove);
    text[remove.len()..len - 1].copy_from_slice(digits);
    text[len - 1] = b'\n';
    // SAFETY: a path that ends in zero, and the stated number of bytes.
    unsafe {
        // Opening it for overwriting would delete the definitions of all users.
        let file = libc::open(events.as_ptr(), libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let refused =
            libc::write(file, text.as_ptr().cast(), len) < 0 && *libc::__errno_location() == libc::EBUSY;
        libc::close(file);
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_closed_while_the_recorder_lives() {
        let dir = tempfile::tempdir().expect("a directory");
        let guard = Guard::start(&dir.path().join("uprobe_events"), "profinfer_7_8", ByteLock::new(8))
            .expect("a process");
        let (mut read, write) = io::pipe().expect("a pipe");
        let mut all: Vec<_> = (0..2 * HANDED).map(|_| write.try_clone().expect("a copy")).collect();
        all.push(write);
        guard.close(&mut all).expect("handed over");
        assert!(all.is_empty());
        // Ends when the last of them is closed.
        assert_eq!(io::Read::read(&mut read, &mut [0]).expect("an end"), 0);
    }

    #[test]
    fn what_a_recorder_leaves_is_removed_when_it_ends() {
        // A plain file instead of the kernel's: commands are appended to it.
        let dir = tempfile::tempdir().expect("a directory");
        let events = dir.path().join("uprobe_events");
        std::fs::write(&events, "").expect("written");
        let guard = Guard::start(&events, "profinfer_7_9", ByteLock::new(9)).expect("a process");
        guard.defined().store(12, Ordering::Relaxed);
        let said = || std::fs::read_to_string(&events).expect("there");
        assert_eq!(said(), "", "nothing while it lives");
        drop(guard);
        crate::until::until("the last one is removed", || said().contains("e11\n"));
        let all: String = (0..12).map(|i| format!("-:profinfer_7_9/e{i}\n")).collect();
        assert_eq!(said(), all);
    }
}
