//! Programs started by the selftest, and their output.

use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum time for one recording; it takes about a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// The last line of its output.
pub fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no error message").trim().to_owned()
}

/// A program's output, if it ends in time: on a board under test it may not.
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
            // Its own children may hold the pipes: the reading threads are left behind.
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("did not exit within {} s", PATIENCE.as_secs()),
            ));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |listener: JoinHandle<Vec<u8>>| listener.join().unwrap_or_default();
    Ok(Output { status, stdout: text(out), stderr: text(err) })
}

/// Collects the output of a pipe in a separate thread.
fn listen(pipe: Option<impl Read + Send + 'static>) -> io::Result<JoinHandle<Vec<u8>>> {
    thread::Builder::new().spawn(move || {
        let mut text = Vec::new();
        // Show what came before an error.
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        text
    })
}

/// Runs a program; on failure, returns the last line of its standard error and the last word of the program that it
/// ran.
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
