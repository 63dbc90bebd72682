//! Sets processes free that the service has given CPUs to, when the service is gone in whatever way: a small process that
//! waits for its end, and a file by which the next service does it if that process was killed too.
//!
//! The process comes from a fork without an exec. The service is single-threaded, so it may do what a program may.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use serde::{Deserialize, Serialize};

use crate::place::OpenDir;
use crate::replace::replace;
use crate::store::calibration_cache::boot;
use machine::{affinity, capset, helper, proc};

/// The file in the service's directory.
const NAME: &str = ".affinity";
/// Longest file read, bytes.
const MOST: u64 = 64 << 10;

/// A process, whichever has its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Clock ticks since boot.
    pub start: u64,
}

impl ProcessId {
    /// Whether it still runs.
    pub fn runs(self) -> bool {
        proc::stat(self.pid).is_some_and(|stat| stat.start == self.start)
    }

    /// Lets all its threads run on all CPUs that it may have.
    ///
    /// # Errors
    /// The system refuses. That it has ended is no error.
    pub fn free(self) -> io::Result<()> {
        if !self.runs() {
            return Ok(());
        }
        let _nice = capset::nice();
        affinity::set_process(self.pid, None).map(drop)
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Kept {
    boot: String,
    processes: Vec<ProcessId>,
}

/// The processes to be set free.
#[derive(Default)]
pub struct Keeper {
    /// Its other end is the waiting process's.
    pipe: Option<PipeWriter>,
    held: Vec<ProcessId>,
}

impl Keeper {
    /// From now on this process is set free when the service is gone.
    ///
    /// # Errors
    /// The waiting process cannot be started, or the file not be written: nothing would set it free.
    pub fn hold(&mut self, place: &OpenDir, id: ProcessId) -> io::Result<()> {
        if self.held.contains(&id) {
            return Ok(());
        }
        self.tell(id, true)?;
        self.held.push(id);
        self.write(place)
    }

    /// This process is free.
    pub fn let_go(&mut self, place: &OpenDir, id: ProcessId) {
        let before = self.held.len();
        self.held.retain(|held| *held != id);
        if self.held.len() < before {
            // Setting it free once more does no harm.
            drop(self.tell(id, false));
            drop(self.write(place));
        }
    }

    /// A message is shorter than what a pipe takes at once.
    fn tell(&mut self, id: ProcessId, held: bool) -> io::Result<()> {
        let mut message = [0; MESSAGE];
        message[..4].copy_from_slice(&id.pid.to_ne_bytes());
        message[4..12].copy_from_slice(&id.start.to_ne_bytes());
        message[12] = held.into();
        if let Some(pipe) = &mut self.pipe
            && pipe.write_all(&message).is_ok()
        {
            return Ok(());
        }
        // There is none yet, or it was killed.
        let mut pipe = start()?;
        for other in &self.held {
            let mut message = [0; MESSAGE];
            message[..4].copy_from_slice(&other.pid.to_ne_bytes());
            message[4..12].copy_from_slice(&other.start.to_ne_bytes());
            message[12] = 1;
            pipe.write_all(&message)?;
        }
        pipe.write_all(&message)?;
        self.pipe = Some(pipe);
        Ok(())
    }

    fn write(&self, place: &OpenDir) -> io::Result<()> {
        if self.held.is_empty() {
            return place.remove(NAME);
        }
        let kept = Kept { boot: boot()?, processes: self.held.clone() };
        replace(&place.at(NAME), 0o600, &serde_json::to_vec(&kept)?)
    }
}

/// Bytes of a message: pid, start, whether it is held.
const MESSAGE: usize = 16;

/// Sets free what an earlier service has left, and returns the processes, each with the error if the system refused.
pub fn sweep(place: &OpenDir) -> Vec<(ProcessId, Option<io::Error>)> {
    let read = || -> Option<Kept> {
        let mut bytes = Vec::new();
        place.read(NAME).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    let Some(kept) = read() else { return Vec::new() };
    let same = boot().is_ok_and(|boot| boot == kept.boot);
    let freed = kept.processes.into_iter().filter(|id| same && id.runs()).map(|id| (id, id.free().err()));
    let freed: Vec<_> = freed.collect();
    // If it stays, the next start does it again.
    drop(place.remove(NAME));
    freed
}

/// Starts the waiting process, as a child of init.
fn start() -> io::Result<PipeWriter> {
    let (wait, alive) = io::pipe()?;
    let (name, fd) = (c"profinfer-cpus", wait.as_raw_fd());
    // SAFETY: only this thread runs, here and in the first child, which ends at once.
    let pid = unsafe { helper::fork(name, &[fd], || drop(helper::fork(name, &[fd], || watch(wait)))) }?;
    // SAFETY: waits for the child just created; its status is not needed.
    while unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    Ok(alive)
}

/// Main function of the waiting process.
fn watch(mut wait: PipeReader) {
    detach();
    drop(capset::keep(capset::READ | capset::NICE));
    let mut held: Vec<ProcessId> = Vec::new();
    let mut message = [0; MESSAGE];
    while wait.read_exact(&mut message).is_ok() {
        let (pid, start) = (message[..4].try_into(), message[4..12].try_into());
        let (Ok(pid), Ok(start)) = (pid, start) else { continue };
        let id = ProcessId { pid: u32::from_ne_bytes(pid), start: u64::from_ne_bytes(start) };
        held.retain(|other| *other != id);
        if message[12] == 1 {
            held.push(id);
        }
    }
    for id in held {
        // Nobody is there to be told; the next service tries again.
        drop(id.free());
    }
}

/// Signals and output of the service's terminal or group are not for this process.
fn detach() {
    let null = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/null");
    // SAFETY: plain system calls on numbers, and a set that is filled before it is used.
    unsafe {
        libc::setsid();
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        if let Ok(null) = null {
            for fd in 0..3 {
                libc::dup2(null.as_raw_fd(), fd);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> (Sleeper, ProcessId) {
            let child = Command::new("sleep").arg("600").spawn().expect("sleep");
            let pid = child.id();
            let start = proc::stat(pid).expect("alive").start;
            (Sleeper(child), ProcessId { pid, start })
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The CPUs of this test, if there are at least two.
    fn cpus() -> Option<Vec<u32>> {
        affinity::of_thread(0).ok().filter(|all| all.len() > 1)
    }

    #[test]
    fn the_next_service_sets_free_what_the_file_names() {
        let Some(all) = cpus() else { return };
        let dir = tempfile::tempdir().expect("a directory");
        let place = OpenDir::open(&dir.path().join("own")).expect("a place");
        assert!(sweep(&place).is_empty());
        let (_sleeper, id) = Sleeper::start();
        affinity::set_process(id.pid, Some(&all[..1])).expect("set");
        let other = ProcessId { start: id.start + 1, ..id };
        let write = |boot: String, processes| {
            let bytes = serde_json::to_vec(&Kept { boot, processes }).expect("JSON");
            replace(&place.at(NAME), 0o600, &bytes).expect("written");
        };
        write("another".into(), vec![id]);
        assert!(sweep(&place).is_empty() && affinity::of_thread(id.pid).expect("alive").len() == 1);
        write(boot().expect("a boot"), vec![other]);
        assert!(
            sweep(&place).is_empty() && affinity::of_thread(id.pid).expect("alive").len() == 1,
            "another process"
        );
        write(boot().expect("a boot"), vec![other, id]);
        let freed = sweep(&place);
        assert!(matches!(freed.as_slice(), [(one, None)] if *one == id), "{freed:?}");
        assert!(affinity::of_thread(id.pid).expect("alive").len() >= all.len());
        assert!(sweep(&place).is_empty(), "once");
        std::fs::write(place.at(NAME), "{\"boot\":").expect("written");
        assert!(sweep(&place).is_empty());
    }

    #[test]
    fn the_waiting_process_sets_free_what_is_held_at_the_end() {
        let Some(all) = cpus() else { return };
        let dir = tempfile::tempdir().expect("a directory");
        let place = OpenDir::open(&dir.path().join("own")).expect("a place");
        let ((_one, held), (_two, free)) = (Sleeper::start(), Sleeper::start());
        let mut keeper = Keeper::default();
        for id in [held, free] {
            keeper.hold(&place, id).expect("held");
            affinity::set_process(id.pid, Some(&all[..1])).expect("set");
        }
        keeper.let_go(&place, free);
        assert!(std::fs::read_to_string(place.at(NAME)).expect("a file").contains(&held.pid.to_string()));
        assert_eq!(affinity::of_thread(held.pid).expect("alive").len(), 1, "nothing while the service lives");
        drop(keeper);
        crate::until::until("it is set free", || {
            affinity::of_thread(held.pid).expect("alive").len() >= all.len()
        });
        assert_eq!(
            affinity::of_thread(free.pid).expect("alive").len(),
            1,
            "that one is no longer its business"
        );
    }
}
