//! Chips that measure power, current and voltage: class hwmon.

use std::path::Path;

use super::found::{self, Found, FoundSensor, entries, file_name, label, number, text};
use super::gauge::{Gauge, PowerGauge};
use pfi::record::{SensorKind, SensorOrigin};

/// Labels of the rail that feeds a complete board: NVIDIA's modules.
const INPUTS: [&str; 3] = ["VDD_IN", "POM_5V_IN", "VIN_SYS_5V0"];

/// Documentation/hwmon/sysfs-interface.rst: power in µW, energy in µJ, current in mA, voltage in mV, interval in ms.
pub fn find(dir: &Path, found: &mut Found) {
    for chip in entries(dir, "hwmon") {
        // The kernel mirrors power supplies here, which are read where their type is known.
        if text(chip.join("device/uevent")).is_some_and(|t| t.contains("POWER_SUPPLY_NAME=")) {
            continue;
        }
        let name = label(chip.join("name")).unwrap_or_else(|| file_name(&chip));
        let ms: u64 = number(chip.join("update_interval")).unwrap_or(0);
        let from = found.sensors.len();
        channels(&chip, &name, found);
        let new = found.sensors.iter_mut().skip(from);
        new.for_each(|f| f.interval_ns = ms.saturating_mul(1_000_000));
    }
}

fn channels(chip: &Path, name: &str, found: &mut Found) {
    // Channels count from 1; a chip has a handful.
    for i in 1..=16 {
        let at = |what: &str, file: &str| chip.join(format!("{what}{i}_{file}"));
        let named = |what: &str, label: Option<&str>| match label {
            Some(label) => format!("{name} {label}"),
            None => format!("{name} {what}{i}"),
        };
        let label = |what| label(at(what, "label"));
        let file = |what, file: &str, kind| {
            let tag = label(what);
            let sensor = FoundSensor::file(at(what, file), (1, 1), named(what, tag.as_deref()), kind)?;
            Some(sensor.from(origin(tag.as_deref())))
        };
        let power =
            file("power", "input", SensorKind::Power).or_else(|| file("power", "average", SensorKind::Power));
        match power {
            Some(power) => found.sensors.push(power),
            None => match pair(name, i, label("curr").as_deref(), label("in").as_deref()) {
                Pair::Same(tag) => {
                    let gauge = product(&at("curr", "input"), &at("in", "input"));
                    found.sensors.extend(gauge.map(|gauge| {
                        let (name, path) = (named("curr", tag), at("curr", "input"));
                        FoundSensor::new(name, SensorKind::Power, path, gauge).from(origin(tag))
                    }));
                }
                Pair::Sum => {}
                Pair::Differ if product(&at("curr", "input"), &at("in", "input")).is_some() => {
                    let labels = [label("curr"), label("in")].map(Option::unwrap_or_default).join(" and ");
                    let why = "current and voltage are not of one channel";
                    found.remark(format!("{name} curr{i} is not read as power: {why} ({labels})"));
                }
                Pair::Differ => {}
            },
        }
        found.sensors.extend(file("energy", "input", SensorKind::Energy));
    }
}

fn origin(label: Option<&str>) -> SensorOrigin {
    match label {
        Some(label) if INPUTS.contains(&label) => SensorOrigin::Device,
        _ => SensorOrigin::Rail,
    }
}

/// How the current and the voltage of a number belong together.
#[derive(Debug, PartialEq, Eq)]
enum Pair<'a> {
    /// They are of one channel, with this label.
    Same(Option<&'a str>),
    /// Shunt voltages and the sum of all channels: of an INA3221.
    Sum,
    /// Their labels name different things.
    Differ,
}

fn pair<'a>(chip: &str, i: u32, current: Option<&'a str>, voltage: Option<&'a str>) -> Pair<'a> {
    // Documentation/hwmon/ina3221.rst: in1 to in3 are bus voltages, with the labels, in4 to in6 shunt voltages, curr4
    // is the sum of curr1 to curr3.
    if chip.starts_with("ina3221") {
        return if i <= 3 { Pair::Same(voltage.or(current)) } else { Pair::Sum };
    }
    // PMBus names them iin and vin, iout1 and vout1 (Documentation/hwmon/pmbus.rst).
    let bare = |s: &str, unit: char| s.to_lowercase().strip_prefix(unit).map(str::to_owned);
    match (current, voltage) {
        (Some(a), Some(b)) if a == b || bare(a, 'i').is_some() && bare(a, 'i') == bare(b, 'v') => {
            Pair::Same(Some(a))
        }
        (Some(_), Some(_)) => Pair::Differ,
        (a, b) => Pair::Same(a.or(b)),
    }
}

fn product(current: &Path, voltage: &Path) -> Option<Box<dyn Gauge>> {
    let mut gauge = PowerGauge { current: found::open(current).ok()?, voltage: found::open(voltage).ok()? };
    gauge.read().ok()?;
    Some(Box::new(gauge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_current_and_a_voltage_are_multiplied_only_within_a_channel() {
        assert_eq!(pair("ina3221", 1, None, Some("VDD_IN")), Pair::Same(Some("VDD_IN")));
        assert_eq!(pair("ina3221", 4, None, Some("sum of shunt voltages")), Pair::Sum);
        assert_eq!(pair("tps", 2, Some("iout1"), Some("vout1")), Pair::Same(Some("iout1")));
        assert_eq!(pair("tps", 2, Some("iout1"), Some("vout2")), Pair::Differ);
        assert_eq!(pair("x", 2, Some("CPU"), Some("CPU")), Pair::Same(Some("CPU")));
        assert_eq!(pair("x", 2, None, None), Pair::Same(None));
    }
}
