//! Finds a machine's sensors, as listed below the given roots, which may be a recorded tree.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::found::{Found, FoundSensor, Roots, entries, file_name, label, number};
use super::gauge::WrappingCounter;
use super::pressure::Pressure;
use super::{hwmon, model, pmic, supplies};
use pfi::record::{SensorKind, SensorOrigin};

/// Maximum number of sensors read.
pub const MAX_SENSORS: usize = 64;
/// Maximum number of cooling devices among them: some machines have several for each CPU.
const MOST_COOLING: usize = 8;

/// All sensors that currently have a value, in a stable order: power and energy first.
pub fn find(roots: &Roots) -> Found {
    let sysfs = &roots.sysfs;
    let mut found = Found::default();
    supplies::find(&sysfs.join("class/power_supply"), &mut found);
    hwmon::find(&sysfs.join("class/hwmon"), &mut found);
    powercap(&sysfs.join("class/powercap"), &mut found);
    pmic::find(&roots.dev, sysfs, &mut found);
    model::find(roots, &mut found);
    found.sensors.extend(Pressure::find(&roots.proc));
    found.sensors.extend(frequencies(&sysfs.join("devices/system/cpu/cpufreq")));
    found.sensors.extend(devfreq(&sysfs.join("class/devfreq")));
    found.sensors.extend(thermal(&sysfs.join("class/thermal")));
    found.sensors.extend(cooling(&sysfs.join("class/thermal")));
    found
}

/// Remarks why there may be no Energy Model, for a machine without any source of energy.
pub fn hint(debugfs: &Path, found: &mut Found) {
    let Err(e) = fs::read_dir(debugfs.join("energy_model")) else { return };
    let mounted = || fs::read_dir(debugfs).is_ok_and(|mut entries| entries.next().is_some());
    match e.kind() {
        ErrorKind::PermissionDenied => {
            found.remark(format!("no meter; the Energy Model needs root: {}: {e}", debugfs.display()));
        }
        _ if debugfs.is_dir() && !mounted() => found.remark(format!(
            "no meter; an Energy Model would be in debugfs: mount -t debugfs none {}",
            debugfs.display()
        )),
        _ => {}
    }
}

/// Documentation/ABI/testing/sysfs-class-powercap: energy_uj in µJ, or power_uw in µW (arm-scmi). A nested zone is a
/// part of its outer zone, or beside it (dram); its name has a '/'.
pub(super) fn powercap(dir: &Path, found: &mut Found) {
    let zones: Vec<PathBuf> = entries(dir, "").into_iter().filter(|z| file_name(z).contains(':')).collect();
    let name = |zone: &Path| label(zone.join("name")).unwrap_or_else(|| file_name(zone));
    let mut modelled = false;
    for zone in &zones {
        let id = file_name(zone);
        if id.starts_with("dtpm") {
            modelled = true;
            continue;
        }
        // The same counters by another way.
        let twin = id.strip_prefix("intel-rapl-mmio:").map(|n| dir.join(format!("intel-rapl:{n}")));
        if twin.is_some_and(|twin| label(twin.join("name")) == label(zone.join("name"))) {
            continue;
        }
        let outer =
            id.rsplit_once(':').map(|(outer, _)| dir.join(outer)).filter(|o| file_name(o).contains(':'));
        let own = name(zone);
        // Intel's psys is the complete platform.
        let origin = match (&outer, own.as_str()) {
            (Some(_), _) => SensorOrigin::Rail,
            (None, "psys") => SensorOrigin::Device,
            (None, _) => SensorOrigin::Package,
        };
        let name = outer.map_or_else(|| own.clone(), |outer| format!("{}/{own}", name(&outer)));
        let counter = zone.join("energy_uj");
        let sensor = match WrappingCounter::open(&counter, number(zone.join("max_energy_range_uj"))) {
            Ok(gauge) => Some(FoundSensor::new(name, SensorKind::Energy, counter, Box::new(gauge))),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                found.remark(format!("{name} is not read: {}: {e}", counter.display()));
                None
            }
            Err(_) => FoundSensor::file(zone.join("power_uw"), (1, 1), name, SensorKind::Power),
        };
        found.sensors.extend(sensor.map(|s| s.from(origin)));
    }
    if modelled {
        found.remark("powercap dtpm is not read: its power is the Energy Model's".into());
    }
}

/// Documentation/admin-guide/pm/cpufreq.rst: one policy for CPUs that change together, kHz.
fn frequencies(dir: &Path) -> Vec<FoundSensor> {
    let policy = |at: PathBuf| {
        let cpus = label(at.join("related_cpus")).unwrap_or_default().replace(' ', ",");
        let name = format!("CPUs {cpus}");
        let found = FoundSensor::file(at.join("scaling_cur_freq"), (1, 1), name, SensorKind::Frequency)?;
        Some(FoundSensor { cpus, ..found })
    };
    entries(dir, "policy").into_iter().filter_map(policy).collect()
}

/// Documentation/ABI/testing/sysfs-class-devfreq: frequencies of the memory, a GPU, a bus, in Hz.
fn devfreq(dir: &Path) -> Vec<FoundSensor> {
    let device = |at: PathBuf| {
        let name = label(at.join("name")).unwrap_or_else(|| file_name(&at));
        FoundSensor::file(at.join("cur_freq"), (1, 1000), format!("device {name}"), SensorKind::Frequency)
    };
    entries(dir, "").into_iter().filter_map(device).collect()
}

/// Documentation/driver-api/thermal/sysfs-api.rst: millidegrees.
fn thermal(dir: &Path) -> Vec<FoundSensor> {
    let zone = |at: PathBuf| {
        let name = label(at.join("type")).unwrap_or_else(|| file_name(&at));
        FoundSensor::file(at.join("temp"), (1, 1), name, SensorKind::Temperature)
    };
    entries(dir, "thermal_zone").into_iter().filter_map(zone).collect()
}

/// The same page: how much a device is slowed down or a fan sped up, from 0 to max_state.
fn cooling(dir: &Path) -> Vec<FoundSensor> {
    let device = |at: PathBuf| {
        let most: i64 = number(at.join("max_state"))?;
        let name = label(at.join("type")).unwrap_or_else(|| file_name(&at));
        let name = format!("{name} ({}, at most {most})", file_name(&at));
        let file = || FoundSensor::file(at.join("cur_state"), (1, 1), name, SensorKind::Cooling);
        (most > 0).then(file).flatten()
    };
    entries(dir, "cooling_device").into_iter().filter_map(device).take(MOST_COOLING).collect()
}
