//! Resolves a counter's name on this machine.

use super::names::{self, CounterCode, CounterName, CounterUnit, OwnCounter};
use super::pmus::{MachinePmus, Pmu, shown};

/// PERF_TYPE_SOFTWARE and PERF_TYPE_RAW of include/uapi/linux/perf_event.h.
const SOFTWARE: u32 = 1;
const RAW: u32 = 4;
/// Events that are recommended and not announced (see `names`).
const RECOMMENDED: std::ops::Range<u16> = 0x40..0x4000;

/// What is requested from perf_event_open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerfEventAttr {
    pub kind: u32,
    pub config: [u64; 3],
    /// Count the program's own code; count the kernel code that runs for it.
    pub user: bool,
    pub kernel: bool,
}

/// An event for the CPUs of one PMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PmuEvent {
    pub pmu: String,
    pub cpus: Vec<u32>,
    pub event: PerfEventAttr,
    /// For people: `armv8_cortex_a55/0x11:u`.
    pub shown: String,
    /// Opening it proves little: only a test shows whether it counts.
    pub hardware: bool,
}

/// A requested counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedCounter {
    /// As requested.
    pub name: String,
    pub unit: CounterUnit,
    pub own: Option<OwnCounter>,
    pub places: Vec<PmuEvent>,
    /// Why it is not available, or not everywhere.
    pub lacks: Vec<String>,
}

/// The name without `:u`, `:k` or `:uk`, and what the suffix selects: the program's own code, the kernel's, or both.
fn modifiers(name: &str) -> (&str, Option<(bool, bool)>) {
    match name.rsplit_once(':') {
        Some((name, "u")) => (name, Some((true, false))),
        Some((name, "k")) => (name, Some((false, true))),
        Some((name, "uk" | "ku")) => (name, Some((true, true))),
        _ => (name, None),
    }
}

/// Resolves a name. For an unknown name there are no events, only the reason.
///
/// By default only the program's own code is counted: the kernel's share includes our probes. Software events count
/// both, as in the kernel's own statistics.
pub fn resolve(machine: &MachinePmus, asked: &str) -> WantedCounter {
    let (name, modes) = modifiers(asked);
    let known = names::find(name);
    let unit = known.map_or(CounterUnit::Events, |n| n.unit);
    let mut w =
        WantedCounter { name: asked.to_owned(), unit, own: None, places: Vec::new(), lacks: Vec::new() };
    let (user, kernel) = modes.unwrap_or((true, false));
    let raw = names::raw(name);
    match known.map(|n| n.code) {
        Some(CounterCode::Own(own)) => w.own = Some(own),
        Some(CounterCode::Software(n)) => {
            let (user, kernel) = modes.unwrap_or((true, true));
            let event = PerfEventAttr { kind: SOFTWARE, config: [n, 0, 0], user, kernel };
            let shown = format!("software/{name}");
            let (pmu, cpus) = ("software".to_owned(), machine.online.clone());
            w.places.push(PmuEvent { pmu, cpus, event, shown, hardware: false });
        }
        _ if known.is_none()
            && raw.is_none()
            && !machine.pmus.iter().any(|p| p.events.contains_key(name)) =>
        {
            let listed = machine.pmus.iter().flat_map(|p| p.events.keys().map(String::as_str));
            let near = names::nearest(name, names::NAMES.iter().map(|n| n.name).chain(listed));
            w.lacks.push(format!("no counter has this name; nearest: {}", near.join(", ")));
        }
        _ if machine.pmus.is_empty() => {
            w.lacks.push("no hardware PMU found (common in virtual machines)".into());
        }
        _ => {
            for pmu in &machine.pmus {
                let found = match raw {
                    Some(number) => Some((pmu.kind, [number, 0, 0])),
                    None => on_pmu(pmu, name, known),
                };
                let on = shown(&pmu.cpus);
                match found {
                    _ if pmu.cpus.is_empty() => {}
                    Some((kind, config)) => {
                        let event = PerfEventAttr { kind, config, user, kernel };
                        let (pmu, cpus) = (pmu.name.clone(), pmu.cpus.clone());
                        let shown = format!("{pmu}/{}", number(&config, known));
                        w.places.push(PmuEvent { pmu, cpus, event, shown, hardware: true });
                    }
                    None => w.lacks.push(format!("not listed by {} (CPUs {on})", pmu.name)),
                }
            }
        }
    }
    w
}

fn number(config: &[u64; 3], known: Option<&CounterName>) -> String {
    match (known.map(|n| n.code), config) {
        (Some(CounterCode::Generic(3, n, _)), [c, ..]) if n == *c => format!("cache-{n:#x}"),
        (_, [c, 0, 0]) => format!("{c:#x}"),
        (_, [a, b, c]) => format!("{a:#x},{b:#x},{c:#x}"),
    }
}

/// Type and numbers of a name on one PMU. The events listed in sysfs take precedence, and for Arm's announced
/// events only they count.
fn on_pmu(pmu: &Pmu, name: &str, known: Option<&CounterName>) -> Option<(u32, [u64; 3])> {
    if pmu.arm() {
        let spellings: &[&str] = match known.map(|n| n.code) {
            Some(CounterCode::Generic(_, _, arm)) => arm,
            _ => &[name],
        };
        let listed = spellings.iter().find_map(|s| pmu.encode(pmu.events.get(&s.to_ascii_lowercase())?));
        let recommended = match known.map(|n| n.code) {
            Some(CounterCode::Arm(n)) if RECOMMENDED.contains(&n) => Some([n.into(), 0, 0]),
            _ => None,
        };
        return Some((pmu.kind, listed.or(recommended)?));
    }
    match known.map(|n| n.code) {
        // The kernel knows these by number; on machines with different cores it also needs the PMU (5.13 and later).
        Some(CounterCode::Generic(kind, n, _)) if pmu.kind == RAW => Some((kind, [n, 0, 0])),
        Some(CounterCode::Generic(kind, n, _)) => Some((kind, [n | u64::from(pmu.kind) << 32, 0, 0])),
        _ => Some((pmu.kind, pmu.encode(pmu.events.get(name)?)?)),
    }
}

/// The names worth testing on a PMU: those that it lists, and those that we add.
pub fn offered(pmu: &Pmu) -> Vec<String> {
    let ours = names::NAMES.iter().filter(|n| match n.code {
        CounterCode::Generic(..) => on_pmu(pmu, n.name, Some(n)).is_some(),
        CounterCode::Arm(number) => pmu.arm() && RECOMMENDED.contains(&number),
        _ => false,
    });
    let mut all: Vec<String> = ours.map(|n| n.name.to_owned()).collect();
    for event in pmu.events.keys() {
        let known = names::find(event).map_or(event.as_str(), |n| n.name);
        if !all.iter().any(|a| a == known) {
            all.push(known.to_owned());
        }
    }
    all
}
