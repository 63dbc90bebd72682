//! A recording that outlasts its targets and its traces: targets come and go, one trace ends and the next begins,
//! the ring is written out.

use std::time::{Duration, Instant};

use super::calibration;
use super::output::Counted;
use super::setup::{header, roles};
use super::{DOUBT, Session};
use crate::capture::error::RecordError;
use crate::capture::pmc;
use crate::capture::skel::types::ev_kind;
use crate::capture::source::{EventStats, GpuDetail};
use crate::recorder::attached::AttachedEngine;
use crate::recorder::drain::Shown;
use crate::recorder::event_stats::{self, OwnUsage, StatsSnapshot};
use crate::recorder::phases;
use crate::recorder::process_tree;
use crate::recorder::recording::{RecordingProgress, SessionCommand, SessionObserver};
use crate::recorder::sequences::BatchSource;
use engine::discover::EngineModule;
use engine::probes::{Role, SAMPLER_FUNCTIONS};
use engine::sequences;
use machine::{hardware, target, usage};
use pfi::Output;
use pfi::record::{Feature, Notice};

/// How many ancestors are searched for the run of a process.
const ABOVE: usize = 64;

/// State of the recording's statistics at the start of a trace.
#[derive(Default)]
pub(super) struct Base {
    pub shown: Vec<Shown>,
    pub snapshot: StatsSnapshot,
}

impl Session {
    /// Carries out orders.
    pub(super) fn obey(
        &mut self,
        now: &RecordingProgress,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), RecordError> {
        if !self.managed {
            return Ok(());
        }
        if self.ring.as_ref().is_some_and(|r| r.borrow().unstamped()) {
            self.stamp();
        }
        self.place_unattributed(watch)?;
        self.tell_requests(now, watch);
        loop {
            let order = watch.order(now, &self.drain.borrow().process_tree);
            self.drain.borrow_mut().process_tree.meters.retain(|m| !m.over);
            let done = match order {
                None => return Ok(()),
                Some(SessionCommand::Follow(pid, run)) => self.take_in(pid, run, watch),
                Some(SessionCommand::Unfollow(run)) => self.release(run),
                Some(SessionCommand::Rotate(out, why)) => self.rotate(out, why, watch),
                Some(SessionCommand::Dump(out)) => self.dump(out, watch),
                Some(SessionCommand::Note(t, text)) => self.note(t, &text),
                Some(SessionCommand::Calibrated(calibration)) => self.calibrated(*calibration, watch),
            };
            match done {
                Err(e @ RecordError::Write(_)) => return Err(e),
                done => watch.done(done),
            }
        }
    }

    fn note(&self, t: u64, text: &str) -> Result<(), RecordError> {
        Ok(self.drain.borrow_mut().enc.notice(&Notice { t: t as i64, text })?)
    }

    /// Finds the runs of processes whose fork was not seen.
    fn place_unattributed(&mut self, watch: &mut dyn SessionObserver) -> Result<(), RecordError> {
        let crowded = self.drain.borrow().process_tree.crowded;
        if crowded && !std::mem::replace(&mut self.crowd_told, true) {
            let most = process_tree::MOST;
            watch.tell(&format!(
                "more than {most} processes decode: all tokens are counted, but further processes have no \
                 rate and cannot fire a trigger"
            ));
        }
        loop {
            let Some(pid) = self.drain.borrow_mut().process_tree.unattributed.pop() else { return Ok(()) };
            let above = std::iter::successors(target::parent(pid), |&p| target::parent(p));
            let run_of = |p| self.drain.borrow().process_tree.run_of(p).filter(|&run| run != 0);
            let run = above.take(ABOVE).find_map(run_of);
            match run {
                Some(run) if target::alive(pid) => {
                    self.drain.borrow_mut().process_tree.adopt(pid, run);
                    self.pids.entry(pid).or_insert(0);
                }
                Some(run) => self.drain.borrow_mut().process_tree.own(pid, run),
                None => {
                    watch.tell(&format!("recording of process {pid} stopped: its parent is unknown"));
                    self.let_go(pid)?;
                    self.drain.borrow_mut().process_tree.meters.retain(|m| m.pid != pid);
                }
            }
        }
    }

    fn take_in(&mut self, pid: u32, run: u32, watch: &mut dyn SessionObserver) -> Result<(), RecordError> {
        match pid == run {
            true => self.drain.borrow_mut().process_tree.begin(pid),
            false => self.drain.borrow_mut().process_tree.adopt(pid, run),
        }
        self.follow(pid);
        // Check after the start: an earlier end went unseen.
        if !target::alive(pid) {
            self.let_go(pid)?;
            return Err(RecordError::Ended(pid));
        }
        // The inode of a file that had no engine may by now belong to another file.
        self.strangers.clear();
        match self.scan_one(pid, watch) {
            Err(e @ RecordError::Beyond) => self.refuse(pid, e, watch),
            Err(e) => self.let_go(pid).and(Err(e)),
            Ok(()) => Ok(()),
        }
    }

    pub(super) fn let_go(&mut self, pid: u32) -> Result<(), RecordError> {
        self.source.drop_target(pid);
        self.take_all()?;
        self.drain.borrow_mut().part(pid, usage::now())?;
        self.forget(pid);
        Ok(())
    }

    /// Drops all processes of a run.
    pub(super) fn release(&mut self, run: u32) -> Result<(), RecordError> {
        loop {
            let all = self.drain.borrow().process_tree.of(run);
            if all.is_empty() {
                return Ok(());
            }
            all.iter().for_each(|&pid| self.source.drop_target(pid));
            // This also shows the children born meanwhile.
            self.take_all()?;
            for pid in all {
                self.drain.borrow_mut().process_tree.requests.stop(Some(pid));
                self.drain.borrow_mut().part(pid, usage::now())?;
                self.forget(pid);
            }
        }
    }

    /// Drops processes that ended without an event, and threads that were taken for processes.
    pub(super) fn reap(&mut self) -> Result<(), RecordError> {
        for &pid in self.pids.keys().filter(|_| self.managed) {
            if !target::alive(pid) && self.doubtful.iter().all(|one| one.0 != pid) {
                self.doubtful.push((pid, Instant::now()));
            }
        }
        let (due, wait) =
            std::mem::take(&mut self.doubtful).into_iter().partition(|one| one.1.elapsed() >= DOUBT);
        self.doubtful = wait;
        for (pid, _) in Vec::<(u32, Instant)>::into_iter(due) {
            if self.pids.contains_key(&pid) && target::alive(pid) {
                continue;
            }
            let met = self.drain.borrow().process_tree.is_met(pid) || self.pids.contains_key(&pid);
            match met {
                true => self.let_go(pid)?,
                // All that is known of it is that it began.
                false => self.drain.borrow_mut().process_tree.leave(pid, 0),
            }
        }
        Ok(())
    }

    /// Forgets a process that has ended or was dropped.
    pub(super) fn forget(&mut self, pid: u32) {
        self.engines.iter_mut().for_each(|a| a.exit(pid));
        self.pids.remove(&pid);
        self.halted.remove(&pid);
        self.described.remove(&pid);
        self.uncertain.remove(&pid);
        // Only a write can fail, and the next one fails again.
        let _ = self.end_state(pid);
        self.drain.borrow_mut().enc.forget_process(pid);
    }

    /// Writes everything at a trace's end except the footer; returns the event statistics.
    pub(super) fn account(&mut self) -> Result<EventStats, RecordError> {
        self.write_features()?;
        self.budget_kept()?;
        let wanted = calibration::top(self.options.level, self.options.capture.structure);
        for engine in 0..self.engines.len() as u16 {
            let a = &self.engines[engine as usize];
            let computes = |m: &&EngineModule| m.roles.cpu && a.written.contains(&(m.dev, m.inode));
            // Nothing was recorded, or the CPU variant was loaded after the first event: list everything that is probed.
            if !a.engine.modules.iter().any(|m| computes(&m)) {
                self.write_modules(engine, None)?;
            }
        }
        self.write_probes()?;
        let device_used = self.drain.borrow().waiting.feature_status(&[]).is_some();
        self.submissions.tell(&mut self.drain.borrow_mut().enc, device_used)?;
        self.file_reads.tell(&mut self.drain.borrow_mut().enc, self.options.capture.experts)?;
        let (event_stats, counted) = (self.source.event_stats(), self.counted());
        let drain = &mut *self.drain.borrow_mut();
        for text in drain.shortages() {
            drain.enc.notice(&Notice { t: usage::now() as i64, text: &text })?;
        }
        if let Some(counters) = &self.counters {
            counters.tell(&mut drain.enc)?;
        }
        if let Some(s) = counted {
            drain.enc.feature(&Feature { name: pmc::NAME, state: s.state, why: &s.why })?;
        }
        let roles = roles(wanted, &self.options);
        event_stats::rungs(drain, &self.engines, &roles, &self.base.shown)?;
        if self.options.capture.experts {
            let known = self.engines.iter().any(|a| a.engine.tables.op("MUL_MAT_ID").is_some());
            drain.experts.feature(
                &mut drain.enc,
                known,
                event_stats.kinds[ev_kind::EV_EXPERTS.0 as usize].lost,
            )?;
        }
        let mut probed: Vec<&str> = self.engines.iter().flat_map(|a| a.probed_symbols(Role::Wait)).collect();
        common::order::by(&mut probed, |a, b| a.cmp(b));
        probed.dedup();
        if let Some((state, why)) = drain.waiting.feature_status(&probed) {
            drain.enc.feature(&Feature { name: "device", state, why: &why })?;
        }
        if self.options.capture.gpu == GpuDetail::Kernel {
            let (state, why) = drain.kernels.feature_status();
            drain.enc.feature(&Feature { name: "device kernels", state, why: &why })?;
        }
        let kinds = &event_stats.kinds;
        let of_them = [ev_kind::EV_UBATCH, ev_kind::EV_MEMORY, ev_kind::EV_TASK];
        let lost = of_them.iter().map(|kind| kinds[kind.0 as usize].lost).sum();
        drain.sequences.feature(&mut drain.enc, &self.batch_source(), lost)?;
        if self.options.phases {
            let mut probed: Vec<&str> =
                self.engines.iter().flat_map(|a| a.probed_symbols(Role::Phase)).collect();
            common::order::by(&mut probed, |a, b| a.cmp(b));
            probed.dedup();
            phases::feature(&mut drain.enc, &probed, event_stats.kinds[ev_kind::EV_PHASE.0 as usize].lost)?;
            probed.retain(|f| SAMPLER_FUNCTIONS.contains(f));
            let lost = event_stats.kinds[ev_kind::EV_SAMPLER.0 as usize].lost;
            drain.samplers.feature(&mut drain.enc, &probed, lost, None)?;
        }
        Ok(event_stats)
    }

    /// Whether the batches of the engines can be read.
    fn batch_source(&self) -> BatchSource {
        let mut named = self.engines.iter().filter(|a| a.rung(Role::Token).is_some());
        let readable =
            |a: &AttachedEngine| a.rung(Role::Ubatch).is_some() || sequences::passes_batches(&a.engine);
        match named.next() {
            Some(a) if !a.prober.takes(Role::Ubatch) => BatchSource::NoReader,
            Some(a) if !readable(a) => BatchSource::NoParts,
            _ => BatchSource::Readable,
        }
    }

    pub(super) fn snapshot(&self, event_stats: EventStats, now: u64) -> StatsSnapshot {
        let stats = self.engines.iter().map(|a| a.prober.run_stats()).chain([self.source.run_stats()]);
        let bpf = stats.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let own = OwnUsage { wall_ns: now.saturating_sub(self.started), cpu_us: usage::cpu_us(), bpf };
        StatsSnapshot::of(event_stats, &self.drain.borrow(), own)
    }

    /// Takes the events that have arrived.
    fn take_all(&mut self) -> Result<(), RecordError> {
        self.source.poll(Duration::ZERO);
        self.drain.borrow_mut().take_error().map_or(Ok(()), |e| Err(e.into()))
    }

    /// Takes the events that have arrived, and writes what belongs at a trace's end.
    fn pause(&mut self, watch: &mut dyn SessionObserver) -> Result<StatsSnapshot, RecordError> {
        self.take_all()?;
        self.name_samplers()?;
        self.meet_processes(watch)?;
        self.submissions.write(&mut self.drain.borrow_mut().enc, false)?;
        self.file_reads.pass(&mut self.drain.borrow_mut(), false)?;
        let event_stats = self.account()?;
        Ok(self.snapshot(event_stats, usage::now()))
    }

    fn rotate(
        &mut self,
        out: Box<dyn Output>,
        why: &'static str,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), RecordError> {
        let snapshot = self.pause(watch)?;
        self.end_states()?;
        let footer = snapshot.closing(&self.base.snapshot, why, false);
        let machine = hardware::read();
        let header = header(&self.options, &self.backend, &machine, self.hit_ns);
        let mut drain = self.drain.borrow_mut();
        self.states.pids().for_each(|pid| drain.enc.forget_states(pid));
        drain.enc.rotate(Counted { out, bytes: 0 }, &footer.of(), &header)?;
        self.base = Base { shown: drain.shown.clone(), snapshot: snapshot.told() };
        drop(drain);
        self.begin_states()?;
        Ok(self.write_level()?)
    }

    /// Gives the ring the current event statistics.
    fn stamp(&mut self) {
        let Some(ring) = &self.ring else { return };
        let event_stats = flat(&self.snapshot(self.source.event_stats(), usage::now()));
        ring.borrow_mut().stamp(&event_stats);
    }

    fn dump(&mut self, mut out: Box<dyn Output>, watch: &mut dyn SessionObserver) -> Result<(), RecordError> {
        let Some(ring) = self.ring.clone() else {
            return Err(RecordError::Dump {
                source: std::io::Error::other("this recording has no ring, it writes to files"),
            });
        };
        let snapshot = self.pause(watch)?;
        if ring.borrow().dropped() > 0 {
            let text = "this is the last part of a longer recording, kept by a ring";
            self.drain.borrow_mut().enc.notice(&Notice { t: usage::now() as i64, text })?;
        }
        let machine = hardware::read();
        let header = header(&self.options, &self.backend, &machine, self.hit_ns);
        let footer = snapshot.closing(&unflat(ring.borrow().base()), "ring written out", false);
        let enc = &mut self.drain.borrow_mut().enc;
        enc.seal_now()?;
        let (first, last) = (enc.loose(&header, None)?, enc.loose(&header, Some(&footer.of()))?);
        ring.borrow_mut().stamp(&flat(&snapshot));
        let written = ring.borrow().write(&mut out, &first, &last);
        written.map_err(|source| RecordError::Dump { source })
    }
}

/// Received and lost events by kind; barriers seen and lost.
fn flat(s: &StatsSnapshot) -> Vec<u64> {
    let barriers = &s.event_stats.barriers;
    let lost = s.event_stats.kinds.iter().map(|k| k.lost);
    s.received.into_iter().chain(lost).chain([barriers.seen, barriers.lost]).collect()
}

fn unflat(event_stats: &[u64]) -> StatsSnapshot {
    let mut s = StatsSnapshot::default();
    let mut numbers = event_stats.iter().copied();
    s.received.iter_mut().for_each(|n| *n = numbers.next().unwrap_or(0));
    s.event_stats.kinds.iter_mut().for_each(|k| k.lost = numbers.next().unwrap_or(0));
    s.event_stats.barriers.seen = numbers.next().unwrap_or(0);
    s.event_stats.barriers.lost = numbers.next().unwrap_or(0);
    s
}
