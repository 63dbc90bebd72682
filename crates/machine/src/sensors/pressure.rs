//! How long some task has waited for a CPU: /proc/pressure/cpu.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::found::{self, FoundSensor};
use super::gauge::Gauge;
use pfi::record::SensorKind;

/// Documentation/accounting/psi.rst: `some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`.
pub struct Pressure {
    file: File,
}

impl Pressure {
    /// None if the kernel does not count it, or this is disabled (psi=0).
    pub fn find(proc: &Path) -> Option<FoundSensor> {
        let path = proc.join("pressure/cpu");
        let mut gauge = Pressure { file: found::open(&path).ok()? };
        gauge.read().ok()?;
        Some(FoundSensor::new("waiting for a CPU".into(), SensorKind::Pressure, path, Box::new(gauge)))
    }
}

impl Gauge for Pressure {
    fn read(&mut self) -> io::Result<i64> {
        let mut bytes = [0; 256];
        let len = self.file.read_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(bytes.get(..len).unwrap_or_default());
        let some = text.lines().find_map(|l| l.strip_prefix("some "));
        let total = some.and_then(|l| l.split(' ').find_map(|f| f.strip_prefix("total=")));
        total.and_then(|t| t.trim().parse().ok()).ok_or_else(|| io::Error::other("no line 'some'"))
    }
}
