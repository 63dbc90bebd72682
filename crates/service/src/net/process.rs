//! The process that talks to scrapers and to the receiver. It has no privilege, is another user where it can become one, and
//! ends with the service.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::endpoint::NetSettings;
use super::http::Server;
use super::push::Pusher;
use super::{NetReport, TextKind, TextPart};
use crate::rules::RuleUser;
use machine::helper::channel::Channel;
use machine::user::User;
use machine::{capset, helper, ready};

/// Interval of reports to the service, if there is news.
const TELL: Duration = Duration::from_millis(500);
/// Longest wait.
const REST: Duration = Duration::from_secs(60);
/// Largest text; a service sends none that is near it.
const LARGEST: usize = 64 << 20;
/// The user `nobody` where it has no entry (the kernel's `overflowuid`).
const NOBODY: u32 = 65534;
/// Lines of a report at most.
const LINES: usize = 8;

/// Forks the process. Returns its pid and the service's end of the channel.
///
/// # Errors
/// No more processes or descriptors are available.
pub(super) fn start(listener: Option<&TcpListener>, settings: &NetSettings) -> io::Result<(i32, Channel)> {
    let (ours, theirs) = Channel::pair()?;
    let listener = listener.map(TcpListener::try_clone).transpose()?;
    let kept = [Some(theirs.fd()), listener.as_ref().map(AsFd::as_fd)].into_iter().flatten();
    let kept: Vec<_> = kept.map(|fd| fd.as_raw_fd()).collect();
    // SAFETY: the service has only this thread.
    let pid = unsafe {
        helper::fork(c"profinfer-net", &kept, || {
            alone();
            be(theirs, listener, settings);
        })
    }?;
    Ok((pid, ours))
}

/// Becomes a user to whom nothing belongs. root without any privilege still owns root's files, and may send signals to
/// root's processes. Where that is refused, it stays so.
fn become_nobody() {
    if !rustix::process::geteuid().is_root() || !capset::has(capset::BECOME) {
        return;
    }
    let nobody = RuleUser::of("nobody").map_or(NOBODY, |user| user.uid);
    let entered = capset::keep(capset::BECOME).and_then(|()| User::or_bare(nobody)?.enter());
    drop(entered);
}

/// Gives up all privileges, and ignores signals that are for the service.
fn alone() {
    become_nobody();
    drop(capset::keep(0));
    let _ = rustix::thread::set_no_new_privs(true);
    helper::leave_session();
}

/// What the process has.
struct Work {
    channel: Channel,
    server: Option<Server>,
    pusher: Option<Pusher>,
    /// The parts of a text so far.
    parts: Vec<u8>,
    text: Option<Arc<[u8]>>,
    told: NetReport,
    /// Lines that could not be reported yet.
    said: Vec<String>,
}

/// The main loop, until the service is gone.
fn be(channel: Channel, listener: Option<TcpListener>, settings: &NetSettings) {
    let mut said = Vec::new();
    let mut noted =
        |done: io::Result<Server>| done.map_err(|e| said.push(format!("cannot listen: {e}"))).ok();
    let server = listener.and_then(|listener| noted(Server::new(listener)));
    let pusher = settings.otlp.clone().and_then(|otlp| {
        Pusher::start(otlp).map_err(|e| said.push(format!("cannot push: no thread: {e}"))).ok()
    });
    let (parts, text, told) = (Vec::new(), None, NetReport::default());
    let mut work = Work { channel, server, pusher, parts, text, told, said };
    while work.take().is_ok() {
        if let Some(server) = &mut work.server {
            server.turn(work.text.as_ref(), Instant::now());
        }
        work.tell();
        work.wait();
    }
    // Scrapers must see that there is no service any longer, even while the last export is under way.
    work.server = None;
    if let (Some(pusher), Some(otlp)) = (&work.pusher, &settings.otlp) {
        pusher.finish(otlp.timeout);
    }
}

impl Work {
    /// Takes texts from the service.
    ///
    /// # Errors
    /// The service is gone.
    fn take(&mut self) -> io::Result<()> {
        while let Some(part) = self.channel.receive::<TextPart>()? {
            if self.parts.len() > LARGEST {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.parts.extend_from_slice(&part.bytes);
            if !part.last {
                continue;
            }
            let text = std::mem::take(&mut self.parts);
            match (part.kind, &self.pusher) {
                (TextKind::Scraped, _) => self.text = Some(text.into()),
                (TextKind::Pushed, Some(pusher)) => pusher.push(text),
                (TextKind::Pushed, None) => {}
            }
        }
        Ok(())
    }

    /// Reports what is new.
    fn tell(&mut self) {
        let mut report = NetReport::default();
        if let Some(server) = &self.server {
            report.scrapes = server.counts;
        }
        if let Some(pusher) = &self.pusher {
            let (counts, lines) = pusher.report();
            report.exports = counts;
            self.said.extend(lines);
        }
        let many = self.said.len().saturating_sub(LINES);
        self.said.drain(..many);
        let same = (report.scrapes, report.exports) == (self.told.scrapes, self.told.exports);
        if same && self.said.is_empty() {
            return;
        }
        report.said.clone_from(&self.said);
        // A service that is not reading is told later.
        if self.channel.send(&report).is_ok() {
            self.said.clear();
            self.told = NetReport { said: Vec::new(), ..report };
        }
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN)];
        let mut most = if self.pusher.is_some() { TELL } else { REST };
        if let Some(server) = &self.server {
            server.fds(&mut |fd, flags| fds.push(PollFd::from_borrowed_fd(fd, flags)));
            let due = server.due().map(|due| due.saturating_duration_since(Instant::now()));
            most = due.map_or(most, |due| most.min(due.max(Duration::from_millis(1))));
        }
        ready::wait(&mut fds, most);
    }
}
