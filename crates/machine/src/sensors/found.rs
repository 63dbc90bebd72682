//! What a search for sensors finds, and small readers of sysfs. All files are untrusted text: they are read up to a
//! limit, and what is no number is no value.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::gauge::{FileGauge, Gauge};
use common::order;
use pfi::record::{SensorKind, SensorOrigin};

/// Bytes read of a file: sysfs shows at most a page.
const MOST_BYTES: u64 = 4096;
/// Characters kept of a name.
const MOST_CHARS: usize = 100;

/// Where the kernel shows its sensors.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/sys/kernel/debug`.
    pub debugfs: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
}

impl Roots {
    /// Those that belong to `sysfs`: debugfs in it, `proc` and `dev` beside it. So a tree that was copied from a board
    /// or made for a test is looked at as the machine itself is.
    pub fn of(sysfs: &Path) -> Roots {
        let beside = |name: &str| sysfs.parent().unwrap_or(sysfs).join(name);
        let debugfs = sysfs.join("kernel/debug");
        Roots { sysfs: sysfs.into(), debugfs, proc: beside("proc"), dev: beside("dev") }
    }
}

/// A sensor that was found.
pub struct FoundSensor {
    pub name: String,
    pub kind: SensorKind,
    pub origin: SensorOrigin,
    /// The file, or the first of two.
    pub path: PathBuf,
    /// The driver's own update interval, ns; 0 = unknown.
    pub interval_ns: u64,
    /// For a frequency and a model: the CPUs.
    pub cpus: String,
    pub gauge: Box<dyn Gauge>,
}

impl FoundSensor {
    pub fn new(name: String, kind: SensorKind, path: PathBuf, gauge: Box<dyn Gauge>) -> FoundSensor {
        let origin = SensorOrigin::Unknown;
        FoundSensor { name, kind, origin, path, interval_ns: 0, cpus: String::new(), gauge }
    }

    pub fn from(self, origin: SensorOrigin) -> FoundSensor {
        FoundSensor { origin, ..self }
    }

    /// A number in a file, times `factor.0`, divided by `factor.1`. None if there is none.
    pub fn file(path: PathBuf, factor: (i64, i64), name: String, kind: SensorKind) -> Option<FoundSensor> {
        let gauge = Box::new(FileGauge::open(&path, factor).ok()?);
        Some(FoundSensor::new(name, kind, path, gauge))
    }
}

/// The result of a search.
#[derive(Default)]
pub struct Found {
    pub sensors: Vec<FoundSensor>,
    /// What was read otherwise than the kernel documents it, and what looked like a sensor and is not read: each
    /// with the reason.
    pub remarks: Vec<String>,
}

impl Found {
    pub fn remark(&mut self, text: String) {
        self.remarks.push(text);
    }
}

/// The entries of a directory whose names start with `prefix`, in numeric order.
pub fn entries(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let mut all: Vec<PathBuf> = all.filter(|p| file_name(p).starts_with(prefix)).collect();
    order::by(&mut all, |a, b| (file_name(a).len(), a).cmp(&(file_name(b).len(), b)));
    all
}

pub fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Opens a file to read. Never waits, as for the other end of a pipe.
pub fn open(path: &Path) -> std::io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::Error::other("not a regular file")) }
}

/// The beginning of a file, without blanks around it. None if it is empty or cannot be read.
pub fn text(path: PathBuf) -> Option<String> {
    let mut bytes = Vec::new();
    open(&path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The first line of a file, as a name.
pub fn label(path: PathBuf) -> Option<String> {
    let text = text(path)?;
    let name: String = text.lines().next()?.trim().chars().take(MOST_CHARS).collect();
    (!name.is_empty()).then_some(name)
}

/// The number in a file.
pub fn number<T: std::str::FromStr>(path: PathBuf) -> Option<T> {
    text(path)?.parse().ok()
}
