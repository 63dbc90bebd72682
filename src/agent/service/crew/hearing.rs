//! What the recorders say, and what becomes of the runs of one that is gone. Nothing that a recorder says is taken for more
//! than it can know: it reads what users have made.

use std::io;

use super::{AGAIN_LATE, AGAIN_SOON, Crew};
use crate::agent::service::channel::Said;
use crate::agent::service::known::{Known, Phase};
use crate::agent::service::later::Key;
use crate::agent::service::lessons;
use crate::agent::service::lines::plain;
use crate::agent::service::run::{PROCESSES, Run, is_file_name};
use std::time::Duration;

/// Between two lines on runs that were missed, of one user.
const BETWEEN: Duration = Duration::from_secs(1);
/// Recorders that a run is given to at most.
const TRIES: usize = 4;
/// Messages of a recorder that are taken in one go: the others have theirs.
const MESSAGES: usize = 64;
/// Characters of what a recorder says.
const TEXT: usize = 600;
/// A recorder that was killed for what one run had it do is followed by the next after this.
const CURED: Duration = Duration::from_secs(1);
/// Recorders whose exit state is still to come and that are known.
const DEPARTED: usize = 256;

impl Crew {
    /// Takes what the recorders have said.
    pub fn hear(&mut self) {
        // From the last on: one that is gone is removed.
        for i in (0..self.hands.len()).rev() {
            for _ in 0..MESSAGES {
                match self.hands[i].recorder.hear() {
                    Ok(Some(said)) if !self.hands[i].killed => self.heard(i, said),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                        self.condemn(i, "it said what no recorder says");
                        break;
                    }
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
        let (pid, uid, rule) = (hand.recorder.pid, hand.uid, hand.rule.name.clone());
        match said {
            Said::Runs(runs) => runs.into_iter().for_each(|run| self.stand(pid, run)),
            // Once, before it has seen any engine: others go by it.
            Said::Learnt(learnt) => {
                if std::mem::take(&mut hand.learns) {
                    self.lessons.learn(lessons::kind(&hand.rule.record), learnt.clone());
                    let cost = match learnt.hit_ns {
                        0 => "what a hit costs could not be measured".to_owned(),
                        ns => format!("the cheapest hit costs {ns} ns here"),
                    };
                    self.say(uid, &format!("rule {rule}: ready to record; {cost}"));
                }
            }
            Said::Attached => {
                if !std::mem::replace(&mut hand.closed, true) {
                    let text = format!(
                        "rule {rule}: its recorder ({pid}) is attached, and has given up what that takes"
                    );
                    self.say(uid, &text);
                }
            }
            Said::Declined(run, all) => self.declined(i, run, all),
            Said::Message(text) => self.say(uid, &format!("rule {rule}: {}", plain(&text, TEXT))),
            Said::Dumped(done) => {
                if std::mem::take(&mut hand.dump) {
                    let none = || Err("its recorder named no file".to_owned());
                    let done = match done {
                        Ok(name) => Some(name).filter(|name| is_file_name(name)).map_or_else(none, Ok),
                        Err(why) => Err(plain(&why, TEXT)),
                    };
                    self.dumped.push((rule, done));
                }
            }
            Said::Ends { why, full } => {
                hand.gone = true;
                if let Some(why) = why {
                    let (why, now) = (plain(&why, TEXT), self.now());
                    self.say(uid, &format!("rule {rule}: recording ended: {why}"));
                    self.later.by((rule, uid), if full { AGAIN_SOON } else { AGAIN_LATE }, &why, now);
                }
            }
        }
    }

    fn stand(&mut self, recorder: i32, said: Run) {
        let same = |k: &&mut Known| (k.run.pid, k.run.start) == (said.pid, said.start) && k.is_with(recorder);
        let Some(known) = self.table.all.iter_mut().find(same) else { return };
        // Children may go on without the process that they came from.
        known.dead = None;
        known.run.take(said);
        if known.run.ended.is_some() {
            known.phase = Phase::Done;
            let run = known.run.clone();
            self.end(run);
        }
    }

    /// A recorder attaches to no more, and would have to for a run: it is another's.
    fn declined(&mut self, i: usize, pid: u32, mut processes: Vec<u32>) {
        let hand = &mut self.hands[i];
        let recorder = hand.recorder.pid;
        let with = |k: &&mut Known| k.run.pid == pid && k.is_with(recorder);
        let Some(known) = self.table.all.iter_mut().find(with) else { return };
        hand.closed = true;
        known.declined.push(recorder);
        processes.truncate(PROCESSES);
        known.run.processes = processes;
        known.return_to_wanted();
        if known.declined.len() >= TRIES {
            known.phase = Phase::Done;
            let why = format!("{TRIES} recorders could not attach to its engine beside what they had");
            let run = Run { ended: Some(why), ..known.run.clone() };
            self.end(run);
        }
    }

    /// Not each of very many.
    pub(super) fn tell_of_missed(&mut self, run: &Run) {
        let now = self.now();
        if self.seldom.missed.is_due(run.uid, BETWEEN, now) {
            let (pid, n, why) = (run.pid, self.counts.missed, run.ended.as_deref().unwrap_or("it has ended"));
            let text = format!("rule {}: process {pid} was not recorded: {why}; {n} so far", run.rule);
            self.say(Some(run.uid), &text);
        }
    }

    fn key(&self, i: usize) -> Key {
        (self.hands[i].rule.name.clone(), self.hands[i].uid)
    }

    /// A recorder is gone. What it had goes on with the next one.
    pub(super) fn lost(&mut self, i: usize) {
        let (now, key) = (self.now(), self.key(i));
        let hand = &mut self.hands[i];
        let (pid, at) = (hand.recorder.pid, hand.recorder.signs().at);
        if !std::mem::replace(&mut hand.gone, true) {
            let text = format!("rule {}: its recorder ({pid}) has died; what it had written is whole", key.0);
            self.say(key.1, &text);
            self.suspect(pid, at);
            self.later.longer(key, AGAIN_SOON, "the recorder before has died", now);
        }
        self.hand_over(i);
        let hand = self.hands.remove(i);
        if !hand.recorder.waited() {
            self.departed.push_back((pid, hand.uid, hand.killed));
            self.departed.drain(..self.departed.len().saturating_sub(DEPARTED));
        }
    }

    /// A recorder died while it looked at this process, or attached to it. The second time it is taken for the cause.
    fn suspect(&mut self, recorder: i32, at: u32) {
        let now = self.now();
        let of = |k: &Known| k.run.pid == at || k.run.processes.contains(&at);
        let Some(k) = self.table.all.iter_mut().find(|k| at != 0 && k.is_with(recorder) && of(k)) else {
            return;
        };
        let why = "recorders died while they looked at it";
        if self.shun.died(k.met.uid, k.met.base, why, now) {
            k.phase = Phase::Done;
            let run = Run { ended: Some(format!("its engine's file is shunned: {why}")), ..k.run.clone() };
            self.end(run);
        }
    }

    /// A recorder is killed. The run that had it go wrong ends for us, and its engine's file is shunned; what else it had
    /// goes on with the next one.
    pub(super) fn condemn(&mut self, i: usize, why: &str) {
        let (now, key) = (self.now(), self.key(i));
        let hand = &mut self.hands[i];
        let learnt = !std::mem::take(&mut hand.learns);
        (hand.gone, hand.killed) = (true, true);
        hand.recorder.kill();
        let (pid, at) = (hand.recorder.pid, hand.recorder.signs().at);
        let text = format!(
            "rule {}: its recorder ({pid}) is killed: {why}; what it had written is whole up to its last block",
            key.0
        );
        self.say(key.1, &text);
        // While it learns it has looked at no engine.
        let blamed = if learnt { self.blamed(pid, at) } else { Vec::new() };
        let first = if blamed.is_empty() { AGAIN_SOON } else { CURED };
        for i in blamed {
            let known = &mut self.table.all[i];
            known.phase = Phase::Done;
            let run = Run { ended: Some(format!("its recorder was killed: {why}")), ..known.run.clone() };
            self.shun.add(known.met.uid, known.met.base, why, now);
            self.end(run);
        }
        self.later.longer(key, first, why, now);
        self.hand_over(i);
    }

    /// The runs that may have had a recorder go wrong: the one that it says it was at, else all that it had not attached to,
    /// else the one that it was given last.
    fn blamed(&self, recorder: i32, at: u32) -> Vec<usize> {
        let its = || self.table.all.iter().enumerate().filter(|(_, k)| k.is_with(recorder));
        let said = its().find(|(_, k)| at != 0 && (k.run.pid == at || k.run.processes.contains(&at)));
        if let Some((i, _)) = said {
            return vec![i];
        }
        let new: Vec<usize> = its().filter(|(_, k)| k.run.level.is_empty()).map(|(i, _)| i).collect();
        if !new.is_empty() {
            return new;
        }
        its().max_by_key(|(_, k)| k.given).map(|(i, _)| i).into_iter().collect()
    }

    /// What a recorder had is to be another's.
    fn hand_over(&mut self, i: usize) {
        let hand = &mut self.hands[i];
        if std::mem::take(&mut hand.dump) {
            self.dumped.push((hand.rule.name.clone(), Err("its recorder has ended".into())));
        }
        let pid = hand.recorder.pid;
        self.table.all.iter_mut().filter(|k| k.is_with(pid)).for_each(Known::return_to_wanted);
    }

    /// Takes the exit states of children that have ended; `others` are those that are not recorders.
    pub fn reap(&mut self, others: &mut dyn FnMut(i32) -> bool) {
        let mut state = 0;
        loop {
            // SAFETY: does not wait; the state has room.
            let pid = unsafe { libc::waitpid(-1, &raw mut state, libc::WNOHANG) };
            if pid <= 0 {
                return;
            }
            if others(pid) {
                continue;
            }
            let (uid, killed) = self.is_waited_for(pid);
            if libc::WIFSIGNALED(state) && !killed {
                self.say(uid, &format!("recorder {pid} was ended by signal {}", libc::WTERMSIG(state)));
            } else if !libc::WIFSIGNALED(state) && libc::WEXITSTATUS(state) != 0 {
                self.say(uid, &format!("recorder {pid} ended with code {}", libc::WEXITSTATUS(state)));
            }
        }
    }

    /// Its number may be another process's from now on. Gives whose recorder it was, and whether it was killed here.
    fn is_waited_for(&mut self, pid: i32) -> (Option<u32>, bool) {
        if let Some(hand) = self.hands.iter_mut().find(|h| h.recorder.pid == pid) {
            hand.recorder.set_waited();
            return (hand.uid, hand.killed);
        }
        let i = self.departed.iter().position(|d| d.0 == pid);
        i.and_then(|i| self.departed.remove(i)).map_or((None, false), |d| (d.1, d.2))
    }
}
