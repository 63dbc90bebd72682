//! The service's side of the network: metrics for scrapers, and metrics pushed to a receiver.
//!
//! A process of its own (`profinfer-net`) does both, without any privilege, and as nobody where the service may make it
//! that: it gets finished texts and sends back counts, so that no client and no receiver reaches, or delays, the service and its recorders. It may have threads; the service
//! must not, because it forks.

mod client;
pub mod endpoint;
pub mod http;
mod process;
pub mod push;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::endpoint::NetSettings;
use self::http::ScrapeCounts;
use self::push::ExportCounts;
use crate::lines::plain;
use machine::helper::channel::Channel;

/// Maximum bytes of a part of a text: a message holds it.
const PART: usize = 32 << 10;
/// Maximum characters of a line for the log.
const TEXT: usize = 600;
/// Pause before a process that has ended is replaced.
const AGAIN: Duration = Duration::from_secs(5);

/// The address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{}", hint(.source))]
pub struct NetError {
    address: SocketAddr,
    source: io::Error,
}

fn hint(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::EPERM) => {
            "; the service has no network: docs/METRICS.md, 'Network', has the lines for its unit"
        }
        Some(libc::EACCES) => "; use a port from 1024 on",
        Some(libc::EADDRINUSE) => "; another program listens there: choose another port",
        _ => "",
    }
}

/// What a text is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextKind {
    /// For scrapers; it replaces the one before.
    Scraped,
    /// To be pushed.
    Pushed,
}

/// A part of a text, to the process.
#[derive(Debug, Serialize, Deserialize)]
struct TextPart {
    kind: TextKind,
    last: bool,
    bytes: Vec<u8>,
}

/// Counts of the process so far, and lines for the log.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct NetReport {
    scrapes: ScrapeCounts,
    exports: ExportCounts,
    said: Vec<String>,
}

/// What is known of the network, for the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NetworkStatus {
    /// Address that is listened on; None: none.
    pub listen: Option<String>,
    pub scrapes: ScrapeCounts,
    /// Where metrics are pushed to; None: nowhere.
    pub endpoint: Option<String>,
    pub exports: ExportCounts,
}

/// A listener, or none, for settings that are not in use yet.
pub struct Prepared {
    listener: Option<TcpListener>,
    settings: NetSettings,
}

/// The service's end.
pub struct Network {
    settings: NetSettings,
    /// Kept for the next process.
    listener: Option<TcpListener>,
    channel: Option<Channel>,
    /// Its processes that were not waited for; the last one is the current one.
    pids: Vec<i32>,
    pending: VecDeque<TextPart>,
    /// Exports that the process never got.
    undelivered: u64,
    /// Counts of processes that have ended, and of the current one.
    before: (ScrapeCounts, ExportCounts),
    now: (ScrapeCounts, ExportCounts),
    /// When to push next, and when to start a process again.
    push: Instant,
    again: Instant,
}

impl Network {
    /// Nothing is wanted yet.
    pub fn new() -> Network {
        let now = Instant::now();
        Network {
            settings: NetSettings::default(),
            listener: None,
            channel: None,
            pids: Vec::new(),
            pending: VecDeque::new(),
            undelivered: 0,
            before: Default::default(),
            now: Default::default(),
            push: now,
            again: now,
        }
    }

    /// Prepares other settings; nothing changes yet.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn prepare(&self, settings: &NetSettings) -> Result<Prepared, NetError> {
        let bind = |address| TcpListener::bind(address).map_err(|source| NetError { address, source });
        let kept = self.listener.as_ref().filter(|_| settings.listen == self.settings.listen);
        let listener = match kept.map(TcpListener::try_clone) {
            Some(Ok(listener)) => Some(listener),
            _ => settings.listen.map(bind).transpose()?,
        };
        Ok(Prepared { listener, settings: settings.clone() })
    }

    /// Uses other settings, with a new process if they want one. Returns what to log.
    pub fn apply(&mut self, prepared: Prepared) -> Vec<String> {
        self.leave();
        let now = Instant::now();
        let Prepared { listener, settings } = prepared;
        (self.listener, self.settings, self.again) = (listener, settings, now);
        if let Some(otlp) = &self.settings.otlp {
            self.push = now + otlp.interval;
        }
        let mut said = Vec::new();
        if let Some(address) = self.address() {
            said.push(format!("metrics at http://{address}/metrics"));
        }
        if let Some(otlp) = &self.settings.otlp {
            said.push(format!("metrics are pushed to {}", otlp.endpoint));
        }
        said.extend(self.revive(now));
        said
    }

    /// The address that is listened on.
    fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.local_addr().ok()
    }

    fn is_wanted(&self) -> bool {
        self.listener.is_some() || self.settings.otlp.is_some()
    }

    /// Starts the process if there should be one.
    fn revive(&mut self, now: Instant) -> Option<String> {
        if self.channel.is_some() || !self.is_wanted() || now < self.again {
            return None;
        }
        self.again = now + AGAIN;
        match process::start(self.listener.as_ref(), &self.settings) {
            Ok((pid, channel)) => {
                self.pids.push(pid);
                self.channel = Some(channel);
                None
            }
            Err(e) => Some(format!("cannot start the process for metrics: {e}; trying again")),
        }
    }

    /// Lets the process go; it sends what it has, and ends.
    fn leave(&mut self) {
        self.undelivered +=
            self.pending.iter().filter(|p| p.last && p.kind == TextKind::Pushed).count() as u64;
        self.pending.clear();
        self.channel = None;
        let (scrapes, exports) = std::mem::take(&mut self.now);
        let (s, e) = &mut self.before;
        (s.served, s.refused) = (s.served + scrapes.served, s.refused + scrapes.refused);
        s.closed += scrapes.closed;
        (e.accepted, e.failed) = (e.accepted + exports.accepted, e.failed + exports.failed);
        (e.dropped, e.rejected) = (e.dropped + exports.dropped, e.rejected.saturating_add(exports.rejected));
    }

    /// Readable when the process has something to say.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(Channel::fd)
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        self.channel.as_ref().and_then(|_| u32::try_from(*self.pids.last()?).ok())
    }

    /// A process was waited for; true: it was one of this.
    pub fn reaped(&mut self, pid: i32) -> bool {
        let at = self.pids.iter().position(|of| *of == pid);
        at.map(|at| self.pids.remove(at)).is_some()
    }

    /// Takes what the process says. Returns what to log.
    pub fn hear(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(channel) = &mut self.channel {
            match channel.receive::<NetReport>() {
                Ok(Some(report)) => {
                    // It talks to strangers: its counts only grow, whatever has become of it.
                    let (scrapes, exports) = &mut self.now;
                    let grow = |a: &mut u64, b: u64| *a = b.max(*a).min(1 << 48);
                    grow(&mut scrapes.served, report.scrapes.served);
                    grow(&mut scrapes.refused, report.scrapes.refused);
                    grow(&mut scrapes.closed, report.scrapes.closed);
                    grow(&mut exports.accepted, report.exports.accepted);
                    grow(&mut exports.failed, report.exports.failed);
                    grow(&mut exports.dropped, report.exports.dropped);
                    grow(&mut exports.rejected, report.exports.rejected);
                    said.extend(report.said.iter().map(|text| format!("metrics: {}", plain(text, TEXT))));
                }
                Ok(None) => break,
                Err(_) => {
                    said.push("the process for metrics has ended and is replaced".to_owned());
                    self.leave();
                    self.again = Instant::now() + AGAIN;
                }
            }
        }
        said
    }

    /// Once a second: passes on the metrics as they are now, as far as they are wanted. Returns what to log.
    pub fn tick(
        &mut self,
        now: Instant,
        scraped: &dyn Fn() -> String,
        pushed: &dyn Fn() -> String,
    ) -> Option<String> {
        let said = self.revive(now);
        if let Some(otlp) = self.settings.otlp.as_ref().filter(|_| now >= self.push) {
            // Not later each time, but after a pause of the machine not several at once.
            self.push = (self.push + otlp.interval).max(now);
            self.offer(TextKind::Pushed, pushed);
        }
        if self.listener.is_some() {
            self.offer(TextKind::Scraped, scraped);
        }
        self.flush();
        said
    }

    /// The service ends: pushes for the last time.
    pub fn end(&mut self, pushed: &dyn Fn() -> String) {
        if self.settings.otlp.is_some() {
            self.offer(TextKind::Pushed, pushed);
            self.flush();
        }
        self.leave();
    }

    /// Queues a text, unless the process has not taken the one before: it is not waited for.
    fn offer(&mut self, kind: TextKind, text: &dyn Fn() -> String) {
        self.flush();
        if self.channel.is_none() || !self.pending.is_empty() {
            self.undelivered += u64::from(kind == TextKind::Pushed);
            return;
        }
        let text = text().into_bytes();
        let parts = text.len().div_ceil(PART);
        let part =
            |(i, bytes): (usize, &[u8])| TextPart { kind, last: i + 1 == parts, bytes: bytes.to_vec() };
        self.pending.extend(text.chunks(PART).enumerate().map(part));
    }

    /// Sends what the process takes now.
    fn flush(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        while let Some(part) = self.pending.front() {
            // If it is gone, that shows when it is heard next.
            if channel.send(part).is_err() {
                return;
            }
            self.pending.pop_front();
        }
    }

    /// None: nothing is wanted of the network.
    pub fn status(&self) -> Option<NetworkStatus> {
        let ((s, e), (scrapes, exports)) = (self.before, self.now);
        self.is_wanted().then(|| NetworkStatus {
            listen: self.address().map(|address| address.to_string()),
            scrapes: ScrapeCounts {
                served: s.served + scrapes.served,
                refused: s.refused + scrapes.refused,
                closed: s.closed + scrapes.closed,
            },
            endpoint: self.settings.otlp.as_ref().map(|otlp| otlp.endpoint.to_string()),
            exports: ExportCounts {
                accepted: e.accepted + exports.accepted,
                failed: e.failed + exports.failed,
                dropped: e.dropped + exports.dropped + self.undelivered,
                rejected: e.rejected.saturating_add(exports.rejected),
            },
        })
    }
}

impl Default for Network {
    fn default() -> Self {
        Network::new()
    }
}

#[cfg(test)]
mod tests;
