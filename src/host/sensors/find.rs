//! Finds a machine's sensors: power supplies, hwmon, powercap, CPU frequencies, thermal zones, as listed in sysfs
//! under a root that may be a recorded tree.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::gauge::{Battery, FileGauge, Gauge, PowerGauge};
use common::order;
use pfi::record::SensorKind;

/// Maximum number of sensors read.
pub const MAX_SENSORS: usize = 64;

/// A sensor that was found.
pub struct FoundSensor {
    pub name: String,
    pub kind: SensorKind,
    /// The file, or the first of two.
    pub path: PathBuf,
    /// The driver's own update interval, ns; 0 = unknown.
    pub interval_ns: u64,
    /// For a frequency: the CPUs.
    pub cpus: String,
    pub gauge: Box<dyn Gauge>,
}

/// All sensors under `sysfs` (`/sys`) that currently have a value, in a stable order: power and energy first.
pub fn find(sysfs: &Path) -> Vec<FoundSensor> {
    let mut found = power_supplies(&sysfs.join("class/power_supply"));
    found.extend(hwmon(&sysfs.join("class/hwmon")));
    found.extend(powercap(&sysfs.join("class/powercap")));
    found.extend(frequencies(&sysfs.join("devices/system/cpu/cpufreq")));
    found.extend(thermal(&sysfs.join("class/thermal")));
    found
}

/// The entries of a directory whose names start with `prefix`, in numeric order.
fn entries(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let mut all: Vec<PathBuf> = all.filter(|p| file_name(p).starts_with(prefix)).collect();
    order::by(&mut all, |a, b| (file_name(a).len(), a).cmp(&(file_name(b).len(), b)));
    all
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn text(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// A number in a file, as a sensor of kind `kind`. None if there is none.
fn value(path: PathBuf, factor: (i64, i64), name: String, kind: SensorKind) -> Option<FoundSensor> {
    let gauge = Box::new(FileGauge::open(&path, factor).ok()?);
    Some(FoundSensor { name, kind, path, interval_ns: 0, cpus: String::new(), gauge })
}

/// Current times voltage in µW; dividing their product by `divisor` gives µW.
fn product(current: PathBuf, voltage: &Path, divisor: i64, name: String) -> Option<FoundSensor> {
    let gauge =
        PowerGauge { current: File::open(&current).ok()?, voltage: File::open(voltage).ok()?, divisor };
    gauge.read().ok()?;
    let (kind, cpus) = (SensorKind::Power, String::new());
    Some(FoundSensor { name, kind, path: current, interval_ns: 0, cpus, gauge: Box::new(gauge) })
}

/// Documentation/ABI/testing/sysfs-class-power: power_now in µW, current_now in µA, voltage_now in µV.
fn power_supplies(dir: &Path) -> Vec<FoundSensor> {
    entries(dir, "").into_iter().filter_map(|supply| power_supply(&supply)).collect()
}

fn power_supply(supply: &Path) -> Option<FoundSensor> {
    let (at, name) = (|file: &str| supply.join(file), file_name(supply));
    let found = value(at("power_now"), (1, 1), name.clone(), SensorKind::Power)
        .or_else(|| product(at("current_now"), &at("voltage_now"), 1_000_000, name))?;
    if text(at("type")).as_deref() != Some("Battery") {
        return Some(found);
    }
    let status = File::open(at("status")).ok()?;
    Some(FoundSensor { gauge: Box::new(Battery { power: found.gauge, status }), ..found })
}

/// Documentation/hwmon/sysfs-interface.rst: power in µW, energy in µJ, current in mA, voltage in mV, interval in ms.
fn hwmon(dir: &Path) -> Vec<FoundSensor> {
    let mut all = Vec::new();
    for chip in entries(dir, "hwmon") {
        let name = text(chip.join("name")).unwrap_or_else(|| file_name(&chip));
        let ms = text(chip.join("update_interval")).and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
        let mut found = chip_sensors(&chip, &name);
        found.iter_mut().for_each(|f| f.interval_ns = ms.saturating_mul(1_000_000));
        all.append(&mut found);
    }
    all
}

fn chip_sensors(chip: &Path, name: &str) -> Vec<FoundSensor> {
    let mut all = Vec::new();
    // Channels count from 1; a chip has a handful.
    for i in 1..=16 {
        let at = |what: &str, file: &str| chip.join(format!("{what}{i}_{file}"));
        let named = |what| match text(at(what, "label")) {
            Some(label) => format!("{name} {label}"),
            None => format!("{name} {what}{i}"),
        };
        let power = value(at("power", "input"), (1, 1), named("power"), SensorKind::Power)
            .or_else(|| value(at("power", "average"), (1, 1), named("power"), SensorKind::Power))
            .or_else(|| product(at("curr", "input"), &at("in", "input"), 1, named("curr")));
        all.extend(power);
        all.extend(value(at("energy", "input"), (1, 1), named("energy"), SensorKind::Energy));
    }
    all
}

/// Documentation/ABI/testing/sysfs-class-powercap: energy_uj in µJ. A nested zone is included in its outer zone's
/// count; its name has a '/'.
fn powercap(dir: &Path) -> Vec<FoundSensor> {
    let zones = entries(dir, "").into_iter().filter(|z| file_name(z).contains(':'));
    let name = |zone: &Path| text(zone.join("name")).unwrap_or_else(|| file_name(zone));
    let sensor = |zone: PathBuf| {
        let id = file_name(&zone);
        let outer =
            id.rsplit_once(':').map(|(outer, _)| dir.join(outer)).filter(|o| file_name(o).contains(':'));
        let name = match outer {
            Some(outer) => format!("{}/{}", name(&outer), name(&zone)),
            None => name(&zone),
        };
        value(zone.join("energy_uj"), (1, 1), name, SensorKind::Energy)
    };
    zones.filter_map(sensor).collect()
}

/// Documentation/admin-guide/pm/cpufreq.rst: one policy for CPUs that change together, kHz.
fn frequencies(dir: &Path) -> Vec<FoundSensor> {
    let policy = |at: PathBuf| {
        let cpus = text(at.join("related_cpus")).unwrap_or_default().replace(' ', ",");
        let name = format!("CPUs {cpus}");
        let found = value(at.join("scaling_cur_freq"), (1, 1), name, SensorKind::Frequency)?;
        Some(FoundSensor { cpus, ..found })
    };
    entries(dir, "policy").into_iter().filter_map(policy).collect()
}

/// Documentation/driver-api/thermal/sysfs-api.rst: millidegrees.
fn thermal(dir: &Path) -> Vec<FoundSensor> {
    let zone = |at: PathBuf| {
        let name = text(at.join("type")).unwrap_or_else(|| file_name(&at));
        value(at.join("temp"), (1, 1), name, SensorKind::Temperature)
    };
    entries(dir, "thermal_zone").into_iter().filter_map(zone).collect()
}
