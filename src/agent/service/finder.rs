//! Finds the processes that have a GGML engine in memory, as soon as they have. Uses `facts`, `looking`, `notice`, `polled`,
//! `privileges`, `recognise`, `timer` and `waiting`.
//!
//! Where the kernel tells of mappings and execs, nothing is asked as long as nothing happens. Else `/proc` is looked through
//! four times a second. In both cases all processes are looked at when the finder begins, and again when something was lost.
//!
//! **Never waits.** A file that is known, and that the kernel says at once is as it was, is answered for here. All others, and
//! all that a process has mapped, are looked at by processes of their own (`looking`), for each user in turn and within his
//! share (`waiting`). What is done here is done in slices: there may be any number of processes, and each may map anything.
//!
//! **Children.** A child of fork has its parent's mappings without ever having mapped anything, and the kernel tells
//! nothing. That is left so: a session that records the parent follows its children by itself, from the moment of the
//! fork, so that a thousand of them cost nothing here, and looks for those of before by itself. Whenever all processes are
//! looked at, children are found like any other, and [`Found::parent`] says whose they are. Children whose parent and its
//! recording are gone are engines that nobody sees: whoever knows of such calls [`Finder::look_again`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::facts;
use super::looking::{Ask, Done, Engine, Heard, Lookers, Mapped, Said};
use super::notice::{Notice, Watch};
use super::polled::Polled;
use super::recognise::Recogniser;
use super::timer::Timer;
use super::waiting::{HeldBack, Waiting};
use crate::agent::maps::{FileId, Mapping};
use crate::agent::privileges::{self, Cap, Privileges};

/// Between two looks through `/proc` where the kernel does not tell.
const POLLING: Duration = Duration::from_millis(250);
/// Between two looks at processes that were found, at the list of CPUs, and after losses.
const TICK: Duration = Duration::from_secs(1);
/// After notices no others are waited for, so long: programs come with several, and a compiler with hundreds.
const REST: Duration = Duration::from_millis(10);
/// So long at most each of notices, answers, the list of processes and the processes that were found are gone through at a time.
const SLICE: Duration = Duration::from_millis(10);
/// Between a loss and the look at all processes.
const AFTER_LOSS: Duration = Duration::from_millis(500);
/// Going through all processes takes one part in so many of the time at most.
const SELDOM: u32 = 10;
/// Most engines of a process.
const ENGINES: usize = 64;
/// Most execs that are remembered for as long as something is looked at.
const EXECS: usize = 1 << 16;
/// Between two lines on users that are held back.
const BETWEEN: Duration = Duration::from_secs(60);
/// While a program begins, its stack's beginning moves down by the size of its lists of arguments; another program's is
/// elsewhere in gigabytes. Bytes.
const STACK_MOVES: u64 = 1 << 20;

/// A process that has an engine in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Numbers are those of the finder's own namespaces, in containers too.
    pub pid: u32,
    /// When it began, clock ticks since boot.
    pub start: u64,
    /// Its program as the process sees it; empty where we may not know.
    pub exe: PathBuf,
    /// Effective user.
    pub uid: u32,
    /// Path in the one hierarchy of control groups (v2); None where the machine has none such.
    pub cgroup: Option<String>,
    /// The file that has GGML's base code. Other parts of the engine may be mapped later.
    pub base: FileId,
    /// Its path as the process saw it when it mapped it; empty where the kernel could not tell.
    pub path: PathBuf,
    /// It came by fork from this process, whose memory it had: a recording of that one, if it had begun, follows it.
    pub parent: Option<u32>,
}

/// What was told of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    start: u64,
    stack: u64,
    base: FileId,
    /// [`Found::parent`]. Without that one it is another that nobody was told of.
    parent: Option<u32>,
    /// When it was found, CLOCK_MONOTONIC ns.
    since: u64,
}

impl Known {
    /// The same program in the same process.
    fn runs_on_in(&self, stat: &facts::Stat) -> bool {
        self.start == stat.start && self.stack.abs_diff(stat.stack) < STACK_MOVES
    }
}

enum Road {
    Told(Watch),
    Asked(Polled, String),
}

/// A pass through all processes.
struct Sweep {
    left: Box<dyn Iterator<Item = u32>>,
    /// Those that have changed only.
    changed: bool,
    took: Duration,
}

/// The finder. Its descriptors are closed at an exec; the child of a fork can do nothing with it but drop it.
pub struct Finder {
    road: Road,
    files: Recogniser,
    waiting: Waiting,
    lookers: Lookers,
    /// What was told of processes, by their numbers; where the last look at them ended.
    known: BTreeMap<u32, Vec<Known>>,
    looked: u32,
    /// When processes began other programs while something was being looked at; what is then told of the old one is late.
    execs: BTreeMap<u32, u64>,
    sweep: Option<Sweep>,
    /// All are to be looked at, and from when on.
    again: bool,
    due: Instant,
    notices: Vec<Notice>,
    /// The ring whose turn it is.
    ring: usize,
    timer: Timer,
    tick: Instant,
    /// Notices are not waited for before the timer.
    resting: bool,
    /// Notices that were lost so far.
    pub lost: u64,
    /// Notices so far.
    pub told: u64,
    /// Mapped files that we were not allowed to look at, as often as they were mapped.
    pub unseen: u64,
    /// Files that were not looked through to their end, since they are too large.
    pub large: u64,
    /// Why not even that is known of some processes, or what else is missing.
    lacks: String,
    /// For the log.
    news: Vec<String>,
    /// When it was last told that users are held back.
    complained: Option<Instant>,
}

impl Finder {
    /// Begins. Processes that run already are found by the first calls of [`Finder::poll`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> std::io::Result<Finder> {
        let road = match Watch::open() {
            Ok(watch) => Road::Told(watch),
            Err(why) => Road::Asked(Polled::default(), why),
        };
        Finder::by(road)
    }

    /// Begins by looking through `/proc`, whatever the kernel would tell; `why` is for [`Finder::road`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn by_asking(why: &str) -> std::io::Result<Finder> {
        Finder::by(Road::Asked(Polled::default(), why.to_owned()))
    }

    fn by(road: Road) -> std::io::Result<Finder> {
        let timer = Timer::new()?;
        timer.set(Duration::ZERO);
        let now = Instant::now();
        Ok(Finder {
            // To who asks all are new at first.
            again: matches!(road, Road::Told(_)),
            due: now,
            road,
            files: Recogniser::default(),
            waiting: Waiting::default(),
            lookers: Lookers::default(),
            known: BTreeMap::new(),
            looked: 0,
            execs: BTreeMap::new(),
            sweep: None,
            notices: Vec::new(),
            ring: 0,
            timer,
            tick: now,
            resting: false,
            lost: 0,
            told: 0,
            unseen: 0,
            large: 0,
            lacks: lacks(&privileges::read()),
            news: Vec::new(),
            complained: None,
        })
    }

    /// How engines are found, and which are not, in words.
    pub fn road(&self) -> String {
        let by = match &self.road {
            Road::Told(watch) => {
                format!("the kernel's notices of mappings and execs on {} CPUs", watch.cpus())
            }
            Road::Asked(_, why) => format!(
                "a look through /proc every {} ms, for the kernel gives no notices: {why}",
                POLLING.as_millis()
            ),
        };
        let unseen = match self.unseen {
            0 => String::new(),
            n => format!("; {n} mapped files could not be opened: that needs CAP_DAC_READ_SEARCH, or root"),
        };
        format!("{by}{}{unseen}", self.lacks)
    }

    /// True: the kernel tells. False: an engine may run for a quarter of a second before it is found, and one that ends sooner
    /// never is.
    pub fn is_told(&self) -> bool {
        matches!(self.road, Road::Told(_))
    }

    /// Processes that were found and have not ended, as far as is known.
    pub fn alive(&self) -> usize {
        self.known.values().map(Vec::len).sum()
    }

    /// Users of whom not all was looked at, and mapped files that were not so far, of whomever.
    pub fn held_back(&self) -> (Vec<HeldBack>, u64) {
        (self.waiting.held_back(), self.waiting.files)
    }

    /// Processes that look at files just now.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.lookers.pids()
    }

    /// Whether a child that has ended and was waited for was one of these.
    pub fn knows(&mut self, pid: i32) -> bool {
        self.lookers.knows(pid)
    }

    /// Lines for the log since the last call.
    pub fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// What to wait for just now: after each wait, whatever ended it, call [`Finder::poll`], then ask again.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.timer.as_fd()];
        fds.extend(self.lookers.fds());
        if let (Road::Told(watch), false) = (&self.road, self.resting) {
            fds.extend(watch.fds());
        }
        fds
    }

    /// At the next tick all processes are looked at, and those told of that were not before.
    pub fn look_again(&mut self) {
        self.again = true;
    }

    /// The processes found since the last call, each once for as long as it runs one program with one engine. Does not wait.
    pub fn poll(&mut self) -> Vec<Found> {
        let begin = Instant::now();
        let mut found = Vec::new();
        self.files.next_round();
        let (told, more) = self.listen(begin + SLICE, &mut found);
        if begin >= self.tick {
            self.at_tick();
            let every = if self.is_told() { TICK } else { POLLING };
            self.tick = begin + every;
        }
        self.go_through();
        self.hear(&mut found);
        self.hand_out();
        if !self.waiting.any() && self.lookers.rest() {
            self.execs.clear();
        }
        self.resting = told;
        let until_tick = self.tick.saturating_duration_since(Instant::now());
        self.timer.set(match (more || self.sweep.is_some(), told) {
            (true, _) => Duration::ZERO,
            (false, true) => REST.min(until_tick),
            (false, false) => until_tick,
        });
        found
    }

    /// Takes notices until then; whether the kernel told anything, and whether it may have told more.
    fn listen(&mut self, until: Instant, found: &mut Vec<Found>) -> (bool, bool) {
        let (mut any, mut user) = (false, None);
        let cpus = if let Road::Told(watch) = &self.road { watch.cpus() } else { 0 };
        for done in 0..cpus {
            let Road::Told(watch) = &mut self.road else { break };
            self.ring = (self.ring + 1) % cpus;
            let mut notices = std::mem::take(&mut self.notices);
            any |= watch.read(self.ring, &mut |notice| notices.push(notice));
            self.told += notices.len() as u64;
            for notice in notices.drain(..) {
                self.hear_of(notice, &mut user, found);
            }
            self.notices = notices;
            if Instant::now() > until && done + 1 < cpus {
                return (true, true);
            }
        }
        (any, false)
    }

    fn hear_of(&mut self, notice: Notice, last: &mut Option<(u32, u32)>, found: &mut Vec<Found>) {
        match notice {
            Notice::Mapped { pid, time, mapping } => match self.files.at_hand(&mapping) {
                Some(None) => {}
                Some(Some(base)) => {
                    let path = mapping.path.as_os_str().as_bytes().to_vec();
                    self.meet(Engine { pid, time, seen: false, base, path }, found);
                }
                None => self.ask(pid, time, &mapping, last),
            },
            // What was found later than this is of the new program already.
            Notice::Exec { pid, time } => {
                self.keep(pid, |k| k.since >= time);
                if self.execs.len() < EXECS {
                    self.execs.insert(pid, time);
                }
            }
            Notice::Lost(n) => {
                self.lost += n;
                self.again = true;
                self.tick = self.tick.min(Instant::now() + AFTER_LOSS);
            }
        }
    }

    /// Has a mapped file looked at. `last` is a process, and whose it is.
    fn ask(&mut self, pid: u32, time: u64, mapping: &Mapping, last: &mut Option<(u32, u32)>) {
        let user = last.filter(|(of, _)| *of == pid).map(|(_, user)| user);
        // One that has ended meanwhile is of no interest.
        let Some(user) = user.or_else(|| facts::users(pid).map(|users| users.real)) else { return };
        *last = Some((pid, user));
        self.waiting.mapped(user, Mapped::of(pid, time, mapping));
    }

    /// Forgets of a process what does not hold any more.
    fn keep(&mut self, pid: u32, holds: impl Fn(&Known) -> bool) {
        if let Some(known) = self.known.get_mut(&pid) {
            known.retain(holds);
            if known.is_empty() {
                self.known.remove(&pid);
            }
        }
    }

    fn at_tick(&mut self) {
        let now = Instant::now();
        self.look_after(now + SLICE);
        self.waiting.tick(now);
        let mut done = Vec::new();
        self.news.extend(self.lookers.tick(now, &mut |heard| done.push(heard)));
        done.into_iter().for_each(|heard| self.take(heard, &mut Vec::new()));
        self.complain(now);
        let mut all = false;
        match &mut self.road {
            Road::Told(watch) => match watch.renew() {
                Ok(gap) => self.again |= gap,
                Err(e) => {
                    // Half the machine is worse than all of it a little later.
                    let why = format!("a CPU that came on cannot be watched: {e}");
                    self.road = Road::Asked(Polled::default(), why);
                }
            },
            Road::Asked(..) => all = true,
        }
        if self.sweep.is_none() && now >= self.due && (self.again || all) {
            let changed = !std::mem::take(&mut self.again);
            if let (true, Road::Asked(polled, _)) = (changed, &mut self.road) {
                polled.begin();
            }
            self.sweep = Some(Sweep { left: Box::new(facts::all()), changed, took: Duration::ZERO });
        }
    }

    /// Forgets processes that have ended, those from where it last ended on.
    fn look_after(&mut self, until: Instant) {
        let stays = |k: &Known, s: facts::Stat| s.start == k.start && k.parent.is_none_or(|p| p == s.parent);
        for _ in 0..self.known.len() {
            let next = self.known.range((Bound::Excluded(self.looked), Bound::Unbounded)).next();
            let Some(&pid) = next.or(self.known.first_key_value()).map(|(pid, _)| pid) else { return };
            self.looked = pid;
            let stat = facts::stat(pid);
            self.keep(pid, |k| stat.is_some_and(|s| stays(k, s)));
            if Instant::now() > until {
                return;
            }
        }
    }

    /// Says that users are held back, now and then.
    fn complain(&mut self, now: Instant) {
        let (users, _) = self.held_back();
        let Some(one) = users.first() else { return };
        if self.complained.is_none_or(|at| now.duration_since(at) >= BETWEEN) {
            self.complained = Some(now);
            self.news.push(format!(
                "{} mapped files of user {} were not looked at: they take more than a user's share of time, and are looked at \
                 later{}",
                one.files,
                one.uid,
                if users.len() > 1 { "; other users are held back, too" } else { "" }
            ));
        }
    }

    /// Goes on with the pass through all processes.
    fn go_through(&mut self) {
        let Some(sweep) = &mut self.sweep else { return };
        let begin = Instant::now();
        let over = loop {
            let Some(pid) = sweep.left.next() else { break true };
            if let (true, Road::Asked(polled, _)) = (sweep.changed, &mut self.road)
                && !polled.changed(pid)
            {
                continue;
            }
            // One that finds no room is looked at with the next pass.
            if let Some(users) = facts::users(pid)
                && !self.waiting.look(users.real, pid)
            {
                self.again = true;
            }
            if begin.elapsed() > SLICE {
                break false;
            }
        };
        sweep.took += begin.elapsed();
        if over {
            let least = if self.is_told() { AFTER_LOSS } else { POLLING };
            let took = self.sweep.take().map_or(Duration::ZERO, |sweep| sweep.took);
            self.due = Instant::now() + (took * SELDOM).max(least);
            if let Road::Asked(polled, _) = &mut self.road {
                polled.end();
            }
        }
    }

    /// Takes what those who look have to say.
    fn hear(&mut self, found: &mut Vec<Found>) {
        let mut heard = Vec::new();
        self.lookers.hear(Instant::now() + SLICE, &mut |one| heard.push(one));
        heard.into_iter().for_each(|one| self.take(one, found));
    }

    fn take(&mut self, Heard { user, said }: Heard, found: &mut Vec<Found>) {
        match said {
            Said::Learnt(answers) => answers.into_iter().for_each(|answer| self.files.learn(answer)),
            Said::Engine(engine) => self.meet(engine, found),
            Said::Done(done) => {
                self.unseen += done.unseen;
                self.large += done.large;
                self.waiting.done(user, &done, Instant::now());
            }
        }
    }

    /// Has looked at what waits, as far as there is somebody to look.
    fn hand_out(&mut self) {
        for root in [true, false] {
            while self.lookers.has_room(root) {
                let Some(job) = self.waiting.next(root, Instant::now()) else { break };
                if let Err(e) = self.lookers.give(&job, &mut self.files) {
                    self.news.push(format!("nobody can look at what processes have mapped, for now: {e}"));
                    let left: Vec<u32> = job.asks.iter().map(Ask::pid).collect();
                    let done = Done { skipped: left.len() as u64, left, ..Done::default() };
                    self.waiting.done(job.user, &done, Instant::now());
                    break;
                }
            }
        }
    }

    /// An engine is in a process's memory.
    fn meet(&mut self, engine: Engine, found: &mut Vec<Found>) {
        let Engine { pid, time, seen, base, path } = engine;
        let Some(stat) = facts::stat(pid) else { return };
        if self.execs.get(&pid).is_some_and(|&exec| exec > time) {
            return;
        }
        // Another process of the same number, or another program.
        self.keep(pid, |k| k.runs_on_in(&stat));
        let known = self.known.get(&pid).map_or(&[][..], Vec::as_slice);
        if known.len() >= ENGINES || known.iter().any(|k| k.base == base) {
            return;
        }
        // One that ends just now is none.
        let Some(users) = facts::users(pid) else { return };
        // What maps something by itself is no copy of its parent.
        let copy = || {
            let parent = facts::stat(stat.parent)?;
            (seen && stat.stack != 0 && parent.stack == stat.stack).then_some(stat.parent)
        };
        let (exe, cgroup, parent) = (facts::program(pid), facts::cgroup(pid), copy());
        let known = Known { start: stat.start, stack: stat.stack, base, parent, since: time };
        self.known.entry(pid).or_default().push(known);
        let path = OsString::from_vec(path).into();
        found.push(Found { pid, start: stat.start, exe, uid: users.effective, cgroup, base, path, parent });
    }
}

/// What is not seen for want of a capability, behind a semicolon.
fn lacks(privileges: &Privileges) -> String {
    match privileges.lacking_of(&[Cap::SysPtrace])[..] {
        [] => String::new(),
        _ => format!("; other users' processes are not seen: {} is missing", Cap::SysPtrace.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_said() {
        let all = Privileges { effective: u64::MAX, ..Privileges::default() };
        assert_eq!(lacks(&all), "");
        assert!(lacks(&Privileges::default()).contains("CAP_SYS_PTRACE is missing"));
        let mut finder = Finder::by_asking("it is a test").expect("descriptors");
        assert!(finder.road().contains("gives no notices: it is a test"), "{}", finder.road());
        finder.take(
            Heard { user: 0, said: Said::Done(Done { unseen: 1, ..Done::default() }) },
            &mut Vec::new(),
        );
        assert!(finder.road().contains("1 mapped files could not be opened"), "{}", finder.road());
    }

    #[test]
    fn a_stack_tells_programs_apart() {
        let known = Known { start: 7, stack: 0x7ffc_0000_0000, base: (1, 2), parent: None, since: 0 };
        let stat = facts::Stat { parent: 1, start: 7, size: 1, stack: 0x7ffc_0000_0000 - 4096 };
        assert!(known.runs_on_in(&stat));
        assert!(!known.runs_on_in(&facts::Stat { start: 8, ..stat }));
        assert!(!known.runs_on_in(&facts::Stat { stack: 0x7ffd_0000_0000, ..stat }));
    }
}
