//! Which processes a recording probes: the requested ones, their children, and those that begin to run what is
//! recorded; and how they leave.

use std::time::{Duration, Instant};

use super::Session;
use super::output::notice;
use crate::capture::backend::CaptureBackend;
use crate::capture::error::RecordError;
use crate::capture::inside::is_recorded_inside;
use crate::recorder::fork_race;
use crate::recorder::recording::SessionObserver;
use machine::{maps, target};
use pfi::WriteError;
use pfi::record::{self, Availability, Feature};

impl Session {
    /// Handles news about processes: those that use an engine, begin or end.
    pub(super) fn meet_processes(&mut self, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        loop {
            let Some((pid, engine)) = self.drain.borrow_mut().met.pop_front() else { break };
            self.write_modules(engine, Some(pid))?;
            if let Some(parent) = self.uncertain.remove(&pid) {
                self.tell_early(parent, pid, watch)?;
            }
            if self.described.insert(pid) {
                let (mut exe, mut cmdline) = target::describe(pid);
                // A process that has already ended was still our own command.
                if let Some((_, ours)) = self.launched.as_ref().filter(|(launched, _)| *launched == pid) {
                    let known = |text: &mut String, ours: &String| {
                        if text.is_empty() {
                            text.clone_from(ours);
                        }
                    };
                    known(&mut exe, &ours.0);
                    known(&mut cmdline, &ours.1);
                }
                let cmdline = if self.options.cmdline { &*cmdline } else { "" };
                let r = record::Process { pid, engine: engine.into(), exe: &exe, cmdline };
                self.drain.borrow_mut().enc.process(&r)?;
                self.begin_state(pid)?;
            }
        }
        loop {
            let Some((parent, child)) = self.drain.borrow_mut().born.pop_front() else { break };
            // Threads are reported as well; only processes have their own entry in /proc's listing of tasks.
            if !target::is_process(child) {
                self.doubtful.push((child, Instant::now()));
            } else if self.drain.borrow().process_tree.run_of(child).is_some() {
                self.forget_namesake(child);
                self.pids.entry(child).or_insert(0);
                self.enter_child(parent, child, watch)?;
            }
        }
        loop {
            let Some(pid) = self.drain.borrow_mut().gone.pop_front() else { break };
            self.forget(pid);
        }
        Ok(())
    }

    /// An earlier process with the same pid may have ended unnoticed: its probes are not this one's.
    pub(super) fn forget_namesake(&mut self, pid: u32) {
        if !self.pids.contains_key(&pid) {
            self.engines.iter_mut().for_each(|a| a.exit(pid));
        }
    }

    /// A followed process has the engine at this position: it is probed and recorded from now on.
    pub(super) fn enter(&mut self, pid: u32, place: usize, watch: &mut dyn SessionObserver) {
        let Some(engine) = self.engines.get_mut(place).filter(|a| !a.is_in(pid)) else { return };
        if !matches!(self.backend, CaptureBackend::Inside(_)) && is_recorded_inside(pid) {
            if self.recorded_inside.insert(pid) {
                watch.tell(&RecordError::RecordedInside(pid).to_string());
            }
            return;
        }
        for why in engine.enter(pid) {
            watch.tell(&format!("process {pid}: probe not attached: {why}"));
        }
        if let Some(shown) = self.drain.borrow_mut().shown.get_mut(place) {
            engine.tell(shown);
        }
        let probed = engine.probed_engine(false);
        self.source.admit(pid, place as u16);
        // What it computes after this is recorded.
        watch.engine(pid, &probed);
        self.keep_maps(pid);
    }

    /// Positions of the engines whose base a process has mapped. By inode: on some file systems the maps and stat
    /// give different devices.
    pub(super) fn engines_of(&self, pid: u32) -> Vec<usize> {
        let maps = maps::read(pid).unwrap_or_default();
        let mapped = |inode| maps.iter().any(|m| m.executable && m.inode == inode);
        let has = |&place: &usize| self.engines[place].base().is_some_and(|(_, inode)| mapped(inode));
        (0..self.engines.len()).filter(has).collect()
    }

    /// A child has the engines of its parent.
    pub(super) fn enter_child(
        &mut self,
        parent: u32,
        child: u32,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), WriteError> {
        let places: Vec<usize> =
            (0..self.engines.len()).filter(|&place| self.engines[place].is_in(parent)).collect();
        let rests = fork_race::switches_at_rest(child);
        let mut ran = false;
        for &place in &places {
            ran |= fork_race::ran(child, &self.engines[place]);
            self.enter(child, place, watch);
        }
        if ran {
            return self.tell_early(parent, child, watch);
        }
        // What is recorded inside was copied with the parent's memory, and stays.
        let copied = matches!(self.backend, CaptureBackend::Inside(_));
        let rested = || rests.is_some() && rests == fork_race::switches_at_rest(child);
        if !places.is_empty() && !copied && !rested() {
            self.uncertain.insert(child, parent);
        }
        Ok(())
    }

    /// A child may have computed before it was probed.
    fn tell_early(
        &mut self,
        parent: u32,
        child: u32,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), WriteError> {
        self.early += 1;
        let text = format!(
            "process {child}, a child of {parent}, may have computed before it was probed: its first calls may be missing"
        );
        notice(&self.drain, &text, watch)
    }

    /// Writes at a trace's end what is missing of children.
    pub(super) fn write_early(&mut self) -> Result<(), WriteError> {
        if self.early == 0 {
            return Ok(());
        }
        let why = format!(
            "{} may have computed before they were probed: their first calls may be missing",
            self.early
        );
        let r = Feature { name: "children", state: Availability::Partly, why: &why };
        self.drain.borrow_mut().enc.feature(&r)
    }

    /// Remembers that a process may have used its engine before it was probed.
    pub(super) fn came_late(&mut self, pid: u32) {
        if let Some(age) = target::age(pid).filter(|_| !self.engines.is_empty()) {
            self.late.push((pid, age));
        }
    }

    /// Writes at a trace's end which first calls are missing.
    pub(super) fn write_late(&mut self) -> Result<(), WriteError> {
        let longest = self.late.iter().map(|(_, age)| age.as_secs_f64()).fold(0.0, f64::max);
        let who = match &self.late[..] {
            [] => return Ok(()),
            [(pid, _)] => format!("process {pid} had run for {longest:.1} s"),
            many => format!("{} processes had run (the first of them for {longest:.1} s)", many.len()),
        };
        let why = format!("{who} when the recording began: anything computed until then is missing");
        let r = Feature { name: "first calls", state: Availability::Partly, why: &why };
        self.drain.borrow_mut().enc.feature(&r)
    }

    /// Waits for events, or for a process to arrive.
    pub(super) fn wait_for_events(&mut self, most: Duration) {
        if self.halts.is_some() {
            return self.wait_for_halts(most);
        }
        let Some(arrivals) = &mut self.arrivals else { return self.source.poll(most) };
        self.arrived.extend(arrivals.wait(most));
        self.source.poll(Duration::ZERO);
    }

    /// Drops processes that have started another program, and probes those that have arrived.
    pub(super) fn arrive(&mut self, watch: &mut dyn SessionObserver) -> Result<(), RecordError> {
        for pid in self.arrivals.as_mut().map(|a| a.changed()).unwrap_or_default() {
            let runs = self.arrivals.as_ref().is_none_or(|a| a.runs(pid));
            if self.pids.contains_key(&pid) && !runs {
                self.let_go(pid)?;
            }
        }
        for pid in std::mem::take(&mut self.arrived) {
            if self.pids.contains_key(&pid) || pid == std::process::id() {
                continue;
            }
            self.follow(pid);
            // It may map the rest of the engine in a moment: a probe takes effect as soon as its file is mapped.
            let mut ran = false;
            for place in 0..self.engines.len() {
                ran |= fork_race::ran(pid, &self.engines[place]);
                self.enter(pid, place, watch);
            }
            if ran && !self.recorded_inside.contains(&pid) {
                let text = format!(
                    "process {pid} had loaded the engine before it was probed: anything it computed until then is missing"
                );
                notice(&self.drain, &text, watch)?;
            }
        }
        Ok(())
    }
}
