//! Reading one sensor: a sysfs file kept open and read from the start, or the product of two such files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Something with a current value.
pub trait Gauge: Send {
    /// The value in its sensor's unit. An error means that there is none now; a later call may succeed.
    fn read(&self) -> io::Result<i64>;
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
        let value = FileGauge { file: File::open(path)?, factor, divisor };
        value.read().map(|_| value)
    }
}

impl Gauge for FileGauge {
    fn read(&self) -> io::Result<i64> {
        let product = i128::from(number(&self.file)?) * i128::from(self.factor) / i128::from(self.divisor);
        i64::try_from(product).map_err(io::Error::other)
    }
}

/// Current times voltage: µW from µA and µV, or from mA and mV.
pub struct PowerGauge {
    pub current: File,
    pub voltage: File,
    pub divisor: i64,
}

impl Gauge for PowerGauge {
    fn read(&self) -> io::Result<i64> {
        let product = i128::from(number(&self.current)?) * i128::from(number(&self.voltage)?);
        i64::try_from(product / i128::from(self.divisor)).map_err(io::Error::other)
    }
}

/// Power that a battery delivers while it discharges. Drivers disagree about the sign of its current.
pub struct Battery {
    pub power: Box<dyn Gauge>,
    pub status: File,
}

impl Gauge for Battery {
    fn read(&self) -> io::Result<i64> {
        let mut bytes = [0; 32];
        let len = self.status.read_at(&mut bytes, 0)?;
        match bytes.get(..len).unwrap_or_default().trim_ascii() {
            b"Discharging" => self.power.read().map(i64::saturating_abs),
            _ => Err(io::Error::other("the battery is not discharging")),
        }
    }
}

fn number(file: &File) -> io::Result<i64> {
    let mut bytes = [0; 32];
    let len = file.read_at(&mut bytes, 0)?;
    let text = std::str::from_utf8(bytes.get(..len).unwrap_or_default()).map_err(io::Error::other)?;
    text.trim().parse().map_err(io::Error::other)
}
