//! The runs that the service knows, running or not: their table, which no user can fill, and their state.

use std::time::Instant;

use crate::run::Run;
use crate::store::quota;
use crate::supervisor::fair_share::may_claim_slot;
use machine::maps::FileId;
use machine::proc;
use machine::target;

/// Maximum known runs, and those of one user. Runs that are not recorded are kept too, so that they can be recorded
/// later.
pub const KNOWN: usize = 1024;
pub const OF_USER: usize = 256;

/// A process that has an engine.
#[derive(Clone)]
pub struct Met {
    pub pid: u32,
    pub start: u64,
    pub exe: Vec<u8>,
    pub uid: u32,
    pub cgroup: Option<String>,
    /// The file with its engine's base.
    pub base: FileId,
    /// It was forked from this process and has a copy of its memory: it is part of that run.
    pub parent: Option<u32>,
}

/// Runs by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunCounts {
    pub seen: u64,
    /// Recorded, at least in part.
    pub recorded: u64,
    /// Followed, and they computed nothing.
    pub empty: u64,
    /// No rule matches them, or one that ignores them.
    pub ignored: u64,
    /// Left out by sample-one-in.
    pub left_out: u64,
    /// They ended without a place, because max-concurrent other runs had them or too many were known.
    pub too_many: u64,
    /// They ended before they could be recorded.
    pub missed: u64,
}

pub(crate) enum RunPhase {
    /// To be given to a recorder.
    Wanted,
    /// With the recorder with this pid.
    With(i32),
    /// To be recorded when a place is free.
    Waits,
    /// Not recorded.
    Left(SkipReason),
    /// Recorded, as far as requested.
    Done,
}

/// Why a run is not recorded.
#[derive(Clone, Copy)]
pub(crate) enum SkipReason {
    Ignored,
    OneIn,
}

impl RunCounts {
    pub(crate) fn left(&mut self, why: SkipReason) -> &mut u64 {
        match why {
            SkipReason::Ignored => &mut self.ignored,
            SkipReason::OneIn => &mut self.left_out,
        }
    }
}

pub(crate) struct KnownRun {
    pub run: Run,
    pub met: Met,
    pub phase: RunPhase,
    /// The user who answers for the process's, and whose share of the places it takes.
    user: u32,
    /// Recorders that declined it.
    pub declined: Vec<i32>,
    /// When its process was found to be gone while it was with a recorder.
    pub dead: Option<Instant>,
    /// When it was given to its current recorder.
    pub given: Option<Instant>,
}

impl KnownRun {
    pub fn new(run: Run, met: Met, phase: RunPhase) -> KnownRun {
        let user = quota::answerable(met.uid);
        KnownRun { run, met, phase, user, declined: Vec::new(), dead: None, given: None }
    }

    pub fn lives(&self) -> bool {
        [self.met.pid].iter().chain(&self.run.processes).any(|&pid| target::alive(pid))
    }

    pub fn is_with(&self, recorder: i32) -> bool {
        matches!(self.phase, RunPhase::With(pid) if pid == recorder)
    }

    pub fn waits(&self) -> bool {
        matches!(self.phase, RunPhase::Waits)
    }

    /// It takes one of the concurrent places.
    pub fn has_place(&self) -> bool {
        matches!(self.phase, RunPhase::Wanted | RunPhase::With(_)) && self.dead.is_none()
    }

    /// It is with a recorder, and its engine was not seen at work.
    pub fn is_unused(&self) -> bool {
        let run = &self.run;
        let followed = matches!(self.phase, RunPhase::With(_)) && !run.level.is_empty();
        followed && run.processes.is_empty() && run.tokens == 0
    }

    /// It goes to another recorder. What the previous one reported of its processes is checked again: a pid may by
    /// now be another user's process, or never have belonged to this run.
    pub fn return_to_wanted(&mut self) {
        (self.phase, self.given, self.run.recorder) = (RunPhase::Wanted, None, None);
        // The next recorder begins anew.
        self.run.figures = None;
        let (pid, uid) = (self.run.pid, self.run.uid);
        self.run
            .processes
            .retain(|&p| p == pid || uid == 0 || proc::users(p).is_some_and(|u| u.effective == uid));
    }
}

/// Runs left out that have ended, or were forgotten: until then, another configuration can decide otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftRuns {
    /// No rule matched them, or one that ignores them.
    pub ignored: u64,
    /// By sample-one-in.
    pub sampled: u64,
}

impl LeftRuns {
    /// A run ends in this phase.
    pub(crate) fn count(&mut self, phase: &RunPhase) {
        match phase {
            RunPhase::Left(SkipReason::Ignored) => self.ignored += 1,
            RunPhase::Left(SkipReason::OneIn) => self.sampled += 1,
            RunPhase::Wanted | RunPhase::With(_) | RunPhase::Waits | RunPhase::Done => {}
        }
    }
}

/// The runs, oldest first.
#[derive(Default)]
pub(crate) struct RunTable {
    pub all: Vec<KnownRun>,
    pub left: LeftRuns,
}

impl RunTable {
    /// Adds a run; false: its user has too many.
    pub fn push(&mut self, known: KnownRun) -> bool {
        if !self.has_room(known.user) && !self.make_room(known.user) {
            self.left.count(&known.phase);
            return false;
        }
        self.all.push(known);
        true
    }

    fn has_room(&self, user: u32) -> bool {
        let of = |user| self.all.iter().filter(|k| k.user == user).count();
        let mine = of(user);
        mine < OF_USER && may_claim_slot(user, mine, of(0), self.all.len(), KNOWN)
    }

    /// Forgets one of the user's runs that is not recorded and will not be.
    fn make_room(&mut self, user: u32) -> bool {
        let over = |k: &KnownRun| k.user == user && matches!(k.phase, RunPhase::Left(_) | RunPhase::Done);
        let removed = self.all.iter().position(over).map(|i| self.all.remove(i));
        removed.iter().for_each(|known| self.left.count(&known.phase));
        removed.is_some()
    }

    /// Whether there is a place for another run of this rule and user, within `max_concurrent` for each and
    /// [`in_all`].
    pub fn has_place(&self, rule: &str, uid: u32, max_concurrent: usize) -> bool {
        self.has_place_for(rule, (uid, quota::answerable(uid)), max_concurrent)
    }

    /// `user` answers for `uid`, and has one share for all of his.
    fn has_place_for(&self, rule: &str, (uid, user): (u32, u32), max_concurrent: usize) -> bool {
        let placed = || self.all.iter().filter(|k| k.has_place());
        let of = |user| placed().filter(|k| k.user == user).count();
        placed().filter(|k| k.met.uid == uid && k.run.rule == rule).count() < max_concurrent
            && may_claim_slot(user, of(user), of(0), placed().count(), in_all(max_concurrent))
    }

    /// The run that stops being recorded to make room for another one of this rule and user: the oldest that has
    /// never used its engine, of the same rule and user or, if that has places left, of the user with the most.
    pub fn unused(&self, rule: &str, uid: u32, max_concurrent: usize, since: Instant) -> Option<usize> {
        let count =
            |of: &dyn Fn(&KnownRun) -> bool| self.all.iter().filter(|k| k.has_place() && of(k)).count();
        let idle = |k: &KnownRun| k.is_unused() && k.given.is_some_and(|at| at <= since);
        let same = |k: &KnownRun| k.met.uid == uid && k.run.rule == rule;
        let oldest = |of: &dyn Fn(&KnownRun) -> bool| {
            let all = self.all.iter().enumerate().filter(|(_, k)| idle(k) && of(k));
            all.min_by_key(|(_, k)| k.given).map(|(i, _)| i)
        };
        if let Some(i) = oldest(&same) {
            return Some(i);
        }
        let user = quota::answerable(uid);
        let mine = count(&|k| k.user == user);
        let full = count(&same) >= max_concurrent;
        let idle_users = self.all.iter().filter(|k| idle(k)).map(|k| k.user);
        let most = idle_users.max_by_key(|&u| count(&|k| k.user == u));
        let most = most.filter(|&u| !full && (u == user || count(&|k| k.user == u) > mine + 1))?;
        oldest(&|k| k.user == most)
    }

    /// Moves a run to the end.
    pub fn move_back(&mut self, i: usize) {
        let known = self.all.remove(i);
        self.all.push(known);
    }
}

/// Maximum runs recorded at a time, over all rules and users.
pub fn in_all(max_concurrent: usize) -> usize {
    max_concurrent.saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(pid: u32, uid: u32, phase: RunPhase) -> KnownRun {
        let met = Met { pid, start: 1, exe: Vec::new(), uid, cgroup: None, base: (1, 1), parent: None };
        KnownRun::new(Run { pid, uid, rule: "a".into(), ..Run::default() }, met, phase)
    }

    #[test]
    fn nobody_fills_the_table() {
        let mut table = RunTable::default();
        let taken = (0..10_000).filter(|&pid| table.push(known(pid, 65534, RunPhase::Waits))).count();
        assert_eq!(taken, OF_USER);
        assert!(table.push(known(1, 0, RunPhase::Waits)), "root finds room");
        // With many users: still bounded.
        assert!(
            (0..100_000).filter(|&uid| table.push(known(uid, uid + 1000, RunPhase::Waits))).count() < KNOWN
        );
        assert!(table.all.len() < KNOWN);
        assert!((0..64).all(|pid| table.push(known(pid, 0, RunPhase::Waits))));
        // A run that will never be recorded makes room for one that may be.
        table.all[0].phase = RunPhase::Done;
        assert!(
            table.push(known(1, 65534, RunPhase::Waits)) && !table.push(known(2, 65534, RunPhase::Waits))
        );
    }

    #[test]
    fn subordinate_users_have_the_share_of_theirs() {
        let mut table = RunTable::default();
        let placed = (0..64u32).filter(|n| {
            let mut one = known(*n, 100_000 + n, RunPhase::With(1));
            one.user = 1000;
            table.has_place_for("a", (one.met.uid, one.user), 4) && table.push(one)
        });
        assert_eq!(placed.count(), 6, "as one user gets of 16");
        assert!(table.has_place_for("a", (1001, 1001), 4) && table.has_place_for("a", (0, 0), 4));
    }

    #[test]
    fn places_are_each_rules_and_users() {
        let mut table = RunTable::default();
        (0..16).for_each(|pid| assert!(table.push(known(pid, 65534, RunPhase::With(1)))));
        assert!(!table.has_place("a", 65534, 16));
        assert!(table.has_place("b", 65534, 16) && table.has_place("a", 0, 16));
        table.all[3].dead = Some(Instant::now());
        assert!(table.has_place("a", 65534, 16), "the dead take none");
    }

    #[test]
    fn who_never_used_the_engine_makes_room() {
        let (mut table, now) = (RunTable::default(), Instant::now());
        for pid in 0..16 {
            let mut one = known(pid, 65534, RunPhase::With(1));
            (one.given, one.run.level) = (Some(now), "op".into());
            if pid != 7 && pid != 9 {
                one.run.processes = vec![pid];
            }
            table.push(one);
        }
        assert_eq!(table.unused("a", 65534, 16, now), Some(7));
        assert_eq!(table.unused("a", 0, 4, now), Some(7), "one who has none takes of him who has most");
        let before = now - std::time::Duration::from_secs(1);
        assert_eq!(table.unused("a", 65534, 16, before), None);
        table.all[7].run.tokens = 1;
        table.all[9].run.level.clear();
        assert_eq!(table.unused("a", 65534, 16, now), None);
        table.move_back(7);
        assert_eq!(table.all[15].met.pid, 7);
    }
}
