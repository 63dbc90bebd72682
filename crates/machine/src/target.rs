//! Starts the command to record, held before its exec until the probes are in place. Also reads facts about processes.
//! Between fork and exec there is no safe interface; for sysconf(3) see [`usage`].

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::child::run_as;
use crate::hardware::InheritedSettings;
use crate::proc::{StatFields, of_ticks};
use crate::usage;
use crate::user::User;
use common::{filesize, redact};

/// Standard streams of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// The recorder's own.
    Ours,
    /// The same, but its standard output goes to standard error.
    StdoutTaken,
    /// The same, but streams that are a terminal are replaced with /dev/null.
    TerminalTaken,
}

impl Streams {
    fn give(self, command: &mut Command) {
        match self {
            Streams::Ours => {}
            Streams::StdoutTaken => {
                command.stdout(Stdio::from(io::stderr()));
            }
            Streams::TerminalTaken => {
                if io::stdin().is_terminal() {
                    command.stdin(Stdio::null());
                }
                if io::stdout().is_terminal() {
                    command.stdout(Stdio::null());
                }
                if io::stderr().is_terminal() {
                    command.stderr(Stdio::null());
                }
            }
        }
    }
}

/// A command waiting to be started.
pub struct HeldCommand {
    pub pid: u32,
    go: PipeWriter,
    spawner: JoinHandle<io::Result<Child>>,
}

/// Forks a child that waits before its exec, so that its pid is known and none of its code runs unobserved. It has
/// the settings of `origin`, whatever the recorder changed for itself, and runs as `user` if given.
pub fn hold(
    argv: &[OsString],
    streams: Streams,
    origin: InheritedSettings,
    user: Option<User>,
    variables: &[(&str, OsString)],
) -> io::Result<HeldCommand> {
    let (program, args) = argv.split_first().ok_or_else(|| io::Error::other("no command"))?;
    let (mut born, tell) = io::pipe()?;
    let (wait, go) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(args);
    streams.give(&mut command);
    let mut ends = Some((tell, wait));
    let ours = go.as_raw_fd();
    // SAFETY: runs in the child between fork and exec; it only closes, reads and writes pipes, gets its own pid and
    // makes other plain system calls. `ours` is open at the fork: `go` outlives it.
    unsafe {
        command.pre_exec(move || {
            // The child's copy of the writing end would make it wait forever after the recorder is gone.
            libc::close(ours);
            crate::wake::unblock();
            origin.restore()?;
            filesize::restore_signal();
            Ok(())
        })
    };
    if let Some(user) = user {
        run_as(&mut command, user);
    }
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    // SAFETY: as above.
    unsafe {
        command.pre_exec(move || match ends.take() {
            Some((tell, wait)) => announce_and_wait(tell, wait),
            None => Ok(()),
        })
    };
    // Command::spawn returns only after the exec, so it has to wait in another thread.
    let spawner = std::thread::Builder::new().name("spawn".into()).spawn(move || command.spawn())?;
    let mut pid = [0; 4];
    match born.read_exact(&mut pid) {
        Ok(()) => Ok(HeldCommand { pid: u32::from_ne_bytes(pid), go, spawner }),
        Err(e) => Err(spawner.join().ok().and_then(Result::err).unwrap_or(e)),
    }
}

fn announce_and_wait(mut tell: PipeWriter, mut wait: PipeReader) -> io::Result<()> {
    tell.write_all(&std::process::id().to_ne_bytes())?;
    if wait.read_exact(&mut [0]).is_err() {
        // End of file without the byte: nothing must run. The recorder may be gone, so the error is not reported.
        // SAFETY: ends the process without running exit handlers.
        unsafe { libc::_exit(1) };
    }
    Ok(())
}

impl HeldCommand {
    /// Lets it run. An error is that of the exec: not found, not executable.
    pub fn start(mut self) -> io::Result<Child> {
        self.go.write_all(&[1])?;
        drop(self.go);
        self.spawner.join().map_err(|_| io::Error::other("the thread that starts the command died"))?
    }
}

/// Exit code as shown by a shell.
pub fn shell_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1)
}

/// True while the process exists and is not a zombie.
pub fn alive(pid: u32) -> bool {
    StatFields::of(pid).is_some_and(|stat| stat.is_alive())
}

/// True for a process, false for a thread of one (both have an entry in /proc).
pub fn is_process(pid: u32) -> bool {
    status(pid, "Tgid:") == Some(pid)
}

/// Time since a process was started; None if it is gone.
pub fn age(pid: u32) -> Option<Duration> {
    // In clock ticks since boot.
    let ticks: u64 = StatFields::of(pid)?.number(22)?;
    Some(Duration::from_nanos(usage::clock_ns(libc::CLOCK_BOOTTIME)).saturating_sub(of_ticks(ticks)))
}

/// The parent process; None if there is none, or the process is gone.
pub fn parent(pid: u32) -> Option<u32> {
    status(pid, "PPid:").filter(|&parent| parent != 0)
}

fn status(pid: u32, field: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix(field))?.trim().parse().ok()
}

/// CPUs on which the process's threads are running now.
pub fn running_on(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let cpu_of = |task: io::Result<fs::DirEntry>| {
        let stat = StatFields::read(&task.ok()?.path().join("stat"))?;
        (stat.state()? == 'R').then(|| stat.number(39)).flatten()
    };
    tasks.filter_map(cpu_of).collect()
}

/// Context switches of the process's threads so far, without those of threads that have ended.
pub fn switches(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let text = tasks.map(|t| fs::read_to_string(t.path().join("status")).unwrap_or_default());
    let of = |line: &str| line.split_once("_ctxt_switches:")?.1.trim().parse::<u64>().ok();
    text.map(|t| t.lines().filter_map(of).sum::<u64>()).sum()
}

/// A number that changes when the process maps or unmaps code; 0 if its maps cannot be read.
pub fn maps_mark(pid: u32) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else { return 0 };
    let mut hash = DefaultHasher::new();
    // Only executable mappings: heaps come and go.
    maps.split(|&b| b == b'\n')
        .filter(|l| l.windows(4).take(60).any(|w| w == b"r-xp"))
        .for_each(|l| l.hash(&mut hash));
    hash.finish() | 1
}

/// The process's executable and command line, empty if they cannot be read.
pub fn describe(pid: u32) -> (String, String) {
    let exe = fs::read_link(format!("/proc/{pid}/exe"))
        .map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    while cmdline.last() == Some(&0) {
        cmdline.pop();
    }
    (exe, shown(cmdline.split(|&b| b == 0)))
}

/// The processes that this one has started, with their names.
pub fn children(pid: u32) -> Vec<(u32, String)> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let own = pids.filter(|child| parent(*child) == Some(pid));
    own.map(|child| {
        (child, fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default().trim().to_owned())
    })
    .collect()
}

/// A command line as text, without anything that looks like a secret.
pub fn shown<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> String {
    let texts: Vec<_> = arguments.map(String::from_utf8_lossy).collect();
    redact::arguments(texts.iter().map(AsRef::as_ref)).join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_listed_with_their_names() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("started");
        crate::until::until("it runs its program", || {
            children(std::process::id()).contains(&(child.id(), "sleep".to_owned()))
        });
        child.kill().expect("killed");
        child.wait().expect("waited");
        assert!(children(std::process::id()).iter().all(|(pid, _)| *pid != child.id()));
    }

    #[test]
    fn a_held_command_runs_only_when_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let mark = dir.path().join("mark");
        let held = hold(
            &["touch".into(), mark.clone().into()],
            Streams::Ours,
            InheritedSettings::of_this_thread(),
            None,
            &[],
        )
        .expect("forked");
        assert!(alive(held.pid));
        assert!(!mark.exists());
        let mut child = held.start().expect("started");
        assert!(child.wait().expect("waited").success());
        assert!(mark.exists());
    }

    #[test]
    fn a_held_command_goes_when_its_recorder_does() {
        let held = hold(
            &["sleep".into(), "1000".into()],
            Streams::Ours,
            InheritedSettings::of_this_thread(),
            None,
            &[],
        )
        .expect("forked");
        let HeldCommand { pid, go, spawner } = held;
        drop(go);
        let child = spawner.join().expect("no panic");
        assert!(child.is_ok_and(|mut child| child.wait().is_ok_and(|s| s.code() == Some(1))), "it ran");
        assert!(!alive(pid));
    }

    #[test]
    fn a_command_line_is_told_without_its_secrets() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60", "--api-key", "hidden words", "-t", "4"])
            .spawn()
            .expect("a process");
        // Its command line is its own only after its exec.
        crate::until::until("its exec", || !describe(child.id()).1.is_empty());
        let (_, cmdline) = describe(child.id());
        child.kill().and_then(|()| child.wait()).expect("killed");
        assert!(cmdline.ends_with("--api-key *** -t 4"), "{cmdline}");
    }

    #[test]
    fn a_running_thread_is_somewhere() {
        let here = running_on(std::process::id());
        assert!(!here.is_empty() && here.iter().all(|&c| c < 4096), "{here:?}");
        assert!(running_on(u32::MAX).is_empty());
    }

    #[test]
    fn a_thread_that_sleeps_leaves_its_cpu() {
        // Not this process's own threads: those of other tests may end in the meantime, and their switches with them.
        let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep");
        crate::until::until("it sleeps", || switches(sleeper.id()) > 0);
        sleeper.kill().and_then(|()| sleeper.wait()).expect("killed");
        assert_eq!(switches(u32::MAX), 0);
    }

    #[test]
    fn a_command_that_is_not_there_fails_at_its_start() {
        let held = hold(
            &["/nonexistent/engine".into()],
            Streams::Ours,
            InheritedSettings::of_this_thread(),
            None,
            &[],
        )
        .expect("forked");
        assert_eq!(held.start().expect_err("no such file").kind(), io::ErrorKind::NotFound);
    }
}
