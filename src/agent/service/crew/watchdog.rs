//! What time brings: runs that ended unrecorded, runs that wait for a place, recorders without work, and those that do not
//! live, or take more than they may.

use std::time::{Duration, Instant};

use super::{AGAIN_LATE, Crew};
use crate::agent::service::channel::Told;
use crate::agent::service::known::{Known, Phase};
use crate::agent::service::run::Run;
use crate::agent::service::settings::Settings;
use crate::agent::service::vitals::Sample;

/// A recorder that was told to end and has not, is ended; one that shows signs of life, after three times as long.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_ALIVE: Duration = Duration::from_secs(60);
/// A run that has not used its engine for so long lets another have its place.
const UNUSED: Duration = Duration::from_secs(60);

impl Crew {
    /// To be called about once a second.
    pub fn tick(&mut self, settings: &Settings) {
        let now = self.now();
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        self.forget_ended(now);
        self.bury(now);
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
        let (later, counts) = (&self.later, &mut self.counts);
        self.table.all.retain(|k| {
            let gone = !matches!(k.phase, Phase::With(_)) && !k.lives();
            if gone && k.waits() {
                counts.too_many += 1;
            } else if gone && matches!(k.phase, Phase::Wanted) {
                let why = later.why(&k.run.rule, Some(k.met.uid), now);
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                let ended = Some(format!("it ended before it could be recorded{why}"));
                over.push(Run { ended, ..k.run.clone() });
            }
            !gone
        });
        over.into_iter().for_each(|run| self.end(run));
    }

    /// Ends runs of which the recorder should long have told the end.
    fn bury(&mut self, now: Instant) {
        for known in self.table.all.iter_mut().filter(|k| matches!(k.phase, Phase::With(_))) {
            known.dead = if !known.lives() { known.dead.or(Some(now)) } else { None };
        }
        let late = |k: &Known| k.dead.is_some_and(|since| now.duration_since(since) > AGAIN_LATE);
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.table.all).into_iter().partition(late);
        self.table.all = stay;
        for known in gone {
            self.end(Run { ended: Some("the process has ended".into()), ..known.run });
        }
    }

    /// Looks at each recorder, and kills those that stand still or take too much.
    fn supervise(&mut self, passed: Duration, settings: &Settings) {
        for i in 0..self.hands.len() {
            let hand = &mut self.hands[i];
            // One that is gone is heard of.
            let Some(sample) = Sample::of(hand.recorder.pid) else { continue };
            let verdict = hand.vitals.look(passed, hand.recorder.signs(), sample, settings);
            if let Some(why) = verdict.filter(|_| hand.told.is_none() && !hand.killed) {
                self.condemn(i, &why);
            }
        }
    }

    /// Where runs wait, and others have a place that never used their engine, one of these gives it up.
    fn make_place(&mut self, settings: &Settings, now: Instant) {
        let (at_once, since) = (settings.at_once as usize, now.checked_sub(UNUSED).unwrap_or(now));
        let mut keys: Vec<(&str, u32)> = Vec::new();
        for known in self.table.all.iter().filter(|k| k.waits()) {
            let key = (known.run.rule.as_str(), known.met.uid);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let full = |(rule, uid): &&(&str, u32)| !self.table.has_place(rule, *uid, at_once);
        let mut unused =
            keys.iter().filter(full).filter_map(|(rule, uid)| self.table.unused(rule, *uid, at_once, since));
        let Some(i) = unused.next() else { return };
        let known = &mut self.table.all[i];
        let its = self.hands.iter_mut().find(|h| known.is_with(h.recorder.pid));
        if its.is_some_and(|hand| hand.recorder.tell(&Told::Leave(known.run.pid)).is_ok()) {
            (known.phase, known.given) = (Phase::Waits, None);
            known.run.level.clear();
            known.run.file = None;
            self.table.move_back(i);
        }
    }

    /// Recorders without work, those that others have followed, and those that were told to end and do not.
    fn end_idle(&mut self, settings: &Settings, now: Instant) {
        let learning = self.hands.iter().any(|h| h.learns && !h.gone);
        for i in 0..self.hands.len() {
            let hand = &mut self.hands[i];
            let pid = hand.recorder.pid;
            let busy = self.table.all.iter().any(|k| k.is_with(pid));
            hand.idle = if busy { None } else { hand.idle.or(Some(now)) };
            let lingered = hand.idle.is_some_and(|since| now.duration_since(since) >= settings.linger);
            // Its successor attaches, and may have to learn before that.
            let due = |at| now >= at && (!learning || now >= at + PATIENCE);
            if hand.told.is_none() && (lingered || hand.retire.is_some_and(due)) {
                hand.stop(now);
            }
            let patience = if hand.vitals.is_moving() { PATIENCE_ALIVE } else { PATIENCE };
            if hand.told.is_some_and(|at| now.duration_since(at) >= patience) {
                let (uid, rule) = (hand.uid, hand.rule.name.clone());
                hand.recorder.kill();
                (hand.told, hand.killed) = (Some(now), true);
                self.say(uid, &format!("rule {rule}: its recorder ({pid}) does not end, and is killed"));
            }
        }
    }
}
