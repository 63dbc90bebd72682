//! Reading one sensor: a sysfs file kept open and read from the start, the product of two such files, or a counter.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::found;

/// Something with a current value.
pub trait Gauge: Send {
    /// The value in its sensor's unit. An error means that there is none now; a later call may succeed.
    fn read(&mut self) -> io::Result<i64>;
}

/// One number in a file, times `factor` / `divisor`.
pub struct FileGauge {
    file: File,
    factor: i64,
    divisor: i64,
}

impl FileGauge {
    /// Opens it; the file must contain a number now.
    pub fn open(path: &Path, (factor, divisor): (i64, i64)) -> io::Result<FileGauge> {
        let mut value = FileGauge { file: found::open(path)?, factor, divisor };
        value.read().map(|_| value)
    }
}

impl Gauge for FileGauge {
    fn read(&mut self) -> io::Result<i64> {
        let product = i128::from(number(&self.file)?) * i128::from(self.factor);
        let value = product.checked_div(self.divisor.into()).unwrap_or(product);
        i64::try_from(value).map_err(io::Error::other)
    }
}

/// Current times voltage: µW from mA and mV.
pub struct PowerGauge {
    pub current: File,
    pub voltage: File,
}

impl Gauge for PowerGauge {
    fn read(&mut self) -> io::Result<i64> {
        let product = i128::from(number(&self.current)?) * i128::from(number(&self.voltage)?);
        i64::try_from(product).map_err(io::Error::other)
    }
}

/// A counter that wraps after `range`: a total that does not.
pub struct WrappingCounter {
    file: File,
    range: Option<i64>,
    last: i64,
    /// Sum of the ranges that it has wrapped through.
    before: i64,
}

impl WrappingCounter {
    /// Opens it; the file must contain a number now.
    pub fn open(path: &Path, range: Option<i64>) -> io::Result<WrappingCounter> {
        let file = found::open(path)?;
        let last = number(&file)?;
        Ok(WrappingCounter { file, range, last, before: 0 })
    }
}

impl Gauge for WrappingCounter {
    fn read(&mut self) -> io::Result<i64> {
        let now = number(&self.file)?;
        let last = std::mem::replace(&mut self.last, now);
        if let Some(range) = self.range.filter(|range| now >= 0 && last > now && *range >= last) {
            // It goes from `range` to 0. More than half the range in one interval is a restart, not a wrap; the
            // total is then smaller than before, which the reader of the trace sees.
            if range.saturating_sub(last).saturating_add(now) < range / 2 {
                self.before = self.before.saturating_add(range).saturating_add(1);
            }
        }
        Ok(self.before.saturating_add(now))
    }
}

/// The number at the beginning of a file.
pub fn number(file: &File) -> io::Result<i64> {
    let mut bytes = [0; 32];
    let len = file.read_at(&mut bytes, 0)?;
    let text = std::str::from_utf8(bytes.get(..len).unwrap_or_default()).map_err(io::Error::other)?;
    match text.trim() {
        "" => Err(io::Error::other("the file is empty")),
        text => text.parse().map_err(io::Error::other),
    }
}
