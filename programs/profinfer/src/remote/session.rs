//! A session on another machine: its directory there, which is removed when the session ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::client::{Client, MOST, printed};
use super::interrupt;
use super::script::{MARK, SILENCE, Scripts};
use render::table::clean;

/// Time between two signs of life; several may be late before the guard acts.
const BEAT: Duration = Duration::from_secs(SILENCE as u64 / 4);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(20);
/// Time for the other machine to remove the directory.
const REMOVAL: Duration = Duration::from_secs(30);
/// Most of a client's messages that is kept, bytes.
const KEPT: usize = 4096;

/// What the other machine said of itself.
#[derive(Debug, Default)]
pub struct Facts {
    pub system: String,
    pub machine: String,
    pub root: bool,
    pub sudo: bool,
    /// Programs there: name, size, and SHA-256 if it can be computed there.
    pub have: Vec<(String, u64, Option<String>)>,
}

/// The last of a client's messages.
type Messages = Arc<Mutex<String>>;

/// A session; ended when dropped.
pub struct Session<'a> {
    client: &'a Client,
    scripts: &'a Scripts,
    /// The client that holds the session; None: a guard apart.
    held: Option<(Child, Option<ChildStdin>)>,
    messages: Messages,
    beaten: Instant,
    open: bool,
    /// The recording has begun: a signal ends it, and not what is in progress.
    begun: bool,
}

impl<'a> Session<'a> {
    /// Connects, and creates the directory.
    ///
    /// # Errors
    /// No client, no connection, or the directory cannot be made; with the client's message.
    pub fn open(client: &'a Client, scripts: &'a Scripts) -> Result<(Session<'a>, Facts)> {
        let piped = client.is_piped();
        let mut command = match piped {
            true => client.first(&scripts.hold()),
            false => client.session(scripts.hold_apart().as_bytes()),
        };
        command.stdin(if piped { Stdio::piped() } else { Stdio::null() });
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| client.missing())?;
        let messages = keep(child.stderr.take());
        let lines = lines(&mut child)?;
        let life = child.stdin.take();
        let mut session = Session {
            client,
            scripts,
            held: Some((child, life)),
            messages,
            beaten: Instant::now(),
            open: true,
            begun: false,
        };
        let facts = session.facts(&lines)?;
        if !piped {
            let ended = session.held.take().map(|(mut child, _)| child.wait());
            debug_assert!(ended.is_some());
            session.signal("USR1").context("the session there has no guard")?;
        }
        Ok((session, facts))
    }

    fn facts(&mut self, lines: &Receiver<String>) -> Result<Facts> {
        let (mut facts, mut marked) = (Facts::default(), false);
        loop {
            if interrupt::is_stop() {
                if !marked {
                    self.give_up();
                }
                bail!("interrupted before the recording began");
            }
            match lines.recv_timeout(LOOK) {
                Ok(line) if line == MARK => marked = true,
                Ok(line) if marked && line == "ready" => return Ok(facts),
                Ok(line) if marked => facts.take(&line),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.open = false;
                    let why = self.said();
                    let why = if why.is_empty() { "the connection was closed".to_owned() } else { why };
                    bail!("cannot start a session on {}: {why}", self.client.place());
                }
            }
        }
    }

    /// Ends a client that may still be waiting for a password. What it may have begun there ends with it.
    fn give_up(&mut self) {
        self.open = false;
        if let Some((mut child, _)) = self.held.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The last message of the client.
    fn said(&mut self) -> String {
        if let Some((child, _)) = &mut self.held {
            let _ = child.wait();
        }
        // Its thread may still be reading.
        thread::sleep(LOOK);
        let said = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        clean(&lines.get(lines.len().saturating_sub(3)..).unwrap_or_default().join("; "))
    }

    /// Runs a script to its end.
    ///
    /// # Errors
    /// The client cannot be started, the connection is lost, or everything is to end.
    pub fn run(&mut self, script: &str) -> Result<Done> {
        let mut command = self.client.session(script.as_bytes());
        self.done(command.stdin(Stdio::null()), &mut || false)
    }

    /// Runs a client to its end, and keeps what it prints; ends it when `abort` says so.
    ///
    /// # Errors
    /// As for [`Session::run`].
    pub fn done(&mut self, command: &mut Command, abort: &mut dyn FnMut() -> bool) -> Result<Done> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| self.client.missing())?;
        let messages = keep(child.stderr.take());
        let out = child.stdout.take().map(|out| {
            thread::spawn(move || {
                let mut text = Vec::new();
                let _ = out.take(MOST).read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let begun = self.begun;
        let mut abort = || interrupt::is_abort() || !begun && interrupt::is_stop() || abort();
        let status = self.wait(&mut child, &mut abort)?;
        let text = out.and_then(|reader| reader.join().ok()).unwrap_or_default().replace('\r', "");
        let said = messages.lock().unwrap_or_else(PoisonError::into_inner).trim().to_owned();
        let (code, text) = if self.client.is_piped() { (status.code(), text) } else { code_of(&text) };
        Ok(Done { code, text, said: clean(&said) })
    }

    /// Waits for a client; gives signs of life meanwhile.
    ///
    /// # Errors
    /// The connection is lost, or `abort` says so; the client is then killed.
    pub fn wait(&mut self, child: &mut Child, abort: &mut dyn FnMut() -> bool) -> Result<ExitStatus> {
        if let Some(status) = self.wait_unless(child, abort)? {
            return Ok(status);
        }
        let _ = child.kill();
        let _ = child.wait();
        bail!("interrupted")
    }

    /// Waits for a client. None: `pause` became true first.
    fn wait_unless(
        &mut self,
        child: &mut Child,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if let Err(lost) = self.live() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(lost);
            }
            if pause() {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }

    /// Gives a sign of life if one is due.
    ///
    /// # Errors
    /// The session has ended by itself.
    pub fn live(&mut self) -> Result<()> {
        let ended = self.held.as_mut().map(|(child, _)| child.try_wait());
        if let Some(Ok(Some(_)) | Err(_)) = ended {
            self.open = false;
            let said = self.said();
            let why = if said.is_empty() { String::new() } else { format!(" ({said})") };
            bail!(
                "the connection to {} was lost{why}: the recording there ends by itself, and its files are removed",
                self.client.place()
            );
        }
        if self.beaten.elapsed() < BEAT {
            return Ok(());
        }
        self.beaten = Instant::now();
        match &mut self.held {
            Some((_, Some(life))) => {
                // A closed pipe is noticed above.
                let _ = life.write_all(b"\n");
                Ok(())
            }
            _ => self.signal("USR1"),
        }
    }

    /// Waits for the client that records; the first signal ends the recording.
    ///
    /// # Errors
    /// As for [`Session::wait`], with the second signal.
    pub fn attend(&mut self, child: &mut Child, tell: &dyn Fn(&str)) -> Result<ExitStatus> {
        self.begun = true;
        loop {
            if interrupt::is_stop() {
                tell(&format!("stopping the recording on {}", self.client.place()));
                self.stop()?;
                return self.wait(child, &mut interrupt::is_abort);
            }
            let mut stop = interrupt::is_stop;
            if let Some(status) = self.wait_unless(child, &mut stop)? {
                return Ok(status);
            }
        }
    }

    /// Ends the recording there.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn stop(&mut self) -> Result<()> {
        match &mut self.held {
            Some((_, Some(life))) => life.write_all(b"stop\n").context("the connection was lost"),
            _ => self.plain(&self.scripts.stop()).map(drop),
        }
    }

    fn signal(&self, signal: &str) -> Result<()> {
        match self.plain(&self.scripts.signal(signal))?.code {
            Some(0) => Ok(()),
            _ => bail!("the session on {} has ended", self.client.place()),
        }
    }

    /// Runs a short script, uninterrupted.
    fn plain(&self, script: &str) -> Result<Done> {
        let (status, text) =
            printed(&mut self.client.session(script.as_bytes())).with_context(|| self.client.missing())?;
        let text = text.replace('\r', "");
        let (code, text) = if self.client.is_piped() { (status.code(), text) } else { code_of(&text) };
        Ok(Done { code, text, said: String::new() })
    }

    /// Ends the session, and waits until the other machine has removed its directory.
    ///
    /// # Errors
    /// This could not be confirmed.
    pub fn end(mut self) -> Result<()> {
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        let begin = Instant::now();
        let unsure = "whether its files were removed is unknown";
        match self.held.take() {
            Some((mut child, life)) => {
                drop(life);
                while child.try_wait()?.is_none() {
                    if begin.elapsed() > REMOVAL || interrupt::is_abort() && begin.elapsed() > REMOVAL / 10 {
                        let _ = child.kill();
                        let _ = child.wait();
                        bail!("{} did not end the session: {unsure}", self.client.place());
                    }
                    thread::sleep(LOOK);
                }
            }
            None => {
                self.signal("TERM").context(unsure)?;
                while self.plain(&self.scripts.is_gone()).context(unsure)?.code != Some(0) {
                    if begin.elapsed() > REMOVAL {
                        bail!("{} did not end the session: {unsure}", self.client.place());
                    }
                    thread::sleep(LOOK * 10);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // There is an error already.
        let _ = self.close();
    }
}

/// A finished session.
pub struct Done {
    /// Exit status; None: ended by a signal, or unknown.
    pub code: Option<i32>,
    /// Standard output.
    pub text: String,
    /// Standard error.
    pub said: String,
}

impl Done {
    /// What it printed on standard error, else on standard output, in one line.
    pub fn why(&self) -> String {
        let text = if self.said.is_empty() { &self.text } else { &self.said };
        clean(&text.trim().replace('\n', "; "))
    }
}

/// Exit status in the last line of what hdc prints, and the lines before.
pub fn code_of(text: &str) -> (Option<i32>, String) {
    match text.trim_end().rsplit_once("code=") {
        Some((before, code)) => (code.parse().ok(), before.to_owned()),
        None => (None, text.to_owned()),
    }
}

impl Facts {
    fn take(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("system"), Some(name)) => self.system = name.to_owned(),
            (Some("machine"), Some(name)) => self.machine = name.to_owned(),
            (Some("user"), Some(id)) => self.root = id == "0",
            (Some("sudo"), None) => self.sudo = true,
            (Some("have"), Some(name)) => {
                let bytes = words.next().and_then(|n| n.parse().ok()).unwrap_or_default();
                self.have.push((name.to_owned(), bytes, words.next().map(str::to_owned)));
            }
            _ => {}
        }
    }
}

/// Keeps the end of a client's messages.
fn keep(from: Option<ChildStderr>) -> Messages {
    let messages = Messages::default();
    let Some(mut from) = from else { return messages };
    let kept = Arc::clone(&messages);
    let reader = move || {
        let mut part = [0u8; 1024];
        while let Ok(n @ 1..) = from.read(&mut part) {
            let mut all = kept.lock().unwrap_or_else(PoisonError::into_inner);
            all.push_str(&String::from_utf8_lossy(part.get(..n).unwrap_or_default()));
            let mut from = all.len().saturating_sub(KEPT);
            while !all.is_char_boundary(from) {
                from += 1;
            }
            all.drain(..from);
        }
    };
    // Without a thread there are no messages, and a client that prints many would wait.
    let _ = thread::Builder::new().spawn(reader);
    messages
}

/// The lines that a client prints.
fn lines(child: &mut Child) -> Result<Receiver<String>> {
    let (send, receive) = channel();
    let out = child.stdout.take().context("no standard output")?;
    let reader = move || {
        for line in BufReader::new(out.take(MOST)).lines().map_while(Result::ok) {
            if send.send(line.trim_end_matches('\r').to_owned()).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().spawn(reader).context("cannot start a thread")?;
    Ok(receive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_a_machine() {
        let mut facts = Facts::default();
        for line in [
            "system Linux",
            "machine aarch64",
            "user 1000",
            "sudo",
            "have profinfer-ab 12 cd -",
            "have x 7",
            "",
        ] {
            facts.take(line);
        }
        assert!(facts.system == "Linux" && facts.machine == "aarch64" && !facts.root && facts.sudo);
        assert_eq!(
            facts.have,
            [("profinfer-ab".to_owned(), 12, Some("cd".to_owned())), ("x".to_owned(), 7, None)]
        );
    }

    #[test]
    fn exit_statuses_that_are_printed() {
        assert_eq!(code_of("a\nb\ncode=3\n"), (Some(3), "a\nb\n".to_owned()));
        assert_eq!(code_of("code=0"), (Some(0), String::new()));
        assert_eq!(code_of("[Fail]no device"), (None, "[Fail]no device".to_owned()));
    }
}
