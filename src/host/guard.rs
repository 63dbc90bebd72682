//! Closes what the kernel takes long to close, and removes a recorder's probe definitions after the recorder has ended,
//! in whatever way: the kernel owns and keeps them. A small process waits for either.
//!
//! The process comes from a fork without an exec, of a program that may have threads. So it only makes system calls
//! on memory that existed before: no allocation, no lock, no panic. They are raw, on descriptors by number, which nothing
//! may own twice. It is not a child of the recorder, so that a recorder's only child is the command that it records.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Bytes of the listing read at a time; a line is shorter.
const WINDOW: usize = 8192;
/// Attempts at removal, and the wait between two, ns: the kernel takes some 80 ms for each probe of a dead process.
const ATTEMPTS: u32 = 1500;
static BETWEEN: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Longest name, bytes.
const NAME: usize = 128;

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
pub struct Guard(OwnedFd);

impl Guard {
    /// Makes sure that the definitions of `group` in the file `events` are removed after this process has ended, or this
    /// is dropped.
    ///
    /// # Errors
    /// No process or descriptor is available.
    pub fn start(events: &Path, group: &str) -> io::Result<Guard> {
        let events = CString::new(events.as_os_str().as_bytes())?;
        let prefix = [group.as_bytes(), b"/"].concat();
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
                        watch(wait, &events, &prefix);
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
        Ok(Guard(alive))
    }

    /// Hands over descriptors that the kernel takes long to close: whoever closes its own afterwards does not wait.
    ///
    /// # Errors
    /// The process is gone, or descriptors cannot be passed.
    pub fn take(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        fds.chunks(HANDED).try_for_each(|some| {
            let numbers: Vec<RawFd> = some.iter().map(AsRawFd::as_raw_fd).collect();
            let mut control: Control = [0; CONTROL.div_ceil(8)];
            let (mut byte, bytes) = (0u8, size_of_val(numbers.as_slice()));
            // SAFETY: one byte and a control message within `control`, which has room for HANDED descriptors.
            let sent = unsafe {
                let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
                let mut message = message(&mut part, &mut control);
                message.msg_controllen = libc::CMSG_SPACE(bytes as libc::c_uint) as _;
                let head = libc::CMSG_FIRSTHDR(&raw const message);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = libc::CMSG_LEN(bytes as libc::c_uint) as _;
                std::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), libc::CMSG_DATA(head), bytes);
                libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
            };
            if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }
}

/// A message of one part with a control message.
fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: a struct of numbers and pointers, of which none is used before it is set.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(control) as _);
    message
}

/// Receives descriptors and closes them, until the other end is closed.
///
/// # Safety
/// Callable where only system calls are allowed.
unsafe fn close_handed(socket: RawFd) {
    // SAFETY: buffers of the stated lengths; the descriptors received belong to nobody else.
    unsafe {
        loop {
            let (mut byte, mut control): (u8, Control) = (0, [0; CONTROL.div_ceil(8)]);
            let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            let mut message = message(&mut part, &mut control);
            match libc::recvmsg(socket, &raw mut message, 0) {
                1 => {}
                -1 if *libc::__errno_location() == libc::EINTR => continue,
                _ => return,
            }
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            if head.is_null() || (*head).cmsg_type != libc::SCM_RIGHTS {
                continue;
            }
            let bytes = ((*head).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            for i in 0..bytes / size_of::<RawFd>() {
                libc::close(libc::CMSG_DATA(head).cast::<RawFd>().add(i).read_unaligned());
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
        libc::poll(&raw mut entry, 1, ms);
        libc::close(fd);
        libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) == pid
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
fn watch(wait: RawFd, events: &CStr, prefix: &[u8]) {
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
        libc::flock(libc::open(events.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC), libc::LOCK_SH);
        close_handed(wait);
        for _ in 0..ATTEMPTS {
            if remove(events, prefix) == 0 {
                return;
            }
            libc::nanosleep(&raw const BETWEEN, std::ptr::null_mut());
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

/// Removes those definitions that can be removed. Returns how many definitions there were.
///
/// # Safety
/// Callable where only system calls are allowed.
unsafe fn remove(events: &CStr, prefix: &[u8]) -> usize {
    let mut found = 0;
    let mut window = [0u8; WINDOW];
    // SAFETY: buffers of the stated lengths; descriptors are closed where they were opened.
    unsafe {
        let list = libc::open(events.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if list < 0 {
            return 0;
        }
        let list = OwnedFd::from_raw_fd(list);
        let mut held = 0;
        loop {
            let room = &mut window[held..];
            let n = libc::read(list.as_raw_fd(), room.as_mut_ptr().cast(), room.len());
            let Ok(n) = usize::try_from(n) else { return found };
            held += n;
            let mut done = 0;
            while let Some(line) = window[done..held].iter().position(|&b| b == b'\n') {
                if let Some(name) = ours(&window[done..done + line], prefix) {
                    found += 1;
                    take_away(events, name);
                }
                done += line + 1;
            }
            // A line longer than the window is not ours: it is skipped in parts.
            done = if done == 0 && held == WINDOW { WINDOW } else { done };
            window.copy_within(done..held, 0);
            held -= done;
            if n == 0 {
                return found;
            }
        }
    }
}

/// The name `group/event` in a line `p:group/event path:offset`, if the group is ours.
fn ours<'a>(line: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let name = line.get(2..)?;
    let name = name.get(..name.iter().position(|&b| b == b' ')?)?;
    (name.starts_with(prefix) && name.len() <= NAME).then_some(name)
}

/// # Safety
/// As [`remove`].
unsafe fn take_away(events: &CStr, name: &[u8]) {
    let mut command = [0u8; NAME + 3];
    command[..2].copy_from_slice(b"-:");
    command[2..2 + name.len()].copy_from_slice(name);
    command[2 + name.len()] = b'\n';
    // SAFETY: a path that ends in zero, and the stated number of bytes.
    unsafe {
        // Opening it for overwriting would delete the definitions of all users.
        let file = libc::open(events.as_ptr(), libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, command.as_ptr().cast(), name.len() + 3);
            libc::close(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::wake;

    #[test]
    fn only_definitions_of_the_group_are_named() {
        let line = |text: &'static str| ours(text.as_bytes(), b"profinfer_7_9/");
        assert_eq!(line("p:profinfer_7_9/e0 /bin/x:0x10"), Some(&b"profinfer_7_9/e0"[..]));
        for other in ["p:profinfer_7_99/e0 /x:0", "p:other/e0 /x:0", "p:profinfer_7_9/e0", "p", "", "p: x"] {
            assert_eq!(line(other), None, "{other}");
        }
        let long = format!("p:profinfer_7_9/{} /x:0", "e".repeat(NAME));
        assert_eq!(ours(long.as_bytes(), b"profinfer_7_9/"), None);
    }

    #[test]
    fn what_a_recorder_leaves_is_removed_when_it_ends() {
        // A plain file instead of the kernel's: commands are appended to it.
        let dir = tempfile::tempdir().expect("a directory");
        let events = dir.path().join("uprobe_events");
        let listing =
            format!("p:a/b /x:0\np:profinfer_7_9/e0 /x:0\n{}\np:profinfer_7_9/e1 /y:1\n", "x".repeat(9000));
        std::fs::write(&events, &listing).expect("written");
        let guard = Guard::start(&events, "profinfer_7_9").expect("a process");
        assert_eq!(std::fs::read_to_string(&events).expect("there"), listing, "nothing while it lives");
        drop(guard);
        let said = || std::fs::read_to_string(&events).expect("there");
        wake::until("the last one is removed", || said().contains("-:profinfer_7_9/e1\n"));
        assert!(said().contains("-:profinfer_7_9/e0\n") && !said().contains("-:a/"));
        // Ends when the file is gone.
        std::fs::remove_file(&events).expect("removed");
    }
}
