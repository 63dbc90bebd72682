//! Inspectors: processes forked from the service that examine what others have mapped. One that blocks on a file or a
//! process delays nobody else, and can be given up. Both ends.
//!
//! Inspectors are started when there is something to examine, know what the service knew by then, and end after a
//! while without work.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};
use serde::{Deserialize, Serialize};

use super::recognise::{MappingKey, RecognisedFile, Recogniser};
use machine::helper::channel::Channel;
use machine::maps::{FileId, Mapping};
use machine::proc;
use machine::{capset, helper, ready, usage};

/// A looker without work for this long ends.
const IDLE: Duration = Duration::from_secs(3);
/// A looker that is not done by then is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum lookers, and those of them for users other than root.
const MOST: usize = 8;
const OTHERS: usize = MOST - 1;
/// Maximum lookers that were given up and have not ended; beyond this nobody else is given up.
const STUCK: usize = 16;
/// Minimum charge for reading a byte, ns: half a gigabyte per second.
const BYTE_NS: u64 = 2;
/// Maximum engines reported of a process per examination.
const ENGINES: usize = 64;

/// A file that a process has mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapped {
    pub pid: u32,
    /// When it was mapped, CLOCK_MONOTONIC ns.
    pub time: u64,
    pub start: u64,
    pub end: u64,
    pub dev: (u32, u32),
    pub inode: u64,
    pub path: Vec<u8>,
    pub deleted: bool,
}

impl Mapped {
    /// The needed parts of a mapping.
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

    pub fn key(&self) -> MappingKey {
        (self.dev.0, self.dev.1, self.inode)
    }

    /// Maximum size in a message.
    pub fn bytes(&self) -> usize {
        self.path.len() + 64
    }
}

/// What to examine.
#[derive(Debug, Serialize, Deserialize)]
pub enum LookRequest {
    Mapped(Mapped),
    /// Everything that this process has mapped.
    All(u32),
}

impl LookRequest {
    /// The process.
    pub fn pid(&self) -> u32 {
        match self {
            LookRequest::Mapped(mapped) => mapped.pid,
            LookRequest::All(pid) => *pid,
        }
    }
}

/// One task for one looker.
#[derive(Debug, Serialize, Deserialize)]
pub struct InspectJob {
    pub user: u32,
    /// CPU time limit, ns; each byte read is charged as time.
    pub may_ns: u64,
    pub asks: Vec<LookRequest>,
}

/// An engine in a process's memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct MappedEngine {
    pub pid: u32,
    /// When it was mapped; if `seen`, the time at which it was seen.
    pub time: u64,
    pub seen: bool,
    pub base: FileId,
    pub path: Vec<u8>,
}

/// The result of a job.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LookResult {
    pub cost_ns: u64,
    /// Files that could not be opened for lack of permission, and files that were too large.
    pub unseen: u64,
    pub large: u64,
    /// Files not examined because the time was used up or they could not be opened now, and the processes that have
    /// them.
    pub skipped: u64,
    pub left: Vec<u32>,
}

/// Messages of a looker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// Files were examined.
    Answers(Vec<RecognisedFile>),
    Engine(MappedEngine),
    Done(LookResult),
}

struct Looker {
    pid: i32,
    channel: Channel,
    /// The user and processes that it works for, and since when.
    job: Option<(u32, Vec<u32>)>,
    since: Instant,
    /// It has ended, and was waited for.
    ended: bool,
}

/// All lookers.
#[derive(Default)]
pub struct InspectorPool {
    all: Vec<Looker>,
    /// Inspectors that were given up or asked to end, and are not gone yet.
    gone: Vec<i32>,
}

/// A looker's message, and the user it works for.
pub struct Heard {
    pub user: u32,
    pub said: Said,
}

impl InspectorPool {
    /// Readable when a looker has sent something.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().map(|l| l.channel.fd())
    }

    /// The lookers' pids.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.all.iter().filter_map(|l| u32::try_from(l.pid).ok())
    }

    /// Whether one more job can be given, to an existing looker or a new one.
    pub fn has_room(&self, root: bool) -> bool {
        let busy = self.all.iter().filter(|l| l.job.is_some()).count();
        busy < if root { MOST } else { OTHERS }
    }

    /// No looker has work.
    pub fn rest(&self) -> bool {
        self.all.iter().all(|l| l.job.is_none())
    }

    /// Gives out a job.
    ///
    /// # Errors
    /// No process or descriptor is available for a new looker.
    pub fn give(&mut self, job: &InspectJob, files: &mut Recogniser) -> io::Result<()> {
        let free = match self.all.iter().position(|l| l.job.is_none()) {
            Some(free) => free,
            None => {
                self.all.push(start(files)?);
                self.all.len() - 1
            }
        };
        if let Err(e) = self.all[free].channel.send(job) {
            // It has just died.
            self.give_up(free, &mut |_| {});
            return Err(e);
        }
        let looker = &mut self.all[free];
        let mut pids: Vec<u32> = job.asks.iter().map(LookRequest::pid).collect();
        pids.dedup();
        (looker.job, looker.since) = (Some((job.user, pids)), Instant::now());
        Ok(())
    }

    /// Takes the messages, at most until this time. A looker that has died is treated like one that was given up.
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
            // It has not been waited for, so its pid is still its own.
            let _ = Pid::from_raw(looker.pid).map(|pid| kill_process(pid, Signal::KILL));
            self.gone.push(looker.pid);
        }
        if let Some((user, left)) = looker.job {
            let cost_ns = looker.since.elapsed().as_nanos() as u64;
            take(Heard {
                user,
                said: Said::Done(LookResult { cost_ns, skipped: 1, left, ..LookResult::default() }),
            });
        }
    }

    /// Ends lookers without work and gives up those that do not return; reports the latter.
    pub fn tick(&mut self, now: Instant, take: &mut dyn FnMut(Heard)) -> Vec<String> {
        let mut news = Vec::new();
        for i in (0..self.all.len()).rev() {
            let (late, looker) = (now.saturating_duration_since(self.all[i].since), &self.all[i]);
            match &looker.job {
                // It ends when its channel is closed, if it has not already.
                None if late > IDLE => self.give_up(i, take),
                Some((user, pids)) if late > PATIENCE && self.gone.len() < STUCK => {
                    let pids: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
                    news.push(format!(
                        "files mapped by processes of user {user} could not be examined within {} s; they \
                         are tried again later: {}",
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

    /// Reaps ended lookers, including those that were waited for elsewhere.
    fn reap(&mut self) {
        self.gone.retain(|&pid| matches!(waitpid(Pid::from_raw(pid), WaitOptions::NOHANG), Ok(None)));
    }
}

/// Forks a looker.
fn start(files: &mut Recogniser) -> io::Result<Looker> {
    let (ours, theirs) = Channel::pair()?;
    // SAFETY: the service has only this thread.
    let pid = unsafe {
        helper::fork(c"profinfer-look", &[theirs.fd().as_raw_fd()], || {
            // If the system refuses, it works with the service's privileges.
            drop(capset::keep_looking());
            // The service may end while a file is waited for.
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            files.news.clear();
            drop(be(theirs, files));
        })
    }?;
    Ok(Looker { pid, channel: ours, job: None, since: Instant::now(), ended: false })
}

/// A looker's main loop, until the service or the looker ends.
fn be(mut channel: Channel, files: &mut Recogniser) -> io::Result<()> {
    loop {
        match channel.receive()? {
            Some(job) => Look::new(files, &mut channel).all(job)?,
            None => channel.wait(Duration::from_secs(60)),
        }
    }
}

/// One job in progress.
struct Look<'a> {
    files: &'a mut Recogniser,
    channel: &'a mut Channel,
    begin: (u64, u64),
    done: LookResult,
    /// Engines of the current process that were reported already.
    told: BTreeSet<FileId>,
    result: io::Result<()>,
}

impl<'a> Look<'a> {
    fn new(files: &'a mut Recogniser, channel: &'a mut Channel) -> Look<'a> {
        files.next_round();
        let begin = (usage::clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID), files.bytes);
        let done = LookResult { large: files.large, ..LookResult::default() };
        Look { files, channel, begin, done, told: BTreeSet::new(), result: Ok(()) }
    }

    fn cost(&self) -> u64 {
        let took = usage::clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(self.begin.0);
        took.max((self.files.bytes - self.begin.1) * BYTE_NS)
    }

    fn all(mut self, job: InspectJob) -> io::Result<()> {
        let InspectJob { user, may_ns, asks } = job;
        for ask in asks {
            self.told.clear();
            match ask {
                LookRequest::Mapped(mapped) => {
                    let (pid, time) = (mapped.pid, mapped.time);
                    self.one((pid, user, may_ns), time, false, &mapped.mapping());
                }
                LookRequest::All(pid) => {
                    let now = usage::now();
                    proc::images(pid, &mut |m| self.one((pid, user, may_ns), now, true, &m));
                }
            }
            self.send_answers();
        }
        std::mem::replace(&mut self.result, Ok(()))?;
        let done =
            LookResult { cost_ns: self.cost(), large: self.files.large - self.done.large, ..self.done };
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
                // The answer first, so that the service knows the file when it learns of the process.
                self.send_answers();
                let path = Mapped::of(pid, time, m).path;
                self.say(&Said::Engine(MappedEngine { pid, time, seen, base, path }));
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => self.done.unseen += 1,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.done.skipped += 1;
                if self.done.left.last() != Some(&pid) {
                    self.done.left.push(pid);
                }
            }
            // That a process has ended meanwhile needs no report.
            _ => {}
        }
        if self.files.news.len() >= 64 {
            self.send_answers();
        }
    }

    fn send_answers(&mut self) {
        if !self.files.news.is_empty() {
            let news = std::mem::take(&mut self.files.news);
            self.say(&Said::Answers(news));
        }
    }

    /// After the first failure nothing more is sent; it ends the looker after the job.
    fn say(&mut self, what: &Said) {
        if self.result.is_ok() {
            self.result = say(self.channel, what);
        }
    }
}

/// Sends a message, however long the service takes to read it.
fn say(channel: &mut Channel, what: &Said) -> io::Result<()> {
    loop {
        match channel.send(what) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let fd = PollFd::from_borrowed_fd(channel.fd(), PollFlags::OUT);
                ready::wait(&mut [fd], Duration::from_secs(1));
            }
            done => return done,
        }
    }
}
