//! Halts a command, and the processes it starts, when it has just executed another program or mapped a file as
//! executable, so that the recorder can examine it before any of that code runs. Uses ptrace(2), from a process
//! forked for it.
//!
//! The kernel resumes traced processes when their tracer is gone. So if the recorder is killed at any moment, the
//! command keeps running; the tracer ends with the recorder (PR_SET_PDEATHSIG). The tracer comes from a fork without an
//! exec, of a program that may have threads, so it only makes system calls on memory that existed before.
//! They are raw: rustix has no ptrace(2), and the descriptors are numbers, which nothing may own twice.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use self::requests::*;
use crate::guard;

/// Maximum number of traced threads; others are released without being examined.
const MOST: usize = 2048;

/// include/uapi/linux/ptrace.h: requests, options, stops. The C libraries differ in what they define and in types.
pub(super) mod requests {
    pub const PEEKDATA: usize = 2;
    pub const POKEDATA: usize = 5;
    pub const DETACH: usize = 17;
    pub const SYSCALL: usize = 24;
    pub const GETREGSET: usize = 0x4204;
    pub const SEIZE: usize = 0x4206;
    pub const INTERRUPT: usize = 0x4207;
    pub const LISTEN: usize = 0x4208;
    pub const GET_SYSCALL_INFO: usize = 0x420e;
    /// TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC.
    pub const OPTIONS: usize = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4;
    pub const EVENT_EXEC: i32 = 4;
    /// A stop that is not a system call, a signal or another event.
    pub const EVENT_STOP: i32 = 128;
    pub const INFO_ENTRY: u8 = 1;
    pub const INFO_EXIT: u8 = 2;
}

/// struct ptrace_syscall_info, as at a call's entry.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Info {
    op: u8,
    pad: [u8; 3],
    arch: u32,
    ip: u64,
    sp: u64,
    nr: u64,
    args: [u64; 6],
    /// Pads to the size of the kernel's struct.
    rest: u64,
}

/// Where a process was halted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Halt {
    pub pid: u32,
    /// The waiting thread.
    pub tid: u32,
    /// It has just executed another program; otherwise it has mapped something.
    pub exec: u32,
}

/// A reply to the tracer.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct TracerReply {
    /// 0: no thread waits for this.
    tid: u32,
    /// The process to stop tracing, or 0.
    done: u32,
}

/// The tracer of one command.
pub struct Halts {
    socket: OwnedFd,
    tracer: libc::pid_t,
}

impl Halts {
    /// Traces a process, which is waiting for something, from its next system call on.
    ///
    /// # Errors
    /// No process or descriptor is available, or it may not be traced.
    pub fn start(pid: u32) -> io::Result<Halts> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors, which we own from then on.
        let (socket, theirs) = unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        let mut tracer = Tracer { socket: theirs.as_raw_fd(), all: [HaltedThread::default(); MOST], n: 0 };
        let own = std::process::id();
        // SAFETY: the child makes system calls on its own copy of this memory, and does not return.
        let child = unsafe {
            match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t {
                -1 => return Err(io::Error::last_os_error()),
                0 => tracer.live(pid as libc::pid_t, own),
                child => child,
            }
        };
        let halts = Halts { socket, tracer: child };
        drop(theirs);
        let mut begun = 0i32;
        match receive(halts.socket.as_raw_fd(), &mut begun, 0) {
            Received::One if begun == 0 => Ok(halts),
            Received::One => Err(io::Error::from_raw_os_error(begun)),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Readable when a process is halted, and when no traced process is left.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next halted process; None: nothing is halted now.
    ///
    /// # Errors
    /// No traced process is left.
    pub fn next(&self) -> io::Result<Option<Halt>> {
        let mut halt = Halt::default();
        match receive(self.socket.as_raw_fd(), &mut halt, libc::MSG_DONTWAIT) {
            Received::One => Ok(Some(halt)),
            Received::None => Ok(None),
            Received::End => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Resumes it; with `done`, its process is not traced from then on.
    pub fn go_on(&self, halt: Halt, done: bool) {
        send(self.socket.as_raw_fd(), &TracerReply { tid: halt.tid, done: if done { halt.pid } else { 0 } });
    }

    /// Stops tracing a process.
    pub fn leave(&self, pid: u32) {
        send(self.socket.as_raw_fd(), &TracerReply { tid: 0, done: pid });
    }
}

impl Drop for Halts {
    fn drop(&mut self) {
        // SAFETY: a child that has not been waited for, so its pid cannot have been reused.
        unsafe {
            libc::kill(self.tracer, libc::SIGKILL);
            libc::waitpid(self.tracer, std::ptr::null_mut(), libc::__WALL);
        }
    }
}

enum Received {
    One,
    None,
    End,
}

/// Receives a plain struct of integers, in a message of its size.
fn receive<T: Copy>(socket: RawFd, into: &mut T, flags: i32) -> Received {
    loop {
        // SAFETY: the stated number of bytes; callers pass integers and structs of integers, for which any bytes
        // are valid.
        let n = unsafe { libc::recv(socket, std::ptr::from_mut(into).cast(), size_of::<T>(), flags) };
        // SAFETY: a thread-local number.
        let errno = unsafe { *libc::__errno_location() };
        return match usize::try_from(n) {
            Ok(n) if n == size_of::<T>() => Received::One,
            Err(_) if errno == libc::EINTR => continue,
            Err(_) if errno == libc::EAGAIN => Received::None,
            _ => Received::End,
        };
    }
}

/// False: the other side is gone.
fn send<T: Copy>(socket: RawFd, what: &T) -> bool {
    let (bytes, flags) = (size_of::<T>(), libc::MSG_NOSIGNAL);
    // SAFETY: the stated number of bytes.
    unsafe { libc::send(socket, std::ptr::from_ref(what).cast(), bytes, flags) == bytes as isize }
}

#[derive(Clone, Copy, Default)]
struct HaltedThread {
    tid: libc::pid_t,
    /// 0: unknown.
    pid: libc::pid_t,
    /// It is in a call that maps a file as executable.
    maps: bool,
    /// It is stopped until the recorder answers.
    halted: bool,
    /// It is released at its next stop.
    done: bool,
}

/// The tracer process. It makes only plain system calls.
struct Tracer {
    socket: RawFd,
    all: [HaltedThread; MOST],
    n: usize,
}

/// ptrace(2).
///
/// # Safety
/// Only numbers, or an address with the stated number of bytes.
pub(super) unsafe fn ptrace(request: usize, tid: libc::pid_t, address: usize, data: usize) -> libc::c_long {
    // SAFETY: as the caller states.
    unsafe { libc::syscall(libc::SYS_ptrace, request, tid as usize, address, data) }
}

impl Tracer {
    /// # Safety
    /// Call it in a separate process that may only make system calls.
    unsafe fn live(&mut self, first: libc::pid_t, recorder: u32) -> ! {
        // SAFETY: system calls on numbers and on local variables of this function.
        unsafe {
            libc::setsid();
            libc::prctl(libc::PR_SET_NAME, c"profinfer-halt".as_ptr());
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != recorder {
                libc::_exit(0);
            }
            guard::close_all_but(self.socket);
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigfillset(&raw mut set);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            let ended = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            let seized = ptrace(SEIZE, first, 0, OPTIONS) == 0;
            let begun = if ended >= 0 && seized { 0 } else { *libc::__errno_location() };
            send(self.socket, &begun);
            if begun != 0 {
                libc::_exit(1);
            }
            self.add(first);
            ptrace(INTERRUPT, first, 0, 0);
            while self.n > 0 && self.pass(ended) {}
            libc::_exit(0)
        }
    }

    /// Waits for the next event; false: the recorder is gone.
    ///
    /// # Safety
    /// As for [`Tracer::live`].
    unsafe fn pass(&mut self, ended: RawFd) -> bool {
        // SAFETY: two open descriptors, and buffers of the stated lengths.
        unsafe {
            let of = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut both = [of(ended), of(self.socket)];
            libc::poll(both.as_mut_ptr(), 2, -1);
            let mut info = std::mem::zeroed::<libc::signalfd_siginfo>();
            libc::read(ended, (&raw mut info).cast(), size_of_val(&info));
            let mut status = 0;
            loop {
                let tid = libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL);
                if tid <= 0 {
                    break;
                }
                self.stopped(tid, status);
            }
            let mut answer = TracerReply::default();
            loop {
                match receive(self.socket, &mut answer, libc::MSG_DONTWAIT) {
                    Received::One => self.obey(answer),
                    Received::None => return true,
                    Received::End => return false,
                }
            }
        }
    }

    fn find(&self, tid: libc::pid_t) -> Option<usize> {
        self.all[..self.n].iter().position(|t| t.tid == tid)
    }

    /// False: there is no room.
    fn add(&mut self, tid: libc::pid_t) -> bool {
        let Some(place) = self.all.get_mut(self.n) else { return false };
        *place = HaltedThread { tid, pid: process_of(tid), ..HaltedThread::default() };
        self.n += 1;
        true
    }

    fn remove(&mut self, i: usize) {
        self.n -= 1;
        self.all[i] = self.all[self.n];
    }

    /// # Safety
    /// As for [`Tracer::live`].
    unsafe fn obey(&mut self, answer: TracerReply) {
        // SAFETY: ids of traced threads; an error does no harm.
        unsafe {
            if let Some(i) = self.find(answer.tid as libc::pid_t).filter(|_| answer.tid != 0) {
                self.all[i].halted = false;
                if self.all[i].pid != answer.done as libc::pid_t {
                    ptrace(SYSCALL, self.all[i].tid, 0, 0);
                } else {
                    ptrace(DETACH, self.all[i].tid, 0, 0);
                    self.remove(i);
                }
            }
            if answer.done == 0 {
                return;
            }
            for t in self.all[..self.n].iter_mut().filter(|t| t.pid == answer.done as libc::pid_t) {
                t.done = true;
                ptrace(INTERRUPT, t.tid, 0, 0);
            }
            // This also answers the threads that are halted.
            let mut i = 0;
            while i < self.n {
                if self.all[i].done && self.all[i].halted {
                    ptrace(DETACH, self.all[i].tid, 0, 0);
                    self.remove(i);
                } else {
                    i += 1;
                }
            }
        }
    }

    /// Handles a thread that has stopped, or ended.
    ///
    /// # Safety
    /// As for [`Tracer::live`].
    unsafe fn stopped(&mut self, tid: libc::pid_t, status: i32) {
        let (event, signal) = (status >> 16, libc::WSTOPSIG(status));
        let i = self.find(tid);
        if !libc::WIFSTOPPED(status) {
            i.into_iter().for_each(|i| self.remove(i));
            return;
        }
        // SAFETY: ids of a stopped thread; an error does no harm.
        unsafe {
            // A new thread may stop before its parent's event is seen.
            let known = i.or_else(|| self.add(tid).then(|| self.n - 1));
            let group = event == EVENT_STOP && signal != libc::SIGTRAP;
            let given = if event != 0 || signal == libc::SIGTRAP | 0x80 { 0 } else { signal as usize };
            let Some(i) = known.filter(|&i| !self.all[i].done) else {
                ptrace(DETACH, tid, 0, given);
                known.into_iter().for_each(|i| self.remove(i));
                return;
            };
            if group {
                ptrace(LISTEN, tid, 0, 0);
                return;
            }
            let halts = match event {
                EVENT_EXEC => {
                    self.forget_others(tid);
                    Some(true)
                }
                0 if signal == libc::SIGTRAP | 0x80 => self.has_mapped(i, tid).then_some(false),
                _ => None,
            };
            let Some(i) = self.find(tid) else { return };
            if let Some(exec) = halts {
                let halt = Halt { pid: self.all[i].pid as u32, tid: tid as u32, exec: exec.into() };
                self.all[i].halted = send(self.socket, &halt);
                if self.all[i].halted {
                    return;
                }
            }
            ptrace(SYSCALL, tid, 0, given);
        }
    }

    /// After an exec, only the first thread is left of the earlier ones.
    fn forget_others(&mut self, leader: libc::pid_t) {
        let mut i = 0;
        while i < self.n {
            if self.all[i].pid == leader && self.all[i].tid != leader {
                self.remove(i);
            } else {
                i += 1;
            }
        }
    }

    /// A thread has stopped at a system call. Whether it is returning from one that has mapped a file as executable.
    ///
    /// # Safety
    /// As for [`Tracer::live`].
    unsafe fn has_mapped(&mut self, i: usize, tid: libc::pid_t) -> bool {
        // SAFETY: a struct of integers, of the stated size.
        unsafe {
            let mut info = Info::default();
            if ptrace(GET_SYSCALL_INFO, tid, size_of::<Info>(), (&raw mut info).addr()) <= 0 {
                return false;
            }
            match info.op {
                INFO_ENTRY => {
                    let [_, _, how, kind, ..] = info.args;
                    self.all[i].maps = info.nr == libc::SYS_mmap as u64
                        && how as i32 & libc::PROT_EXEC != 0
                        && kind as i32 & libc::MAP_ANONYMOUS == 0;
                    false
                }
                INFO_EXIT => std::mem::take(&mut self.all[i].maps),
                _ => false,
            }
        }
    }
}

/// The process of a thread; the thread's own id if that cannot be read.
fn process_of(tid: libc::pid_t) -> libc::pid_t {
    let (mut path, mut text) = ([0u8; 32], [0u8; 512]);
    let mut at = 0;
    for part in [&b"/proc/"[..], digits(tid, &mut [0; 12]), b"/status\0"] {
        path[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    // SAFETY: a path that ends in zero, and a buffer of the stated length.
    let n = unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        let n = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        usize::try_from(n).unwrap_or(0)
    };
    let field = b"\nTgid:\t";
    let found = text[..n].windows(field.len()).position(|w| w == field);
    let digits = found.map(|at| text[at + field.len()..n].iter().take_while(|b| b.is_ascii_digit()));
    let number =
        digits.map(|d| d.fold(0, |n: libc::pid_t, b| n.wrapping_mul(10).wrapping_add((b - b'0').into())));
    number.filter(|&pid| pid > 0).unwrap_or(tid)
}

/// A positive number in decimal.
fn digits(mut n: libc::pid_t, room: &mut [u8; 12]) -> &[u8] {
    let mut at = room.len();
    while at > 0 {
        at -= 1;
        room[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    &room[at..]
}
