//! All threads of a process, stopped by ptrace(2) for the moment in which its code is written.
//!
//! Why the process loses nothing by it, however this ends:
//! - The tracer is a thread of this process, so an ancestor may trace where the kernel allows only those (Yama). When it ends,
//!   by a panic or with the process too, the kernel lets all threads go on.
//! - No stop is waited for by wait(2): its signal remains that of the stop, and the kernel delivers it when the tracer ends
//!   (`ptrace_stop` and `__ptrace_unlink` of kernel/signal.c and kernel/ptrace.c). Nor is the end of a thread or of the process
//!   taken from whom it is for.
//! - A process that was stopped as a job stays stopped: that is the threads' state when the tracer ends.
//! - A system call that a thread waits in is interrupted and begins again, as when the process is stopped and continued
//!   (signal(7)).
//!
//! Why nothing else runs its code meanwhile: each thread has stopped, and there are as many as the kernel counts, so no thread
//! is left that could make another. A thread that waits for a child by vfork(2), with which it shares the memory, does not stop.
//! Another process that shares it is found by kcmp(2).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::halt::ptrace;
use crate::halt::requests::{GETREGSET, INTERRUPT, PEEKDATA, POKEDATA, SEIZE};

/// How often a thread is asked whether it has stopped.
const SOON: Duration = Duration::from_micros(100);
/// The longest wait for the kernel to let all go on.
const END: Duration = Duration::from_secs(1);
/// NT_PRSTATUS of elf.h; where the program counter is in its registers, bytes (struct user_regs_struct, struct user_pt_regs).
const REGISTERS: usize = 1;
const COUNTER_AT: usize = if cfg!(target_arch = "aarch64") { 256 } else { 128 };
const REGISTERS_BYTES: usize = if cfg!(target_arch = "aarch64") { 272 } else { 216 };
/// KCMP_VM of include/uapi/linux/kcmp.h.
const SAME_MEMORY: usize = 1;

/// Why they did not all stop.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    #[error("ptrace is refused: {0} (kernel.yama.ptrace_scope, a filter of system calls, or a debugger)")]
    Refused(#[source] io::Error),
    #[error("thread {0} did not stop in time")]
    Busy(u32),
    #[error("process {0} shares its memory")]
    Shared(u32),
    #[error("no thread for it: {0}")]
    NoThread(#[source] io::Error),
    #[error("process {0} has ended")]
    Ended(u32),
}

/// The stopped threads of a process, each with its program counter.
pub struct Stopped {
    threads: Vec<(u32, u64)>,
}

/// What is known of a thread that is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Awaited,
    At(u64),
    /// It has ended, and runs nothing more.
    Over,
}

/// Stops all threads of a process, does `work`, and lets them go on. They stop within `most`, or not at all.
///
/// # Errors
/// They did not all stop.
pub fn while_stopped<T: Send>(
    pid: u32,
    most: Duration,
    work: impl FnOnce(&Stopped) -> T + Send,
) -> Result<T, StopError> {
    let mut tracer = 0;
    let done = std::thread::scope(|scope| {
        let tracing = Builder::new().name("stop".into()).spawn_scoped(scope, || {
            tracer = rustix::thread::gettid().as_raw_nonzero().get();
            let stopped = stop(pid, Instant::now() + most)?;
            Ok(work(&stopped))
        });
        let ended = tracing.map_err(StopError::NoThread)?.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let begin = Instant::now();
    while begin.elapsed() < END && threads(pid).iter().any(|tid| is_traced_by(pid, *tid, tracer)) {
        std::thread::sleep(SOON);
    }
    done
}

fn stop(pid: u32, end: Instant) -> Result<Stopped, StopError> {
    let mut all: BTreeMap<u32, Stop> = BTreeMap::new();
    loop {
        let listed = threads(pid);
        for &tid in &listed {
            if all.contains_key(&tid) {
                continue;
            }
            let state = match seize(tid) {
                Ok(()) => Stop::Awaited,
                Err(_) if is_over(pid, tid) => Stop::Over,
                Err(e) => return Err(StopError::Refused(e)),
            };
            all.insert(tid, state);
        }
        for (tid, state) in all.iter_mut().filter(|(_, state)| **state == Stop::Awaited) {
            *state = match counter(*tid) {
                Some(at) => Stop::At(at),
                None if is_over(pid, *tid) => Stop::Over,
                None => Stop::Awaited,
            };
        }
        let awaited = all.iter().find(|(_, state)| **state == Stop::Awaited);
        // A list that was read while threads came and went may lack some.
        if awaited.is_none()
            && listed.len() as u32 == count(pid)
            && listed.iter().all(|tid| all.contains_key(tid))
        {
            break;
        }
        if Instant::now() >= end {
            return Err(StopError::Busy(awaited.map_or(pid, |(tid, _)| *tid)));
        }
        std::thread::sleep(SOON);
    }
    if let Some(other) = sharer(pid) {
        return Err(StopError::Shared(other));
    }
    let at = |(tid, state): (u32, Stop)| if let Stop::At(at) = state { Some((tid, at)) } else { None };
    let threads: Vec<(u32, u64)> = all.into_iter().filter_map(at).collect();
    if threads.is_empty() { Err(StopError::Ended(pid)) } else { Ok(Stopped { threads }) }
}

impl Stopped {
    /// Whether a thread goes on strictly inside this range.
    pub fn is_inside(&self, from: u64, length: u64) -> bool {
        self.threads.iter().any(|(_, at)| at.wrapping_sub(from) < length && *at != from)
    }

    /// Bytes of the process's memory.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn read(&self, from: u64, length: usize) -> io::Result<Vec<u8>> {
        let words: io::Result<Vec<u64>> = words(from, length).map(|at| self.word(at)).collect();
        let bytes: Vec<u8> = words?.into_iter().flat_map(u64::to_ne_bytes).collect();
        Ok(bytes.into_iter().skip((from & 7) as usize).take(length).collect())
    }

    /// Writes bytes, also where the process itself may not.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn write(&self, from: u64, bytes: &[u8]) -> io::Result<()> {
        for at in words(from, bytes.len()) {
            let mut word = self.word(at)?.to_ne_bytes();
            for (i, byte) in word.iter_mut().enumerate() {
                let place = (at + i as u64).checked_sub(from).and_then(|place| usize::try_from(place).ok());
                *byte = place.and_then(|place| bytes.get(place)).copied().unwrap_or(*byte);
            }
            self.ask(POKEDATA, at, usize::from_ne_bytes(word))?;
        }
        Ok(())
    }

    fn word(&self, at: u64) -> io::Result<u64> {
        let mut word = 0u64;
        self.ask(PEEKDATA, at, (&raw mut word).addr()).map(|()| word)
    }

    fn ask(&self, request: usize, at: u64, data: usize) -> io::Result<()> {
        let thread = self.threads.first().map_or(0, |(tid, _)| *tid);
        // SAFETY: a number, or room for the word that the kernel writes.
        match unsafe { ptrace(request, thread as libc::pid_t, at as usize, data) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// The aligned words that have these bytes: none is on two pages.
fn words(from: u64, length: usize) -> impl Iterator<Item = u64> {
    (from & !7..from.saturating_add(length as u64)).step_by(8)
}

fn seize(tid: u32) -> io::Result<()> {
    let tid = tid as libc::pid_t;
    // SAFETY: numbers only.
    if unsafe { ptrace(SEIZE, tid, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above. It fails only for a thread that has ended meanwhile.
    unsafe { ptrace(INTERRUPT, tid, 0, 0) };
    Ok(())
}

/// Where a stopped thread goes on; None: it has not stopped.
fn counter(tid: u32) -> Option<u64> {
    let mut registers = [0u8; REGISTERS_BYTES];
    let mut part = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: registers.len() };
    // SAFETY: the kernel writes at most the stated length, and what it wrote to the struct.
    let got = unsafe { ptrace(GETREGSET, tid as libc::pid_t, REGISTERS, (&raw mut part).addr()) };
    let word = registers.get(COUNTER_AT..).and_then(|rest| rest.first_chunk::<8>())?;
    (got == 0 && part.iov_len == REGISTERS_BYTES).then(|| u64::from_ne_bytes(*word))
}

/// Ids of a process's threads.
fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|t| t.file_name().to_str()?.parse().ok()).collect()
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)).map(|rest| rest.trim().to_owned())
}

/// How many threads the kernel counts.
fn count(pid: u32) -> u32 {
    field(&format!("/proc/{pid}/status"), "Threads:").and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn is_over(pid: u32, tid: u32) -> bool {
    let state = field(&format!("/proc/{pid}/task/{tid}/status"), "State:");
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

fn is_traced_by(pid: u32, tid: u32, tracer: i32) -> bool {
    let by = field(&format!("/proc/{pid}/task/{tid}/status"), "TracerPid:");
    tracer != 0 && by.and_then(|by| by.parse().ok()) == Some(tracer)
}

/// Another process with the same memory.
fn sharer(pid: u32) -> Option<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others =
        all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).filter(|other| *other != pid);
    // SAFETY: numbers only.
    let same = |other: &u32| unsafe { libc::syscall(libc::SYS_kcmp, pid, *other, SAME_MEMORY, 0, 0) } == 0;
    others.into_iter().find(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    const MOST: Duration = Duration::from_secs(10);

    /// Ends with the test.
    struct Own(Child);

    impl Drop for Own {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A child that copies its input to its output.
    fn cat() -> Own {
        let mut cat = Command::new("cat");
        Own(cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat"))
    }

    fn state(pid: u32) -> String {
        field(&format!("/proc/{pid}/status"), "State:").unwrap_or_default()
    }

    fn refused(e: &StopError) -> bool {
        matches!(e, StopError::Refused(_))
    }

    #[test]
    fn memory_is_read_and_written_while_it_stands_still() {
        let mut child = cat();
        let pid = child.0.id();
        let code = || {
            let maps = crate::maps::read(pid).expect("maps");
            let named = field(&format!("/proc/{pid}/status"), "Name:").is_some_and(|name| name == "cat");
            maps.iter().find(|m| named && m.executable && m.is_file()).map(|m| m.start)
        };
        crate::until::until("it has begun", || code().is_some());
        let from = code().expect("code") + 3;
        let done = while_stopped(pid, MOST, |stopped| {
            let old = stopped.read(from, 11)?;
            stopped.write(from, b"hello world")?;
            let new = stopped.read(from - 1, 13)?;
            stopped.write(from, &old)?;
            assert!(stopped.read(1, 1).is_err() && stopped.threads.len() == 1);
            Ok::<_, io::Error>((old, new, stopped.read(from, 11)?, state(pid)))
        });
        if let Err(e) = &done
            && refused(e)
        {
            println!("skipped: {e}");
            return;
        }
        let (old, new, again, during) = done.expect("stopped").expect("mapped");
        assert!(new[1..12] == *b"hello world" && old == again && during.starts_with('t'), "{during}");
        assert!(child.0.try_wait().expect("a child").is_none(), "no stop is taken for its end");
        child.0.stdin.as_mut().expect("piped").write_all(b"on\n").expect("it reads");
        let mut line = String::new();
        BufReader::new(child.0.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it goes on");
        assert_eq!(line, "on\n");
        drop(child.0.stdin.take());
        assert!(child.0.wait().expect("it ends").success());
    }

    #[test]
    fn a_stopped_job_stays_stopped_and_a_signal_is_not_lost() {
        let mut child = cat();
        let pid = child.0.id();
        // SAFETY: signals to a child that was not waited for.
        let send = |signal| unsafe { libc::kill(pid as libc::pid_t, signal) };
        send(libc::SIGSTOP);
        crate::until::until("it stops", || state(pid).starts_with('T'));
        if let Err(e) = while_stopped(pid, MOST, |_| send(libc::SIGUSR1))
            && refused(&e)
        {
            println!("skipped: {e}");
            return;
        }
        crate::until::until("it is stopped again", || state(pid).starts_with('T'));
        send(libc::SIGCONT);
        let ended = child.0.wait().expect("a child");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGUSR1));
    }

    /// A child by vfork has the memory of its parent, which waits for it: here until a pipe is opened.
    #[test]
    fn a_process_that_shares_its_memory_for_a_while_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("a pipe");
        let script = "import os,sys; os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, \
                      sys.argv[1], os.O_RDONLY, 0)])";
        let Ok(parent) = Command::new("python3").arg("-c").arg(script).arg(&pipe).spawn() else {
            println!("skipped: no python3");
            return;
        };
        let mut parent = Own(parent);
        let pid = parent.0.id();
        // SAFETY: numbers only.
        if unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, SAME_MEMORY, 0, 0) } != 0 {
            println!("skipped: kcmp: {}", io::Error::last_os_error());
            return;
        }
        crate::until::until("it waits for its child", || sharer(pid).is_some());
        match while_stopped(pid, Duration::from_millis(50), |_| ()) {
            Err(StopError::Busy(_) | StopError::Shared(_)) => {}
            Err(e) if refused(&e) => println!("skipped: {e}"),
            other => panic!("{other:?}"),
        }
        drop(fs::OpenOptions::new().write(true).open(&pipe).expect("the child reads"));
        assert!(parent.0.wait().expect("a child").success());
    }

    #[test]
    fn ranges_are_words_and_their_insides() {
        assert!(matches!(while_stopped(u32::MAX >> 2, MOST, |_| ()), Err(StopError::Ended(_))));
        let words: Vec<u64> = words(0x1005, 4).collect();
        assert_eq!(words, [0x1000, 0x1008]);
        let stopped = Stopped { threads: vec![(1, 100), (2, 204)] };
        assert_eq!(
            [(100, 5), (96, 5), (95, 5), (200, 4)].map(|(from, n)| stopped.is_inside(from, n)),
            [false, true, false, false]
        );
    }
}
