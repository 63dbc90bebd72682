//! Counters of energy that grow by themselves, so that reading them seldom misses nothing: of the complete device if one
//! counts that, else of its processor packages. Their sum counts nothing twice.

use std::path::Path;

use super::find::powercap;
use super::found::{Found, FoundSensor, Roots};
use super::gauge::Gauge;
use super::hwmon;
use pfi::record::{SensorKind, SensorOrigin};

/// A counter, and what it has counted since it was found.
pub struct EnergyCounter {
    pub name: String,
    /// What it belongs to, as OpenTelemetry's `hw.type` names it.
    pub kind: &'static str,
    gauge: Box<dyn Gauge>,
    last: i64,
    used_uj: u64,
}

impl EnergyCounter {
    fn of(found: FoundSensor) -> Option<EnergyCounter> {
        let FoundSensor { name, origin, mut gauge, .. } = found;
        let kind = if origin == SensorOrigin::Device { "enclosure" } else { "cpu" };
        let last = gauge.read().ok()?;
        Some(EnergyCounter { name, kind, gauge, last, used_uj: 0 })
    }

    /// Reads it. A counter that has no value now, or began anew, adds nothing.
    pub fn read(&mut self) {
        let Ok(now) = self.gauge.read() else { return };
        let grown = now.saturating_sub(std::mem::replace(&mut self.last, now));
        self.used_uj = self.used_uj.saturating_add(u64::try_from(grown).unwrap_or(0));
    }

    /// Energy since it was found, joules.
    pub fn joules(&self) -> f64 {
        self.used_uj as f64 / 1e6
    }
}

/// The counters below this directory (`/sys`). Empty: there is none.
pub fn energy_counters(sysfs: &Path) -> Vec<EnergyCounter> {
    let (roots, mut found) = (Roots::of(sysfs), Found::default());
    hwmon::find(&roots.sysfs.join("class/hwmon"), &mut found);
    powercap(&roots.sysfs.join("class/powercap"), &mut found);
    let (device, others): (Vec<_>, Vec<_>) = found
        .sensors
        .into_iter()
        .filter(|s| s.kind == SensorKind::Energy)
        .partition(|s| s.origin == SensorOrigin::Device);
    match device.into_iter().find_map(EnergyCounter::of) {
        Some(device) => vec![device],
        None => {
            let packages = others.into_iter().filter(|s| s.origin == SensorOrigin::Package);
            packages.filter_map(EnergyCounter::of).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn zone(sysfs: &Path, zone: &str, name: &str, uj: &str) {
        let dir = sysfs.join("class/powercap").join(zone);
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("name"), name).expect("written");
        fs::write(dir.join("energy_uj"), uj).expect("written");
        fs::write(dir.join("max_energy_range_uj"), "1000000000").expect("written");
    }

    #[test]
    fn packages_count_until_something_counts_the_device() {
        let dir = tempfile::tempdir().expect("a directory");
        let sysfs = dir.path().join("sys");
        fs::create_dir_all(&sysfs).expect("made");
        assert!(energy_counters(&sysfs).is_empty());
        zone(&sysfs, "intel-rapl:0", "package-0", "999000000");
        zone(&sysfs, "intel-rapl:0:0", "core", "5");
        zone(&sysfs, "intel-rapl:1", "package-1", "7");
        let mut all = energy_counters(&sysfs);
        let names: Vec<(&str, &str)> = all.iter().map(|c| (c.name.as_str(), c.kind)).collect();
        assert_eq!(names, [("package-0", "cpu"), ("package-1", "cpu")]);
        // It goes through its end; the other one begins anew.
        zone(&sysfs, "intel-rapl:0", "package-0", "1500000");
        zone(&sysfs, "intel-rapl:1", "package-1", "3");
        all.iter_mut().for_each(EnergyCounter::read);
        assert_eq!((all[0].joules(), all[1].joules()), (2.500001, 0.0));
        zone(&sysfs, "intel-rapl:1", "package-1", "1000003");
        all.iter_mut().for_each(EnergyCounter::read);
        assert_eq!((all[0].joules(), all[1].joules()), (2.500001, 1.0));
        zone(&sysfs, "intel-rapl:2", "psys", "7");
        let all = energy_counters(&sysfs);
        assert_eq!((all.len(), all[0].name.as_str(), all[0].kind), (1, "psys", "enclosure"));
    }
}
