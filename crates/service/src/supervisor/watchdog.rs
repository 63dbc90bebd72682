//! Periodic checks: runs that ended unrecorded, runs that wait for a place, idle recorders, and recorders that hang
//! or exceed their limits.

use std::time::{Duration, Instant};

use super::{AGAIN_LATE, Supervisor};
use crate::recorder::channel::RecorderCommand;
use crate::rules::settings::ServiceSettings;
use crate::run::Run;
use crate::supervisor::run_table::{KnownRun, RunPhase};
use crate::supervisor::vitals::ProcessVitals;

/// A recorder that was asked to stop and has not is killed after this; one that shows signs of life, after three
/// times as long.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_ALIVE: Duration = Duration::from_secs(60);
/// A run that has not used its engine for this long can lose its place to another.
const UNUSED: Duration = Duration::from_secs(60);

impl Supervisor {
    /// Call about once a second.
    pub fn tick(&mut self, settings: &ServiceSettings) {
        let now = self.now();
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        self.forget_ended(now);
        self.forget_dead(now);
        self.look_for_command();
        self.supervise(passed, settings);
        if !self.stopping {
            self.prepare(settings);
            self.make_place(settings, now);
            self.admit_waiting(settings);
        }
        self.end_idle(settings, now);
        self.lines.tell_left_out(now);
    }

    /// Runs whose processes have ended and that no recorder has.
    fn forget_ended(&mut self, now: Instant) {
        let mut over = Vec::new();
        let (later, counts, left) = (&self.later, &mut self.counts, &mut self.table.left);
        self.table.all.retain(|k| {
            let gone = !matches!(k.phase, RunPhase::With(_)) && !k.lives();
            if gone {
                left.count(&k.phase);
            }
            if gone && k.waits() {
                counts.too_many += 1;
            } else if gone && matches!(k.phase, RunPhase::Wanted) {
                let why = later.why(&k.run.rule, Some(k.met.uid), now);
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                let ended = Some(format!("it ended before it could be recorded{why}"));
                over.push(Run { ended, ..k.run.clone() });
            }
            !gone
        });
        over.into_iter().for_each(|run| self.end(run));
    }

    /// Ends runs whose end the recorder should have reported long ago.
    fn forget_dead(&mut self, now: Instant) {
        for known in self.table.all.iter_mut().filter(|k| matches!(k.phase, RunPhase::With(_))) {
            known.dead = if !known.lives() { known.dead.or(Some(now)) } else { None };
        }
        let late = |k: &KnownRun| k.dead.is_some_and(|since| now.duration_since(since) > AGAIN_LATE);
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.table.all).into_iter().partition(late);
        self.table.all = stay;
        for known in gone {
            self.end(Run { ended: Some("the process has ended".into()), ..known.run });
        }
    }

    /// Checks each recorder, and kills those that hang or exceed their limits.
    fn supervise(&mut self, passed: Duration, settings: &ServiceSettings) {
        for i in 0..self.workers.len() {
            let worker = &mut self.workers[i];
            // Its end is reported by its channel.
            let Some(sample) = ProcessVitals::of(worker.recorder.pid) else { continue };
            let verdict = worker.vitals.look(passed, worker.recorder.signs(), sample, settings);
            if let Some(why) = verdict.filter(|_| worker.told.is_none() && !worker.killed) {
                self.condemn(i, &why);
            }
        }
    }

    /// If runs wait and others have places but never used their engine, one of these gives up its place.
    fn make_place(&mut self, settings: &ServiceSettings, now: Instant) {
        let (max_concurrent, since) =
            (settings.max_concurrent as usize, now.checked_sub(UNUSED).unwrap_or(now));
        let mut keys: Vec<(&str, u32)> = Vec::new();
        for known in self.table.all.iter().filter(|k| k.waits()) {
            let key = (known.run.rule.as_str(), known.met.uid);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let full = |(rule, uid): &&(&str, u32)| !self.table.has_place(rule, *uid, max_concurrent);
        let mut unused = keys
            .iter()
            .filter(full)
            .filter_map(|(rule, uid)| self.table.unused(rule, *uid, max_concurrent, since));
        let Some(i) = unused.next() else { return };
        let known = &mut self.table.all[i];
        let its = self.workers.iter_mut().find(|h| known.is_with(h.recorder.pid));
        if its.is_some_and(|worker| worker.recorder.tell(&RecorderCommand::Leave(known.run.pid)).is_ok()) {
            (known.phase, known.given) = (RunPhase::Waits, None);
            known.run.level.clear();
            known.run.file = None;
            self.table.move_back(i);
        }
    }

    /// Stops idle recorders and those with a successor, and kills those that do not stop.
    fn end_idle(&mut self, settings: &ServiceSettings, now: Instant) {
        let learning = self.workers.iter().any(|h| h.learns && !h.gone);
        for i in 0..self.workers.len() {
            let pid = self.workers[i].recorder.pid;
            let busy = self.starts_command(pid) || self.table.all.iter().any(|k| k.is_with(pid));
            let worker = &mut self.workers[i];
            worker.idle = if busy { None } else { worker.idle.or(Some(now)) };
            let lingered =
                worker.idle.is_some_and(|since| now.duration_since(since) >= settings.idle_timeout);
            // Its successor is attaching, and may have to calibrate first.
            let due = |at| now >= at && (!learning || now >= at + PATIENCE);
            if worker.told.is_none() && (lingered || worker.retire.is_some_and(due)) {
                worker.stop(now);
            }
            let patience = if worker.vitals.is_moving() { PATIENCE_ALIVE } else { PATIENCE };
            if worker.told.is_some_and(|at| now.duration_since(at) >= patience) {
                let (uid, rule) = (worker.uid, worker.rule.name.clone());
                worker.recorder.kill();
                (worker.told, worker.killed) = (Some(now), true);
                self.say(uid, &format!("rule {rule}: its recorder ({pid}) does not end and is killed"));
            }
        }
    }
}
