//! Whether the kernel's tracing is well. After an oops in it everybody who touches it waits for ever and cannot be
//! killed. So a small process touches it first, and is given up if it does not come back.
//!
//! The process comes from a fork without an exec, as that of `guard`: it makes only system calls.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::guard;
use crate::kernel::tracepoint;
use crate::proc::StatFields;

/// After an oops, which is what leaves locks held for ever.
const PATIENCE: Duration = Duration::from_secs(3);
/// Number of times PATIENCE without an oops, or for a process that gets no CPU: the kernel holds the lock of all events some
/// 80 ms for each probe that another recorder removes, of which it may have hundreds.
const ALIVE: u32 = 20;
/// A kernel function in the stack of a process that waits for tracing has one of these in its name.
const OF_TRACING: [&str; 5] = ["uprobe", "perf_", "trace_", "tracefs", "dyn_event"];
/// "The kernel has died recently, i.e. there was an oops or BUG" (Documentation/admin-guide/tainted-kernels.rst).
const TAINT_DIE: u64 = 1 << 7;
const TAINTED: &str = "/proc/sys/kernel/tainted";

/// A file of the kernel's tracing cannot be read in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "the kernel's tracing does not answer ({}, {} s): {}see dmesg; {}",
    file.display(),
    waited.as_secs(),
    stuck.as_ref().map(|(pid, name)| format!("process {pid} ({name}) is stuck in it; ")).unwrap_or_default(),
    if *died { "only a reboot helps" } else { "there was no oops, so try again; if it stays, only a reboot helps" }
)]
pub struct NoAnswer {
    file: PathBuf,
    waited: Duration,
    /// Another process that waits for it.
    stuck: Option<(u32, String)>,
    /// The kernel has had an oops.
    died: bool,
}

/// Makes sure that touching tracefs, perf events and uprobes will return. All of them need the lock that a reader of the
/// uprobe events needs (`event_mutex`). A kernel without them answers, too.
///
/// # Errors
/// It does not answer.
pub fn answers() -> Result<(), NoAnswer> {
    readable(&tracepoint::root().join("uprobe_events"), PATIENCE, died())
}

/// Whether the kernel has had an oops since boot. False also where that cannot be read.
fn died() -> bool {
    let bits = fs::read_to_string(TAINTED).ok().and_then(|text| text.trim().parse::<u64>().ok());
    bits.is_some_and(|bits| bits & TAINT_DIE != 0)
}

/// What follows from an oops since boot. None: there was none, or that cannot be read.
pub fn oops() -> Option<&'static str> {
    died().then_some(
        "the kernel has had an oops since boot (bit 7 of /proc/sys/kernel/tainted): what runs may hang, and what is \
         measured may be wrong; see dmesg, and reboot",
    )
}

fn readable(file: &Path, patience: Duration, died: bool) -> Result<(), NoAnswer> {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return Ok(()) };
    // SAFETY: the child only makes system calls on its own copy of memory, and does not return.
    let child = match unsafe { guard::fork() } {
        // Nothing is known, and what comes next reports that there are no processes.
        -1 => return Ok(()),
        0 => touch(&path),
        pid => pid,
    };
    // What has ended was waited for.
    let ended = |ms: Duration| guard::wait(child, ms.as_millis() as libc::c_int);
    for waited in 1..=ALIVE {
        if ended(patience) {
            return Ok(());
        }
        if died && state(&format!("/proc/{child}/stat")) == Some('D') || waited == ALIVE {
            // It stays: nothing ends a process in this state.
            return Err(NoAnswer {
                file: file.to_owned(),
                waited: patience * waited,
                stuck: stuck(child as u32),
                died,
            });
        }
    }
    Ok(())
}

/// Main function of the process: reads the file to its end.
fn touch(file: &CStr) -> ! {
    let mut window = [0u8; 4096];
    // SAFETY: plain system calls on numbers and on a buffer of the stated length.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"profinfer-touch".as_ptr());
        // Who reads our output must not wait for it.
        guard::close_all_but(libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC));
        let fd = libc::open(file.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        while fd >= 0 && libc::read(fd, window.as_mut_ptr().cast(), window.len()) > 0 {}
        libc::_exit(0)
    }
}

/// State of a process or thread, by its `stat` file.
fn state(stat: &str) -> Option<char> {
    StatFields::read(Path::new(stat))?.state()
}

/// A thread in state D within tracing, with its name; not `but`.
fn stuck(but: u32) -> Option<(u32, String)> {
    let numbers = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter_map(|e| Some((e.file_name().to_str()?.parse::<u32>().ok()?, e.path())))
            .collect::<Vec<_>>()
    };
    let processes = numbers(Path::new("/proc"));
    let mut threads =
        processes.iter().filter(|(pid, _)| *pid != but).flat_map(|(_, dir)| numbers(&dir.join("task")));
    let (tid, dir) = threads.find(|(_, dir)| {
        let stack = || fs::read_to_string(dir.join("stack")).unwrap_or_default();
        state(&dir.join("stat").to_string_lossy()) == Some('D')
            && OF_TRACING.iter().any(|name| stack().contains(name))
    })?;
    Some((tid, fs::read_to_string(dir.join("comm")).unwrap_or_default().trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_given_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("uprobe_events");
        assert!(readable(&file, PATIENCE, true).is_ok(), "missing");
        fs::write(&file, "p:a/b /x:0\n".repeat(1000)).expect("written");
        assert!(readable(&file, PATIENCE, true).is_ok());
        fs::remove_file(&file).expect("removed");
        let path = CString::new(file.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a path. Opening a pipe waits for its writer.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let why = |died| readable(&file, Duration::from_millis(5), died).expect_err("no answer").to_string();
        assert!(why(true).contains("uprobe_events") && why(true).ends_with("see dmesg; only a reboot helps"));
        assert!(why(false).contains("there was no oops, so try again"), "{}", why(false));
        // Lets the processes go.
        fs::OpenOptions::new().write(true).open(&file).expect("opened");
    }
}
