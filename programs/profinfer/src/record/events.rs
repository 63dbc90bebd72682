//! `record --events FD`: what happens to the recording, a line of JSON each, for the program that has started it. The
//! fields are described in docs/START.md. Nobody is waited for: what finds no room is dropped and counted.

use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use serde::Serialize;

use agent::recorder::recording::Summary;
use cli::args::{Args, Flag, Usage};
use cli::values::whole;
use common::plain;
use machine::{ready, usage};
use service::watch::VERSION;

pub const FLAG: Flag = Flag::value(
    "events",
    "FD",
    "Write what happens to this open file descriptor, a line of JSON each: ready, attached, level, stopping, stopped; \
     docs/START.md describes them",
)
.valid(|text| descriptor(text).map(drop))
.cli_only();

/// Longest line, bytes: a pipe with any room takes it whole (PIPE_BUF).
const MOST: usize = 4096;

/// What happens. `profinfer watch` has the same names where they mean the same.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// All probes that can be attached are, and what computes from now on is recorded. Once.
    Ready,
    /// A process is probed; again when it has loaded more of its engine.
    Attached { pid: u32, file: &'a str, probes: usize },
    /// A budget has changed the level.
    Level { from: Option<&'a str>, to: &'a str, why: &'a str },
    /// The recording ends; its probes are removed next. Once.
    Stopping { why: &'a str },
    /// The last event.
    Stopped(Stopped<'a>),
    /// So many events before this one found no room.
    Dropped { dropped: u64 },
}

/// How the recording ended.
#[derive(Debug, Default, Serialize)]
pub struct Stopped<'a> {
    why: &'a str,
    /// The trace; None: there is none, or it went to standard output.
    file: Option<&'a str>,
    bytes: u64,
    calls: u64,
    events: u64,
    lost: u64,
    /// Exit code of the command.
    status: Option<i32>,
    /// Whether the recording failed; `why` has the error.
    failed: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    /// CLOCK_MONOTONIC, as in the trace.
    t_ns: u64,
    #[serde(flatten)]
    event: &'a Event<'a>,
}

fn descriptor(text: &str) -> Result<RawFd, String> {
    whole(0, RawFd::MAX as u64)(text)
}

/// Where events go, if anywhere; a clone writes to the same place.
#[derive(Debug, Clone, Default)]
pub struct Events(Option<Arc<Mutex<Stream>>>);

#[derive(Debug)]
struct Stream {
    /// None: the reader has gone.
    to: Option<OwnedFd>,
    /// Events that found no room since the reader was last told.
    dropped: u64,
    stopping: bool,
    quiet: bool,
}

impl Events {
    /// Takes over the descriptor that was asked for. To be called before any other is opened, which might get its
    /// number.
    ///
    /// # Errors
    /// It is not open, not for writing, or taken by the trace.
    pub fn open(args: &Args) -> Result<Events, Usage> {
        let Some(number) = args.option(FLAG.name, descriptor)? else { return Ok(Events::default()) };
        let wrong = |why: &str| Usage::new(format!("--events {number}: {why}"));
        if number == 1 && args.path("output")?.is_some_and(|path| path.as_os_str() == "-") {
            return Err(wrong("standard output is taken by the trace (-o -)"));
        }
        let to = taken(number).map_err(|e| match e {
            Errno::BADF => wrong("this file descriptor is not open"),
            Errno::ACCESS => wrong("this file descriptor is not open for writing"),
            e => wrong(&e.to_string()),
        })?;
        Ok(Events::to(to, args.flag("quiet")))
    }

    fn to(to: OwnedFd, quiet: bool) -> Events {
        Events(Some(Arc::new(Mutex::new(Stream { to: Some(to), dropped: 0, stopping: false, quiet }))))
    }

    fn stream(&self) -> Option<MutexGuard<'_, Stream>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn send(&self, event: &Event<'_>) {
        if let Some(mut stream) = self.stream() {
            stream.send(event);
        }
    }

    /// The recording ends for this reason; only the first one counts.
    pub fn stopping(&self, why: &str) {
        if let Some(mut stream) = self.stream()
            && !std::mem::replace(&mut stream.stopping, true)
        {
            stream.send(&Event::Stopping { why });
        }
    }

    /// The recording has ended.
    pub fn stopped(&self, recorded: &anyhow::Result<Summary>, file: Option<&Path>) {
        let shown = file.map(|path| path.display().to_string());
        let file = shown.as_deref();
        let (error, stopped);
        match recorded {
            Ok(s) => {
                let (bytes, calls, events, lost) = (s.bytes, s.totals.calls, s.seen, s.lost);
                stopped = Stopped {
                    why: &s.end,
                    file,
                    bytes,
                    calls,
                    events,
                    lost,
                    status: s.status,
                    failed: false,
                };
            }
            Err(e) => {
                error = format!("{e:#}");
                stopped = Stopped { why: &error, file, failed: true, ..Stopped::default() };
            }
        }
        self.send(&Event::Stopped(stopped));
    }
}

/// A descriptor that somebody has opened for us, closed on exec: what is recorded must not inherit it.
fn taken(number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: it is only asked about and copied here; if it is not open, that is an error.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    if rustix::fs::fcntl_getfl(given)? & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(Errno::ACCESS);
    }
    let ours = rustix::io::fcntl_dupfd_cloexec(given, 3)?;
    // The first three are the command's own.
    if number > 2 {
        rustix::io::fcntl_setfd(given, FdFlags::CLOEXEC)?;
    }
    Ok(ours)
}

impl Stream {
    fn send(&mut self, event: &Event<'_>) {
        if self.dropped > 0 && self.put(&Event::Dropped { dropped: self.dropped }) {
            self.dropped = 0;
        }
        if self.dropped > 0 || !self.put(event) {
            self.dropped += 1;
        }
    }

    /// False: there is no room at the moment.
    fn put(&mut self, event: &Event<'_>) -> bool {
        let Some(to) = &self.to else { return true };
        let line = Line { v: VERSION, t_ns: usage::now(), event };
        let Ok(mut line) = plain::json(&line) else { return true };
        line.push('\n');
        // The descriptor is shared with others, who may rely on it to block: so room is asked for before.
        let room = ready::wait(&mut [PollFd::new(to, PollFlags::OUT)], Duration::ZERO);
        if !room || line.len() > MOST {
            return false;
        }
        let why = match rustix::io::write(to, line.as_bytes()) {
            Ok(n) if n == line.len() => return true,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            // Half a line: nothing after it could be understood.
            Ok(_) => Errno::NOSPC,
            Err(why) => why,
        };
        self.to = None;
        if !self.quiet {
            let text =
                format!("profinfer: --events: {why}: no more events are written; the recording continues");
            let _ = writeln!(io::stderr(), "{text}");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::io::{PipeReader, Read, pipe};

    fn piped() -> (PipeReader, Events) {
        let (reader, writer) = pipe().expect("a pipe");
        (reader, Events::to(writer.into(), true))
    }

    fn lines(mut reader: PipeReader) -> Vec<Value> {
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[test]
    fn an_event_is_a_line_of_json() {
        let (reader, events) = piped();
        events.send(&Event::Ready);
        events.send(&Event::Attached { pid: 7, file: "/a\n\"b", probes: 12 });
        events.send(&Event::Level { from: None, to: "op", why: "it fits" });
        events.stopping("signal");
        events.stopping("duration");
        events.stopped(&Err(anyhow::anyhow!("full")), None);
        drop(events);
        let said = lines(reader);
        let names: Vec<_> = said.iter().map(|line| line["event"].as_str().unwrap_or_default()).collect();
        assert_eq!(names, ["ready", "attached", "level", "stopping", "stopped"]);
        assert!(said.iter().all(|line| line["v"] == VERSION && line["t_ns"].as_u64() > Some(0)), "{said:?}");
        assert!(said.is_sorted_by_key(|line| line["t_ns"].as_u64()));
        assert_eq!(
            (&said[1]["pid"], &said[1]["file"], &said[1]["probes"]),
            (&7.into(), &"/a\n\"b".into(), &12.into())
        );
        assert_eq!((&said[2]["from"], &said[2]["to"]), (&Value::Null, &"op".into()));
        assert_eq!(said[3]["why"], "signal", "the first reason counts");
        assert_eq!((&said[4]["failed"], &said[4]["why"]), (&true.into(), &"full".into()));
    }

    #[test]
    fn a_reader_that_is_slow_is_not_waited_for_and_learns_how_much_it_missed() {
        let (reader, events) = piped();
        let why = "x".repeat(1000);
        (0..1000).for_each(|_| events.send(&Event::Level { from: None, to: "op", why: &why }));
        let mut first = vec![0; 40_000];
        (&reader).read_exact(&mut first).expect("what had room");
        // Longer than a pipe takes at once.
        events.send(&Event::Stopping { why: &why.repeat(5) });
        events.send(&Event::Ready);
        drop(events);
        let mut text = String::from_utf8(first).expect("text");
        (&reader).read_to_string(&mut text).expect("text");
        let said: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let dropped: u64 = said.iter().filter_map(|line| line["dropped"].as_u64()).sum();
        assert!(dropped > 900 && said.last().is_some_and(|line| line["event"] == "ready"), "{dropped}");
        let told = said.iter().filter(|line| line["event"] == "dropped").count() as u64;
        assert_eq!(said.len() as u64 - told + dropped, 1002, "every event is written or counted");
    }

    #[test]
    fn a_reader_that_has_gone_is_not_written_to() {
        let (reader, events) = piped();
        drop(reader);
        events.send(&Event::Ready);
        assert!(events.stream().is_some_and(|stream| stream.to.is_none()));
        events.send(&Event::Ready);
    }
}
