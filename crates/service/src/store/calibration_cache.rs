//! Calibrations measured by recorders on this machine, kept in the service's directory so that a new recorder can
//! record immediately.

use std::fs;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use crate::place::OpenDir;
use crate::replace::replace;
use agent::capture::pmc;
use agent::capture::source::BackendChoice;
use agent::recorder::recording::{Calibration, RecordOptions};

/// The file's name in the directory.
const NAME: &str = ".calibration";
/// Maximum size in bytes, and maximum kinds of recording: those of old configurations make room.
const MOST: u64 = 64 << 10;
const KINDS: usize = 16;

/// Contents of the file: valid until the next boot, for the program version that measured it.
#[derive(Serialize, Deserialize)]
struct CachedCalibrations {
    boot: String,
    version: String,
    all: Vec<(Kind, Calibration)>,
}

/// The known calibrations.
#[derive(Default)]
pub struct CalibrationCache {
    all: Vec<(Kind, Calibration)>,
    /// There is something to save.
    pub news: bool,
}

/// Recordings of the same kind need the same calibration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    source: BackendChoice,
    counters: pmc::CounterOptions,
    sched: bool,
    budget: bool,
}

/// The kind of a recording, which is made from inside the engine's process or not.
pub fn kind(o: &RecordOptions, inside: bool) -> Kind {
    Kind {
        source: if inside { BackendChoice::Inside } else { o.source },
        counters: o.counters.clone(),
        sched: o.capture.sched,
        budget: o.budget.is_some(),
    }
}

/// Id of the current boot.
pub(crate) fn boot() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

impl CalibrationCache {
    /// Calibration for recordings of this kind.
    pub fn of(&self, kind: &Kind) -> Option<&Calibration> {
        self.all.iter().find(|(k, _)| k == kind).map(|(_, calibration)| calibration)
    }

    pub fn learn(&mut self, kind: Kind, calibration: Calibration) {
        self.all.retain(|(k, _)| *k != kind);
        self.all.drain(..(self.all.len() + 1).saturating_sub(KINDS));
        self.all.push((kind, calibration));
        self.news = true;
    }

    /// Loads what this version of the program saved since boot. Anything else is ignored and measured again.
    /// Returns the number of known kinds of recording.
    pub fn recall(&mut self, place: &OpenDir, version: &str) -> usize {
        let mut bytes = Vec::new();
        let read = place.read(NAME).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
        let kept = read.ok().and_then(|_| postcard::from_bytes::<CachedCalibrations>(&bytes).ok());
        let kept = kept.filter(|k| k.version == version && boot().is_ok_and(|boot| boot == k.boot));
        self.all = kept.map(|k| k.all).unwrap_or_default();
        self.all.len()
    }

    /// Saves the calibrations. Values that a recorder could not measure are not saved: they may be available next
    /// time.
    ///
    /// # Errors
    /// The system refuses; the old file is unchanged.
    pub fn keep(&mut self, place: &OpenDir, version: &str) -> io::Result<()> {
        self.news = false;
        let all = self.all.iter().filter(|(_, calibration)| calibration.hit_ns > 0).cloned().collect();
        let kept = CachedCalibrations { boot: boot()?, version: version.into(), all };
        let mut buffer = vec![0; MOST as usize];
        let bytes = postcard::to_slice(&kept, &mut buffer).map_err(|_| io::ErrorKind::FileTooLarge)?;
        replace(&place.at(NAME), 0o600, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(name: &str) -> Kind {
        let counters = pmc::CounterOptions { names: vec![name.into()], strict: false };
        Kind { source: BackendChoice::Auto, counters, sched: false, budget: true }
    }

    fn calibration(hit_ns: u32) -> Calibration {
        Calibration { hit_ns, prices: None, unfit: Some("why".into()) }
    }

    #[test]
    fn what_was_learnt_is_known_to_the_next_of_the_same_version() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = OpenDir::open(&dir.path().join("own")).expect("a place");
        let mut calibration_cache = CalibrationCache::default();
        assert_eq!(calibration_cache.recall(&place, "1"), 0, "nothing was kept");
        calibration_cache.learn(counting("a"), calibration(5));
        calibration_cache.learn(counting("a"), calibration(7));
        calibration_cache.learn(counting("unknown"), calibration(0));
        assert!(calibration_cache.news);
        calibration_cache.keep(&place, "1").expect("kept");
        assert!(!calibration_cache.news);

        let mut next = CalibrationCache::default();
        assert_eq!(next.recall(&place, "1"), 1, "what could not be found out is not kept");
        assert_eq!((next.of(&counting("a")), next.of(&counting("unknown"))), (Some(&calibration(7)), None));
        assert_eq!(next.recall(&place, "2"), 0, "another version may mean something else by it");
        assert_eq!(next.of(&counting("a")), None);
    }

    #[test]
    fn what_is_damaged_or_of_another_boot_is_not_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = OpenDir::open(&dir.path().join("own")).expect("a place");
        let mut calibration_cache = CalibrationCache::default();
        calibration_cache.learn(counting("a"), calibration(7));
        calibration_cache.keep(&place, "1").expect("kept");
        let whole = fs::read(place.at(NAME)).expect("the file");
        for end in 0..whole.len() {
            fs::write(place.at(NAME), &whole[..end]).expect("written");
            assert_eq!(CalibrationCache::default().recall(&place, "1"), 0, "{end} bytes of it");
        }
        let mut other = whole;
        // After its length: the first character of the boot id.
        other[1] = if other[1] == b'0' { b'1' } else { b'0' };
        fs::write(place.at(NAME), &other).expect("written");
        assert_eq!(CalibrationCache::default().recall(&place, "1"), 0);
    }
}
