//! The recorders and the runs: which run is recorded by whom, when a recorder begins and ends. What recorders say is in
//! `crew/hearing`, what time brings in `crew/watchdog`. Uses `channel`, `hand`, `known`, `later`, `lessons`, `lines`,
//! `recorder`, `rules`, `run`, `settings`, `shares` and `shun`.
//!
//! A recorder has the runs of one rule and one user: what it reads is made by that user, and what happens to it happens to
//! nobody else's runs. One that has not been given a run yet is nobody's.

mod hearing;
#[cfg(test)]
mod tests;
mod watchdog;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::channel::Told;
use super::hand::Hand;
pub use super::known::{Counts, Met};
use super::known::{Known, OF_USER, Phase, Table, Why};
use super::later::Later;
use super::lessons::{self, Lessons};
use super::lines::{Lines, Seldom};
use super::recorder::Recorder;
use super::rules::Rule;
use super::run::Run;
use super::settings::Settings;
use super::shares::may_take;
use super::shun::{self, Shun, Shunned};
use crate::agent::maps::FileId;
use crate::agent::recording::Learnt;

/// Characters of a program's path that are told.
const EXE: usize = 512;
/// A rule whose recorder failed gets another after so long: soon where there was no room, late where it is its own fault.
const AGAIN_SOON: Duration = Duration::from_secs(5);
const AGAIN_LATE: Duration = Duration::from_secs(60);
/// Where as many recorders as may are at work, one is asked for again after this.
const AGAIN_ASKED: Duration = Duration::from_secs(1);
/// While a new recorder attaches, the one that it follows goes on.
const OVERLAP: Duration = Duration::from_secs(2);
/// Runs that have ended and wait to be told of.
const ENDED: usize = 256;
/// Users' turns by rule that are known, for one-in.
const TURNS: usize = 1024;

/// Begins a recorder.
type Hire = Box<dyn FnMut(&Settings, &Rule, Option<Learnt>) -> io::Result<Recorder>>;

/// What is told of a user only once in a while.
#[derive(Default)]
struct Once {
    many: Seldom,
    unknown: Seldom,
    missed: Seldom,
    full: Seldom,
}

/// The recorders, and the runs.
pub struct Crew {
    hire: Hire,
    hands: Vec<Hand>,
    table: Table,
    /// Those that have ended since they were last taken from here.
    pub ended: VecDeque<Run>,
    pub counts: Counts,
    /// By rule: runs that it was for; by rule and user: the same, for one-in.
    tally: Vec<(String, u64)>,
    turns: VecDeque<(String, u32, u64)>,
    /// What recorders have learnt of the machine.
    pub lessons: Lessons,
    later: Later,
    shun: Shun,
    seldom: Once,
    /// A run is over: what is left of its processes, where its recorder died or was to end, are runs that the kernel tells
    /// nothing of.
    pub left: bool,
    /// A place may be free for a run that waits.
    freed: bool,
    stopping: bool,
    lines: Lines,
    /// Rings written out since they were asked for: rule, and the file or why not.
    pub dumped: Vec<(String, Result<String, String>)>,
    /// Recorders that are gone and have not been waited for: process, user, and whether they were killed here.
    departed: VecDeque<(i32, Option<u32>, bool)>,
    looked: Instant,
    /// The time; a test has its own.
    clock: Box<dyn Fn() -> Instant>,
}

impl Default for Crew {
    fn default() -> Self {
        Crew::with(Box::new(Recorder::start), Box::new(Instant::now))
    }
}

impl Crew {
    fn with(hire: Hire, clock: Box<dyn Fn() -> Instant>) -> Crew {
        let now = clock();
        Crew {
            hire,
            clock,
            hands: Vec::new(),
            table: Table::default(),
            ended: VecDeque::new(),
            counts: Counts::default(),
            tally: Vec::new(),
            turns: VecDeque::new(),
            lessons: Lessons::default(),
            later: Later::default(),
            shun: Shun::default(),
            seldom: Once::default(),
            left: false,
            freed: false,
            stopping: false,
            lines: Lines::new(now),
            dumped: Vec::new(),
            departed: VecDeque::new(),
            looked: now,
        }
    }

    fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Descriptors that are readable when a recorder has something to say.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.hands.iter().map(|h| h.recorder.fd())
    }

    /// Runs going on.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.table.all.iter().filter(|k| matches!(k.phase, Phase::With(_))).map(|k| &k.run)
    }

    /// Runs that wait until there is a place for them.
    pub fn waiting(&self) -> u64 {
        self.table.all.iter().filter(|k| k.waits()).count() as u64
    }

    /// Engine files that no recorder looks at just now.
    pub fn shunned(&self) -> Vec<Shunned> {
        self.shun.told(self.now())
    }

    /// Lines for the log.
    pub fn news(&mut self) -> Vec<String> {
        self.lines.take_all()
    }

    /// Runs that a rule was for, so far.
    pub fn runs_of(&self, rule: &str) -> u64 {
        self.tally.iter().find(|(name, _)| name == rule).map_or(0, |(_, n)| *n)
    }

    /// The process that records for a rule; of several the newest.
    pub fn recorder_for(&self, rule: &str) -> Option<u32> {
        let hand = self.hands.iter().rfind(|h| h.rule.name == rule && !h.gone)?;
        u32::try_from(hand.recorder.pid).ok()
    }

    /// Processes of the recorders.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.hands.iter().filter_map(|h| u32::try_from(h.recorder.pid).ok())
    }

    pub fn recorders(&self) -> usize {
        self.hands.len()
    }

    fn say(&mut self, uid: Option<u32>, text: &str) {
        let now = self.now();
        self.lines.say(uid, now, text);
    }

    /// A process with an engine was found: a run begins, unless it is a part of another, which its recorder knows.
    pub fn meet(&mut self, met: Met, settings: &Settings) {
        // What a recorder says of its run's processes is good for the same user's; root's children may become anybody's.
        let child = |k: &Known| {
            k.met.pid != met.pid
                && (k.met.uid == met.uid || k.met.uid == 0)
                && k.run.processes.contains(&met.pid)
        };
        if met.parent.is_some() || self.table.all.iter().any(child) {
            return;
        }
        // Another program in a process that is known is another run.
        let other = |k: &Known| (k.met.pid, k.met.start) == (met.pid, met.start) && k.met.exe != met.exe;
        if let Some(i) = self.table.all.iter().position(other) {
            let known = self.table.all.remove(i);
            if known.waits() {
                self.counts.too_many += 1;
            } else if matches!(known.phase, Phase::Wanted | Phase::With(_)) {
                let ended = Some("another program runs in its process".into());
                self.end(Run { ended, ..known.run });
            }
        }
        if self.table.all.iter().any(|k| (k.met.pid, k.met.start) == (met.pid, met.start)) {
            return;
        }
        self.counts.seen += 1;
        self.admit(met, settings, None);
    }

    /// Judges a run. `kept` is what it was so far where it was to be recorded: by the same rule it is again, whoever's turn
    /// it is.
    fn admit(&mut self, met: Met, settings: &Settings, kept: Option<&Run>) {
        let place = settings.rule_for(&met.exe, met.uid, met.cgroup.as_deref());
        let rule = place.and_then(|i| settings.rules.get(i)).filter(|r| !r.ignore);
        // As long as a message between service and recorder has room for.
        let exe: String = String::from_utf8_lossy(&met.exe).chars().take(EXE).collect();
        // What was recorded of it counts, and its children are still its own.
        let (level, processes) =
            kept.map(|run| (run.level.clone(), run.processes.clone())).unwrap_or_default();
        let Met { pid, start, uid, .. } = met;
        let mut run = Run { pid, start, uid, processes, exe, level, ..Run::default() };
        let phase = match rule {
            None => Phase::Left(Why::Ignored),
            Some(rule) if kept.is_none_or(|kept| kept.rule != rule.name) && !self.is_turn(rule, met.uid) => {
                Phase::Left(Why::OneIn)
            }
            Some(rule) => {
                run.rule.clone_from(&rule.name);
                let free = kept.is_some() || self.table.has_place(&rule.name, uid, settings.at_once as usize);
                if free { Phase::Wanted } else { Phase::Waits }
            }
        };
        if let Phase::Left(why) = phase {
            *self.counts.left(why) += 1;
        }
        self.take_in(Known::new(run, met, phase), settings);
    }

    fn take_in(&mut self, mut known: Known, settings: &Settings) {
        let (now, pid, uid) = (self.now(), known.met.pid, known.met.uid);
        let wanted = matches!(known.phase, Phase::Wanted | Phase::Waits);
        if wanted && let Some(why) = self.shun.why(uid, known.met.base, now) {
            known.phase = Phase::Done;
            let ended =
                Some(format!("its engine's file ({}) is shunned: {why}", shun::shown(known.met.base)));
            self.end(Run { ended, ..known.run.clone() });
        } else if known.waits() && self.seldom.many.is_due(uid, AGAIN_LATE, now) {
            let n = settings.at_once;
            let text = format!(
                "rule {}: process {pid} of user {uid} waits: as many others are recorded as may be (at-once = {n})",
                known.run.rule
            );
            self.say(Some(uid), &text);
        }
        let recorded = matches!(known.phase, Phase::Wanted | Phase::Waits);
        if !self.table.push(known) && recorded {
            self.counts.too_many += 1;
            if self.seldom.unknown.is_due(uid, AGAIN_LATE, now) {
                self.say(
                    Some(uid),
                    &format!(
                        "process {pid} is not recorded: too many runs of user {uid} are known, at most {OF_USER} are"
                    ),
                );
            }
        }
    }

    /// Whether it is the turn of a user's next run.
    fn is_turn(&mut self, rule: &Rule, uid: u32) -> bool {
        match self.tally.iter_mut().find(|(name, _)| *name == rule.name) {
            Some((_, n)) => *n += 1,
            None => self.tally.push((rule.name.clone(), 1)),
        }
        let of = |(name, user, _): &(String, u32, u64)| *name == rule.name && *user == uid;
        let i = self.turns.iter().position(of).unwrap_or_else(|| {
            if self.turns.len() == TURNS {
                self.turns.pop_front();
            }
            self.turns.push_back((rule.name.clone(), uid, 0));
            self.turns.len() - 1
        });
        let n = &mut self.turns[i].2;
        *n += 1;
        (*n - 1).is_multiple_of(u64::from(rule.one_in.max(1)))
    }

    /// Gives the runs that wait to their rules' recorders, which begin where there is none.
    pub fn assign(&mut self, settings: &Settings) {
        if std::mem::take(&mut self.freed) {
            self.admit_waiting(settings);
        }
        let now = self.now();
        for i in 0..self.table.all.len() {
            let known = &self.table.all[i];
            let (name, uid) = (&known.run.rule, known.met.uid);
            if !matches!(known.phase, Phase::Wanted) || self.later.why(name, Some(uid), now).is_some() {
                continue;
            }
            let Some(rule) = settings.rules.iter().find(|r| r.name == *name) else { continue };
            let (base, but) = (known.met.base, known.declined.clone());
            let Some(hand) = self.hand_for(rule, uid, base, &but, settings) else { continue };
            let run = self.table.all[i].run.clone();
            let hand = &mut self.hands[hand];
            (hand.idle, hand.uid) = (None, Some(uid));
            // One that does not listen just now is asked again.
            if hand.recorder.tell(&Told::Follow(Box::new(run))).is_ok() {
                let known = &mut self.table.all[i];
                (known.phase, known.given) = (Phase::With(hand.recorder.pid), Some(now));
                known.run.recorder = u32::try_from(hand.recorder.pid).ok();
                hand.give(base);
            }
        }
    }

    /// Runs that wait take the places that are free, the oldest first.
    fn admit_waiting(&mut self, settings: &Settings) {
        let mut full: Vec<(String, u32)> = Vec::new();
        for i in 0..self.table.all.len() {
            let known = &self.table.all[i];
            let key = (known.run.rule.clone(), known.met.uid);
            if !known.waits() || full.contains(&key) {
                continue;
            }
            if self.table.has_place(&key.0, key.1, settings.at_once as usize) {
                self.table.all[i].phase = Phase::Wanted;
            } else {
                full.push(key);
            }
        }
    }

    /// A recorder of the rule and user, for an engine by its base and not one of `but`: one that has it, else one that takes
    /// it, else one that is nobody's, else a new one.
    fn hand_for(
        &mut self,
        rule: &Rule,
        uid: u32,
        base: FileId,
        but: &[i32],
        settings: &Settings,
    ) -> Option<usize> {
        let find = |of: &dyn Fn(&Hand) -> bool| self.hands.iter().position(|h| h.is_free(rule) && of(h));
        let mine = |h: &Hand| h.uid == Some(uid);
        let found = find(&|h| mine(h) && h.has(base) && !but.contains(&h.recorder.pid))
            .or_else(|| find(&|h| mine(h) && h.takes_more()))
            .or_else(|| find(&|h| h.uid.is_none() && h.takes_more()));
        found.or_else(|| self.hire(rule, Some(uid), settings))
    }

    /// Begins a recorder, where there is a place for it.
    fn hire(&mut self, rule: &Rule, uid: Option<u32>, settings: &Settings) -> Option<usize> {
        let now = self.now();
        let key = (rule.name.clone(), uid);
        if !self.has_place(uid, settings.recorders as usize) {
            let why = format!("as many recorders as may are at work (recorders = {})", settings.recorders);
            if uid.is_some_and(|uid| self.seldom.full.is_due(uid, AGAIN_LATE, now)) {
                self.say(uid, &format!("rule {}: runs wait: {why}", rule.name));
            }
            if uid.is_some() {
                self.end_an_idle_one(now);
                self.later.by(key, AGAIN_ASKED, &why, now);
            }
            return None;
        }
        let learnt = self.lessons.of(&lessons::kind(&rule.record)).cloned();
        let learns = learnt.is_none();
        match (self.hire)(settings, rule, learnt) {
            Ok(recorder) => {
                self.hands.push(Hand::new(recorder, rule, uid, learns));
                Some(self.hands.len() - 1)
            }
            Err(e) => {
                let why = format!("no recorder can be started: {e}");
                self.say(uid, &format!("rule {}: {why}; it is tried again", rule.name));
                self.later.by(key, AGAIN_SOON, &why, now);
                None
            }
        }
    }

    /// Those that end count no more, but there are never more than twice as many.
    fn has_place(&self, uid: Option<u32>, all: usize) -> bool {
        let works = |h: &&Hand| !h.gone && h.retire.is_none() && h.told.is_none();
        let of = |uid| self.hands.iter().filter(works).filter(|h| h.uid == uid).count();
        let taken = self.hands.iter().filter(works).count();
        let shared = match uid {
            Some(uid) => may_take(uid, of(Some(uid)), of(Some(0)), taken, all),
            None => taken < all / 2,
        };
        shared && self.hands.len() < all.saturating_mul(2)
    }

    fn end_an_idle_one(&mut self, now: Instant) {
        let free = |h: &&mut Hand| h.idle.is_some() && h.told.is_none() && !h.learns;
        if let Some(hand) = self.hands.iter_mut().filter(free).min_by_key(|h| h.idle) {
            hand.stop(now);
        }
    }

    /// Has recorders learn of the machine what they can before the first engine comes; one at a time, for they would disturb
    /// each other.
    fn prepare(&mut self, settings: &Settings) {
        if self.hands.iter().any(|h| h.learns && !h.gone) {
            return;
        }
        let now = self.now();
        let unknown = settings.rules.iter().find(|rule| {
            let known = || self.lessons.of(&lessons::kind(&rule.record)).is_some();
            !rule.ignore && !known() && self.later.why(&rule.name, None, now).is_none()
        });
        if let Some(rule) = unknown {
            self.hire(rule, None, settings);
        }
    }

    fn end(&mut self, run: Run) {
        // It was followed once it has a level.
        match !run.level.is_empty() {
            true if run.is_unseen() => self.counts.over_budget += 1,
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

    /// Other settings hold from now on. Recorders whose rule is as it was go on where `same` says that all else is, too.
    pub fn change(&mut self, settings: &Settings, same: bool) {
        let now = self.now();
        let mut moved = Vec::new();
        for hand in self.hands.iter_mut().filter(|h| h.told.is_none() && h.retire.is_none()) {
            if !same || !settings.rules.contains(&hand.rule) {
                hand.retire = Some(now + OVERLAP);
                moved.push(hand.recorder.pid);
            }
        }
        // What waits, what is in a recorder that retires, and what was not recorded so far is judged by the new rules.
        let (stay, judged): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.table.all).into_iter().partition(|k| match k.phase {
                Phase::With(pid) => !moved.contains(&pid),
                Phase::Wanted | Phase::Waits | Phase::Left(_) => false,
                Phase::Done => true,
            });
        self.table.all = stay;
        for known in judged {
            let kept = match known.phase {
                Phase::Left(why) => {
                    *self.counts.left(why) -= 1;
                    None
                }
                Phase::Waits => None,
                _ => Some(&known.run),
            };
            self.admit(known.met, settings, kept);
        }
        self.later.clear();
        self.freed = true;
    }

    /// Has rings written out, all or that of a run; gives how many will be.
    pub fn dump(&mut self, pid: Option<u32>) -> usize {
        let with = |k: &Known| match k.phase {
            Phase::With(with) if pid.is_none_or(|pid| pid == k.run.pid) => Some(with),
            _ => None,
        };
        let wanted: Vec<i32> = self.table.all.iter().filter_map(with).collect();
        let mut asked = 0;
        for hand in self.hands.iter_mut().filter(|h| h.rule.ring.is_some() && !h.gone && h.told.is_none()) {
            let of_run = wanted.contains(&hand.recorder.pid);
            if (of_run || pid.is_none()) && hand.recorder.tell(&Told::Dump).is_ok() {
                hand.dump = true;
                asked += 1;
            }
        }
        asked
    }

    /// Ends all recorders.
    pub fn stop(&mut self) {
        self.stopping = true;
        let now = self.now();
        self.hands.iter_mut().filter(|h| h.told.is_none()).for_each(|h| h.stop(now));
    }

    /// Ends those that have not ended, at once.
    pub fn kill(&self) {
        self.hands.iter().for_each(|h| h.recorder.kill());
    }
}
