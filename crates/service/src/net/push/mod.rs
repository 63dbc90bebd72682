//! Pushes metrics by OpenTelemetry's protocol, OTLP over HTTP, in a thread of its own.
//!
//! A request that fails for a while is tried again, at growing intervals; one that the receiver refuses is not
//! (opentelemetry.io/docs/specs/otlp, "OTLP/HTTP Response"). What waits meanwhile is bounded: the oldest is dropped.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::client::{self, Response};
use super::endpoint::OtlpSettings;

/// Maximum requests that wait, the one being sent not counted.
const WAITING: usize = 16;
/// The first interval before another attempt, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// A receiver's wish is respected up to this.
const LONGEST_WISH: Duration = Duration::from_secs(3600);
/// A request is given up after this time.
const GIVE_UP: Duration = Duration::from_secs(600);
/// Longest text of a receiver that is reported, characters.
const TEXT: usize = 300;

/// Exports so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportCounts {
    /// Taken by the receiver.
    pub accepted: u64,
    /// Refused by the receiver, for good.
    pub failed: u64,
    /// Given up, or pushed out of the queue by newer ones.
    pub dropped: u64,
    /// Values that were not taken, of accepted exports.
    pub rejected: u64,
}

/// State shared with the thread.
#[derive(Default)]
struct State {
    queue: VecDeque<Vec<u8>>,
    counts: ExportCounts,
    /// For the log.
    news: Vec<String>,
    /// No more requests come.
    closed: bool,
    done: bool,
}

/// The end of the pusher that gives it work.
#[derive(Clone, Default)]
pub struct Pusher {
    shared: Arc<(Mutex<State>, Condvar)>,
}

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Accepted {
        rejected: u64,
        message: String,
    },
    /// May succeed later; and when, if the receiver has said so.
    Later(String, Option<Duration>),
    Refused(String),
}

impl Pusher {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(settings: OtlpSettings) -> std::io::Result<Pusher> {
        let pusher = Pusher::default();
        let its = pusher.clone();
        std::thread::Builder::new().name("otlp".into()).spawn(move || its.work(&settings))?;
        Ok(pusher)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request. Never waits for the receiver.
    pub fn push(&self, body: Vec<u8>) {
        let mut state = self.state();
        if state.queue.len() >= WAITING {
            state.queue.pop_front();
            state.counts.dropped += 1;
        }
        state.queue.push_back(body);
        self.shared.1.notify_all();
    }

    /// Counts so far, and lines for the log since the last call.
    pub fn report(&self) -> (ExportCounts, Vec<String>) {
        let mut state = self.state();
        (state.counts, std::mem::take(&mut state.news))
    }

    /// Sends the newest request once more, and waits for that at most this long.
    pub fn finish(&self, most: Duration) {
        let until = Instant::now() + most;
        let mut state = self.state();
        state.closed = true;
        self.shared.1.notify_all();
        while !state.done {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn work(&self, settings: &OtlpSettings) {
        let mut log = Log::default();
        while let Some(body) = self.next() {
            self.deliver(settings, &body, &mut log);
        }
        self.state().done = true;
        self.shared.1.notify_all();
    }

    /// The next request; None: there is no more.
    fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        loop {
            if state.closed {
                // Values only grow: the newest says everything that the older ones do.
                let newest = state.queue.pop_back();
                state.counts.dropped += state.queue.len() as u64;
                state.queue.clear();
                return newest;
            }
            if let Some(body) = state.queue.pop_front() {
                return Some(body);
            }
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends a request until it is accepted, refused or given up.
    fn deliver(&self, settings: &OtlpSettings, body: &[u8], log: &mut Log) {
        let begin = Instant::now();
        for attempt in 0.. {
            let sent = match client::post(settings, body) {
                Ok(response) => judge(&response),
                Err(e) => Sent::Later(e.to_string(), None),
            };
            let mut state = self.state();
            state.news.extend(log.line(settings, &sent));
            let wait = match sent {
                Sent::Accepted { rejected, .. } => {
                    state.counts.accepted += 1;
                    state.counts.rejected = state.counts.rejected.saturating_add(rejected);
                    return;
                }
                Sent::Refused(_) => {
                    state.counts.failed += 1;
                    return;
                }
                Sent::Later(_, wish) => wish.unwrap_or_else(|| pause(attempt)),
            };
            if state.closed || begin.elapsed() > GIVE_UP {
                state.counts.dropped += 1;
                return;
            }
            let until = Instant::now() + wait;
            while !state.closed {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = self.shared.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            // The last request decides: it is the newest one.
            if state.closed && !state.queue.is_empty() {
                state.counts.dropped += 1;
                return;
            }
        }
    }
}

/// The interval before another attempt: twice as long each time, and between half and all of that, so that the machines of
/// a fleet do not come back at the same moment.
fn pause(attempt: u32) -> Duration {
    let most = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
    let random = RandomState::new().build_hasher().finish() % 1024;
    most / 2 + most.mul_f64(random as f64 / 2048.0)
}

fn judge(response: &Response) -> Sent {
    let text = || {
        let body = String::from_utf8_lossy(&response.body);
        let message = field(&body, "message").unwrap_or(&body);
        let message = crate::lines::plain(message.trim(), TEXT);
        let colon = if message.is_empty() { "" } else { ": " };
        format!("status {}{colon}{message}", response.status)
    };
    match response.status {
        200..=299 => {
            let body = String::from_utf8_lossy(&response.body);
            // Of `partialSuccess`, the only field of an answer. A 64-bit number is a text in this encoding.
            let rejected = field(&body, "rejectedDataPoints").and_then(|n| n.parse().ok());
            let message = field(&body, "errorMessage").unwrap_or_default();
            let message = crate::lines::plain(message, TEXT);
            Sent::Accepted { rejected: rejected.unwrap_or(0), message }
        }
        429 | 502 | 503 | 504 => {
            let wish = response.retry_after.as_deref().and_then(|text| wish(text, SystemTime::now()));
            Sent::Later(text(), wish.map(|wish| wish.min(LONGEST_WISH)))
        }
        _ => Sent::Refused(text()),
    }
}

/// The value of a field in JSON, a text as it is written there or a number; for what is shown and counted only, where a
/// parser's precision is not worth its size.
fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let Some(text) = rest.strip_prefix('"') else {
        return rest.split([',', '}', ' ', '\r', '\n']).next();
    };
    let mut escaped = false;
    let end = text.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    text.get(..end?)
}

/// `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
fn wish(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(date(text)?))?;
    Some(at.duration_since(now).unwrap_or_default())
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` as seconds since 1970.
fn date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words: Vec<&str> = text.split([' ', ':']).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = words.as_slice() else { return None };
    let number = |text: &str| text.parse::<u64>().ok().filter(|n| *n < 10_000);
    let month = MONTHS.iter().position(|m| m == month)? as u64 + 1;
    let (year, day) = (number(year).filter(|y| *y >= 1970)?, number(day)?);
    // Days since the first of March of the year 0, with February at the end of a year.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day.checked_sub(1)?;
    Some(((days.checked_sub(719_468)? * 24 + number(hour)?) * 60 + number(minute)?) * 60 + number(second)?)
}

/// What was last said of the receiver, so that nothing is said twice in a row.
#[derive(Default)]
struct Log {
    /// Why the last request was not accepted.
    trouble: Option<String>,
    partial: String,
}

impl Log {
    fn line(&mut self, settings: &OtlpSettings, sent: &Sent) -> Option<String> {
        let to = &settings.endpoint;
        match sent {
            Sent::Accepted { rejected, message } => {
                let again = self.trouble.take().map(|_| format!("{to} takes metrics again"));
                let partial = format!("{message}{}", if *rejected > 0 { " " } else { "" });
                if partial.is_empty() || partial == std::mem::replace(&mut self.partial, partial.clone()) {
                    return again;
                }
                let message = if message.is_empty() { "no reason given" } else { message };
                Some(match rejected {
                    0 => format!("{to} warns: {message}"),
                    n => format!("{to} has rejected {n} values: {message}"),
                })
            }
            Sent::Later(why, _) | Sent::Refused(why) => {
                let after = if matches!(sent, Sent::Later(..)) { "trying again" } else { "not tried again" };
                let before = self.trouble.replace(why.clone());
                (before.as_ref() != Some(why)).then(|| format!("cannot push metrics to {to}: {why}; {after}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
