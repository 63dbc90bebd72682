//! This program as a child process that answers one call: bounded output, and an end in any case.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use machine::child::die_with_parent;

/// Largest answer, bytes.
pub const LARGEST: usize = 4 << 20;
/// Messages that are kept, bytes: the last ones.
const MESSAGES: usize = 4096;
/// How long the end of its messages is awaited after its own end: what it leaves running may keep them open for ever.
const LAST_MESSAGES: Duration = Duration::from_secs(2);

/// A running child. It is waited for by its owner, so that its pid is its own until then.
pub struct Call {
    child: Child,
    messages: Arc<Mutex<Vec<u8>>>,
}

impl Call {
    /// Starts this program with these words. It gets SIGTERM if this process ends. `ended` is called in another thread with
    /// its standard output once it has ended.
    ///
    /// # Errors
    /// The system has no more processes, descriptors or threads.
    pub fn start(
        words: &[OsString],
        here: &Path,
        ended: impl FnOnce(Vec<u8>) + Send + 'static,
    ) -> io::Result<Call> {
        let mut command = Command::new("/proc/self/exe");
        // Signals of the terminal are for this process alone, which passes them on.
        command.args(words).current_dir(here).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        let mut child = command.spawn()?;
        let (out, err, pid) = (child.stdout.take(), child.stderr.take(), Pid::from_child(&child));
        let mut call = Call { child, messages: Arc::default() };
        let kept = Arc::clone(&call.messages);
        let (listening, heard) = channel();
        let listen = move || {
            keep_last(err, &kept);
            drop::<Sender<()>>(listening);
        };
        let wait = move || {
            let mut answer = Vec::new();
            // One byte more than is allowed; its writer then finds the pipe closed.
            let most = LARGEST as u64 + 1;
            // An answer that cannot be read is none.
            let _ = out.map(|out| out.take(most).read_to_end(&mut answer));
            // It stays there for its owner.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            // Either all is heard, or it is held open by another process.
            let _ = heard.recv_timeout(LAST_MESSAGES);
            ended(answer);
        };
        let threads = thread::Builder::new().spawn(listen).and_then(|_| thread::Builder::new().spawn(wait));
        if let Err(e) = threads {
            call.signal(Signal::KILL);
            call.finish();
            return Err(e);
        }
        Ok(call)
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) {
        // One that has just ended needs none.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits for its end; whether it succeeded, and its last messages.
    pub fn finish(&mut self) -> (bool, String) {
        let success = self.child.wait().is_ok_and(|status| status.success());
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        (success, String::from_utf8_lossy(&messages).trim().to_owned())
    }
}

/// Reads to the end, which may come later than that of the child: what a recorded command leaves running has the pipe, too.
fn keep_last(from: Option<impl Read>, kept: &Mutex<Vec<u8>>) {
    let Some(mut from) = from else { return };
    let mut some = [0; MESSAGES];
    while let Ok(n @ 1..) = from.read(&mut some) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(some.get(..n).unwrap_or_default());
        let surplus = kept.len().saturating_sub(MESSAGES);
        kept.drain(..surplus);
    }
}
