//! Batteries. What the kernel's class power_supply has besides tells what was agreed with a charger, not what flows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::found::{self, Found, FoundSensor, entries, file_name, label};
use super::gauge::{Gauge, number};
use pfi::record::{SensorKind, SensorOrigin};

/// What a battery's voltage may be, µV: from one cell at its end (2.5 V) to a laptop's eight in series (30 V).
const VOLTS: std::ops::RangeInclusive<i64> = 2_500_000..=30_000_000;
/// Least power of a device that computes, and the most that a battery of one delivers, µW.
const LEAST: i128 = 50_000;
const MOST: i128 = 200_000_000;
/// Power, µW, within which a current that is too small in µA is taken for one in mA.
const MILLIS: std::ops::RangeInclusive<i128> = 500_000..=30_000_000;

/// Documentation/ABI/testing/sysfs-class-power: power_now in µW, current_now in µA, voltage_now in µV.
pub fn find(dir: &Path, found: &mut Found) {
    for supply in entries(dir, "") {
        let name = file_name(&supply);
        let has = |file: &str| supply.join(file).exists();
        if !(has("power_now") || has("current_now") && has("voltage_now")) {
            continue;
        }
        match battery(&supply, &name, found) {
            Ok(()) => {}
            Err(why) => found.remark(format!("power supply {name} is not read: {why}")),
        }
    }
}

/// Adds the sensors of one supply, or says why it has none.
fn battery(supply: &Path, name: &str, found: &mut Found) -> Result<(), String> {
    let kind = label(supply.join("type")).unwrap_or_else(|| "unknown".into());
    if kind != "Battery" && kind != "UPS" {
        return Err(format!(
            "type {kind}: what was agreed with the supply is a contract, not a measurement of power"
        ));
    }
    if label(supply.join("scope")).as_deref() == Some("Device") {
        return Err("it is the battery of another device".into());
    }
    let file = |file: &str| found::open(&supply.join(file)).map_err(|e| format!("{file}: {e}"));
    let first = |file: &File, name: &str| number(file).map_err(|e| format!("{name}: {e}"));
    let now = file("power_now").and_then(|power| Ok((first(&power, "power_now")?, power)));
    let sensor = |kind, what: &str, gauge: Box<dyn Gauge>| {
        FoundSensor::new(name.into(), kind, supply.join(what), gauge).from(SensorOrigin::Device)
    };
    let pair = || -> Result<(File, File, Unit), String> {
        let (current, voltage) = (file("current_now")?, file("voltage_now")?);
        let unit = Unit::of(first(&current, "current_now")?, first(&voltage, "voltage_now")?)?;
        Ok((current, voltage, unit))
    };
    let pair = pair();
    if let Ok((power, opened)) = now {
        plausible(power.into()).map_err(|why| format!("power_now: {why}"))?;
        let gauge = Battery { status: file("status")?, value: Value::Power(opened) };
        found.sensors.push(sensor(SensorKind::Power, "power_now", Box::new(gauge)));
    } else {
        let (current, voltage, unit) = pair.as_ref().map_err(Clone::clone)?;
        let copy = |file: &File| file.try_clone().map_err(|e| e.to_string());
        let value = Value::Product { current: copy(current)?, voltage: copy(voltage)?, unit: *unit };
        let gauge = Battery { status: file("status")?, value };
        found.sensors.push(sensor(SensorKind::Power, "current_now", Box::new(gauge)));
    }
    if let Ok((current, _, unit)) = pair {
        if let Some(said) = unit.said() {
            found.remark(format!("battery {name}: {said}"));
        }
        let gauge = Battery { status: file("status")?, value: Value::Current { current, unit } };
        found.sensors.push(sensor(SensorKind::Current, "current_now", Box::new(gauge)));
    }
    Ok(())
}

/// Factors to µA and µV. Some vendors give mA or mV; drivers also disagree about the sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unit {
    current: i64,
    voltage: i64,
}

impl Unit {
    /// From a current and a voltage as read. A unit is corrected only if the documented one is impossible and the other
    /// is not.
    fn of(current: i64, voltage: i64) -> Result<Unit, String> {
        let factor = [1, 1000].into_iter().find(|f| VOLTS.contains(&voltage.saturating_mul(*f)));
        let factor =
            factor.ok_or_else(|| format!("voltage_now {voltage} is neither 2.5 to 30 V in uV nor in mV"))?;
        let power = micro_watts(current, voltage.saturating_mul(factor));
        let milli = power > 0 && power < LEAST && MILLIS.contains(&(power * 1000));
        plausible(power).map_err(|why| format!("current_now {current}: {why}"))?;
        Ok(Unit { current: if milli { 1000 } else { 1 }, voltage: factor })
    }

    fn said(self) -> Option<String> {
        let what = match (self.current > 1, self.voltage > 1) {
            (false, false) => return None,
            (true, false) => "current_now is taken for mA",
            (false, true) => "voltage_now is taken for mV",
            (true, true) => "current_now is taken for mA and voltage_now for mV",
        };
        Some(format!("{what}: in the kernel's unit the value is impossible"))
    }
}

fn micro_watts(micro_amps: i64, micro_volts: i64) -> i128 {
    (i128::from(micro_amps) * i128::from(micro_volts)).abs() / 1_000_000
}

fn plausible(micro_watts: i128) -> Result<(), String> {
    match micro_watts.abs() {
        over if over > MOST => {
            Err(format!("{:.0} W is more than a battery gives (200 W)", over as f64 / 1e6))
        }
        _ => Ok(()),
    }
}

enum Value {
    Power(File),
    Product { current: File, voltage: File, unit: Unit },
    Current { current: File, unit: Unit },
}

/// What a battery delivers while it discharges: otherwise its current is that of the charger.
struct Battery {
    status: File,
    value: Value,
}

impl Gauge for Battery {
    fn read(&mut self) -> io::Result<i64> {
        let mut bytes = [0; 32];
        let len = self.status.read_at(&mut bytes, 0)?;
        if bytes.get(..len).unwrap_or_default().trim_ascii() != b"Discharging" {
            return Err(io::Error::other("the battery is not discharging"));
        }
        let micro_watts = match &self.value {
            Value::Power(power) => i128::from(number(power)?).abs(),
            Value::Product { current, voltage, unit } => micro_watts(
                number(current)?.saturating_mul(unit.current),
                number(voltage)?.saturating_mul(unit.voltage),
            ),
            Value::Current { current, unit } => {
                return Ok(number(current)?.saturating_mul(unit.current).saturating_abs());
            }
        };
        plausible(micro_watts).map_err(io::Error::other)?;
        i64::try_from(micro_watts).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_corrected_only_where_no_other_is_possible() {
        let of = |current, voltage| Unit::of(current, voltage).ok().map(|u| (u.current, u.voltage));
        // 2 W from one cell: as documented, in mA, in mV, and in both, with any sign.
        assert_eq!(of(500_000, 4_000_000), Some((1, 1)));
        assert_eq!(of(-500, 4_000_000), Some((1000, 1)));
        assert_eq!(of(500_000, 4_000), Some((1, 1000)));
        assert_eq!(of(-500, 4_000), Some((1000, 1000)));
        // 20 mA or 20 A: both are possible, so the documented unit holds. Zero says nothing.
        assert_eq!(of(20_000, 4_000_000), Some((1, 1)));
        assert_eq!(of(0, 4_000_000), Some((1, 1)));
        // 50 mA at 4 mV or 4 kV; and 400 W.
        assert_eq!(of(50_000, 4), None);
        assert_eq!(of(50_000, 4_000_000_000), None);
        assert_eq!(of(100_000_000, 4_000_000), None);
        for wild in [i64::MIN, i64::MAX] {
            assert_eq!((of(wild, wild), of(wild, 4_000_000), of(1, wild)), (None, None, None));
        }
    }
}
