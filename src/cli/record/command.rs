//! A recorded command that outlives its recording: it is ended or, if the recording has failed, waited for, with
//! the recorder's signals passed on to it.

use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Signals that are passed on.
const PASSED: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
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
    send(&command, libc::SIGTERM);
    let begin = Instant::now();
    loop {
        match command.try_wait() {
            Ok(None) if begin.elapsed() < GRACE => std::thread::sleep(LOOK),
            Ok(None) => break,
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
    send(&command, libc::SIGKILL);
    command.wait().ok()
}

fn send(command: &Child, signal: libc::c_int) {
    // SAFETY: a signal to a child that has not been waited for, so its pid is still its own.
    unsafe { libc::kill(command.id() as libc::pid_t, signal) };
}

/// Waits for the end of the command. None: its exit status is unknown.
pub fn wait(mut command: Child) -> Option<ExitStatus> {
    for signal in PASSED {
        // SAFETY: the handler only changes an atomic number, in whatever thread it runs.
        unsafe {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = note as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
    loop {
        match command.try_wait() {
            Ok(None) => {}
            Ok(status) => return status,
            Err(_) => return None,
        }
        let came = CAME.swap(0, Ordering::Relaxed);
        for signal in PASSED.into_iter().filter(|signal| came & (1 << signal) != 0) {
            send(&command, signal);
        }
        std::thread::sleep(LOOK);
    }
}
