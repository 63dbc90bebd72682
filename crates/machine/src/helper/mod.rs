//! Helper processes: forked from a program that has one thread, without an exec, to do one thing with fewer privileges.
//!
//! fork(2), signals and closing descriptors by number have no safe interface.

pub mod channel;
pub mod pulse;

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

/// Ends the process however its code is left: nothing of the program may run in it.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        // SAFETY: ends the process without running registered exit handlers.
        unsafe { libc::_exit(1) };
    }
}

/// Forks a process that has this name in process lists, only these descriptors (and 0 to 2), and does this. Returns its pid.
/// It ends with code 1 when `task` returns or panics.
///
/// The owners of all other descriptors are never dropped there.
///
/// # Errors
/// No more processes are available.
///
/// # Safety
/// This process has one thread: what another one held at the fork, such as a lock, would be held there for ever.
pub unsafe fn fork(name: &CStr, kept: &[RawFd], task: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: only this thread runs (see above), so the child may do anything a program may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let _end = Leave;
            let _ = rustix::thread::set_name(name);
            close_all_but(kept);
            task();
            // SAFETY: as `Leave`, which covers a panic.
            unsafe { libc::_exit(1) }
        }
        pid => Ok(pid),
    }
}

/// Closes the program's descriptors: a copy left open here would keep its locks and sockets, and the other ends of its
/// channels would not notice its death.
fn close_all_but(kept: &[RawFd]) {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let fds: Vec<RawFd> = open.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    for fd in fds.into_iter().filter(|fd| *fd > 2 && !kept.contains(fd)) {
        // SAFETY: closes a descriptor by number; nothing in this process uses it from here on.
        unsafe { libc::close(fd) };
    }
}

/// Makes this process the leader of a session of its own, which ignores the signals that are for the program's group or
/// terminal, and blocks none.
pub fn leave_session() {
    // SAFETY: plain system calls on numbers, and a set that is filled before it is used.
    unsafe {
        libc::setsid();
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}
