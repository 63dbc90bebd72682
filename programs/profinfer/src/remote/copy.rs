//! Copies the program to another machine, and the trace from there.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::client::Client;
use super::interrupt;
use super::program::Program;
use super::script::Scripts;
use super::session::{Session, code_of};
use super::temporary::Temporary;

/// Bytes read or written at a time.
const PART: usize = 64 << 10;
/// A copy that takes longer than this shows how far it is.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far a copy is, on a terminal.
struct Meter {
    total: u64,
    begin: Instant,
    shown: Option<u64>,
}

impl Meter {
    fn new(total: u64) -> Meter {
        Meter { total: total.max(1), begin: Instant::now(), shown: None }
    }

    fn show(&mut self, done: u64) {
        let percent = done.min(self.total).saturating_mul(100) / self.total;
        if self.begin.elapsed() > PATIENCE && self.shown != Some(percent) && io::stderr().is_terminal() {
            self.shown = Some(percent);
            // A closed terminal is no error.
            let _ = write!(io::stderr(), "\r\x1b[K{percent} %");
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Copies the program there, checks the copy and gives it its name.
///
/// # Errors
/// It did not arrive whole; the connection is lost; interrupted.
pub fn push(
    session: &mut Session<'_>,
    client: &Client,
    scripts: &Scripts,
    program: &Program,
    run: &str,
) -> Result<()> {
    let place = client.place();
    let why = match client.push(&program.path, run) {
        Some(mut command) => {
            let done = session.done(command.stdin(Stdio::null()), &mut || false)?;
            // hdc says so on standard output, and its exit status is always 0.
            (done.code.is_some_and(|code| code != 0) || done.text.contains("[Fail]")).then(|| done.why())
        }
        None => pipe(session, client, scripts, program)?,
    };
    if let Some(why) = why {
        bail!("cannot copy {} to {place}: {why}", program.path.display());
    }
    let done = session.run(&scripts.adopt(&program.name, program.bytes.len(), &program.digest))?;
    match done.code {
        Some(0) => Ok(()),
        _ => bail!("the copy of {} on {place} cannot be used: {}", program.path.display(), done.why()),
    }
}

/// Writes the program to the standard input of a session. Some: why it failed.
fn pipe(
    session: &mut Session<'_>,
    client: &Client,
    scripts: &Scripts,
    program: &Program,
) -> Result<Option<String>> {
    let mut command = client.session(scripts.receive().as_bytes());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| client.missing())?;
    let (written, mut meter) = (Arc::new(AtomicU64::new(0)), Meter::new(program.bytes.len() as u64));
    let writer = child.stdin.take().map(|mut pipe| {
        let (bytes, written) = (program.bytes.clone(), Arc::clone(&written));
        // The other end may be closed early: its message says why.
        thread::Builder::new().spawn(move || {
            bytes.chunks(PART).all(|part| {
                written.fetch_add(part.len() as u64, Ordering::Relaxed);
                pipe.write_all(part).is_ok()
            })
        })
    });
    let status = session.wait(&mut child, &mut || {
        meter.show(written.load(Ordering::Relaxed));
        interrupt::is_stop()
    })?;
    drop(writer);
    if status.success() {
        return Ok(None);
    }
    let mut said = String::new();
    if let Some(from) = child.stderr.take() {
        let _ = from.take(PART as u64).read_to_string(&mut said);
    }
    Ok(Some(said.trim().replace('\n', "; ")))
}

/// Copies the trace into `out`; returns its size.
///
/// # Errors
/// The connection is lost, `out` cannot be written, or interrupted; what was copied until then is in `out`.
pub fn pull(
    session: &mut Session<'_>,
    client: &Client,
    scripts: &Scripts,
    (run, by_sudo): (&str, bool),
    total: u64,
    out: &mut dyn Write,
) -> Result<u64> {
    if !client.is_piped() {
        return by_file(session, client, run, total, out);
    }
    let mut command =
        client.print(run, by_sudo).unwrap_or_else(|| client.session(scripts.trace(by_sudo).as_bytes()));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| client.missing())?;
    let mut live = || -> Result<()> {
        session.live()?;
        if interrupt::is_abort() {
            bail!("interrupted");
        }
        Ok(())
    };
    let copied = receive(&mut child, total, out, &mut live);
    if copied.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    let bytes = copied?;
    if !status.success() {
        bail!("the connection to {} was lost after {bytes} of {total} bytes", client.place());
    }
    Ok(bytes)
}

/// Copies what a client prints, at most as much as was announced; `live` is asked meanwhile whether to go on.
fn receive(
    child: &mut Child,
    total: u64,
    out: &mut dyn Write,
    live: &mut dyn FnMut() -> Result<()>,
) -> Result<u64> {
    let (mut bytes, mut meter) = (0, Meter::new(total));
    let parts = parts(child)?;
    loop {
        match parts.recv_timeout(Duration::from_millis(50)) {
            Ok(part) => {
                let part = part.context("cannot read the client's output")?;
                let wanted =
                    part.get(..usize::try_from(total - bytes).unwrap_or(usize::MAX)).unwrap_or(&part);
                out.write_all(wanted)?;
                bytes += wanted.len() as u64;
                meter.show(bytes);
                if wanted.len() < part.len() {
                    bail!("{}", more(total));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return out.flush().map(|()| bytes).map_err(Into::into),
        }
        live()?;
    }
}

fn more(total: u64) -> String {
    format!("more than the {total} bytes that were announced arrived")
}

/// What a client prints, in parts; it waits if they are not taken.
fn parts(child: &mut Child) -> Result<Receiver<io::Result<Vec<u8>>>> {
    let (send, receive) = sync_channel(4);
    let mut from = child.stdout.take().context("no standard output")?;
    let reader = move || {
        loop {
            let mut part = vec![0; PART];
            let read = from.read(&mut part);
            let last = !matches!(read, Ok(1..));
            part.truncate(*read.as_ref().unwrap_or(&0));
            if matches!(read, Ok(0)) || send.send(read.map(|_| part)).is_err() || last {
                break;
            }
        }
    };
    thread::Builder::new().spawn(reader).context("cannot start a thread")?;
    Ok(receive)
}

/// Through a file of ours, for a client that can only write one.
fn by_file(
    session: &mut Session<'_>,
    client: &Client,
    run: &str,
    total: u64,
    out: &mut dyn Write,
) -> Result<u64> {
    let id = run.rsplit('.').next().unwrap_or(run);
    let dir = Temporary::new(&[std::env::temp_dir()], id, usize::MAX)?;
    let path = dir.path().join("run.pfi");
    let is_more = || std::fs::metadata(&path).is_ok_and(|file| file.len() > total);
    let done = session.done(client.receive(run, &path).stdin(Stdio::null()), &mut || is_more());
    if is_more() {
        bail!("{}", more(total));
    }
    let done = done?;
    let file = File::open(&path)
        .with_context(|| format!("{} did not fetch the trace: {}", client.name(), done.why()));
    let bytes = io::copy(&mut file?.take(total), out)?;
    out.flush()?;
    Ok(bytes)
}

/// Shows what a client prints on standard error, line by line, but for the exit status in the last one.
pub fn relay(child: &mut Child) -> Result<thread::JoinHandle<Option<i32>>> {
    let mut from = child.stdout.take().context("no standard output")?;
    let reader = move || {
        let (mut rest, mut part) = (Vec::new(), [0u8; 4096]);
        while let Ok(n @ 1..) = from.read(&mut part) {
            rest.extend_from_slice(part.get(..n).unwrap_or_default());
            // A line that has not ended may be the last one, unless it is long.
            let whole = rest.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            let last = rest.get(..whole).and_then(|text| text.windows(5).rposition(|w| w == b"code="));
            let shown = last.unwrap_or(whole).max(rest.len().saturating_sub(PART));
            let _ = io::stderr().write_all(rest.get(..shown).unwrap_or_default());
            rest.drain(..shown);
        }
        let (code, before) = code_of(&String::from_utf8_lossy(&rest).replace('\r', ""));
        let _ = io::stderr().write_all(before.as_bytes());
        code
    };
    thread::Builder::new().spawn(reader).context("cannot start a thread")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What a client that prints this leaves in the trace's file.
    fn received(script: &str, total: u64) -> (Result<u64>, Vec<u8>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        let (mut child, mut out) = (command.spawn().expect("sh"), Vec::new());
        let copied = receive(&mut child, total, &mut out, &mut || Ok(()));
        let _ = child.kill();
        let _ = child.wait();
        (copied, out)
    }

    #[test]
    fn no_more_is_written_than_was_announced() {
        for total in [1, 1000, PART as u64 + 1] {
            let (copied, out) = received("exec cat /dev/zero", total);
            let why = copied.map(|_| ()).expect_err("there is more").to_string();
            assert_eq!((out.len() as u64, why), (total, more(total)));
        }
        let (copied, out) = received("printf abc", 3);
        assert_eq!((copied.ok(), out.as_slice()), (Some(3), b"abc".as_slice()));
        let (copied, out) = received("printf abc", 5);
        assert_eq!((copied.ok(), out.len()), (Some(3), 3));
    }
}
