//! A meter that the user names: a file with a number that some program keeps up to date, as for a meter in the USB cable.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::found::{self, FoundSensor};
use super::gauge::Gauge;
use pfi::record::{SensorKind, SensorOrigin};

/// Names of the units, what they measure, and what one is in µW or µJ.
const UNITS: [(&str, SensorKind, f64); 6] = [
    ("uW", SensorKind::Power, 1.0),
    ("mW", SensorKind::Power, 1e3),
    ("W", SensorKind::Power, 1e6),
    ("uJ", SensorKind::Energy, 1.0),
    ("mJ", SensorKind::Energy, 1e3),
    ("J", SensorKind::Energy, 1e6),
];
/// Largest value that is taken for one: a MW, and what a total can hold, in µW and µJ.
const MOST_POWER: f64 = 1e12;
const MOST_ENERGY: f64 = 9e18;
/// Bytes of the file that may belong to the number.
const MOST_BYTES: u64 = 64;

/// A file with the power of the machine, or with its energy so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterFile {
    pub path: PathBuf,
    unit: usize,
}

/// Why a meter cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("meter {}: {source}; its content must be one number, in {unit}", path.display())]
pub struct MeterError {
    path: PathBuf,
    unit: &'static str,
    source: io::Error,
}

impl MeterFile {
    /// From `FILE` or `FILE:UNIT`; without a unit it is µW.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence.
    pub fn parse(text: &str) -> Result<MeterFile, String> {
        let (path, unit) = match text.rsplit_once(':') {
            Some((path, unit)) if !unit.contains('/') => (path, unit),
            _ => (text, "uW"),
        };
        let names = || UNITS.map(|u| u.0).join(", ");
        let found = UNITS.iter().position(|u| u.0 == unit);
        let unit = found.ok_or_else(|| format!("'{unit}' is no unit: use one of {}", names()))?;
        if path.is_empty() {
            return Err("expected FILE or FILE:UNIT".into());
        }
        Ok(MeterFile { path: path.into(), unit })
    }

    fn unit(&self) -> (&'static str, SensorKind, f64) {
        UNITS.get(self.unit).copied().unwrap_or(("uW", SensorKind::Power, 1.0))
    }

    /// The sensor. Its file must contain a number now.
    ///
    /// # Errors
    /// It cannot be read, or contains none.
    pub(super) fn open(&self) -> Result<FoundSensor, MeterError> {
        let (unit, kind, factor) = self.unit();
        let mut gauge = Meter { path: self.path.clone(), kind, factor };
        gauge.read().map_err(|source| MeterError { path: self.path.clone(), unit, source })?;
        let name = format!("meter {}", found::file_name(&self.path));
        Ok(FoundSensor::new(name, kind, self.path.clone(), Box::new(gauge)).from(SensorOrigin::Meter))
    }
}

/// The file is opened for each value: a program that replaces it atomically makes a new one.
struct Meter {
    path: PathBuf,
    kind: SensorKind,
    factor: f64,
}

impl Gauge for Meter {
    fn read(&mut self) -> io::Result<i64> {
        let text = beginning(&self.path)?;
        let no = |why: &str| io::Error::other(format!("'{}' {why}", text.escape_debug()));
        if text.is_empty() {
            return Err(io::Error::other("the file is empty"));
        }
        let value = text.parse::<f64>().map_err(|_| no("is not a number"))? * self.factor;
        let most = if self.kind == SensorKind::Power { MOST_POWER } else { MOST_ENERGY };
        if !(0.0..=most).contains(&value) {
            return Err(no("is out of range"));
        }
        Ok(value.round() as i64)
    }
}

fn beginning(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    found::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("more than {MOST_BYTES} bytes")));
    }
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_is_a_file_and_a_unit() {
        let of = |text: &str| MeterFile::parse(text).map(|m| (m.path.display().to_string(), m.unit().0));
        assert_eq!(of("/run/meter"), Ok(("/run/meter".into(), "uW")));
        assert_eq!(of("m:W"), Ok(("m".into(), "W")));
        assert_eq!(of("/sys/intel-rapl:0/energy_uj:uJ"), Ok(("/sys/intel-rapl:0/energy_uj".into(), "uJ")));
        assert_eq!(of("/sys/intel-rapl:0/energy_uj"), Ok(("/sys/intel-rapl:0/energy_uj".into(), "uW")));
        assert!(of("m:kWh").is_err_and(|e| e.contains("'kWh' is no unit: use one of uW, mW, W, uJ, mJ, J")));
        assert!(of(":W").is_err() && of("").is_err());
    }

    #[test]
    fn its_number_is_read_anew_and_anything_else_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("meter");
        let meter = |unit| MeterFile::parse(&format!("{}:{unit}", path.display())).expect("a meter");
        assert!(meter("W").open().err().is_some_and(|e| e.to_string().contains("No such file")));
        std::fs::write(&path, " 5.25\n").expect("a file");
        let mut watts = meter("W").open().expect("a number");
        assert_eq!((watts.kind, watts.gauge.read().ok()), (SensorKind::Power, Some(5_250_000)));
        assert_eq!(meter("mJ").open().expect("a number").gauge.read().ok(), Some(5_250));
        let new = dir.path().join("new");
        std::fs::write(&new, "7").expect("a file");
        std::fs::rename(&new, &path).expect("renamed");
        assert_eq!(watts.gauge.read().ok(), Some(7_000_000));
        let long = "1".repeat(70);
        for wrong in ["", "x", "5 W", "nan", "-1", "inf", "1e300", "\0\u{fffd}", "1\n2", &long] {
            std::fs::write(&path, wrong).expect("a file");
            assert!(watts.gauge.read().is_err(), "{wrong:?}");
        }
        let said = meter("W").open().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(said.contains("more than 64 bytes; its content must be one number, in W"), "{said}");
        let dir = MeterFile::parse(&dir.path().display().to_string()).expect("a path");
        assert!(dir.open().is_err());
    }
}
