//! What a name asked for comes to on this machine. Uses `names` and `machine`.

use super::machine::{Machine, Pmu, shown};
use super::names::{self, Code, Name, Own, Unit};

/// PERF_TYPE_SOFTWARE and PERF_TYPE_RAW of include/uapi/linux/perf_event.h.
const SOFTWARE: u32 = 1;
const RAW: u32 = 4;
/// Events from here on are recommended and not announced (see `names`), up to the second number.
const RECOMMENDED: std::ops::Range<u16> = 0x40..0x4000;

/// What perf_event_open is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    pub kind: u32,
    pub config: [u64; 3],
    /// What the program does, what the kernel does for it.
    pub user: bool,
    pub kernel: bool,
}

/// An event for the CPUs of one PMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub pmu: String,
    pub cpus: Vec<u32>,
    pub event: Event,
    /// For people: `armv8_cortex_a55/0x11:u`.
    pub shown: String,
    /// Opening it says little: whether it counts has to be tried.
    pub hardware: bool,
}

/// A counter asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// As asked for.
    pub name: String,
    pub unit: Unit,
    pub own: Option<Own>,
    pub places: Vec<Place>,
    /// What stands against it, where it is not to be had or not everywhere.
    pub lacks: Vec<String>,
}

/// The name without `:u`, `:k` or `:uk`, and what that says: the program's own work, the kernel's, both.
fn modifiers(name: &str) -> (&str, Option<(bool, bool)>) {
    match name.rsplit_once(':') {
        Some((name, "u")) => (name, Some((true, false))),
        Some((name, "k")) => (name, Some((false, true))),
        Some((name, "uk" | "ku")) => (name, Some((true, true))),
        _ => (name, None),
    }
}

/// Finds what is behind a name. A name that nobody knows comes back with nothing but what stands against it.
///
/// The program's own work is counted unless the name says otherwise: the kernel's share holds our probes. Software events
/// count all, as the kernel does in its own statistics.
pub fn resolve(machine: &Machine, asked: &str) -> Wanted {
    let (name, modes) = modifiers(asked);
    let known = names::find(name);
    let unit = known.map_or(Unit::Events, |n| n.unit);
    let mut w = Wanted { name: asked.to_owned(), unit, own: None, places: Vec::new(), lacks: Vec::new() };
    let (user, kernel) = modes.unwrap_or((true, false));
    let raw = names::raw(name);
    match known.map(|n| n.code) {
        Some(Code::Own(own)) => w.own = Some(own),
        Some(Code::Software(n)) => {
            let (user, kernel) = modes.unwrap_or((true, true));
            let event = Event { kind: SOFTWARE, config: [n, 0, 0], user, kernel };
            let shown = format!("software/{name}");
            let (pmu, cpus) = ("software".to_owned(), machine.online.clone());
            w.places.push(Place { pmu, cpus, event, shown, hardware: false });
        }
        _ if known.is_none()
            && raw.is_none()
            && !machine.pmus.iter().any(|p| p.events.contains_key(name)) =>
        {
            let listed = machine.pmus.iter().flat_map(|p| p.events.keys().map(String::as_str));
            let near = names::nearest(name, names::NAMES.iter().map(|n| n.name).chain(listed));
            w.lacks.push(format!("no counter has this name; near are {}", near.join(", ")));
        }
        _ if machine.pmus.is_empty() => {
            w.lacks
                .push("this machine shows no PMU of its cores (a virtual machine may be given none)".into());
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
                        let event = Event { kind, config, user, kernel };
                        let (pmu, cpus) = (pmu.name.clone(), pmu.cpus.clone());
                        let shown = format!("{pmu}/{}", number(&config, known));
                        w.places.push(Place { pmu, cpus, event, shown, hardware: true });
                    }
                    None => w.lacks.push(format!("{} (CPUs {on}) does not list it", pmu.name)),
                }
            }
        }
    }
    w
}

fn number(config: &[u64; 3], known: Option<&Name>) -> String {
    match (known.map(|n| n.code), config) {
        (Some(Code::Generic(3, n, _)), [c, ..]) if n == *c => format!("cache-{n:#x}"),
        (_, [c, 0, 0]) => format!("{c:#x}"),
        (_, [a, b, c]) => format!("{a:#x},{b:#x},{c:#x}"),
    }
}

/// Type and numbers of a name on one PMU; what sysfs lists comes first, and for Arm's announced events it decides.
fn on_pmu(pmu: &Pmu, name: &str, known: Option<&Name>) -> Option<(u32, [u64; 3])> {
    if pmu.arm() {
        let spellings: &[&str] = match known.map(|n| n.code) {
            Some(Code::Generic(_, _, arm)) => arm,
            _ => &[name],
        };
        let listed = spellings.iter().find_map(|s| pmu.encode(pmu.events.get(&s.to_ascii_lowercase())?));
        let recommended = match known.map(|n| n.code) {
            Some(Code::Arm(n)) if RECOMMENDED.contains(&n) => Some([n.into(), 0, 0]),
            _ => None,
        };
        return Some((pmu.kind, listed.or(recommended)?));
    }
    match known.map(|n| n.code) {
        // The kernel knows these by number; where cores differ it wants to be told whose (5.13 and later).
        Some(Code::Generic(kind, n, _)) if pmu.kind == RAW => Some((kind, [n, 0, 0])),
        Some(Code::Generic(kind, n, _)) => Some((kind, [n | u64::from(pmu.kind) << 32, 0, 0])),
        _ => Some((pmu.kind, pmu.encode(pmu.events.get(name)?)?)),
    }
}

/// The names worth trying on a PMU: those that it lists, and those that ours add.
pub fn offered(pmu: &Pmu) -> Vec<String> {
    let ours = names::NAMES.iter().filter(|n| match n.code {
        Code::Generic(..) => on_pmu(pmu, n.name, Some(n)).is_some(),
        Code::Arm(number) => pmu.arm() && RECOMMENDED.contains(&number),
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
