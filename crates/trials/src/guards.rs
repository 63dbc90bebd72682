//! What must hold before a run: the machine is cool, and a battery that is a source of energy is in use and not empty.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A run begins when the machine is at most this much warmer than at the start.
const WARMER_C: f64 = 5.0;
/// Maximum time to wait for that.
const COOL_WITHIN: Duration = Duration::from_secs(60);
/// A battery below this share of its charge ends the search.
const BATTERY_FLOOR: u32 = 20;
/// Values of a thermal zone outside of these are not temperatures, degrees Celsius.
const PLAUSIBLE_C: std::ops::Range<f64> = 1.0..150.0;

/// Why energy cannot be measured, or the search cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatteryState {
    /// No battery.
    None,
    /// In use, with this charge in percent if it is known.
    InUse(Option<u32>),
    /// Charging or full: its current is not the machine's.
    PluggedIn(String),
}

/// The directories of sensors.
pub struct Guards {
    sysfs: PathBuf,
    start_c: Option<f64>,
}

impl Guards {
    pub fn new(sysfs: &Path) -> Guards {
        Guards { sysfs: sysfs.to_owned(), start_c: hottest(sysfs) }
    }

    /// The hottest thermal zone now, degrees Celsius; None if there is none.
    pub fn hottest(&self) -> Option<f64> {
        hottest(&self.sysfs)
    }

    /// Waits until the machine has cooled down, for at most a minute. Returns how warm it still is if it has not.
    pub fn cool_down(&self, stop: &dyn Fn() -> bool) -> Option<f64> {
        let limit = self.start_c? + WARMER_C;
        let begin = Instant::now();
        loop {
            let now = self.hottest().filter(|now| *now > limit)?;
            if begin.elapsed() >= COOL_WITHIN || stop() {
                return Some(now);
            }
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    /// The state of the battery.
    pub fn battery(&self) -> BatteryState {
        battery(&self.sysfs.join("class/power_supply"))
    }

    /// Why the battery is too low to go on.
    pub fn too_low(&self) -> Option<String> {
        match self.battery() {
            BatteryState::InUse(Some(charge)) if charge < BATTERY_FLOOR => {
                Some(format!("the battery is at {charge} %: below {BATTERY_FLOOR} % nothing is measured"))
            }
            _ => None,
        }
    }
}

fn text(path: PathBuf) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Documentation/driver-api/thermal/sysfs-api.rst: millidegrees Celsius.
fn hottest(sysfs: &Path) -> Option<f64> {
    let zones = fs::read_dir(sysfs.join("class/thermal")).ok()?.flatten();
    let zones = zones.filter(|e| e.file_name().to_string_lossy().starts_with("thermal_zone"));
    let temperature = |dir: PathBuf| Some(text(dir.join("temp"))?.parse::<f64>().ok()? / 1000.0);
    zones.filter_map(|e| temperature(e.path())).filter(|c| PLAUSIBLE_C.contains(c)).reduce(f64::max)
}

/// Documentation/ABI/testing/sysfs-class-power.
fn battery(dir: &Path) -> BatteryState {
    let supplies = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let mut batteries = supplies.filter(|s| text(s.join("type")).as_deref() == Some("Battery"));
    // A peripheral's battery has the scope Device.
    let Some(found) = batteries.find(|s| text(s.join("scope")).as_deref() != Some("Device")) else {
        return BatteryState::None;
    };
    match text(found.join("status")) {
        Some(status) if status == "Discharging" => {
            let charge = text(found.join("capacity")).and_then(|t| t.parse().ok());
            BatteryState::InUse(charge.filter(|percent| *percent <= 100))
        }
        Some(status) => BatteryState::PluggedIn(status),
        None => BatteryState::PluggedIn("unknown".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, content: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        fs::write(path, content).expect("written");
    }

    #[test]
    fn a_battery_counts_while_it_is_in_use() {
        let root = tempfile::tempdir().expect("a directory");
        let guards = Guards::new(root.path());
        assert_eq!(guards.battery(), BatteryState::None);
        write(root.path(), "class/power_supply/usb/type", "USB");
        write(root.path(), "class/power_supply/mouse/type", "Battery");
        write(root.path(), "class/power_supply/mouse/scope", "Device");
        assert_eq!(guards.battery(), BatteryState::None);
        write(root.path(), "class/power_supply/bat/type", "Battery\n");
        write(root.path(), "class/power_supply/bat/status", "Charging");
        assert_eq!(guards.battery(), BatteryState::PluggedIn("Charging".to_owned()));
        write(root.path(), "class/power_supply/bat/status", "Discharging");
        assert_eq!(guards.battery(), BatteryState::InUse(None));
        write(root.path(), "class/power_supply/bat/capacity", "19");
        assert!(guards.too_low().is_some_and(|why| why.contains("19 %")));
        write(root.path(), "class/power_supply/bat/capacity", "20");
        assert_eq!(guards.too_low(), None);
    }

    #[test]
    fn only_a_temperature_is_waited_for() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(Guards::new(root.path()).cool_down(&|| true), None);
        write(root.path(), "class/thermal/thermal_zone0/temp", "41000");
        write(root.path(), "class/thermal/thermal_zone1/temp", "-273000");
        write(root.path(), "class/thermal/thermal_zone2/temp", "hot");
        let guards = Guards::new(root.path());
        assert_eq!(guards.hottest(), Some(41.0));
        assert_eq!(guards.cool_down(&|| false), None);
        write(root.path(), "class/thermal/thermal_zone0/temp", "46001");
        assert_eq!(guards.cool_down(&|| true), Some(46.001));
    }
}
