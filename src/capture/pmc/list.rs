//! What this machine can count: every name that its PMUs list or that we add, tested.

use std::path::Path;

use serde::Serialize;

use super::event::{self, Tried};
use super::machine::{Machine, shown};
use super::names::{self, Code, Unit};
use super::resolve::{Wanted, offered, resolve};

/// Result of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Counts,
    /// It runs and stays 0.
    Unsupported,
    Refused,
}

/// A counter of one kind of core.
#[derive(Debug, Clone, Serialize)]
pub struct Offer {
    pub name: String,
    pub group: &'static str,
    /// `PMU/number`.
    pub event: String,
    /// The unit of a count: `events`, `bytes` (times `scale`) or `ns`.
    pub unit: &'static str,
    pub scale: u32,
    pub state: State,
    /// Count of a trial of about a millisecond; 0 if there was none.
    pub count: u64,
    /// Why it is refused.
    pub why: String,
    pub what: &'static str,
}

/// Counters of one set of CPUs.
#[derive(Debug, Clone, Serialize)]
pub struct Cluster {
    pub pmu: String,
    pub cpus: String,
    pub offers: Vec<Offer>,
}

/// Tries everything under `root` (`/sys`).
pub fn list(root: &Path) -> Vec<Cluster> {
    let machine = Machine::read(root);
    let software = names::NAMES.iter().filter(|n| matches!(n.code, Code::Own(_) | Code::Software(_)));
    let of_kernel = software.flat_map(|n| tried(&machine, n.name, None)).collect();
    let kernel = Cluster { pmu: "software".into(), cpus: shown(&machine.online), offers: of_kernel };
    let cores = machine.pmus.iter().filter(|p| !p.cpus.is_empty()).map(|p| {
        let offers = offered(p).iter().flat_map(|n| tried(&machine, n, Some(&p.name))).collect();
        Cluster { pmu: p.name.clone(), cpus: shown(&p.cpus), offers }
    });
    cores.chain([kernel]).collect()
}

fn tried(machine: &Machine, name: &str, pmu: Option<&str>) -> Option<Offer> {
    let mut w = resolve(machine, name);
    w.places.retain(|p| pmu.is_none_or(|pmu| p.pmu == pmu));
    if w.own.is_none() && w.places.is_empty() {
        return None;
    }
    let hardware = pmu.is_some();
    let result = if hardware { event::try_each(&w.places).pop() } else { opened(&w) };
    let (state, count, why) = match result {
        Some(Tried::Zero(_)) => (State::Unsupported, 0, "runs but stays 0".to_owned()),
        Some(Tried::Refused(why)) => (State::Refused, 0, why),
        Some(Tried::Counts(r)) => (State::Counts, r.count, String::new()),
        None => (State::Counts, 0, String::new()),
    };
    let (unit, scale) = match w.unit {
        Unit::Events => ("events", 1),
        Unit::Lines => ("bytes", machine.line),
        Unit::Nanoseconds => ("ns", 1),
    };
    let known = names::find(name);
    let event = w.places.first().map_or_else(|| "sched_switch".into(), |p| p.shown.clone());
    let (group, what) = known.map_or(("other", ""), |n| (n.group, n.what));
    Some(Offer { name: w.name, group, event, unit, scale, state, count, why, what })
}

/// A software event that stays 0 is available all the same.
fn opened(w: &Wanted) -> Option<Tried> {
    let place = w.places.first()?;
    let refused = |e| Tried::Refused(event::why(&e));
    event::on_cpu(&place.event, *place.cpus.first()?).err().map(refused)
}
