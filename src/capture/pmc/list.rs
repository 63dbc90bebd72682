//! What this machine can count: every name that its PMUs list or that we add, tested.

use std::path::Path;

use serde::Serialize;

use super::event::{self, Tried};
use super::names::{self, CounterCode};
use super::pmus::{MachinePmus, shown};
use super::resolve::{WantedCounter, offered, resolve};

/// Result of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrialResult {
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
    pub state: TrialResult,
    /// Count of a trial of about a millisecond; 0 if there was none.
    pub count: u64,
    /// Why it is refused.
    pub why: String,
    pub what: &'static str,
}

/// Counters of one set of CPUs.
#[derive(Debug, Clone, Serialize)]
pub struct CpuSetCounters {
    pub pmu: String,
    pub cpus: String,
    pub offers: Vec<Offer>,
}

/// Tries everything under `root` (`/sys`).
pub fn list(root: &Path) -> Vec<CpuSetCounters> {
    let machine = MachinePmus::read(root);
    let software =
        names::NAMES.iter().filter(|n| matches!(n.code, CounterCode::Own(_) | CounterCode::Software(_)));
    let of_kernel = software.flat_map(|n| tried(&machine, n.name, None)).collect();
    let kernel = CpuSetCounters { pmu: "software".into(), cpus: shown(&machine.online), offers: of_kernel };
    let cores = machine.pmus.iter().filter(|p| !p.cpus.is_empty()).map(|p| {
        let offers = offered(p).iter().flat_map(|n| tried(&machine, n, Some(&p.name))).collect();
        CpuSetCounters { pmu: p.name.clone(), cpus: shown(&p.cpus), offers }
    });
    cores.chain([kernel]).collect()
}

fn tried(machine: &MachinePmus, name: &str, pmu: Option<&str>) -> Option<Offer> {
    let mut w = resolve(machine, name);
    w.places.retain(|p| pmu.is_none_or(|pmu| p.pmu == pmu));
    if w.own.is_none() && w.places.is_empty() {
        return None;
    }
    let hardware = pmu.is_some();
    let result = if hardware { event::try_each(&w.places).pop() } else { opened(&w) };
    let (state, count, why) = match result {
        Some(Tried::Zero(_)) => (TrialResult::Unsupported, 0, "runs but stays 0".to_owned()),
        Some(Tried::Refused(why)) => (TrialResult::Refused, 0, why.to_string()),
        Some(Tried::Counts(r)) => (TrialResult::Counts, r.count, String::new()),
        None => (TrialResult::Counts, 0, String::new()),
    };
    let (unit, scale) = w.unit.reported(machine.line);
    let known = names::find(name);
    let event = w.places.first().map_or_else(|| "sched_switch".into(), |p| p.shown.clone());
    let (group, what) = known.map_or(("other", ""), |n| (n.group, n.what));
    Some(Offer { name: w.name, group, event, unit, scale, state, count, why, what })
}

/// A software event that stays 0 is available all the same.
fn opened(w: &WantedCounter) -> Option<Tried> {
    let place = w.places.first()?;
    event::on_cpu(&place.event, *place.cpus.first()?).err().map(Tried::Refused)
}
