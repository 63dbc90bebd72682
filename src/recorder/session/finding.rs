//! Processes that are followed, and the engines in them.

use std::time::Instant;

use super::Session;
use super::output::notice;
use super::setup::roles;
use crate::capture::error::RecordError;
use crate::capture::pmc::Counters;
use crate::capture::source::GpuDetail;
use crate::capture::structure::{MAX_ENGINES, Reading};
use crate::recorder::attached::AttachedEngine;
use crate::recorder::recording::SessionObserver;
use crate::recorder::verify::OpEnd;
use engine::discover::{self, DiscoverError, DiscoveredEngine};
use engine::sequences;
use machine::helper::pulse;
use machine::maps::FileId;
use machine::{hardware, target};
use pfi::record::Detail;

impl Session {
    pub(super) fn follow(&mut self, pid: u32) {
        self.forget_namesake(pid);
        self.came = Instant::now();
        self.pids.entry(pid).or_insert(0);
        self.followed = true;
        self.source.add_target(pid);
    }

    /// Attaches to new engines, and to new modules of known ones, in the process that they were found for.
    pub(super) fn add_all(
        &mut self,
        found: Result<Vec<DiscoveredEngine>, DiscoverError>,
        of: Option<u32>,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), RecordError> {
        let engines = match found {
            Ok(engines) => engines,
            Err(e @ DiscoverError::WrongMachine { .. }) => return Err(e.into()),
            Err(e) if self.is_beyond(&e) => return Err(RecordError::Beyond),
            Err(e) => {
                // That a process has ended says less than what was found in its files before.
                if self.last_missing.is_none() || !matches!(e, DiscoverError::Process { .. }) {
                    self.last_missing = Some(e);
                }
                return Ok(());
            }
        };
        for engine in engines {
            let known = self.engines.iter().position(|a| a.same_base(&engine));
            if self.managed && self.launched.is_none() && self.has_no_room_for(&engine, known) {
                return Err(RecordError::Beyond);
            }
            let place = match known {
                Some(i) => {
                    let roles = roles(self.probed(), &self.options);
                    let from = self.engines[i].engine.modules.len();
                    let added = self.engines[i].extend(engine.modules, &roles);
                    self.reserve(&self.engines[i], from);
                    if let Some(pid) = of.filter(|&pid| added > 0 && self.engines[i].is_in(pid)) {
                        watch.engine(pid, &self.engines[i].probed_engine(true));
                    }
                    i
                }
                None if self.engines.len() == MAX_ENGINES => {
                    watch.tell("more than 15 different engines: the others are not recorded");
                    continue;
                }
                None => {
                    self.add(engine, watch)?;
                    self.engines.len() - 1
                }
            };
            if let Some(shown) = self.drain.borrow_mut().shown.get_mut(place) {
                self.engines[place].tell(shown);
            }
            if let Some(pid) = of {
                self.enter(pid, place, watch);
            }
        }
        let drives = self.engines.iter().flat_map(|a| &a.engine.modules).any(|m| m.roles.drives);
        if drives && self.options.capture.gpu >= GpuDetail::Op {
            self.submissions.start();
        }
        self.write_probes()?;
        Ok(())
    }

    pub(super) fn add(
        &mut self,
        mut engine: DiscoveredEngine,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), RecordError> {
        let id = self.engines.len() as u16;
        if let Some(why) = engine.unread.as_ref().filter(|_| self.detail >= Detail::Op) {
            watch.tell(&format!("ops are not recorded: {why}"));
        }
        self.add_layers(&mut engine, watch);
        let mut reading = Reading::new(id, engine.layout.clone(), &engine.tables);
        let described = self.options.capture.gpu >= GpuDetail::Split;
        reading.devices =
            described && (self.options.op_probe.is_some() || engine.modules.iter().any(|m| m.roles.drives));
        reading.batches = sequences::passes_batches(&engine);
        reading.memory_off = sequences::memory_offset(&engine);
        let prober = self.source.engine(&reading)?;
        self.hear(watch)?;
        self.define(id, &engine)?;
        self.drain.borrow_mut().add_engine(reading);
        let mut attached = AttachedEngine::new(engine, prober, self.options.site, self.options.op_probe);
        if self.options.op_end == OpEnd::Interval {
            attached.ladder.op_end.retain(|r| r.how == engine::ladder::RungMethod::Interval);
        }
        for role in roles(self.probed(), &self.options) {
            attached.attach(role, 0);
        }
        self.reserve(&attached, 0);
        // With nothing to probe yet, a module that is loaded later may bring the functions.
        if attached.attached == 0 && !attached.failures.is_empty() {
            self.drain.borrow_mut().drop_engine();
            return Err(RecordError::Attach(attached.failures.swap_remove(0)));
        }
        attached.failures.iter().for_each(|f| watch.tell(&format!("probe not attached: {f}")));
        self.engines.push(attached);
        Ok(())
    }

    /// Looks for engines and new modules in the followed processes; moves to CPUs that they do not use.
    pub(super) fn scan(&mut self, watch: &mut dyn SessionObserver) -> Result<(), RecordError> {
        if self.roams && !self.engines.is_empty() {
            let busy: Vec<u32> = self.pids.keys().flat_map(|&pid| target::running_on(pid)).collect();
            hardware::avoid(&busy);
        }
        self.reap()?;
        for text in self.counters.iter_mut().flat_map(Counters::tick) {
            notice(&self.drain, &text, watch)?;
        }
        for pid in self.pids.keys().copied().collect::<Vec<_>>() {
            // It may have been dropped together with the previous one.
            if !self.pids.contains_key(&pid) {
                continue;
            }
            let scanned = self.scan_one(pid, watch);
            self.or_refuse(pid, scanned, watch)?;
        }
        Ok(())
    }

    pub(super) fn scan_one(&mut self, pid: u32, watch: &mut dyn SessionObserver) -> Result<(), RecordError> {
        let _at = pulse::at(pid);
        let now = target::maps_mark(pid);
        if now != 0 && self.pids.insert(pid, now) != Some(now) {
            self.source.meet(pid);
            // A file that another engine also has, but whose base is not in this process, is new for this process.
            let here = self.engines_of(pid);
            let engines = &self.engines;
            let known = |id: FileId| here.iter().any(|&place| engines[place].has(id));
            let found = discover::of_pid_again(pid, &known, &mut self.strangers);
            for &place in &here {
                self.enter(pid, place, watch);
            }
            self.add_all(found, Some(pid), watch)?;
            self.keep_maps(pid);
        }
        // Loading a model reads it once; what is read after the first call is read again and again.
        let begun = self.options.capture.experts || !self.managed && self.drain.borrow().totals.calls > 0;
        if begun && self.engines.iter().any(|a| a.is_in(pid)) {
            self.file_reads.look(pid);
        }
        Ok(())
    }
}
