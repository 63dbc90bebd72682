//! Into which processes a recording's probes go: those that were asked for, their children, those that begin to run what is
//! recorded; and how they leave. Uses what the session uses, and `early`.

use std::time::{Duration, Instant};

use super::Session;
use super::writing::notice;
use crate::agent::recording::{RecordError, Watch};
use crate::agent::source::Guard;
use crate::agent::{early, maps, pulse, target};
use crate::trace::WriteError;
use crate::trace::record::{self, Availability, Feature};

impl Session {
    /// Takes what was told of processes: who uses an engine, is born, is gone.
    pub(super) fn meet_processes(&mut self, watch: &mut dyn Watch) -> Result<(), WriteError> {
        loop {
            let Some((pid, engine)) = self.drain.borrow_mut().met.pop_front() else { break };
            self.write_modules(engine, Some(pid))?;
            if self.described.insert(pid) {
                let (mut exe, mut cmdline) = target::describe(pid);
                // One that is over by now still was our own command.
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
            }
        }
        loop {
            let Some((parent, child)) = self.drain.borrow_mut().born.pop_front() else { break };
            // Threads are announced as well; only processes have an entry of their own in /proc's listing of tasks.
            if !target::is_process(child) {
                self.doubtful.push((child, Instant::now()));
            } else if self.drain.borrow().kin.run_of(child).is_some() {
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

    /// An earlier process of a number that comes again may have ended unseen: its probes are not this one's.
    pub(super) fn forget_namesake(&mut self, pid: u32) {
        if !self.pids.contains_key(&pid) {
            self.engines.iter_mut().for_each(|a| a.exit(pid));
        }
    }

    /// A process that is followed has the engine at this place: it is probed and recorded from now on.
    pub(super) fn enter(&mut self, pid: u32, place: usize, watch: &mut dyn Watch) {
        let Some(engine) = self.engines.get_mut(place).filter(|a| !a.is_in(pid)) else { return };
        for why in engine.enter(pid) {
            watch.tell(&format!("process {pid}: probe not attached: {why}"));
        }
        self.source.admit(pid, place as u16);
    }

    /// Places of the engines whose base a process has mapped. By inode: lists of mappings have another device than stat on
    /// some file systems.
    pub(super) fn engines_of(&self, pid: u32) -> Vec<usize> {
        let maps = maps::read(pid).unwrap_or_default();
        let mapped = |inode| maps.iter().any(|m| m.executable && m.inode == inode);
        let has = |&place: &usize| self.engines[place].base().is_some_and(|(_, inode)| mapped(inode));
        (0..self.engines.len()).filter(has).collect()
    }

    /// A child has what its parent has.
    pub(super) fn enter_child(
        &mut self,
        parent: u32,
        child: u32,
        watch: &mut dyn Watch,
    ) -> Result<(), WriteError> {
        let places: Vec<usize> =
            (0..self.engines.len()).filter(|&place| self.engines[place].is_in(parent)).collect();
        let mut ran = false;
        for &place in &places {
            ran |= early::ran(child, &self.engines[place]);
            self.enter(child, place, watch);
        }
        if !ran {
            return Ok(());
        }
        self.early += 1;
        let text = format!(
            "process {child}, a child of {parent}, ran before it could be probed: what it computed first is missing"
        );
        notice(&self.drain, &text, watch)
    }

    /// Says at a trace's end what of children is missing.
    pub(super) fn write_early(&mut self) -> Result<(), WriteError> {
        if self.early == 0 {
            return Ok(());
        }
        let why =
            format!("{} ran before they could be probed: what they computed first is missing", self.early);
        let r = Feature { name: "children", state: Availability::Partly, why: &why };
        self.drain.borrow_mut().enc.feature(&r)
    }

    /// Remembers that a process may have used its engine before it was probed.
    pub(super) fn came_late(&mut self, pid: u32) {
        if let Some(age) = target::age(pid).filter(|_| !self.engines.is_empty()) {
            self.late.push((pid, age));
        }
    }

    /// Says at a trace's end which first calls are missing.
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

    /// Waits for events, or for a process that comes.
    pub(super) fn wait_for_events(&mut self, most: Duration) {
        if self.halts.is_some() {
            return self.wait_for_halts(most);
        }
        let Some(arrivals) = &mut self.arrivals else { return self.source.poll(most) };
        self.arrived.extend(arrivals.wait(most));
        self.source.poll(Duration::ZERO);
    }

    /// Lets those go that have begun another program, and probes the processes that have come.
    pub(super) fn arrive(&mut self, watch: &mut dyn Watch) -> Result<(), RecordError> {
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
            // It may map the rest of the engine in a moment: a probe is there as soon as its file is.
            let mut ran = false;
            for place in 0..self.engines.len() {
                ran |= early::ran(pid, &self.engines[place]);
                self.enter(pid, place, watch);
            }
            if ran {
                let text = format!(
                    "process {pid} had loaded the engine before it was probed: anything it computed until then is missing"
                );
                notice(&self.drain, &text, watch)?;
            }
        }
        Ok(())
    }
}

/// Removes probes. The kernel waits for all CPUs at each, so several go at a time: `at_once`.
pub(super) fn detach(links: Vec<Guard>, at_once: usize) {
    let mut parts: Vec<Vec<Guard>> = (0..at_once).map(|_| Vec::new()).collect();
    links.into_iter().enumerate().for_each(|(i, link)| parts[i % at_once].push(link));
    std::thread::scope(|s| {
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            // Where no thread can be had the closure is dropped at once, and the probes with it.
            let drop_all = || part.into_iter().for_each(|link| (drop(link), pulse::beat()).1);
            drop(std::thread::Builder::new().name("detach".into()).spawn_scoped(s, drop_all));
        }
    });
}
