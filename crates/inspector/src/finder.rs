//! Finds processes that have a GGML engine in memory, as soon as they have it.
//!
//! If the kernel reports mappings and execs, an idle machine costs nothing. Otherwise `/proc` is scanned four times
//! a second. In both cases all processes are examined when the finder starts, and again after a loss of events.
//!
//! **Never blocks.** The finder answers itself only for a known file that the kernel confirms unchanged without
//! waiting. All other files, and complete lists of a process's mappings, are examined by separate processes
//! (`inspector_pool`), for each user in turn and within that user's share (`waiting`). The finder's own work is done in
//! slices: there may be any number of processes, and each may map anything.
//!
//! **Children.** A forked child has its parent's mappings without mapping anything, and the kernel reports nothing.
//! This is left so: a session that records the parent follows its children itself, from the moment of the fork, so
//! that a thousand of them cost nothing here; it also looks for earlier ones itself. A scan of all processes finds
//! children like any others, and [`FoundProcess::parent`] names their parent. Children whose parent and its recording
//! are gone are undetected engines: on learning of such a case, call [`Finder::look_again`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::notice::{ProcessEvent, ProcessWatch};
use super::polled::Polled;
use super::pool::{Heard, InspectorPool, LookRequest, LookResult, Mapped, MappedEngine, Said};
use super::recognise::Recogniser;
use super::waiting::{HeldBack, WaitingWork};
use crate::timer::Timer;
use machine::maps::{FileId, Mapping};
use machine::privileges::{self, Cap, Privileges};
use machine::proc;

mod once;

pub use once::RunningEngines;

/// Interval between scans of `/proc` where the kernel does not report mappings.
const POLLING: Duration = Duration::from_millis(250);
/// Interval between checks of found processes, of the list of CPUs, and for losses.
const TICK: Duration = Duration::from_secs(1);
/// After notices, how long to wait before taking more: programs start with several, and a compiler causes hundreds.
const REST: Duration = Duration::from_millis(10);
/// Maximum time per step for each of: notices, answers, the list of processes, the found processes.
const SLICE: Duration = Duration::from_millis(10);
/// Delay between a loss and the scan of all processes.
const AFTER_LOSS: Duration = Duration::from_millis(500);
/// Scans of all processes take at most one part in this many of the time.
const SELDOM: u32 = 10;
/// Maximum engines per process.
const ENGINES: usize = 64;
/// Maximum execs remembered while something is being examined.
const EXECS: usize = 1 << 16;
/// Interval between log lines on users that are held back.
const BETWEEN: Duration = Duration::from_secs(60);
/// While a program starts, the start of its stack moves down by the size of its arguments; another program's is
/// gigabytes elsewhere. Bytes.
const STACK_MOVES: u64 = 1 << 20;

/// A process that has an engine in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundProcess {
    /// Pids are those of the finder's own namespaces, for containers too.
    pub pid: u32,
    /// When it began, clock ticks since boot.
    pub start: u64,
    /// Its program as the process sees it; empty if we have no access.
    pub exe: PathBuf,
    /// Effective user.
    pub uid: u32,
    /// cgroup path in the unified hierarchy (v2); None if the machine has none.
    pub cgroup: Option<String>,
    /// The file with GGML's base code. Other parts of the engine may be mapped later.
    pub base: FileId,
    /// Its path as the process saw it when it was mapped; empty if the kernel did not report it.
    pub path: PathBuf,
    /// It was forked from this process and has a copy of its memory: a recording of the parent, if it had begun,
    /// follows the child.
    pub parent: Option<u32>,
}

/// What was reported of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReportedProcess {
    start: u64,
    stack: u64,
    base: FileId,
    /// [`FoundProcess::parent`]. Without that parent it counts as another, unreported one.
    parent: Option<u32>,
    /// When it was found, CLOCK_MONOTONIC ns.
    since: u64,
}

impl ReportedProcess {
    /// The same program in the same process.
    fn runs_on_in(&self, stat: &proc::ProcStat) -> bool {
        self.start == stat.start && self.stack.abs_diff(stat.stack) < STACK_MOVES
    }
}

enum FinderBackend {
    Notified(ProcessWatch),
    Polling(Polled, String),
}

/// A scan of all processes.
struct Sweep {
    left: Box<dyn Iterator<Item = u32>>,
    /// Only those that have changed.
    changed: bool,
    took: Duration,
}

/// The finder. Its descriptors are closed on exec; a forked child can only drop it.
pub struct Finder {
    backend: FinderBackend,
    files: Recogniser,
    waiting: WaitingWork,
    lookers: InspectorPool,
    /// What was reported of processes, by pid; and where the last check of them ended.
    known: BTreeMap<u32, Vec<ReportedProcess>>,
    looked: u32,
    /// When processes started other programs while something was being examined; answers about the old program come
    /// too late.
    execs: BTreeMap<u32, u64>,
    sweep: Option<Sweep>,
    /// All processes must be examined, and when.
    again: bool,
    due: Instant,
    notices: Vec<ProcessEvent>,
    /// The ring to read next.
    ring: usize,
    timer: Timer,
    tick: Instant,
    /// Notices are not waited for before the timer expires.
    resting: bool,
    /// Lost notices so far.
    pub lost: u64,
    /// Notices so far.
    pub told: u64,
    /// Mapped files that we were not allowed to examine, counted per mapping.
    pub unseen: u64,
    /// Files that were not read to the end because they are too large.
    pub large: u64,
    /// Why not even this count is known for some processes, or what else is missing.
    lacks: String,
    /// Log lines.
    news: Vec<String>,
    /// When held-back users were last reported.
    complained: Option<Instant>,
}

impl Finder {
    /// Starts the finder. Processes that already run are found by the first calls of [`Finder::poll`].
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> std::io::Result<Finder> {
        let backend = match ProcessWatch::open() {
            Ok(watch) => FinderBackend::Notified(watch),
            Err(why) => FinderBackend::Polling(Polled::default(), why.to_string()),
        };
        Finder::by(backend)
    }

    /// Starts by scanning `/proc`, whatever the kernel can report; `why` is for [`Finder::backend`].
    ///
    /// # Errors
    /// No descriptors left.
    pub fn by_asking(why: &str) -> std::io::Result<Finder> {
        Finder::by(FinderBackend::Polling(Polled::default(), why.to_owned()))
    }

    fn by(backend: FinderBackend) -> std::io::Result<Finder> {
        let timer = Timer::new()?;
        timer.set(Duration::ZERO);
        let now = Instant::now();
        Ok(Finder {
            // With polling, all processes are new at first.
            again: matches!(backend, FinderBackend::Notified(_)),
            due: now,
            backend,
            files: Recogniser::default(),
            waiting: WaitingWork::default(),
            lookers: InspectorPool::default(),
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

    /// How engines are found, and which are not, as text.
    pub fn backend(&self) -> String {
        let by = match &self.backend {
            FinderBackend::Notified(watch) => {
                format!("kernel mmap and exec events on {} CPUs", watch.cpus())
            }
            FinderBackend::Polling(_, why) => format!(
                "a scan of /proc every {} ms, as kernel events are not available: {why}",
                POLLING.as_millis()
            ),
        };
        let unseen = self.not_opened().map(|text| format!("; {text}")).unwrap_or_default();
        format!("{by}{}{unseen}", self.lacks)
    }

    /// That mapped files could not be opened, if so.
    fn not_opened(&self) -> Option<String> {
        let n = Some(self.unseen).filter(|n| *n > 0)?;
        Some(format!("{n} mapped files could not be opened: that needs CAP_DAC_READ_SEARCH, or root"))
    }

    /// True: the kernel reports mappings. False: an engine may run for a quarter of a second before it is found,
    /// and one that ends sooner is never found.
    pub fn is_told(&self) -> bool {
        matches!(self.backend, FinderBackend::Notified(_))
    }

    /// Found processes that have not ended, as far as is known.
    pub fn alive(&self) -> usize {
        self.known.values().map(Vec::len).sum()
    }

    /// Users with unexamined files or processes, and the total number of mapped files not examined so far.
    pub fn held_back(&self) -> (Vec<HeldBack>, u64) {
        (self.waiting.held_back(), self.waiting.files)
    }

    /// Processes that are examining files.
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

    /// Descriptors to wait for now: after each wait, however it ended, call [`Finder::poll`], then ask again.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.timer.as_fd()];
        fds.extend(self.lookers.fds());
        if let (FinderBackend::Notified(watch), false) = (&self.backend, self.resting) {
            fds.extend(watch.fds());
        }
        fds
    }

    /// Examines all processes at the next tick, and reports those not reported before.
    pub fn look_again(&mut self) {
        self.again = true;
    }

    /// The processes found since the last call, each once as long as it runs one program with one engine. Does not
    /// block.
    pub fn poll(&mut self) -> Vec<FoundProcess> {
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

    /// Takes notices until this time; returns whether there were any, and whether there may be more.
    fn listen(&mut self, until: Instant, found: &mut Vec<FoundProcess>) -> (bool, bool) {
        let (mut any, mut user) = (false, None);
        let cpus = if let FinderBackend::Notified(watch) = &self.backend { watch.cpus() } else { 0 };
        for done in 0..cpus {
            let FinderBackend::Notified(watch) = &mut self.backend else { break };
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

    fn hear_of(
        &mut self,
        notice: ProcessEvent,
        last: &mut Option<(u32, u32)>,
        found: &mut Vec<FoundProcess>,
    ) {
        match notice {
            ProcessEvent::Mapped { pid, time, mapping } => match self.files.at_hand(&mapping) {
                Some(None) => {}
                Some(Some(base)) => {
                    let path = mapping.path.as_os_str().as_bytes().to_vec();
                    self.meet(MappedEngine { pid, time, seen: false, base, path }, found);
                }
                None => self.ask(pid, time, &mapping, last),
            },
            // Anything found after this time already belongs to the new program.
            ProcessEvent::Exec { pid, time } => {
                self.keep(pid, |k| k.since >= time);
                if self.execs.len() < EXECS {
                    self.execs.insert(pid, time);
                }
            }
            ProcessEvent::Lost(n) => {
                self.lost += n;
                self.again = true;
                self.tick = self.tick.min(Instant::now() + AFTER_LOSS);
            }
        }
    }

    /// Requests examination of a mapped file. `last` caches a process and its user.
    fn ask(&mut self, pid: u32, time: u64, mapping: &Mapping, last: &mut Option<(u32, u32)>) {
        let user = last.filter(|(of, _)| *of == pid).map(|(_, user)| user);
        // Ignore a process that has ended meanwhile.
        let Some(user) = user.or_else(|| proc::users(pid).map(|users| users.real)) else { return };
        *last = Some((pid, user));
        self.waiting.mapped(user, Mapped::of(pid, time, mapping));
    }

    /// Forgets what does not hold any longer for a process.
    fn keep(&mut self, pid: u32, holds: impl Fn(&ReportedProcess) -> bool) {
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
        match &mut self.backend {
            FinderBackend::Notified(watch) => match watch.renew() {
                Ok(gap) => self.again |= gap,
                Err(e) => {
                    // Watching only some CPUs is worse than scanning all processes a little later.
                    let why = format!("a CPU that came online cannot be watched: {e}");
                    self.backend = FinderBackend::Polling(Polled::default(), why);
                }
            },
            FinderBackend::Polling(..) => all = true,
        }
        if self.sweep.is_none() && now >= self.due && (self.again || all) {
            let changed = !std::mem::take(&mut self.again);
            if let (true, FinderBackend::Polling(polled, _)) = (changed, &mut self.backend) {
                polled.begin();
            }
            self.sweep = Some(Sweep { left: Box::new(proc::all()), changed, took: Duration::ZERO });
        }
    }

    /// Forgets processes that have ended, continuing where it last stopped.
    fn look_after(&mut self, until: Instant) {
        let stays = |k: &ReportedProcess, s: proc::ProcStat| {
            s.start == k.start && k.parent.is_none_or(|p| p == s.parent)
        };
        for _ in 0..self.known.len() {
            let next = self.known.range((Bound::Excluded(self.looked), Bound::Unbounded)).next();
            let Some(&pid) = next.or(self.known.first_key_value()).map(|(pid, _)| pid) else { return };
            self.looked = pid;
            let stat = proc::stat(pid);
            self.keep(pid, |k| stat.is_some_and(|s| stays(k, s)));
            if Instant::now() > until {
                return;
            }
        }
    }

    /// Reports from time to time that users are held back.
    fn complain(&mut self, now: Instant) {
        let (users, _) = self.held_back();
        let Some(one) = users.first() else { return };
        if self.complained.is_none_or(|at| now.duration_since(at) >= BETWEEN) {
            self.complained = Some(now);
            self.news.push(format!(
                "{} mapped files of user {} were not examined: they take more than one user's share of \
                 time, and are examined later{}",
                one.files,
                one.uid,
                if users.len() > 1 { "; other users are delayed, too" } else { "" }
            ));
        }
    }

    /// Continues the scan of all processes.
    fn go_through(&mut self) {
        let Some(sweep) = &mut self.sweep else { return };
        let begin = Instant::now();
        let over = loop {
            let Some(pid) = sweep.left.next() else { break true };
            if let (true, FinderBackend::Polling(polled, _)) = (sweep.changed, &mut self.backend)
                && !polled.changed(pid)
            {
                continue;
            }
            // A process that finds no room is examined in the next scan.
            if let Some(users) = proc::users(pid)
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
            if let FinderBackend::Polling(polled, _) = &mut self.backend {
                polled.end();
            }
        }
    }

    /// Takes the answers of the lookers.
    fn hear(&mut self, found: &mut Vec<FoundProcess>) {
        let mut heard = Vec::new();
        self.lookers.hear(Instant::now() + SLICE, &mut |one| heard.push(one));
        heard.into_iter().for_each(|one| self.take(one, found));
    }

    fn take(&mut self, Heard { user, said }: Heard, found: &mut Vec<FoundProcess>) {
        match said {
            Said::Answers(answers) => answers.into_iter().for_each(|answer| self.files.learn(answer)),
            Said::Engine(engine) => self.meet(engine, found),
            Said::Done(done) => {
                self.unseen += done.unseen;
                self.large += done.large;
                self.waiting.done(user, &done, Instant::now());
            }
        }
    }

    /// Hands out what is waiting, as far as lookers are free.
    fn hand_out(&mut self) {
        for root in [true, false] {
            while self.lookers.has_room(root) {
                let Some(job) = self.waiting.next(root, Instant::now()) else { break };
                if let Err(e) = self.lookers.give(&job, &mut self.files) {
                    self.news.push(format!(
                        "the files that processes have mapped cannot be examined for \
                        now: {e}"
                    ));
                    let left: Vec<u32> = job.asks.iter().map(LookRequest::pid).collect();
                    let done = LookResult { skipped: left.len() as u64, left, ..LookResult::default() };
                    self.waiting.done(job.user, &done, Instant::now());
                    break;
                }
            }
        }
    }

    /// An engine is in a process's memory.
    fn meet(&mut self, engine: MappedEngine, found: &mut Vec<FoundProcess>) {
        let MappedEngine { pid, time, seen, base, path } = engine;
        let Some(stat) = proc::stat(pid) else { return };
        if self.execs.get(&pid).is_some_and(|&exec| exec > time) {
            return;
        }
        // Another process with the same pid, or another program.
        self.keep(pid, |k| k.runs_on_in(&stat));
        let known = self.known.get(&pid).map_or(&[][..], Vec::as_slice);
        if known.len() >= ENGINES || known.iter().any(|k| k.base == base) {
            return;
        }
        // Ignore a process that is just ending.
        let Some(users) = proc::users(pid) else { return };
        // A process that maps something itself is not a copy of its parent.
        let copy = || {
            let parent = proc::stat(stat.parent)?;
            (seen && stat.stack != 0 && parent.stack == stat.stack).then_some(stat.parent)
        };
        let (exe, cgroup, parent) = (proc::program(pid), proc::cgroup(pid), copy());
        let known = ReportedProcess { start: stat.start, stack: stat.stack, base, parent, since: time };
        self.known.entry(pid).or_default().push(known);
        let path = OsString::from_vec(path).into();
        found.push(FoundProcess {
            pid,
            start: stat.start,
            exe,
            uid: users.effective,
            cgroup,
            base,
            path,
            parent,
        });
    }
}

/// What is not seen for lack of a capability, after a semicolon.
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
        assert!(
            finder.backend().contains("kernel events are not available: it is a test"),
            "{}",
            finder.backend()
        );
        finder.take(
            Heard { user: 0, said: Said::Done(LookResult { unseen: 1, ..LookResult::default() }) },
            &mut Vec::new(),
        );
        assert!(finder.backend().contains("1 mapped files could not be opened"), "{}", finder.backend());
    }

    #[test]
    fn a_stack_tells_programs_apart() {
        let known =
            ReportedProcess { start: 7, stack: 0x7ffc_0000_0000, base: (1, 2), parent: None, since: 0 };
        let stat = proc::ProcStat { parent: 1, start: 7, size: 1, stack: 0x7ffc_0000_0000 - 4096 };
        assert!(known.runs_on_in(&stat));
        assert!(!known.runs_on_in(&proc::ProcStat { start: 8, ..stat }));
        assert!(!known.runs_on_in(&proc::ProcStat { stack: 0x7ffd_0000_0000, ..stat }));
    }
}
