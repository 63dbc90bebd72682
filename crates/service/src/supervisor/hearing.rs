//! Messages of the recorders, and what happens to the runs of a recorder that is gone. A recorder's messages are
//! trusted no further than it can know: it reads data made by users.

use std::io;

use rustix::process::{WaitOptions, waitpid};

use super::{AGAIN_LATE, AGAIN_SOON, Reported, Supervisor};
use crate::affinity::RunId;
use crate::lines::plain;
use crate::recorder::channel::{DumpError, WorkerEvent};
use crate::recorder::trigger::Fired;
use crate::run::{PROCESSES, Run, is_file_name};
use crate::store::calibration_cache;
use crate::supervisor::backoff::RecorderKey;
use crate::supervisor::run_table::{KnownRun, RunPhase};
use machine::proc;
use std::time::Duration;

/// Interval between log lines on missed runs of one user.
const BETWEEN: Duration = Duration::from_secs(1);
/// Maximum recorders that a run is given to.
const TRIES: usize = 4;
/// Maximum messages of a recorder taken in one go: the others get their turn.
const MESSAGES: usize = 64;
/// Maximum reports waiting to be taken.
const REPORTS: usize = 1024;
/// Maximum characters of a recorder's text.
const TEXT: usize = 600;
/// Delay before the successor of a recorder that was killed because of one run.
const CURED: Duration = Duration::from_secs(1);
/// Maximum known recorders whose exit status is outstanding.
const DEPARTED: usize = 256;

impl Supervisor {
    /// Takes the recorders' messages.
    pub fn hear(&mut self) {
        // Backwards, because a recorder that is gone is removed.
        for i in (0..self.workers.len()).rev() {
            for _ in 0..MESSAGES {
                match self.workers[i].recorder.hear() {
                    Ok(Some(said)) if !self.workers[i].killed => self.heard(i, said),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                        self.condemn(i, "it sent an invalid message");
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

    fn heard(&mut self, i: usize, said: WorkerEvent) {
        let worker = &mut self.workers[i];
        let (pid, uid, rule) = (worker.recorder.pid, worker.uid, worker.rule.name.clone());
        let recorder = pid;
        match said {
            WorkerEvent::Started(run) => self.command_started(pid, *run),
            WorkerEvent::Exited(code) => self.command_exited(pid, code),
            WorkerEvent::Runs(runs) => runs.into_iter().for_each(|run| self.stand(i, run)),
            WorkerEvent::Figures(run, figures) => {
                let its = |k: &&mut KnownRun| k.run.pid == run && k.is_with(recorder);
                if let Some(known) = self.table.all.iter_mut().find(its) {
                    known.run.figures = Some(Box::new(figures.plausible()));
                }
            }
            WorkerEvent::Observed(seen) => {
                if seen.tally.is_plausible() {
                    self.totals.models.add(&rule, *seen, uid.unwrap_or(0));
                }
            }
            // Accepted once, before it has seen any engine: others rely on it.
            WorkerEvent::Calibration(calibration) => {
                if std::mem::take(&mut worker.learns) {
                    let kind = calibration_cache::kind(&worker.rule.record, self.inside);
                    self.calibration_cache.learn(kind.clone(), calibration.clone());
                    self.pass_on(&kind, &calibration);
                    let cost = match calibration.hit_ns {
                        0 => "the cost of a probe hit could not be measured".to_owned(),
                        ns => format!("the cheapest probe hit costs {ns} ns"),
                    };
                    self.say(uid, &format!("rule {rule}: ready to record; {cost}"));
                }
            }
            WorkerEvent::Attached => {
                if !std::mem::replace(&mut worker.closed, true) {
                    let text = format!(
                        "rule {rule}: its recorder ({pid}) is attached and has dropped the capabilities \
                         that this needed"
                    );
                    self.say(uid, &text);
                }
            }
            WorkerEvent::Declined(run, all) => self.declined(i, run, all),
            WorkerEvent::Engine(pid, build_id) => {
                let hex = build_id.len() <= 128 && build_id.bytes().all(|b| b.is_ascii_hexdigit());
                if hex && self.process_of(recorder, pid).is_some() && self.reported.len() < REPORTS {
                    self.reported.push(Reported::Engine(pid, build_id));
                }
            }
            WorkerEvent::Computes(change) => {
                if self.reported.len() < REPORTS
                    && let Some(run) = self.process_of(pid, change.pid)
                {
                    self.reported.push(Reported::Computes(run, change));
                }
            }
            WorkerEvent::Triggered(fired) => self.triggered(pid, rule, uid, fired),
            WorkerEvent::Message(text) => self.say(uid, &format!("rule {rule}: {}", plain(&text, TEXT))),
            WorkerEvent::File(name) => {
                if is_file_name(&name) && self.reported.len() < REPORTS {
                    self.reported.push(Reported::File { rule, name });
                }
            }
            WorkerEvent::Dumped(done) => {
                if std::mem::take(&mut worker.dump) {
                    let done = match done {
                        Ok(name) if is_file_name(&name) => Ok(name),
                        Ok(_) => Err(DumpError::NoName),
                        Err(why) => Err(why.map_text(|text| plain(text, TEXT))),
                    };
                    self.dumped.push((rule, done));
                }
            }
            WorkerEvent::Ends { why, full } => {
                worker.gone = true;
                if let Some(why) = why {
                    let (why, now) = (plain(&why, TEXT), self.now());
                    self.say(uid, &format!("rule {rule}: recording ended: {why}"));
                    self.later.by((rule, uid), if full { AGAIN_SOON } else { AGAIN_LATE }, &why, now);
                }
            }
        }
    }

    /// The run of a process, with its rule, if this recorder records it: a recorder says nothing about others. A child must
    /// belong to the run's user.
    fn process_of(&self, recorder: i32, pid: u32) -> Option<(RunId, String)> {
        let of = |k: &&KnownRun| {
            let child = || {
                k.run.processes.contains(&pid)
                    && (k.met.uid == 0 || proc::users(pid).is_some_and(|users| users.effective == k.met.uid))
            };
            k.is_with(recorder) && (k.run.pid == pid || child())
        };
        let known = self.table.all.iter().find(of)?;
        let KnownRun { run, met, .. } = known;
        Some((RunId { pid: run.pid, start: run.start, uid: met.uid, recorder }, run.rule.clone()))
    }

    fn triggered(&mut self, recorder: i32, rule: String, uid: Option<u32>, fired: Fired) {
        let now = self.now();
        if self.reported.len() >= REPORTS {
            return;
        }
        if !self.fired.is_due(&rule, uid, now) {
            return self.say(uid, &format!("rule {rule}: a trigger fired again within a minute: ignored"));
        }
        let run = fired.run.or(fired.pid).and_then(|of| self.process_of(recorder, of)).map(|(run, _)| run);
        let fired = Fired { text: plain(&fired.text, TEXT), ..fired };
        self.reported.push(Reported::Triggered { rule, uid, run, fired });
    }

    fn stand(&mut self, i: usize, said: Run) {
        let worker = &mut self.workers[i];
        let recorder = worker.recorder.pid;
        // All runs of a recorder report the same numbers. They only grow, but a damaged recorder may say anything.
        let (seen, lost) = (said.seen.max(worker.events.0), said.lost.max(worker.events.1));
        let before = std::mem::replace(&mut worker.events, (seen, lost));
        self.totals.add_events(&worker.rule.name, seen - before.0, lost - before.1);
        let same =
            |k: &&mut KnownRun| (k.run.pid, k.run.start) == (said.pid, said.start) && k.is_with(recorder);
        let Some(known) = self.table.all.iter_mut().find(same) else { return };
        // Children may outlive their parent.
        known.dead = None;
        known.run.take(said);
        if known.run.ended.is_some() {
            known.phase = RunPhase::Done;
            let run = known.run.clone();
            self.end(run);
        }
    }

    /// A recorder attaches to nothing more, but would have to for a run: the run needs another recorder.
    fn declined(&mut self, i: usize, pid: u32, mut processes: Vec<u32>) {
        let worker = &mut self.workers[i];
        let recorder = worker.recorder.pid;
        let with = |k: &&mut KnownRun| k.run.pid == pid && k.is_with(recorder);
        let Some(known) = self.table.all.iter_mut().find(with) else { return };
        worker.closed = true;
        known.declined.push(recorder);
        processes.truncate(PROCESSES);
        known.run.processes = processes;
        known.return_to_wanted();
        if known.declined.len() >= TRIES {
            known.phase = RunPhase::Done;
            let why = format!("{TRIES} recorders could not attach to its engine in addition to theirs");
            let run = Run { ended: Some(why), ..known.run.clone() };
            self.end(run);
        }
    }

    /// Limited in rate.
    pub(super) fn tell_of_missed(&mut self, run: &Run) {
        let now = self.now();
        if self.seldom.missed.is_due(run.uid, BETWEEN, now) {
            let (pid, n, why) = (run.pid, self.counts.missed, run.ended.as_deref().unwrap_or("it has ended"));
            let text = format!("rule {}: process {pid} was not recorded: {why}; {n} so far", run.rule);
            self.say(Some(run.uid), &text);
        }
    }

    fn key(&self, i: usize) -> RecorderKey {
        (self.workers[i].rule.name.clone(), self.workers[i].uid)
    }

    /// A recorder is gone. Its runs continue with the next one.
    pub(super) fn lost(&mut self, i: usize) {
        let (now, key) = (self.now(), self.key(i));
        let worker = &mut self.workers[i];
        let (pid, at) = (worker.recorder.pid, worker.recorder.signs().at);
        if !std::mem::replace(&mut worker.gone, true) {
            let text =
                format!("rule {}: its recorder ({pid}) has died; what it had written is intact", key.0);
            self.say(key.1, &text);
            self.suspect(pid, at);
            self.later.longer(key, AGAIN_SOON, "the previous recorder died", now);
        }
        self.hand_over(i);
        let worker = self.workers.remove(i);
        if !worker.recorder.waited() {
            self.departed.push_back((pid, worker.uid, worker.killed));
            self.departed.drain(..self.departed.len().saturating_sub(DEPARTED));
        }
    }

    /// A recorder died while examining or attaching to this process. The second time, the process is considered the
    /// cause.
    fn suspect(&mut self, recorder: i32, at: u32) {
        let now = self.now();
        let of = |k: &KnownRun| k.run.pid == at || k.run.processes.contains(&at);
        let Some(k) = self.table.all.iter_mut().find(|k| at != 0 && k.is_with(recorder) && of(k)) else {
            return;
        };
        let why = "recorders died while examining it";
        if self.quarantine.died(k.met.uid, k.met.base, why, now) {
            k.phase = RunPhase::Done;
            let run =
                Run { ended: Some(format!("its engine's file is quarantined: {why}")), ..k.run.clone() };
            self.end(run);
        }
    }

    /// Kills a recorder. The run that caused the trouble ends for us, and its engine's file is quarantined; the other
    /// runs continue with the next recorder.
    pub(super) fn condemn(&mut self, i: usize, why: &str) {
        let (now, key) = (self.now(), self.key(i));
        let worker = &mut self.workers[i];
        let calibrated = !std::mem::take(&mut worker.learns);
        (worker.gone, worker.killed) = (true, true);
        worker.recorder.kill();
        let (pid, at) = (worker.recorder.pid, worker.recorder.signs().at);
        let text = format!(
            "rule {}: its recorder ({pid}) is killed: {why}; what it had written is complete up to its \
             last block",
            key.0
        );
        self.say(key.1, &text);
        // While it calibrates it has looked at no engine.
        let blamed = if calibrated { self.blamed(pid, at) } else { Vec::new() };
        let first = if blamed.is_empty() { AGAIN_SOON } else { CURED };
        for i in blamed {
            let known = &mut self.table.all[i];
            known.phase = RunPhase::Done;
            let run = Run { ended: Some(format!("its recorder was killed: {why}")), ..known.run.clone() };
            self.quarantine.add(known.met.uid, known.met.base, why, now);
            self.end(run);
        }
        self.later.longer(key, first, why, now);
        self.hand_over(i);
    }

    /// The runs that may have caused a recorder's trouble: the one that it reports to be working on, else all that
    /// it had not attached to, else the one that it was given last.
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

    /// A recorder's runs go to another one.
    fn hand_over(&mut self, i: usize) {
        let worker = &mut self.workers[i];
        if std::mem::take(&mut worker.dump) {
            self.dumped.push((worker.rule.name.clone(), Err(DumpError::Ended)));
        }
        let pid = worker.recorder.pid;
        if self.command.is_some() {
            return self.command_lost(pid);
        }
        self.table.all.iter_mut().filter(|k| k.is_with(pid)).for_each(KnownRun::return_to_wanted);
    }

    /// Reaps ended children; `others` handles those that are not recorders.
    pub fn reap(&mut self, others: &mut dyn FnMut(i32) -> bool) {
        while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::NOHANG) {
            let pid = pid.as_raw_pid();
            if self.command_reaped(pid, status) || others(pid) {
                continue;
            }
            // What the command has left behind may have any end.
            let Some((uid, killed)) = self.is_waited_for(pid) else { continue };
            match (status.terminating_signal(), status.exit_status()) {
                (Some(signal), _) if !killed => {
                    self.say(uid, &format!("recorder {pid} was ended by signal {signal}"));
                }
                (None, Some(code)) if code != 0 => {
                    self.say(uid, &format!("recorder {pid} ended with code {code}"));
                }
                _ => {}
            }
        }
    }

    /// Its pid may be reused from now on. Returns the recorder's user, and whether it was killed here; None: it is no
    /// recorder.
    fn is_waited_for(&mut self, pid: i32) -> Option<(Option<u32>, bool)> {
        if let Some(worker) = self.workers.iter_mut().find(|h| h.recorder.pid == pid) {
            worker.recorder.set_waited();
            return Some((worker.uid, worker.killed));
        }
        let i = self.departed.iter().position(|d| d.0 == pid);
        i.and_then(|i| self.departed.remove(i)).map(|d| (d.1, d.2))
    }
}
