//! The recorders and the runs: assigns runs to recorders, starts and ends recorders. Messages of recorders are
//! handled in `supervisor/hearing`, timeouts in `supervisor/watchdog`.
//!
//! A recorder has the runs of one rule and one user: that user makes the data it reads, and what happens to it
//! affects no other user's runs. A recorder that has not been given a run yet belongs to nobody.

pub mod backoff;
mod calibrating;
pub mod command;
pub mod fair_share;
mod hearing;
pub mod quarantine;
pub mod run_table;
#[cfg(test)]
pub(crate) mod tests;
pub mod vitals;
mod watchdog;
pub mod worker;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use self::backoff::RecorderBackoff;
use self::fair_share::may_claim_slot;
use self::quarantine::{Quarantine, Quarantined};
use self::run_table::{KnownRun, OF_USER, RunPhase, RunTable, SkipReason};
use self::worker::WorkerHandle;
use crate::affinity::RunId;
use crate::lines::{LineQueue, Seldom};
use crate::recorder::channel::{DumpError, RecorderCommand};
use crate::recorder::trigger::{Fired, LastFired};
use crate::recorder::{Calibrated, Recorder};
use crate::rules::Rule;
use crate::rules::settings::ServiceSettings;
use crate::run::{EXE, Run};
use crate::store::calibration_cache::CalibrationCache;
use crate::store::quota;
pub use crate::supervisor::run_table::{Met, RunCounts};
use crate::totals::Totals;
use agent::recorder::computing::ComputingChange;
use machine::maps::FileId;

/// Delay before a rule whose recorder failed gets another: short if there was no room, long if it is the recorder's
/// own fault.
const AGAIN_SOON: Duration = Duration::from_secs(5);
const AGAIN_LATE: Duration = Duration::from_secs(60);
/// Delay before another attempt when the maximum number of recorders is at work.
const AGAIN_ASKED: Duration = Duration::from_secs(1);
/// While a new recorder attaches, its predecessor continues.
const OVERLAP: Duration = Duration::from_secs(2);
/// Maximum ended runs waiting to be reported.
const ENDED: usize = 256;
/// Maximum known counters by rule and user, for sample-one-in.
const SAMPLED: usize = 1024;

/// Starts a recorder.
type Hire = Box<dyn FnMut(&ServiceSettings, &Rule, Calibrated) -> io::Result<Recorder>>;

/// Reports about a user that are limited in rate.
#[derive(Default)]
struct Once {
    many: Seldom,
    unknown: Seldom,
    missed: Seldom,
    full: Seldom,
}

/// A recorder's report on an engine; the process is one of its runs.
pub enum Reported {
    /// Build id of a process's engine.
    Engine(u32, String),
    /// What a process computes; its run, and the rule.
    Computes((RunId, String), ComputingChange),
    /// A recording of a rule is complete: its name.
    File { rule: String, name: String },
    /// A trigger of the rule has fired, for a run of this user.
    Triggered { rule: String, uid: Option<u32>, run: Option<RunId>, fired: Fired },
}

/// The recorders, and the runs.
pub struct Supervisor {
    hire: Hire,
    workers: Vec<WorkerHandle>,
    table: RunTable,
    /// Runs that have ended since they were last taken from here.
    pub ended: VecDeque<Run>,
    pub counts: RunCounts,
    /// What recorders have reported, for metrics.
    totals: Totals,
    /// Matching runs by rule; the same by rule and user, for sample-one-in.
    tally: Vec<(String, u64)>,
    sampled: VecDeque<(String, u32, u64)>,
    /// The calibrations of recorders on this machine.
    pub calibration_cache: CalibrationCache,
    later: RecorderBackoff,
    quarantine: Quarantine,
    seldom: Once,
    /// A run is over: its remaining processes, if its recorder died or was to end, are runs that the kernel does
    /// not report.
    pub left: bool,
    /// A place may be free for a waiting run.
    freed: bool,
    stopping: bool,
    /// Somebody watches.
    watched: bool,
    lines: LineQueue,
    /// What recorders have reported of their engines since it was last taken.
    pub reported: Vec<Reported>,
    fired: LastFired,
    /// Rings written since they were requested: rule, and the file or an error.
    pub dumped: Vec<(String, Result<String, DumpError>)>,
    /// Recorders that are gone and have not been waited for: process, user, and whether they were killed here.
    departed: VecDeque<(i32, Option<u32>, bool)>,
    looked: Instant,
    command: Option<command::Command>,
    /// Recordings are made from inside engines' processes.
    inside: bool,
    /// The current time; tests have their own.
    clock: Box<dyn Fn() -> Instant>,
}

impl Default for Supervisor {
    fn default() -> Self {
        Supervisor::with(Box::new(Recorder::start), Box::new(Instant::now))
    }
}

impl Supervisor {
    fn with(hire: Hire, clock: Box<dyn Fn() -> Instant>) -> Supervisor {
        let now = clock();
        Supervisor {
            hire,
            clock,
            workers: Vec::new(),
            table: RunTable::default(),
            ended: VecDeque::new(),
            counts: RunCounts::default(),
            totals: Totals::default(),
            tally: Vec::new(),
            sampled: VecDeque::new(),
            calibration_cache: CalibrationCache::default(),
            later: RecorderBackoff::default(),
            quarantine: Quarantine::default(),
            seldom: Once::default(),
            left: false,
            freed: false,
            stopping: false,
            watched: false,
            lines: LineQueue::new(now),
            reported: Vec::new(),
            fired: LastFired::default(),
            dumped: Vec::new(),
            departed: VecDeque::new(),
            looked: now,
            command: None,
            inside: false,
        }
    }

    fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Descriptors that are readable when a recorder has sent something.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.workers.iter().map(|h| h.recorder.fd())
    }

    /// Current runs.
    pub fn runs(&self) -> impl Iterator<Item = &Run> + Clone {
        self.table.all.iter().filter(|k| matches!(k.phase, RunPhase::With(_))).map(|k| &k.run)
    }

    /// Runs that wait for a place.
    pub fn waiting(&self) -> u64 {
        self.table.all.iter().filter(|k| k.waits()).count() as u64
    }

    /// Engine files that no recorder examines at the moment.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.quarantine.told(self.now())
    }

    /// Log lines.
    pub fn news(&mut self) -> Vec<String> {
        self.lines.take_all()
    }

    /// Runs that a rule has matched so far.
    pub fn runs_of(&self, rule: &str) -> u64 {
        self.tally.iter().find(|(name, _)| name == rule).map_or(0, |(_, n)| *n)
    }

    /// The process that records for a rule; the newest if there are several.
    pub fn recorder_for(&self, rule: &str) -> Option<u32> {
        let worker = self.workers.iter().rfind(|h| h.rule.name == rule && !h.gone)?;
        u32::try_from(worker.recorder.pid).ok()
    }

    /// Pids of the recorders.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.workers.iter().filter_map(|h| u32::try_from(h.recorder.pid).ok())
    }

    pub fn recorders(&self) -> usize {
        self.workers.len()
    }

    /// Totals for metrics.
    pub fn totals(&self) -> Totals {
        Totals { left: self.table.left, ..self.totals.clone() }
    }

    fn say(&mut self, uid: Option<u32>, text: &str) {
        let now = self.now();
        self.lines.say(uid, now, text);
    }

    /// A process with an engine was found: a run begins, unless the process is part of another run that a recorder
    /// has.
    pub fn meet(&mut self, met: Met, settings: &ServiceSettings) {
        // A recorder's report on its run's processes is valid for the same user; root's children may become any
        // user's.
        let child = |k: &KnownRun| {
            k.met.pid != met.pid
                && (k.met.uid == met.uid || k.met.uid == 0)
                && k.run.processes.contains(&met.pid)
        };
        if met.parent.is_some() || self.table.all.iter().any(child) {
            return;
        }
        // Another program in a known process is another run.
        let other = |k: &KnownRun| (k.met.pid, k.met.start) == (met.pid, met.start) && k.met.exe != met.exe;
        if let Some(i) = self.table.all.iter().position(other) {
            let known = self.table.all.remove(i);
            self.table.left.count(&known.phase);
            if known.waits() {
                self.counts.too_many += 1;
            } else if matches!(known.phase, RunPhase::Wanted | RunPhase::With(_)) {
                let ended = Some("its process started another program".into());
                self.end(Run { ended, ..known.run });
            }
        }
        if self.table.all.iter().any(|k| (k.met.pid, k.met.start) == (met.pid, met.start)) {
            return;
        }
        self.counts.seen += 1;
        self.admit(met, settings, None);
    }

    /// Decides on a run. `kept` is its state so far if it was to be recorded: the same rule then takes it again,
    /// regardless of sampling.
    fn admit(&mut self, met: Met, settings: &ServiceSettings, kept: Option<&Run>) {
        let place = settings.rule_for(&met.exe, met.uid, met.cgroup.as_deref());
        let rule = place.and_then(|i| settings.rules.get(i)).filter(|r| !r.ignore);
        // Limited by the messages between service and recorder.
        let exe: String = String::from_utf8_lossy(&met.exe).chars().take(EXE).collect();
        // What was recorded of it counts, and its children are still its own.
        let (level, processes) =
            kept.map(|run| (run.level.clone(), run.processes.clone())).unwrap_or_default();
        let Met { pid, start, uid, .. } = met;
        let mut run = Run { pid, start, uid, processes, exe, level, ..Run::default() };
        let phase = match rule {
            None => RunPhase::Left(SkipReason::Ignored),
            Some(rule) if kept.is_none_or(|kept| kept.rule != rule.name) && !self.is_turn(rule, met.uid) => {
                RunPhase::Left(SkipReason::OneIn)
            }
            Some(rule) => {
                run.rule.clone_from(&rule.name);
                let free =
                    kept.is_some() || self.table.has_place(&rule.name, uid, settings.max_concurrent as usize);
                if free { RunPhase::Wanted } else { RunPhase::Waits }
            }
        };
        if let RunPhase::Left(why) = phase {
            *self.counts.left(why) += 1;
        }
        self.take_in(KnownRun::new(run, met, phase), settings);
    }

    fn take_in(&mut self, mut known: KnownRun, settings: &ServiceSettings) {
        let (now, pid, uid) = (self.now(), known.met.pid, known.met.uid);
        let wanted = matches!(known.phase, RunPhase::Wanted | RunPhase::Waits);
        if wanted && let Some(why) = self.quarantine.why(uid, known.met.base, now) {
            known.phase = RunPhase::Done;
            let ended = Some(format!(
                "its engine's file ({}) is quarantined: {why}",
                quarantine::shown(known.met.base)
            ));
            self.end(Run { ended, ..known.run.clone() });
        } else if known.waits() && self.seldom.many.is_due(uid, AGAIN_LATE, now) {
            let n = settings.max_concurrent;
            let text = format!(
                "rule {}: process {pid} of user {uid} waits: the maximum number of runs is being recorded \
                 (max-concurrent = {n})",
                known.run.rule
            );
            self.say(Some(uid), &text);
        }
        let recorded = matches!(known.phase, RunPhase::Wanted | RunPhase::Waits);
        if !self.table.push(known) && recorded {
            self.counts.too_many += 1;
            if self.seldom.unknown.is_due(uid, AGAIN_LATE, now) {
                self.say(
                    Some(uid),
                    &format!(
                        "process {pid} is not recorded: too many runs of user {uid}, at most {OF_USER} are \
                         tracked"
                    ),
                );
            }
        }
    }

    /// Whether sampling selects a user's next run.
    fn is_turn(&mut self, rule: &Rule, uid: u32) -> bool {
        match self.tally.iter_mut().find(|(name, _)| *name == rule.name) {
            Some((_, n)) => *n += 1,
            None => self.tally.push((rule.name.clone(), 1)),
        }
        let of = |(name, user, _): &(String, u32, u64)| *name == rule.name && *user == uid;
        let i = self.sampled.iter().position(of).unwrap_or_else(|| {
            if self.sampled.len() == SAMPLED {
                self.sampled.pop_front();
            }
            self.sampled.push_back((rule.name.clone(), uid, 0));
            self.sampled.len() - 1
        });
        let n = &mut self.sampled[i].2;
        *n += 1;
        (*n - 1).is_multiple_of(u64::from(rule.sample_one_in.max(1)))
    }

    /// Gives the waiting runs to recorders of their rules, starting recorders where there are none.
    pub fn assign(&mut self, settings: &ServiceSettings) {
        // No other recorder can take over a command: it would start it again.
        if self.command.is_some() {
            return;
        }
        if std::mem::take(&mut self.freed) {
            self.admit_waiting(settings);
        }
        let now = self.now();
        for i in 0..self.table.all.len() {
            let known = &self.table.all[i];
            let (name, uid) = (&known.run.rule, known.met.uid);
            if !matches!(known.phase, RunPhase::Wanted) || self.later.why(name, Some(uid), now).is_some() {
                continue;
            }
            let Some(rule) = settings.rules.iter().find(|r| r.name == *name) else { continue };
            let (base, but) = (known.met.base, known.declined.clone());
            let Some(worker) = self.worker_for(rule, uid, base, &but, settings) else { continue };
            let run = self.table.all[i].run.clone();
            let worker = &mut self.workers[worker];
            (worker.idle, worker.uid) = (None, Some(uid));
            if self.watched && !worker.watched {
                // Before the run, so that nothing of it is missing.
                worker.watched = worker.recorder.tell(&RecorderCommand::Watched(true)).is_ok();
            }
            // One that is not reading is tried again later.
            if worker.recorder.tell(&RecorderCommand::Follow(Box::new(run))).is_ok() {
                let known = &mut self.table.all[i];
                (known.phase, known.given) = (RunPhase::With(worker.recorder.pid), Some(now));
                known.run.recorder = u32::try_from(worker.recorder.pid).ok();
                worker.give(base);
            }
        }
    }

    /// Waiting runs take the free places, the oldest first.
    fn admit_waiting(&mut self, settings: &ServiceSettings) {
        let mut full: Vec<(String, u32)> = Vec::new();
        for i in 0..self.table.all.len() {
            let known = &self.table.all[i];
            let key = (known.run.rule.clone(), known.met.uid);
            if !known.waits() || full.contains(&key) {
                continue;
            }
            if self.table.has_place(&key.0, key.1, settings.max_concurrent as usize) {
                self.table.all[i].phase = RunPhase::Wanted;
            } else {
                full.push(key);
            }
        }
    }

    /// A recorder of the rule and user for the engine with this base, not one of `but`: one that has it, else one
    /// that has room, else one that belongs to nobody, else a new one.
    fn worker_for(
        &mut self,
        rule: &Rule,
        uid: u32,
        base: FileId,
        but: &[i32],
        settings: &ServiceSettings,
    ) -> Option<usize> {
        let find =
            |of: &dyn Fn(&WorkerHandle) -> bool| self.workers.iter().position(|h| h.is_free(rule) && of(h));
        let mine = |h: &WorkerHandle| h.uid == Some(uid);
        let found = find(&|h| mine(h) && h.has(base) && !but.contains(&h.recorder.pid))
            .or_else(|| find(&|h| mine(h) && h.takes_more()))
            .or_else(|| find(&|h| h.uid.is_none() && h.takes_more() && !h.learns));
        found.or_else(|| self.hire(rule, Some(uid), settings))
    }

    /// Starts a recorder, if there is a place for it.
    fn hire(&mut self, rule: &Rule, uid: Option<u32>, settings: &ServiceSettings) -> Option<usize> {
        let now = self.now();
        let key = (rule.name.clone(), uid);
        if !self.has_place(uid, settings.recorders as usize) {
            let why = format!("all recorders are in use (recorders = {})", settings.recorders);
            if uid.is_some_and(|uid| self.seldom.full.is_due(uid, AGAIN_LATE, now)) {
                self.say(uid, &format!("rule {}: runs wait: {why}", rule.name));
            }
            if uid.is_some() {
                self.end_an_idle_one(now);
                self.later.by(key, AGAIN_ASKED, &why, now);
            }
            return None;
        }
        let calibration = self.calibrated(rule, uid, settings);
        let (learns, awaits) =
            (matches!(calibration, Calibrated::First), matches!(calibration, Calibrated::Later));
        match (self.hire)(settings, rule, calibration) {
            Ok(recorder) => {
                let mut worker = WorkerHandle::new(recorder, rule, uid, learns);
                worker.awaits = awaits;
                self.workers.push(worker);
                Some(self.workers.len() - 1)
            }
            Err(e) => {
                let why = format!("cannot start a recorder: {e}");
                self.say(uid, &format!("rule {}: {why}; trying again", rule.name));
                self.later.by(key, AGAIN_SOON, &why, now);
                None
            }
        }
    }

    /// Recorders that are ending do not count, but there are never more than twice the maximum.
    fn has_place(&self, uid: Option<u32>, all: usize) -> bool {
        let works = |h: &&WorkerHandle| !h.gone && h.retire.is_none() && h.told.is_none();
        let user = |uid: Option<u32>| uid.map(quota::answerable);
        let of = |who| self.workers.iter().filter(works).filter(|h| user(h.uid) == Some(who)).count();
        let taken = self.workers.iter().filter(works).count();
        let shared = match user(uid) {
            Some(user) => may_claim_slot(user, of(user), of(0), taken, all),
            None => taken < all / 2,
        };
        shared && self.workers.len() < all.saturating_mul(2)
    }

    fn end_an_idle_one(&mut self, now: Instant) {
        let free = |h: &&mut WorkerHandle| h.idle.is_some() && h.told.is_none() && !h.learns;
        if let Some(worker) = self.workers.iter_mut().filter(free).min_by_key(|h| h.idle) {
            worker.stop(now);
        }
    }

    fn end(&mut self, run: Run) {
        // It was followed if it has a level.
        let idle = run.tokens == 0 && run.ttft_ns.is_none() && run.threads == [None; 2];
        match !run.level.is_empty() {
            true if idle => self.counts.empty += 1,
            true => self.counts.recorded += 1,
            false => {
                self.counts.missed += 1;
                self.tell_of_missed(&run);
            }
        }
        if self.ended.len() == ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(run);
        (self.left, self.freed) = (true, true);
    }

    /// Applies new settings. Recorders whose rule is unchanged continue if `same` says that everything else is
    /// unchanged.
    pub fn change(&mut self, settings: &ServiceSettings, same: bool) {
        let now = self.now();
        let mut moved = Vec::new();
        for worker in self.workers.iter_mut().filter(|h| h.told.is_none() && h.retire.is_none()) {
            if !same || !settings.rules.contains(&worker.rule) {
                worker.retire = Some(now + OVERLAP);
                moved.push(worker.recorder.pid);
            }
        }
        // The new rules decide on waiting runs, runs of a retiring recorder, and runs not recorded so far.
        let (stay, judged): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.table.all).into_iter().partition(|k| match k.phase {
                RunPhase::With(pid) => !moved.contains(&pid),
                RunPhase::Wanted | RunPhase::Waits | RunPhase::Left(_) => false,
                RunPhase::Done => true,
            });
        self.table.all = stay;
        for known in judged {
            let kept = match known.phase {
                RunPhase::Left(why) => {
                    *self.counts.left(why) -= 1;
                    None
                }
                RunPhase::Waits => None,
                _ => Some(&known.run),
            };
            self.admit(known.met, settings, kept);
        }
        self.later.clear();
        self.freed = true;
    }

    /// Whether a run is recorded by the recorder that it was last known to be recorded by.
    pub fn is_going(&self, run: RunId) -> bool {
        let same = |k: &KnownRun| (k.run.pid, k.run.start) == (run.pid, run.start) && k.is_with(run.recorder);
        let works = |h: &WorkerHandle| h.recorder.pid == run.recorder && !h.gone && h.told.is_none();
        self.table.all.iter().any(same) && self.workers.iter().any(works)
    }

    /// Up to when a recorder has reported what its engines compute, CLOCK_MONOTONIC ns; None: it does not at the moment.
    pub fn follows(&self, recorder: i32) -> Option<u64> {
        let worker = self.workers.iter().find(|h| h.recorder.pid == recorder && !h.gone)?;
        Some(worker.recorder.signs().follows).filter(|t| *t > 0)
    }

    /// Writes a text into a recorder's trace. One that is not reading misses it.
    pub fn note(&mut self, recorder: i32, t: u64, text: &str) {
        if let Some(worker) = self.workers.iter_mut().find(|h| h.recorder.pid == recorder && !h.gone) {
            drop(worker.recorder.tell(&RecorderCommand::Note(t, text.to_owned())));
        }
    }

    /// For the log, about a user's engines.
    pub fn log(&mut self, uid: Option<u32>, text: &str) {
        self.say(uid, text);
    }

    /// Somebody watches, or nobody: recorders add up what engines compute only then.
    pub fn watched(&mut self, watched: bool) {
        self.watched = watched;
        let workers = self.workers.iter_mut().filter(|h| h.watched != watched && !h.gone && h.told.is_none());
        for worker in workers {
            // Where it could not be sent, `watched` stays as it was: the next call, within a second, sends it again.
            if worker.recorder.tell(&RecorderCommand::Watched(watched)).is_ok() {
                worker.watched = watched;
            }
        }
        if !watched {
            self.table.all.iter_mut().for_each(|known| known.run.figures = None);
        }
    }

    /// Requests that rings are written, all or that of a run; returns how many will be.
    pub fn dump(&mut self, pid: Option<u32>) -> usize {
        let with = |k: &KnownRun| match k.phase {
            RunPhase::With(with) if pid.is_none_or(|pid| pid == k.run.pid) => Some(with),
            _ => None,
        };
        let wanted: Vec<i32> = self.table.all.iter().filter_map(with).collect();
        let mut asked = 0;
        for worker in self.workers.iter_mut().filter(|h| h.rule.ring.is_some() && !h.gone && h.told.is_none())
        {
            let of_run = wanted.contains(&worker.recorder.pid);
            if (of_run || pid.is_none()) && worker.recorder.tell(&RecorderCommand::Dump).is_ok() {
                worker.dump = true;
                asked += 1;
            }
        }
        asked
    }

    /// Stops all recorders.
    pub fn stop(&mut self) {
        self.stopping = true;
        let now = self.now();
        self.workers.iter_mut().filter(|h| h.told.is_none()).for_each(|h| h.stop(now));
    }

    /// Kills the remaining ones immediately.
    pub fn kill(&self) {
        self.workers.iter().for_each(|h| h.recorder.kill());
    }
}
