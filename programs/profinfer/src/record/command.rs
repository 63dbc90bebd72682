//! A recorded command that outlives its recording: it is ended or, if the recording has failed, waited for, with
//! the recorder's signals passed on to it. A signal handler has no safe interface.

use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Signals that are passed on.
const PASSED: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Polling interval for the command's end, and for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Signals that have arrived and are not passed on yet, one bit each.
static CAME: AtomicU32 = AtomicU32::new(0);

extern "C" fn note(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler of this kind a valid pointer.
    let code = unsafe { (*info).si_code };
    // Signals from a terminal come from the kernel, and reach the command too.
    if code <= 0 {
        CAME.fetch_or(1 << signal, Ordering::Relaxed);
    }
}

/// Ends the command: SIGTERM, then SIGKILL if that is not enough. None: its exit status is unknown.
pub fn end(mut command: Child) -> Option<ExitStatus> {
    // The number of one that was waited for may be another process's.
    if let Ok(Some(status)) = command.try_wait() {
        return Some(status);
    }
    send(&command, Signal::TERM);
    let begin = Instant::now();
    loop {
        match command.try_wait() {
            Ok(None) if begin.elapsed() < GRACE => std::thread::sleep(LOOK),
            Ok(None) => break,
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
    send(&command, Signal::KILL);
    command.wait().ok()
}

fn send(command: &Child, signal: Signal) {
    // It has not been waited for, so its pid is still its own. One that has just ended needs no signal.
    let _ = kill_process(Pid::from_child(command), signal);
}

/// From now on signals are kept for the command, until [`wait`] passes them on.
pub fn pass_signals() {
    for signal in PASSED {
        // SAFETY: the handler only changes an atomic number, in whatever thread it runs.
        unsafe {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = note as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal.as_raw(), &raw const action, std::ptr::null_mut());
        }
    }
}

/// Waits for the end of the command. None: its exit status is unknown.
pub fn wait(mut command: Child) -> Option<ExitStatus> {
    loop {
        match command.try_wait() {
            Ok(None) => {}
            Ok(status) => return status,
            Err(_) => return None,
        }
        let came = CAME.swap(0, Ordering::Relaxed);
        for signal in PASSED.into_iter().filter(|signal| came & (1 << signal.as_raw()) != 0) {
            send(&command, signal);
        }
        std::thread::sleep(LOOK);
    }
}
