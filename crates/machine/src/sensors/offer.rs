//! Where the energy of a token would come from, without recording anything.

use std::path::Path;

use super::find::{find, hint};
use super::found::{FoundSensor, Roots};
use crate::check::{Check, CheckResult};
use pfi::record::{SensorKind, SensorOrigin};

/// The preferred source of energy below this directory (`/sys`), as a line of a checklist.
pub fn offered(sysfs: &Path) -> Check {
    let roots = Roots::of(sysfs);
    let mut found = find(&roots);
    let is_source = |s: &FoundSensor| matches!(s.kind, SensorKind::Power | SensorKind::Energy);
    if !found.sensors.iter().any(is_source) {
        hint(&roots.debugfs, &mut found);
    }
    let (mut valid, mut silent) = (Vec::new(), Vec::new());
    for source in found.sensors.iter_mut().filter(|s| is_source(s)) {
        // A battery that charges has none.
        if source.gauge.read().is_ok() { valid.push(source) } else { silent.push(source) }
    }
    let preferred = SensorOrigin::PREFERENCE.into_iter().find(|of| valid.iter().any(|s| s.origin == *of));
    let check = |state| Check::new("energy", "source of energy", state);
    let Some(origin) = preferred else {
        let silent = silent.iter().map(|s| format!("{} has no value now", s.name));
        let why: Vec<String> = silent.chain(found.remarks).collect();
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
        return check(CheckResult::Optional)
            .detail(&format!("none, so joules per token are unknown{why}"))
            .mend("record --meter FILE reads a meter of your own");
    };
    let names = |mine: bool| {
        let of = valid.iter().filter(|s| (s.origin == origin) == mine).map(|s| s.name.as_str());
        of.collect::<Vec<_>>()
    };
    let others = names(false);
    let others =
        if others.is_empty() { String::new() } else { format!("; less preferred: {}", others.join(", ")) };
    check(CheckResult::Ok).detail(&format!("{}{others}", shown(origin, &names(true))))
}

/// The sources of an origin, and how they are known. One recording decides between rails: the largest counts.
fn shown(origin: SensorOrigin, names: &[&str]) -> String {
    let first = names.first().copied().unwrap_or_default();
    match origin {
        SensorOrigin::Meter | SensorOrigin::Device => format!("{first}, measured, of the complete device"),
        SensorOrigin::Estimate => format!("{first}, an estimate of the complete device from measured parts"),
        SensorOrigin::Package => format!("{}, measured, of the processor package", names.join(" + ")),
        SensorOrigin::Model => {
            format!("{}: the kernel's Energy Model, not measured", names.join(" + "))
        }
        SensorOrigin::Rail | SensorOrigin::Unknown if names.len() > 1 => {
            format!("the largest of {}, measured, of a part of the device", names.join(", "))
        }
        SensorOrigin::Rail | SensorOrigin::Unknown => format!("{first}, measured, of a part of the device"),
    }
}
