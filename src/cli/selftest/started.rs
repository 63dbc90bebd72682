//! Programs that the selftest starts, and what they say. Uses nothing of this crate.

use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest that one recording may take; it takes about a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// What it said last.
pub fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
}

/// What a program says, if it ends in time: a board that is to be tested may be one where it does not.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let listeners = listen(child.stdout.take()).and_then(|out| Ok((out, listen(child.stderr.take())?)));
    let (out, err) = match listeners {
        Ok(both) => both,
        Err(e) => {
            child.kill()?;
            child.wait()?;
            return Err(e);
        }
    };
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            // Its own children may hold the pipes: whoever listens there is left behind.
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("did not end within {} s", PATIENCE.as_secs()),
            ));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |listener: JoinHandle<Vec<u8>>| listener.join().unwrap_or_default();
    Ok(Output { status, stdout: text(out), stderr: text(err) })
}

/// Collects what comes out of a pipe, on a thread of its own.
fn listen(pipe: Option<impl Read + Send + 'static>) -> io::Result<JoinHandle<Vec<u8>>> {
    thread::Builder::new().spawn(move || {
        let mut text = Vec::new();
        // What came before an error is what there is to show.
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        text
    })
}

/// Runs a program; what it said last on standard error when it fails, with the last word of the program that it ran.
pub fn succeed(command: &mut Command) -> Result<(), String> {
    let out = output(command).map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let other = said.lines().rfind(|l| !l.trim().is_empty() && !l.starts_with("profinfer: "));
    Err([last_line(&out.stderr).as_str()]
        .into_iter()
        .chain(other.map(str::trim))
        .collect::<Vec<_>>()
        .join("; "))
}
