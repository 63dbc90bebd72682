//! The recorders and the runs: which run is recorded by whom, when a recorder begins and ends, what they say. Uses `channel`,
//! `hand`, `lessons`, `recorder`, `rules`, `run`, `settings` and `target`.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::channel::{Said, Told};
use super::hand::Hand;
use super::lessons::{self, Lessons};
use super::recorder::Recorder;
use super::rules::Rule;
use super::run::Run;
use super::settings::Settings;
use crate::agent::maps::FileId;
use crate::agent::target;

/// Characters of a program's path that are told.
const EXE: usize = 512;
/// A recorder that was told to end and has not, is ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// A rule whose recorder failed gets another after so long: soon where there was no room, late where it is its own fault.
const AGAIN_SOON: Duration = Duration::from_secs(5);
const AGAIN_LATE: Duration = Duration::from_secs(60);
/// Between two lines on runs that were missed.
const BETWEEN: Duration = Duration::from_secs(1);
/// Recorders that a run is given to at most.
const TRIES: usize = 4;
/// While a new recorder attaches, the one that it follows goes on.
const OVERLAP: Duration = Duration::from_secs(2);

/// A process that has an engine.
pub struct Met {
    pub pid: u32,
    pub start: u64,
    pub exe: Vec<u8>,
    pub uid: u32,
    pub cgroup: Option<String>,
    /// The file that has its engine's base.
    pub base: FileId,
    /// It came by fork from this process, and has its memory: it is a part of that one's run.
    pub parent: Option<u32>,
}

/// Runs by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub seen: u64,
    /// Recorded, at least in part.
    pub recorded: u64,
    /// No rule is for them, or one that ignores them.
    pub ignored: u64,
    /// Left out as one-in says.
    pub left_out: u64,
    /// Not recorded since at-once others were.
    pub too_many: u64,
    /// They ended before they could be recorded.
    pub missed: u64,
}

enum Phase {
    /// To be given to a recorder.
    Wanted,
    /// With the recorder that has this process id.
    With(i32),
    /// Not recorded.
    Left(Why),
    /// Recorded, as far as it was to be.
    Done,
}

/// Why a run is not recorded.
#[derive(Clone, Copy)]
enum Why {
    Ignored,
    OneIn,
    AtOnce,
}

impl Counts {
    fn left(&mut self, why: Why) -> &mut u64 {
        match why {
            Why::Ignored => &mut self.ignored,
            Why::OneIn => &mut self.left_out,
            Why::AtOnce => &mut self.too_many,
        }
    }
}

struct Known {
    run: Run,
    met: Met,
    phase: Phase,
    /// Recorders that would not have it.
    declined: Vec<i32>,
    /// Since when its process is known to be gone, where it is with a recorder.
    dead: Option<Instant>,
}

impl Known {
    fn lives(&self) -> bool {
        [self.met.pid].iter().chain(&self.run.processes).any(|&pid| target::alive(pid))
    }
}

/// The recorders, and the runs.
#[derive(Default)]
pub struct Crew {
    hands: Vec<Hand>,
    runs: Vec<Known>,
    /// Those that have ended since they were last taken from here.
    pub ended: VecDeque<Run>,
    pub counts: Counts,
    /// By rule: runs that it was for.
    tally: Vec<(String, u64)>,
    /// What recorders have learnt of the machine.
    pub lessons: Lessons,
    /// Rules that get no recorder before then, and why.
    later: Vec<(String, Instant, String)>,
    /// When it was last told that there are more runs than at-once allows.
    told_of_many: Option<Instant>,
    /// When it was last told that a run was missed.
    told_of_missed: Option<Instant>,
    /// A run is over: what is left of its processes, where its recorder died or was to end, are runs that the kernel tells
    /// nothing of.
    pub left: bool,
    stopping: bool,
    /// For the log.
    pub news: Vec<String>,
    /// Rings written out since they were asked for: rule, and the file or why not.
    pub dumped: Vec<(String, Result<String, String>)>,
}

impl Crew {
    /// Descriptors that are readable when a recorder has something to say.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.hands.iter().map(|h| h.recorder.fd())
    }

    /// Runs going on.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|k| matches!(k.phase, Phase::With(_))).map(|k| &k.run)
    }

    /// Runs that a rule was for, so far.
    pub fn runs_of(&self, rule: &str) -> u64 {
        self.tally.iter().find(|(name, _)| name == rule).map_or(0, |(_, n)| *n)
    }

    /// The process that records for a rule.
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

    /// A process with an engine was found: a run begins, unless it is a part of another, which its recorder knows.
    pub fn meet(&mut self, met: Met, settings: &Settings) {
        let child = |k: &Known| k.met.pid != met.pid && k.run.processes.contains(&met.pid);
        if met.parent.is_some() || self.runs.iter().any(child) {
            return;
        }
        // Another program in a process that is known is another run.
        let other = |k: &Known| (k.met.pid, k.met.start) == (met.pid, met.start) && k.met.exe != met.exe;
        if let Some(i) = self.runs.iter().position(other) {
            let known = self.runs.remove(i);
            if matches!(known.phase, Phase::Wanted | Phase::With(_)) {
                let recorded = !known.run.level.is_empty();
                self.end(
                    Run { ended: Some("another program runs in its process".into()), ..known.run },
                    recorded,
                );
            }
        }
        if self.runs.iter().any(|k| (k.met.pid, k.met.start) == (met.pid, met.start)) {
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
        let mut run = Run { pid: met.pid, start: met.start, processes, exe, level, ..Run::default() };
        let phase = match rule {
            None => Phase::Left(Why::Ignored),
            Some(rule) if kept.is_none_or(|kept| kept.rule != rule.name) && !self.is_turn(rule) => {
                Phase::Left(Why::OneIn)
            }
            Some(_) if kept.is_none() && self.busy() >= settings.at_once as usize => {
                if self.told_of_many.is_none_or(|at| at.elapsed() > AGAIN_LATE) {
                    self.told_of_many = Some(Instant::now());
                    let (pid, n) = (met.pid, settings.at_once);
                    self.news.push(format!("process {pid} is not recorded, for {n} others are (at-once)"));
                }
                Phase::Left(Why::AtOnce)
            }
            Some(rule) => {
                run.rule.clone_from(&rule.name);
                Phase::Wanted
            }
        };
        if let Phase::Left(why) = phase {
            *self.counts.left(why) += 1;
        }
        self.runs.push(Known { run, met, phase, declined: Vec::new(), dead: None });
    }

    fn is_turn(&mut self, rule: &Rule) -> bool {
        let i = self.tally.iter().position(|(name, _)| *name == rule.name).unwrap_or_else(|| {
            self.tally.push((rule.name.clone(), 0));
            self.tally.len() - 1
        });
        let n = &mut self.tally[i].1;
        *n += 1;
        (*n - 1).is_multiple_of(u64::from(rule.one_in.max(1)))
    }

    fn busy(&self) -> usize {
        self.runs.iter().filter(|k| matches!(k.phase, Phase::Wanted | Phase::With(_))).count()
    }

    /// Gives the runs that wait to their rules' recorders, which begin where there is none.
    pub fn assign(&mut self, settings: &Settings) {
        let now = Instant::now();
        self.later.retain(|(_, until, _)| *until > now);
        for i in 0..self.runs.len() {
            let known = &self.runs[i];
            let name = &known.run.rule;
            if !matches!(known.phase, Phase::Wanted) || self.later.iter().any(|(rule, ..)| rule == name) {
                continue;
            }
            let Some(rule) = settings.rules.iter().find(|r| r.name == *name) else { continue };
            let (base, but) = (known.met.base, known.declined.clone());
            let Some(hand) = self.hand_for(rule, Some((base, &but)), settings) else { continue };
            let run = self.runs[i].run.clone();
            let hand = &mut self.hands[hand];
            hand.idle = None;
            // One that does not listen just now is asked again.
            if hand.recorder.tell(&Told::Follow(Box::new(run))).is_ok() {
                self.runs[i].phase = Phase::With(hand.recorder.pid);
                hand.give(base);
            }
        }
    }

    /// A recorder of the rule, for an engine by its base and not one of `but`: one that has it, else one that takes it, else a
    /// new one.
    fn hand_for(
        &mut self,
        rule: &Rule,
        engine: Option<(FileId, &[i32])>,
        settings: &Settings,
    ) -> Option<usize> {
        let has = |h: &Hand| engine.is_none_or(|(base, but)| h.has(base) && !but.contains(&h.recorder.pid));
        let has = self.hands.iter().position(|h| h.is_free(rule) && has(h));
        if let Some(i) = has.or_else(|| self.hands.iter().position(|h| h.is_free(rule) && h.takes_more())) {
            return Some(i);
        }
        let learnt = self.lessons.of(&lessons::kind(&rule.record)).cloned();
        let learns = learnt.is_none();
        match Recorder::start(settings, rule, learnt) {
            Ok(recorder) => {
                self.hands.push(Hand::new(recorder, rule, learns));
                Some(self.hands.len() - 1)
            }
            Err(e) => {
                let why = format!("no recorder can be started: {e}");
                self.news.push(format!("rule {}: {why}", rule.name));
                self.put_off(&rule.name, AGAIN_SOON, &why);
                None
            }
        }
    }

    /// Has recorders learn of the machine what they can before the first engine comes; one at a time, for they would disturb
    /// each other.
    fn prepare(&mut self, settings: &Settings) {
        if self.hands.iter().any(|h| h.learns && !h.gone) {
            return;
        }
        let unknown = settings.rules.iter().find(|rule| {
            let known = || self.lessons.of(&lessons::kind(&rule.record)).is_some();
            !rule.ignore && !known() && self.later.iter().all(|(name, ..)| *name != rule.name)
        });
        if let Some(rule) = unknown {
            self.hand_for(rule, None, settings);
        }
    }

    fn put_off(&mut self, rule: &str, by: Duration, why: &str) {
        self.later.push((rule.to_owned(), Instant::now() + by, why.to_owned()));
    }

    /// Takes what the recorders have said.
    pub fn hear(&mut self) {
        // From the last on: one that is gone is removed.
        for i in (0..self.hands.len()).rev() {
            loop {
                match self.hands[i].recorder.hear() {
                    Ok(Some(said)) => self.heard(i, said),
                    Ok(None) => break,
                    Err(_) => {
                        self.lost(i);
                        break;
                    }
                }
            }
        }
    }

    fn heard(&mut self, i: usize, said: Said) {
        let hand = &mut self.hands[i];
        let (pid, rule) = (hand.recorder.pid, hand.rule.name.clone());
        match said {
            Said::Runs(runs) => runs.into_iter().for_each(|run| self.stand(pid, run)),
            Said::Learnt(learnt) => {
                hand.learns = false;
                self.news.push(format!(
                    "rule {rule}: ready to record; the cheapest hit costs {} ns here",
                    learnt.hit_ns
                ));
                self.lessons.learn(lessons::kind(&hand.rule.record), learnt);
            }
            Said::Attached => {
                hand.closed = true;
                self.news.push(format!(
                    "rule {rule}: its recorder ({pid}) is attached, and has given up what that takes"
                ));
            }
            Said::Declined(run, all) => self.declined(i, run, all),
            Said::Message(text) => self.news.push(format!("rule {rule}: {text}")),
            Said::Dumped(done) => {
                if std::mem::take(&mut hand.dump) {
                    self.dumped.push((rule, done));
                }
            }
            Said::Ends { why, full } => {
                hand.gone = true;
                if let Some(why) = why {
                    self.news.push(format!("rule {rule}: recording ended: {why}"));
                    self.put_off(&rule, if full { AGAIN_SOON } else { AGAIN_LATE }, &why);
                }
            }
        }
    }

    fn stand(&mut self, recorder: i32, run: Run) {
        let same = |k: &&mut Known| {
            (k.run.pid, k.run.start) == (run.pid, run.start)
                && matches!(k.phase, Phase::With(pid) if pid == recorder)
        };
        let Some(known) = self.runs.iter_mut().find(same) else { return };
        let ended = run.ended.is_some();
        // Children may go on without the process that they came from.
        known.dead = None;
        known.run = run;
        if ended {
            known.phase = Phase::Done;
            let run = known.run.clone();
            // It was followed once it has a level.
            let recorded = !run.level.is_empty();
            self.end(run, recorded);
        }
    }

    /// A recorder attaches to no more, and would have to for a run: it is another's.
    fn declined(&mut self, i: usize, pid: u32, processes: Vec<u32>) {
        let hand = &mut self.hands[i];
        let with = |k: &&mut Known| {
            k.run.pid == pid && matches!(k.phase, Phase::With(with) if with == hand.recorder.pid)
        };
        let Some(known) = self.runs.iter_mut().find(with) else { return };
        hand.closed = true;
        known.declined.push(hand.recorder.pid);
        known.run.processes = processes;
        known.phase = Phase::Wanted;
        if known.declined.len() >= TRIES {
            known.phase = Phase::Done;
            let why = format!("{TRIES} recorders could not attach to its engine beside what they had");
            let run = Run { ended: Some(why), ..known.run.clone() };
            let recorded = !run.level.is_empty();
            self.end(run, recorded);
        }
    }

    fn end(&mut self, run: Run, recorded: bool) {
        match recorded {
            true => self.counts.recorded += 1,
            false => {
                self.counts.missed += 1;
                self.tell_of_missed(&run);
            }
        }
        self.ended.push_back(run);
        self.left = true;
    }

    /// Not each of very many.
    fn tell_of_missed(&mut self, run: &Run) {
        if self.told_of_missed.is_none_or(|at| at.elapsed() > BETWEEN) {
            self.told_of_missed = Some(Instant::now());
            let (pid, n, why) = (run.pid, self.counts.missed, run.ended.as_deref().unwrap_or("it has ended"));
            self.news.push(format!("rule {}: process {pid} was not recorded: {why}; {n} so far", run.rule));
        }
    }

    /// A recorder is gone. What it had goes on with the next one.
    fn lost(&mut self, i: usize) {
        let hand = &mut self.hands[i];
        let (pid, rule) = (hand.recorder.pid, hand.rule.name.clone());
        if !std::mem::replace(&mut hand.gone, true) {
            self.news
                .push(format!("rule {rule}: its recorder ({pid}) has died; what it had written is whole"));
            self.put_off(&rule, AGAIN_SOON, "the recorder before has died");
        }
        if std::mem::take(&mut self.hands[i].dump) {
            self.dumped.push((rule, Err("its recorder has ended".into())));
        }
        for known in &mut self.runs {
            if matches!(known.phase, Phase::With(with) if with == pid) {
                known.phase = Phase::Wanted;
            }
        }
        self.hands.remove(i);
    }

    /// What time brings: runs that ended unrecorded, recorders without work, those that do not end.
    pub fn tick(&mut self, settings: &Settings) {
        let now = Instant::now();
        let mut over = Vec::new();
        self.runs.retain(|k| {
            let gone = !matches!(k.phase, Phase::With(_)) && !k.lives();
            if gone && matches!(k.phase, Phase::Wanted) {
                let later = self.later.iter().find(|(rule, ..)| *rule == k.run.rule);
                let why = later.map(|(_, _, why)| format!(": {why}")).unwrap_or_default();
                let ended = Some(format!("it ended before it could be recorded{why}"));
                over.push(Run { ended, ..k.run.clone() });
            }
            !gone
        });
        for run in over {
            let recorded = !run.level.is_empty();
            self.end(run, recorded);
        }
        if !self.stopping {
            self.prepare(settings);
        }
        self.bury();
        let learning = self.hands.iter().any(|h| h.learns && !h.gone);
        for hand in &mut self.hands {
            let pid = hand.recorder.pid;
            let busy = self.runs.iter().any(|k| matches!(k.phase, Phase::With(with) if with == pid));
            hand.idle = if busy { None } else { hand.idle.or(Some(now)) };
            let lingered = hand.idle.is_some_and(|since| now.duration_since(since) >= settings.linger);
            // Its successor attaches, and may have to learn before that.
            let due = |at| now >= at && (!learning || now >= at + PATIENCE);
            if hand.told.is_none() && (lingered || hand.retire.is_some_and(due)) {
                hand.stop(now);
            }
            if hand.told.is_some_and(|at| now.duration_since(at) >= PATIENCE) {
                self.news.push(format!("rule {}: its recorder does not end, and is ended", hand.rule.name));
                hand.recorder.kill();
                hand.told = Some(now);
            }
        }
    }

    /// Ends runs of which the recorder should long have told the end.
    fn bury(&mut self) {
        let now = Instant::now();
        for known in self.runs.iter_mut().filter(|k| matches!(k.phase, Phase::With(_))) {
            known.dead = if !known.lives() { known.dead.or(Some(now)) } else { None };
        }
        let late = |k: &Known| k.dead.is_some_and(|since| now.duration_since(since) > AGAIN_LATE);
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.runs).into_iter().partition(late);
        self.runs = stay;
        for known in gone {
            let recorded = !known.run.level.is_empty();
            self.end(Run { ended: Some("the process has ended".into()), ..known.run }, recorded);
        }
    }

    /// Other settings hold from now on. Recorders whose rule is as it was go on where `same` says that all else is, too.
    pub fn change(&mut self, settings: &Settings, same: bool) {
        let now = Instant::now();
        let mut moved = Vec::new();
        for hand in self.hands.iter_mut().filter(|h| h.told.is_none() && h.retire.is_none()) {
            if !same || !settings.rules.contains(&hand.rule) {
                hand.retire = Some(now + OVERLAP);
                moved.push(hand.recorder.pid);
            }
        }
        // What waits, what is in a recorder that retires, and what was not recorded so far is judged by the new rules.
        let (stay, judged): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.runs).into_iter().partition(|k| match k.phase {
                Phase::With(pid) => !moved.contains(&pid),
                Phase::Wanted | Phase::Left(_) => false,
                Phase::Done => true,
            });
        self.runs = stay;
        for known in judged {
            let kept = match known.phase {
                Phase::Left(why) => {
                    *self.counts.left(why) -= 1;
                    None
                }
                _ => Some(&known.run),
            };
            self.admit(known.met, settings, kept);
        }
        self.later.clear();
    }

    /// Has rings written out, all or that of a run; gives how many will be.
    pub fn dump(&mut self, pid: Option<u32>) -> usize {
        let with = |k: &Known| match k.phase {
            Phase::With(with) if pid.is_none_or(|pid| pid == k.run.pid) => Some(with),
            _ => None,
        };
        let wanted: Vec<i32> = self.runs.iter().filter_map(with).collect();
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
        let now = Instant::now();
        self.hands.iter_mut().filter(|h| h.told.is_none()).for_each(|h| h.stop(now));
    }

    /// Takes the exit states of children that have ended.
    pub fn reap(&mut self) {
        let mut state = 0;
        loop {
            // SAFETY: does not wait; the state has room.
            let pid = unsafe { libc::waitpid(-1, &raw mut state, libc::WNOHANG) };
            if pid <= 0 {
                return;
            }
            if libc::WIFSIGNALED(state) {
                self.news.push(format!("recorder {pid} was ended by signal {}", libc::WTERMSIG(state)));
            } else if libc::WEXITSTATUS(state) != 0 {
                self.news.push(format!("recorder {pid} ended with code {}", libc::WEXITSTATUS(state)));
            }
        }
    }

    /// Ends those that have not ended, at once.
    pub fn kill(&self) {
        self.hands.iter().for_each(|h| h.recorder.kill());
    }
}
