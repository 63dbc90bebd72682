//! Gives the threads of engines other CPUs when they change between prompt and decode, by the rules that say so, and takes
//! care that this is undone.
//!
//! The recorder reports what an engine computes; the service itself sets the CPUs: it outlives its recorders, and its
//! privilege for that is not theirs. See `masks` for the decisions and `keeper` for the end.

mod keeper;
mod masks;
pub mod tuned;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use serde::Serialize;

use self::keeper::{Keeper, ProcessId};
use self::masks::{Decision, Known, REST_NS, WantedCpus, Work, decide};
use crate::place::OpenDir;
use crate::rules::{CpuChoice, Rule};
use agent::recorder::computing::ComputingChange;
use common::cpus::ranges;
use machine::affinity::{self, AllowedCpus};
use machine::{capset, usage};

/// A recorder that has not read its events for this long does not follow its engines, ns: it reads them twenty times a
/// second, except while it adds or removes probes.
const BLIND_NS: u64 = 300_000_000;
/// Interval of looks at recorders while an engine has CPUs that would be too few for its other work, ns.
const LOOK_NS: u64 = 100_000_000;
/// How long a process whose recorder did not follow it keeps all its CPUs while it computes the same, ns: they would come
/// and go under load.
const CALM_NS: u64 = 10_000_000_000;
/// Maximum processes with CPUs of a rule.
const PROCESSES: usize = 64;
/// Maximum number of changes per process that get a record of their own in its trace.
const TOLD: u32 = 200;
/// RecorderBackoff kept, the newest.
const DELAYS: usize = 64;

/// A process's CPUs, for the status.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct AffinityStatus {
    pub pid: u32,
    pub rule: String,
    /// `set`: it has CPUs of its rule; `free`: it has all that it may have; `refused`: it cannot have those of its rule
    /// now; `off`: its CPUs are not changed any longer.
    pub state: &'static str,
    /// `prefill` or `decode`.
    pub work: &'static str,
    /// Threads that compute; None: not known.
    pub threads: Option<u32>,
    /// The CPUs given to it; None: none.
    pub cpus: Option<String>,
    /// Why it is refused or off.
    pub why: Option<String>,
    pub changes: u64,
    /// Median of the newest 64 changes: time from the first graph of the phase until all threads were set, ns.
    pub delay_ns: Option<u64>,
    /// Median of the same changes: time that setting all threads took, ns.
    pub took_ns: Option<u64>,
}

/// Something that happened to a process's CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct AffinityNews {
    /// The recorder whose trace it is to be written to, and whether it is.
    pub recorder: i32,
    pub note: bool,
    /// It is for the log as well.
    pub log: bool,
    /// CLOCK_MONOTONIC ns.
    pub t: u64,
    pub uid: u32,
    pub text: String,
    pub status: AffinityStatus,
}

/// The run that a process belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunId {
    pub pid: u32,
    pub start: u64,
    pub uid: u32,
    /// The process that records it.
    pub recorder: i32,
}

struct Process {
    id: ProcessId,
    run: RunId,
    rule: String,
    /// The CPUs of its rule, or why they are not known.
    wanted: Result<WantedCpus, String>,
    work: Work,
    /// Threads that compute a prompt, and a token.
    threads: [Option<u32>; 2],
    /// When the current work began, ns.
    since: u64,
    set: Option<Vec<u32>>,
    /// The last change but one, and the last, ns.
    changed: [Option<u64>; 2],
    /// When to decide again, ns.
    due: Option<u64>,
    refused: Option<String>,
    /// Set free since its recorder did not follow it: it stays so until then, or until it computes something else, ns.
    free_until: u64,
    /// Its CPUs are not changed any longer.
    off: Option<String>,
    changes: u64,
    notes: u32,
    /// The kinds of change that the log has.
    logged: [bool; 2],
    delays: VecDeque<(u64, u64)>,
}

/// The processes, and what is needed to set them.
pub struct Affinity {
    place: Rc<OpenDir>,
    machine: String,
    allowed: AllowedCpus,
    keeper: Keeper,
    all: Vec<Process>,
    news: Vec<AffinityNews>,
    /// Results of tune that were found: process, work, threads, CPUs.
    tuned: Vec<(u32, &'static str, u32, String)>,
    /// Build ids of engines, by process.
    engines: VecDeque<(u32, String)>,
}

impl Affinity {
    /// `place` is the service's directory. Also returns what an earlier service had left, and was undone now.
    pub fn new(place: Rc<OpenDir>) -> (Affinity, Vec<String>) {
        let told = |(id, failed): (ProcessId, Option<io::Error>)| match failed {
            None => format!(
                "process {} may run on all its CPUs again: an earlier service had given it fewer",
                id.pid
            ),
            Some(e) => format!("process {} still has the CPUs that an earlier service gave it: {e}", id.pid),
        };
        let swept = keeper::sweep(&place).into_iter().map(told).collect();
        let affinity = Affinity {
            place,
            machine: String::new(),
            allowed: AllowedCpus::default(),
            keeper: Keeper::default(),
            all: Vec::new(),
            news: Vec::new(),
            tuned: Vec::new(),
            engines: VecDeque::new(),
        };
        (affinity, swept)
    }

    /// The service's directory is another one.
    pub fn moved(&mut self, place: Rc<OpenDir>) {
        self.free_all("the service's directory was changed");
        self.place = place;
    }

    /// The engine of a process has this build id.
    pub fn engine(&mut self, pid: u32, build_id: String) {
        self.engines.retain(|(of, _)| *of != pid);
        if self.engines.len() == PROCESSES {
            self.engines.pop_front();
        }
        self.engines.push_back((pid, build_id));
    }

    /// A process of a run computes something else, as its recorder says.
    pub fn computes(&mut self, run: RunId, rule: &Rule, change: ComputingChange) {
        if rule.decode_cpus.is_none() && rule.prefill_cpus.is_none() {
            return;
        }
        let Some(i) = self.known(run, rule, change.pid) else { return };
        let of = &mut self.all[i];
        let work = if change.prompt { Work::Prefill } else { Work::Decode };
        if work != of.work {
            of.free_until = 0;
        }
        of.work = work;
        of.threads[of.work as usize] = Some(change.threads).filter(|n| *n > 0);
        of.since = change.t;
        if change.several && of.off.is_none() {
            let why = "several threads of the process compute graphs at the same time";
            self.off(i, why.to_owned());
            return;
        }
        self.decide(i, usage::now());
    }

    /// Position of a process; one that was not known is added.
    fn known(&mut self, run: RunId, rule: &Rule, pid: u32) -> Option<usize> {
        let start = machine::proc::stat(pid)?.start;
        let id = ProcessId { pid, start };
        if let Some(i) = self.all.iter().position(|of| of.id == id && of.run == run && of.rule == rule.name) {
            return Some(i);
        }
        // Another run or recorder has it now.
        if let Some(i) = self.all.iter().position(|of| of.id == id) {
            self.remove(i, "it is recorded anew");
        }
        if self.all.len() == PROCESSES {
            return None;
        }
        let wanted = self.wanted(rule, pid);
        if wanted.is_ok() {
            // Not only at the first change, which is to be fast; if it fails, it is tried again there.
            drop(self.keeper.hold(&self.place, id));
        }
        self.all.push(Process {
            id,
            run,
            rule: rule.name.clone(),
            wanted,
            work: Work::Decode,
            threads: [None; 2],
            since: 0,
            set: None,
            changed: [None; 2],
            due: None,
            refused: None,
            free_until: 0,
            off: None,
            changes: 0,
            notes: 0,
            logged: [false; 2],
            delays: VecDeque::new(),
        });
        Some(self.all.len() - 1)
    }

    /// The CPUs of a rule for a process.
    fn wanted(&mut self, rule: &Rule, pid: u32) -> Result<WantedCpus, String> {
        let auto = [&rule.decode_cpus, &rule.prefill_cpus].into_iter().any(|c| *c == Some(CpuChoice::Auto));
        let tuned = if auto { self.tuned(pid)? } else { WantedCpus::default() };
        let of = |choice: &Option<CpuChoice>, tuned| match choice {
            None => None,
            Some(CpuChoice::List(cpus)) => Some(cpus.clone()),
            Some(CpuChoice::Auto) => tuned,
        };
        Ok(WantedCpus {
            prefill: of(&rule.prefill_cpus, tuned.prefill),
            decode: of(&rule.decode_cpus, tuned.decode),
        })
    }

    fn tuned(&mut self, pid: u32) -> Result<WantedCpus, String> {
        if self.machine.is_empty() {
            self.machine = tuned::machine_name();
        }
        let engine = self.engines.iter().find(|(of, _)| *of == pid).map_or("unknown", |(_, id)| id);
        let model = tuned::model_of(pid).unwrap_or_else(|| "unknown".to_owned());
        let directory: PathBuf = self.place.here();
        let found = tuned::find(&directory, &self.machine, engine, &model);
        // The path by which it was read says nothing to anybody else.
        let here = directory.display().to_string();
        if let Ok(found) = &found {
            let all = [(Work::Prefill, &found.prefill), (Work::Decode, &found.decode)];
            let all = all.into_iter().filter_map(|(work, of)| of.as_ref().map(|of| (work, of)));
            self.tuned.extend(all.map(|(work, of)| (pid, work.name(), of.threads, of.cpus.clone())));
        }
        found
            .and_then(|result| result.wanted())
            .map_err(|why| why.replace(&here, &self.place.path().display().to_string()))
    }

    /// Does what is due. `follows`: the time up to which a recorder has reported everything, ns.
    pub fn turn(&mut self, now: u64, follows: &dyn Fn(i32) -> Option<u64>) {
        for i in 0..self.all.len() {
            let of = &self.all[i];
            let blind = follows(of.run.recorder).is_none_or(|t| now.saturating_sub(t) > BLIND_NS);
            if blind && of.may_crowd() {
                self.free(i, "its recorder does not follow it at the moment");
                let until = now.saturating_add(CALM_NS);
                (self.all[i].free_until, self.all[i].due) = (until, Some(until));
            } else if self.all[i].due.is_some_and(|due| due <= now) {
                self.all[i].due = None;
                match blind {
                    true => self.all[i].due = Some(now + LOOK_NS),
                    false => self.decide(i, now),
                }
            }
        }
    }

    /// When something is due next, ns.
    pub fn next(&self, now: u64) -> Option<u64> {
        let look = self.all.iter().any(Process::may_crowd).then_some(now + LOOK_NS);
        self.all.iter().filter_map(|of| of.due).chain(look).min()
    }

    /// Sets free the processes of runs that are not recorded (any longer) by the recorder that reported on them, and
    /// forgets those that have ended; call about once a second, and when runs have changed.
    pub fn keep(&mut self, going: &dyn Fn(RunId) -> bool) {
        for i in (0..self.all.len()).rev() {
            let (id, run) = (self.all[i].id, self.all[i].run);
            if !going(run) || !id.runs() {
                self.remove(i, "it is not recorded any longer");
            }
        }
    }

    /// Looks whether the CPUs that processes may have are still those for which it was decided; about once a second.
    pub fn look(&mut self, now: u64) {
        for i in 0..self.all.len() {
            if self.all[i].set.is_some() {
                self.decide(i, now);
            }
        }
    }

    /// Sets all free, and forgets them.
    pub fn free_all(&mut self, why: &str) {
        for i in (0..self.all.len()).rev() {
            self.remove(i, why);
        }
    }

    /// The rules have changed: frees the processes of those for which `same` does not hold.
    pub fn change(&mut self, same: &dyn Fn(&str) -> bool) {
        for i in (0..self.all.len()).rev() {
            if !same(&self.all[i].rule) {
                self.remove(i, "its rule was changed");
            }
        }
    }

    /// What has happened since the last call.
    pub fn news(&mut self) -> Vec<AffinityNews> {
        std::mem::take(&mut self.news)
    }

    /// Results of tune that were found since the last call: process, work, threads, CPUs.
    pub fn recommended(&mut self) -> Vec<(u32, &'static str, u32, String)> {
        std::mem::take(&mut self.tuned)
    }

    pub fn status(&self) -> Vec<AffinityStatus> {
        self.all.iter().map(Process::status).collect()
    }

    fn decide(&mut self, i: usize, now: u64) {
        let of = &self.all[i];
        if of.off.is_some() || now < of.free_until {
            return;
        }
        let wanted = match &of.wanted {
            Ok(wanted) => wanted,
            Err(why) => {
                let why = why.clone();
                return self.off(i, why);
            }
        };
        let others: Vec<(Vec<u32>, u32)> = self
            .all
            .iter()
            .filter(|other| other.id != of.id)
            .filter_map(|other| Some((other.set.clone()?, other.most_threads())))
            .collect();
        let allowed = self.allowed.of_process(of.id.pid);
        let known = Known {
            wanted,
            work: of.work,
            threads: of.threads[of.work as usize],
            allowed: allowed.as_deref(),
            set: of.set.as_deref(),
            changed: of.changed[0],
            others: &others,
        };
        match decide(&known, now) {
            Decision::Stay => {
                let of = &mut self.all[i];
                (of.due, of.refused) = (None, None);
            }
            Decision::Later(due) => self.all[i].due = Some(due),
            Decision::Set(to) => self.set(i, to, allowed.as_deref()),
            Decision::Refuse(why) => {
                self.free(i, &why);
                if self.all[i].refused.as_ref() != Some(&why) {
                    self.all[i].refused = Some(why.clone());
                    self.tell(i, format!("not set: {why}"), true);
                }
            }
        }
    }

    fn set(&mut self, i: usize, to: Option<Vec<u32>>, allowed: Option<&[u32]>) {
        let of = &self.all[i];
        let Some(expected) = of.set.as_deref().or(allowed) else { return };
        let (id, begin) = (of.id, usage::now());
        if let Some((tid, has)) = foreign(id.pid, expected) {
            let (has, expected) = (ranges(has.into_iter()), ranges(expected.iter().copied()));
            let why = match of.set.is_some() {
                true => format!(
                    "somebody else has changed the CPUs of its thread {tid}: {has} instead of {expected}"
                ),
                false => format!(
                    "its thread {tid} has CPUs of its own, {has} of {expected}: they are left as they are"
                ),
            };
            return self.off(i, why);
        }
        if to.is_some()
            && let Err(e) = self.keeper.hold(&self.place, id)
        {
            return self.off(i, format!("nothing would undo it if the service were killed: {e}"));
        }
        let done = {
            let _nice = capset::nice();
            affinity::set_process(id.pid, to.as_deref())
        };
        match done {
            Ok(0) => {}
            Ok(threads) => self.was_set(i, to, threads, begin),
            Err(e) => self.off(i, refused(&e)),
        }
    }

    fn was_set(&mut self, i: usize, to: Option<Vec<u32>>, threads: usize, begin: u64) {
        let now = usage::now();
        let of = &mut self.all[i];
        (of.due, of.changed, of.refused) = (None, [of.changed[1], Some(now)], None);
        of.changes += 1;
        let (delay, took) = (now.saturating_sub(of.since), now.saturating_sub(begin));
        // A change that was put off says nothing about how fast one is.
        if begin.saturating_sub(of.since) < REST_NS / 4 {
            of.delays.push_back((delay, took));
            if of.delays.len() > DELAYS {
                of.delays.pop_front();
            }
        }
        let work = of.work.name();
        let computing =
            of.threads[of.work as usize].map_or(String::new(), |n| format!(", {n} of them compute"));
        let cpus = to
            .as_ref()
            .map_or_else(|| "all its CPUs".to_owned(), |to| format!("CPUs {}", ranges(to.iter().copied())));
        let ms = |ns: u64| ns as f64 / 1e6;
        let text = format!(
            "{cpus} for {work} ({threads} threads{computing}), {:.3} ms after its first graph began; setting them took {:.3} ms",
            ms(delay),
            ms(took)
        );
        of.set = to;
        let log = !std::mem::replace(&mut of.logged[of.work as usize], true);
        self.tell(i, text, log);
    }

    /// Sets a process free, and forgets it.
    fn remove(&mut self, i: usize, why: &str) {
        self.free(i, why);
        let gone = self.all.remove(i);
        // One that could not be set free is left to the next service.
        if gone.set.is_none() {
            self.keeper.let_go(&self.place, gone.id);
        }
    }

    /// Lets a process have all its CPUs again, if it was given some.
    fn free(&mut self, i: usize, why: &str) {
        let of = &mut self.all[i];
        let Some(set) = of.set.take() else { return };
        (of.changed, of.due) = ([of.changed[1], Some(usage::now())], None);
        of.changes += 1;
        let id = of.id;
        let mut failed = None;
        if id.runs() {
            let _nice = capset::nice();
            // What somebody else has set since stays.
            for (tid, has) in affinity::of_process(id.pid) {
                if common::cpus::within(&has, &set)
                    && let Err(e) = affinity::set_thread(tid, None)
                    && e.raw_os_error() != Some(libc::ESRCH)
                {
                    failed = Some(e);
                }
            }
        }
        match failed {
            None => self.tell(i, format!("all its CPUs again: {why}"), true),
            Some(e) => {
                // Nothing is tried over and over: that is left to the end.
                let of = &mut self.all[i];
                (of.set, of.off) = (Some(set), Some(format!("cannot give it all its CPUs again: {e}")));
                self.tell(i, format!("cannot give it all its CPUs again: {e}"), true);
            }
        }
    }

    /// A process's CPUs are not changed any longer.
    fn off(&mut self, i: usize, why: String) {
        self.free(i, &why);
        let of = &mut self.all[i];
        if of.set.is_none() {
            // From here on its CPUs are somebody else's business.
            self.keeper.let_go(&self.place, of.id);
        }
        if of.off.as_ref() != Some(&why) {
            of.off = Some(why.clone());
            self.tell(i, format!("its CPUs are not changed: {why}"), true);
        }
    }

    fn tell(&mut self, i: usize, what: String, log: bool) {
        let of = &mut self.all[i];
        of.notes += 1;
        let text = match of.notes {
            TOLD => {
                format!("affinity: process {}: {what}; further changes are not told one by one", of.id.pid)
            }
            _ => format!("affinity: process {}: {what}", of.id.pid),
        };
        let (note, status) = (of.notes <= TOLD, of.status());
        let (recorder, uid) = (of.run.recorder, of.run.uid);
        self.news.push(AffinityNews { recorder, note, log, t: usage::now(), uid, text, status });
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        self.free_all("the service ends");
    }
}

impl Process {
    /// Its CPUs may be fewer than the threads of what it computes next.
    fn may_crowd(&self) -> bool {
        self.set
            .as_ref()
            .is_some_and(|set| self.threads.iter().any(|n| n.is_none_or(|n| (set.len() as u64) < n.into())))
    }

    /// Threads of whichever work has more; of work that was not seen yet none.
    fn most_threads(&self) -> u32 {
        self.threads.into_iter().flatten().max().unwrap_or(0)
    }

    fn status(&self) -> AffinityStatus {
        let state = match (&self.off, &self.refused, &self.set) {
            (Some(_), ..) => "off",
            (_, Some(_), _) => "refused",
            (.., Some(_)) => "set",
            _ => "free",
        };
        let median = |of: fn(&(u64, u64)) -> u64| {
            let mut all: Vec<u64> = self.delays.iter().map(of).collect();
            common::order::by(&mut all, |a, b| a.cmp(b));
            all.get(all.len() / 2).copied()
        };
        AffinityStatus {
            pid: self.id.pid,
            rule: self.rule.clone(),
            state,
            work: self.work.name(),
            threads: self.threads[self.work as usize],
            cpus: self.set.as_ref().map(|set| ranges(set.iter().copied())),
            why: self.off.clone().or_else(|| self.refused.clone()),
            changes: self.changes,
            delay_ns: median(|d| d.0),
            took_ns: median(|d| d.1),
        }
    }
}

/// The first thread of a process with other CPUs than these, and its CPUs.
fn foreign(pid: u32, expected: &[u32]) -> Option<(u32, Vec<u32>)> {
    affinity::of_process(pid).into_iter().find(|(_, has)| has != expected)
}

/// Why threads cannot be given CPUs.
fn refused(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::EPERM) => {
            "the service may not set the CPUs of other users' processes: it needs CAP_SYS_NICE \
             (docs/RUNS.md, Affinity)"
                .to_owned()
        }
        _ => format!("its CPUs cannot be set: {e}"),
    }
}

#[cfg(test)]
mod tests;
