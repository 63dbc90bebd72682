//! The processes that look at what others have mapped, forked from the service: one that has to wait for a file or for a
//! process keeps nobody else waiting, and can be given up. Both ends. Uses `channel`, `facts`, `recognise`, `recorder` (how a
//! process is left), `capset` and `usage`.
//!
//! They are begun when there is something to look at, know what the service knew by then, and end when there was nothing for
//! a while.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::recognise::{Answer, Key, Recogniser};
use super::{facts, recorder};
use crate::agent::maps::{FileId, Mapping};
use crate::agent::{capset, usage};

/// One that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(3);
/// One that is not done by then is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Lookers at a time, and those of them for others than root.
const MOST: usize = 8;
const OTHERS: usize = MOST - 1;
/// Those that were given up, and have not ended, are so many at most; then nobody else is given up.
const STUCK: usize = 16;
/// What reading a byte is worth at least, ns: half a gigabyte a second.
const BYTE_NS: u64 = 2;
/// Most engines that are told of a process for one look.
const ENGINES: usize = 64;

/// A file that a process has mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapped {
    pub pid: u32,
    /// When, CLOCK_MONOTONIC ns.
    pub time: u64,
    pub start: u64,
    pub end: u64,
    pub dev: (u32, u32),
    pub inode: u64,
    pub path: Vec<u8>,
    pub deleted: bool,
}

impl Mapped {
    /// What is needed of a mapping.
    pub fn of(pid: u32, time: u64, m: &Mapping) -> Mapped {
        use std::os::unix::ffi::OsStrExt;
        let path = m.path.as_os_str().as_bytes().to_vec();
        let (dev, inode, deleted) = ((m.major, m.minor), m.inode, m.deleted);
        Mapped { pid, time, start: m.start, end: m.end, dev, inode, path, deleted }
    }

    fn mapping(self) -> Mapping {
        use std::os::unix::ffi::OsStringExt;
        Mapping {
            start: self.start,
            end: self.end,
            offset: 0,
            executable: true,
            major: self.dev.0,
            minor: self.dev.1,
            inode: self.inode,
            path: std::ffi::OsString::from_vec(self.path).into(),
            deleted: self.deleted,
        }
    }

    pub fn key(&self) -> Key {
        (self.dev.0, self.dev.1, self.inode)
    }

    /// Room that it takes in a message, at most.
    pub fn bytes(&self) -> usize {
        self.path.len() + 64
    }
}

/// What is to be looked at.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    Mapped(Mapped),
    /// All that this process has mapped.
    All(u32),
}

impl Ask {
    /// The process.
    pub fn pid(&self) -> u32 {
        match self {
            Ask::Mapped(mapped) => mapped.pid,
            Ask::All(pid) => *pid,
        }
    }
}

/// What one looker does at a time.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    pub user: u32,
    /// Processor time that it may take, ns; a byte read counts as some.
    pub may_ns: u64,
    pub asks: Vec<Ask>,
}

/// An engine that is in a process's memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct Engine {
    pub pid: u32,
    /// Since then; or, where it was `seen`, at that time.
    pub time: u64,
    pub seen: bool,
    pub base: FileId,
    pub path: Vec<u8>,
}

/// What a job came to.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Done {
    pub cost_ns: u64,
    /// Files that could not be opened for want of a right, and those that were too large.
    pub unseen: u64,
    pub large: u64,
    /// Files that were not looked at, for the time was used up or they could not be opened now, and the processes that have
    /// them.
    pub skipped: u64,
    pub left: Vec<u32>,
}

/// What a looker says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// Files were looked at.
    Learnt(Vec<Answer>),
    Engine(Engine),
    Done(Done),
}

struct Looker {
    pid: i32,
    channel: Channel,
    /// For whom it looks, at which processes, and since when.
    job: Option<(u32, Vec<u32>)>,
    since: Instant,
    /// It has ended, and was waited for.
    ended: bool,
}

/// All lookers.
#[derive(Default)]
pub struct Lookers {
    all: Vec<Looker>,
    /// Those that were given up or told to end, and are not gone yet.
    gone: Vec<i32>,
}

/// What a looker has said, and for whom.
pub struct Heard {
    pub user: u32,
    pub said: Said,
}

impl Lookers {
    /// Readable when one has something to say.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().map(|l| l.channel.fd())
    }

    /// Their processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.all.iter().filter_map(|l| u32::try_from(l.pid).ok())
    }

    /// Whether one more job can be given, to one that is there or to a new one.
    pub fn has_room(&self, root: bool) -> bool {
        let busy = self.all.iter().filter(|l| l.job.is_some()).count();
        busy < if root { MOST } else { OTHERS }
    }

    /// Nobody has anything to do.
    pub fn rest(&self) -> bool {
        self.all.iter().all(|l| l.job.is_none())
    }

    /// Gives a job away.
    ///
    /// # Errors
    /// No process or descriptor is to be had for a new looker.
    pub fn give(&mut self, job: &Job, files: &mut Recogniser) -> io::Result<()> {
        let free = match self.all.iter().position(|l| l.job.is_none()) {
            Some(free) => free,
            None => {
                self.all.push(start(files)?);
                self.all.len() - 1
            }
        };
        if let Err(e) = self.all[free].channel.send(job) {
            // It has died just now.
            self.give_up(free, &mut |_| {});
            return Err(e);
        }
        let looker = &mut self.all[free];
        let mut pids: Vec<u32> = job.asks.iter().map(Ask::pid).collect();
        pids.dedup();
        (looker.job, looker.since) = (Some((job.user, pids)), Instant::now());
        Ok(())
    }

    /// Takes what they have said, at most until a time. One that has died is as one that was given up.
    pub fn hear(&mut self, until: Instant, take: &mut dyn FnMut(Heard)) {
        for i in (0..self.all.len()).rev() {
            while Instant::now() < until {
                let looker = &mut self.all[i];
                match looker.channel.receive() {
                    Ok(Some(said)) => {
                        let user = looker.job.as_ref().map_or(0, |job| job.0);
                        if matches!(said, Said::Done(_)) {
                            (looker.job, looker.since) = (None, Instant::now());
                        }
                        take(Heard { user, said });
                    }
                    Ok(None) => break,
                    Err(_) => {
                        self.give_up(i, take);
                        break;
                    }
                }
            }
        }
    }

    fn give_up(&mut self, i: usize, take: &mut dyn FnMut(Heard)) {
        let looker = self.all.swap_remove(i);
        if !looker.ended {
            // SAFETY: a signal to a child that has not been waited for, whose number is therefore still its own.
            unsafe { libc::kill(looker.pid, libc::SIGKILL) };
            self.gone.push(looker.pid);
        }
        if let Some((user, left)) = looker.job {
            let cost_ns = looker.since.elapsed().as_nanos() as u64;
            take(Heard { user, said: Said::Done(Done { cost_ns, skipped: 1, left, ..Done::default() }) });
        }
    }

    /// Ends those without work, gives up those that do not come back; tells of these.
    pub fn tick(&mut self, now: Instant, take: &mut dyn FnMut(Heard)) -> Vec<String> {
        let mut news = Vec::new();
        for i in (0..self.all.len()).rev() {
            let (late, looker) = (now.saturating_duration_since(self.all[i].since), &self.all[i]);
            match &looker.job {
                // It ends when its channel is closed, if it has not.
                None if late > IDLE => self.give_up(i, take),
                Some((user, pids)) if late > PATIENCE && self.gone.len() < STUCK => {
                    let pids: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
                    news.push(format!(
                        "what processes of user {user} have mapped could not be looked at within {} s, and is left for \
                         later: {}",
                        PATIENCE.as_secs(),
                        pids.join(", ")
                    ));
                    self.give_up(i, take);
                }
                _ => {}
            }
        }
        self.reap();
        news
    }

    /// Whether this child, which has ended and was waited for, was one of these.
    pub fn knows(&mut self, pid: i32) -> bool {
        let gone = self.gone.iter().position(|&p| p == pid).map(|i| self.gone.swap_remove(i));
        let here = self.all.iter_mut().find(|l| l.pid == pid);
        gone.is_some() || here.map(|looker| looker.ended = true).is_some()
    }

    /// Waits for those that are gone; those that somebody else has waited for are, too.
    fn reap(&mut self) {
        // SAFETY: does not wait, and writes nothing.
        self.gone.retain(|&pid| unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) } == 0);
    }
}

/// Forks one.
fn start(files: &mut Recogniser) -> io::Result<Looker> {
    let (ours, theirs) = Channel::pair()?;
    // SAFETY: only this thread runs in the service, so the child may do all that a program may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let end = recorder::Leave;
            recorder::call_itself(c"profinfer-look");
            recorder::close_all_but(theirs.fd());
            // Where the system refuses, it looks with what the service has.
            drop(capset::keep_looking());
            // SAFETY: takes numbers. The service's end may come while a file is waited for.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            files.news.clear();
            drop(be(theirs, files));
            drop(end);
            unreachable!("the process has ended")
        }
        pid => Ok(Looker { pid, channel: ours, job: None, since: Instant::now(), ended: false }),
    }
}

/// A looker's life, up to the service's end or its own.
fn be(mut channel: Channel, files: &mut Recogniser) -> io::Result<()> {
    loop {
        match channel.receive()? {
            Some(job) => Look::new(files, &mut channel).all(job)?,
            None => channel.wait(Duration::from_secs(60)),
        }
    }
}

/// One job under way.
struct Look<'a> {
    files: &'a mut Recogniser,
    channel: &'a mut Channel,
    begin: (u64, u64),
    done: Done,
    /// What was told of the process just now.
    told: BTreeSet<FileId>,
    result: io::Result<()>,
}

impl<'a> Look<'a> {
    fn new(files: &'a mut Recogniser, channel: &'a mut Channel) -> Look<'a> {
        files.next_round();
        let begin = (usage::clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID), files.bytes);
        let done = Done { large: files.large, ..Done::default() };
        Look { files, channel, begin, done, told: BTreeSet::new(), result: Ok(()) }
    }

    fn cost(&self) -> u64 {
        let took = usage::clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(self.begin.0);
        took.max((self.files.bytes - self.begin.1) * BYTE_NS)
    }

    fn all(mut self, job: Job) -> io::Result<()> {
        let Job { user, may_ns, asks } = job;
        for ask in asks {
            self.told.clear();
            match ask {
                Ask::Mapped(mapped) => {
                    let (pid, time) = (mapped.pid, mapped.time);
                    self.one((pid, user, may_ns), time, false, &mapped.mapping());
                }
                Ask::All(pid) => {
                    let now = usage::now();
                    facts::images(pid, &mut |m| self.one((pid, user, may_ns), now, true, &m));
                }
            }
            self.learnt();
        }
        std::mem::replace(&mut self.result, Ok(()))?;
        let done = Done { cost_ns: self.cost(), large: self.files.large - self.done.large, ..self.done };
        say(self.channel, &Said::Done(done))
    }

    fn one(&mut self, (pid, user, may_ns): (u32, u32, u64), time: u64, seen: bool, m: &Mapping) {
        let base = match self.files.at_hand(m) {
            Some(known) => Ok(known),
            None if self.cost() > may_ns => Err(io::ErrorKind::WouldBlock.into()),
            None => self.files.base(pid, m, user),
        };
        match base {
            Ok(Some(base)) if self.told.len() < ENGINES && self.told.insert(base) => {
                // The answer first, so that the service knows the file when it hears of the process.
                self.learnt();
                let path = Mapped::of(pid, time, m).path;
                self.say(&Said::Engine(Engine { pid, time, seen, base, path }));
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => self.done.unseen += 1,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.done.skipped += 1;
                if self.done.left.last() != Some(&pid) {
                    self.done.left.push(pid);
                }
            }
            // That a process has ended meanwhile is no news.
            _ => {}
        }
        if self.files.news.len() >= 64 {
            self.learnt();
        }
    }

    fn learnt(&mut self) {
        if !self.files.news.is_empty() {
            let news = std::mem::take(&mut self.files.news);
            self.say(&Said::Learnt(news));
        }
    }

    /// The first failure ends the job when it is over.
    fn say(&mut self, what: &Said) {
        if self.result.is_ok() {
            self.result = say(self.channel, what);
        }
    }
}

/// Says it, however long the service takes to listen.
fn say(channel: &mut Channel, what: &Said) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    loop {
        match channel.send(what) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let (fd, events) = (channel.fd().as_raw_fd(), libc::POLLOUT);
                let mut fd = libc::pollfd { fd, events, revents: 0 };
                // SAFETY: one descriptor, as said.
                unsafe { libc::poll(&raw mut fd, 1, 1000) };
            }
            done => return done,
        }
    }
}
