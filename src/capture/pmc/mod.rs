//! Counters of the CPUs (PMU) and of the kernel, recorded per op: found by name, tested, opened on every CPU, kept
//! open as CPUs come and go, and described in the trace.

pub mod event;
pub mod follow;
pub mod list;
pub mod names;
pub mod pmus;
pub mod resolve;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use self::event::{CounterReading, Tried};
use self::follow::SharedCounters;
use self::pmus::{MachinePmus, shown};
use self::resolve::{PmuEvent, WantedCounter, resolve};
use crate::capture::error::CountersError;
use crate::capture::skel::types::ev_counted;
use common::order;
use pfi::record::{Availability, Counter, Feature};
use pfi::{Encoder, WriteError};
use serde::{Deserialize, Serialize};

/// Their name in the trace.
pub const NAME: &str = "counters";
/// Maximum number of counters in use (PMC_MAX in src/bpf/event.h).
pub const MAX: usize =
    size_of::<ev_counted>().saturating_sub(size_of::<crate::capture::event::Op>() + 16) / 8;

/// The counters that `--faults` selects.
pub const FAULTS: [&str; 2] = ["major-faults", "minor-faults"];

/// The requested counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterOptions {
    /// By name, each only once, at most [`MAX`].
    pub names: Vec<String>,
    /// Fail if a counter is not fully available.
    pub strict: bool,
}

/// A requested counter, and what was found for it.
struct RequestedCounter {
    wanted: WantedCounter,
    /// Enabled and running time on CPUs that have gone offline.
    past: CounterReading,
}

impl RequestedCounter {
    /// It can be counted.
    fn usable(&self) -> bool {
        self.wanted.own.is_some() || !self.wanted.places.is_empty()
    }
}

/// The counters of a recording. A counter's id in the trace is its index here, which is also its index in the
/// kernel if it counts.
pub struct Counters {
    rows: Vec<RequestedCounter>,
    /// None: nothing is counted.
    shared: Option<Rc<SharedCounters>>,
    /// The reason, if nothing is counted.
    why: String,
    /// By counter and CPU.
    events: BTreeMap<(usize, u32), OwnedFd>,
    online: Vec<u32>,
    line: u32,
}

impl Counters {
    /// Finds, tests and opens the requested counters; without `bpf`, only reports that this is not possible.
    /// Returns None if no counters are requested.
    ///
    /// # Errors
    /// With `strict`, a counter that is not fully available.
    pub fn open(options: &CounterOptions, bpf: bool) -> Result<Option<Counters>, CountersError> {
        if options.names.is_empty() {
            return Ok(None);
        }
        let machine = MachinePmus::read(Path::new("/sys"));
        let mut rows: Vec<RequestedCounter> = options
            .names
            .iter()
            .map(|n| RequestedCounter { wanted: resolve(&machine, n), past: CounterReading::default() })
            .collect();
        let mut c = Counters {
            shared: None,
            why: "counters need BPF programs; a recording through perf events has none".into(),
            events: BTreeMap::new(),
            online: machine.online.clone(),
            line: machine.line,
            rows: Vec::new(),
        };
        if bpf {
            let counting = rows.iter_mut().flat_map(|r| try_places(&mut r.wanted)).collect();
            share(&mut rows, options.strict, counting)?;
            order::by_key(&mut rows, |r| ((!r.usable()).into(), 0));
            c.rows = rows;
            c.start(machine.possible);
        } else {
            c.rows = rows;
        }
        match c.rows.iter().find(|r| options.strict && c.state(r) != Availability::Whole) {
            Some(r) => Err(CountersError::Lacking { name: r.wanted.name.clone(), why: c.why(r) }),
            None => Ok(Some(c)),
        }
    }

    fn start(&mut self, possible: u32) {
        let own: Vec<_> = self.rows.iter().filter(|r| r.usable()).map(|r| r.wanted.own).collect();
        if own.is_empty() {
            self.why = "none of the requested counters is available".into();
            return;
        }
        crate::capture::perf::event::allow_files();
        match SharedCounters::new(&own, possible) {
            Ok(shared) => self.shared = Some(Rc::new(shared)),
            Err(why) => self.why = format!("counts cannot be attributed to threads: {why}"),
        }
        for cpu in self.online.clone() {
            self.open_on(cpu);
        }
    }

    /// Opens every counter that is available on a CPU.
    fn open_on(&mut self, cpu: u32) {
        let Some(shared) = &self.shared else { return };
        for (i, row) in self.rows.iter_mut().enumerate() {
            let Some(place) = row.wanted.places.iter().find(|p| p.cpus.contains(&cpu)) else { continue };
            let opened = event::on_cpu(&place.event, cpu);
            match opened.and_then(|fd| Ok(shared.set(cpu, i as u32, &fd).map(|()| fd)?)) {
                Ok(fd) => drop(self.events.insert((i, cpu), fd)),
                Err(why) => row.wanted.lacks.push(format!("not on CPU {cpu}: {why}")),
            }
        }
    }

    /// What the recording's objects need for counting.
    pub fn shared(&self) -> Option<Rc<SharedCounters>> {
        self.shared.clone()
    }

    /// Whether events may have to be opened during the recording.
    pub fn follows(&self) -> bool {
        !self.events.is_empty()
    }

    /// Opens counters on CPUs that came online, and drops those of CPUs that went offline. Returns messages about both.
    pub fn tick(&mut self) -> Vec<String> {
        let Ok(list) = std::fs::read_to_string("/sys/devices/system/cpu/online") else { return Vec::new() };
        let now = pmus::cpus(&list);
        if self.shared.is_none() || now == self.online || now.is_empty() {
            return Vec::new();
        }
        let (gone, new): (Vec<u32>, Vec<u32>) = (
            self.online.iter().copied().filter(|c| !now.contains(c)).collect(),
            now.iter().copied().filter(|c| !self.online.contains(c)).collect(),
        );
        self.online = now;
        for cpu in &gone {
            self.leave(*cpu);
        }
        let machine = MachinePmus::read(Path::new("/sys"));
        for row in &mut self.rows {
            // Only places that were tested are kept.
            for found in resolve(&machine, &row.wanted.name).places {
                row.wanted
                    .places
                    .iter_mut()
                    .filter(|p| p.shown == found.shown)
                    .for_each(|p| p.cpus.clone_from(&found.cpus));
            }
        }
        new.iter().for_each(|cpu| self.open_on(*cpu));
        let say =
            |cpus: &[u32], what: &str| (!cpus.is_empty()).then(|| format!("CPU {} {what}", shown(cpus)));
        let gone = say(&gone, "went offline: ops that were running there are not counted");
        let new = say(&new, "came online and is counted from now on");
        gone.into_iter().chain(new).collect()
    }

    fn leave(&mut self, cpu: u32) {
        for (i, row) in self.rows.iter_mut().enumerate() {
            if let Some(fd) = self.events.remove(&(i, cpu)) {
                let r = event::read(&fd).unwrap_or_default();
                row.past.enabled += r.enabled;
                row.past.running += r.running;
            }
            if let Some(shared) = self.shared.as_ref().filter(|s| (i as u32) < s.n) {
                shared.clear(cpu, i as u32);
            }
        }
    }

    /// Sum of a counter's times on all CPUs.
    fn times(&self, i: usize, row: &RequestedCounter) -> CounterReading {
        let events =
            self.events.range((i, 0)..=(i, u32::MAX)).map(|(_, fd)| event::read(fd).unwrap_or_default());
        events.fold(row.past, |a, r| CounterReading {
            count: a.count.wrapping_add(r.count),
            enabled: a.enabled + r.enabled,
            running: a.running + r.running,
        })
    }

    fn state(&self, row: &RequestedCounter) -> Availability {
        match (self.shared.is_some() && row.usable(), row.wanted.lacks.is_empty()) {
            (false, _) => Availability::None,
            (true, false) => Availability::Partly,
            (true, true) => Availability::Whole,
        }
    }

    fn why(&self, row: &RequestedCounter) -> String {
        match row.wanted.lacks.as_slice() {
            [] if self.shared.is_none() => self.why.clone(),
            lacks => lacks.join("; "),
        }
    }

    /// What the user should know.
    pub fn notices(&self) -> Vec<String> {
        let of_rows = self.rows.iter().filter(|r| self.state(r) != Availability::Whole);
        let mut out: Vec<String> = match &self.shared {
            None => vec![format!("no counters: {}", self.why)],
            Some(_) => Vec::new(),
        };
        out.extend(of_rows.filter(|r| !r.wanted.lacks.is_empty()).map(|r| {
            let part = if self.state(r) == Availability::Partly { "fully " } else { "" };
            format!("counter '{}' is not {part}available: {}", r.wanted.name, self.why(r))
        }));
        out
    }

    /// Writes the description of each counter; called again at the end, when the times are known.
    pub fn tell<W: Write>(&self, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        for (i, row) in self.rows.iter().enumerate() {
            let t = self.times(i, row);
            let (unit, scale) = row.wanted.unit.reported(self.line);
            let (mut state, mut why) = (self.state(row), self.why(row));
            if let Some(share) = shared_slot(&t) {
                state = state.max(Availability::Partly);
                let more = if why.is_empty() { "" } else { "; " };
                why += &format!("{more}had a slot of the PMU {share:.1} % of the time: counts are scaled up");
            }
            enc.counter(&Counter {
                id: i as u32,
                name: &row.wanted.name,
                unit,
                scale,
                events: &events(row),
                state,
                why: &why,
                enabled_ns: t.enabled,
                running_ns: t.running,
            })?;
        }
        let (state, why) = match &self.shared {
            None => (Availability::None, self.why.as_str()),
            Some(_) if self.rows.iter().all(|r| self.state(r) == Availability::Whole) => {
                (Availability::Whole, "per-CPU counters, attributed to threads at sched_switch")
            }
            Some(_) => (Availability::Partly, "some counters are not available, or not on all CPUs"),
        };
        enc.feature(&Feature { name: NAME, state, why })
    }
}

/// Share of the time in which a counter had a slot, percent, unless it had one all the time.
fn shared_slot(t: &CounterReading) -> Option<f64> {
    // A counter is scheduled in a few microseconds after it is opened.
    let late = t.enabled.saturating_sub(t.running) > t.enabled / 1000;
    late.then(|| t.running as f64 * 100.0 / t.enabled.max(1) as f64)
}

fn events(row: &RequestedCounter) -> String {
    match row.wanted.own {
        Some(_) => "sched_switch".to_owned(),
        None => {
            let of = |p: &PmuEvent| {
                let mode = match (p.event.user, p.event.kernel) {
                    (true, true) => "",
                    (true, false) => ":u",
                    _ => ":k",
                };
                format!("{}{mode} on {}", p.shown, shown(&p.cpus))
            };
            row.wanted.places.iter().map(of).collect::<Vec<_>>().join(";")
        }
    }
}

/// Drops places where the event does not open, or runs and stays 0. Returns the others with their counts.
fn try_places(w: &mut WantedCounter) -> Vec<(PmuEvent, u64)> {
    let hardware: Vec<PmuEvent> = w.places.iter().filter(|p| p.hardware).cloned().collect();
    let mut counting = Vec::new();
    for (place, tried) in hardware.iter().zip(event::try_each(&hardware)) {
        let why = match tried {
            Tried::Counts(r) => {
                counting.push((place.clone(), r.count));
                continue;
            }
            Tried::Zero(_) => "it runs but stays 0: not supported there".to_owned(),
            Tried::Refused(why) => why.to_string(),
        };
        w.lacks.push(format!("{} (CPUs {}): {why}", place.shown, shown(&place.cpus)));
        w.places.retain(|p| p != place);
    }
    counting
}

/// If a PMU advertises slots that do not count, drops that many of its counters, the last ones first. With
/// `strict`, it is an error if a PMU has fewer slots than counters requested.
fn share(
    rows: &mut [RequestedCounter],
    strict: bool,
    counting: Vec<(PmuEvent, u64)>,
) -> Result<(), CountersError> {
    let mut pmus: Vec<(PmuEvent, u64)> = counting;
    // On each PMU, the event that counts fastest shows best whether a slot counts.
    order::by(&mut pmus, |a, b| (&a.0.pmu, b.1).cmp(&(&b.0.pmu, a.1)));
    pmus.dedup_by(|a, b| a.0.pmu == b.0.pmu);
    for (fastest, _) in pmus {
        let pmu = &fastest.pmu;
        let asked = |r: &RequestedCounter| r.wanted.places.iter().any(|p| p.hardware && p.pmu == *pmu);
        let n = rows.iter().filter(|r| asked(r)).count();
        let Some((slots, live)) = event::slots(&fastest, n) else { continue };
        if live < slots {
            let why = format!(
                "{pmu} advertises slots for {slots} counters at a time, but those beyond {live} stay 0 \
                 (the virtual machine is given no more)"
            );
            for row in rows.iter_mut().filter(|r| asked(r)).skip(live) {
                row.wanted.places.retain(|p| p.pmu != *pmu);
                row.wanted.lacks.push(why.clone());
            }
        } else if strict && slots < n {
            return Err(CountersError::Slots { pmu: pmu.clone(), slots, requested: n });
        }
    }
    Ok(())
}
