//! Engine files for which a recorder was ended: no recorder examines them for a while, for runs of the same user.

use std::time::{Duration, Instant};

use serde::Serialize;

use machine::maps::FileId;

/// How long a file is quarantined.
const TIME: Duration = Duration::from_secs(600);
/// Deaths of recorders, whatever the reason, while working on a file before the file is considered the cause.
const DEATHS: u32 = 2;
/// Maximum known files, and those of one user.
const KNOWN: usize = 64;
const OF_USER: usize = 8;

#[derive(Debug)]
struct ShunnedFile {
    uid: u32,
    file: FileId,
    until: Instant,
    deaths: u32,
    why: String,
}

/// A quarantined file, as reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quarantined {
    pub uid: u32,
    /// Device and inode.
    pub file: String,
    pub why: String,
    /// Seconds left.
    pub left_s: u64,
}

/// The quarantined files.
#[derive(Debug, Default)]
pub struct Quarantine {
    all: Vec<ShunnedFile>,
}

impl Quarantine {
    /// A recorder was ended because of this file.
    pub fn add(&mut self, uid: u32, file: FileId, why: &str, now: Instant) {
        self.note(uid, file, DEATHS, why, now);
    }

    /// A recorder died while working on this file; true: the file is quarantined.
    pub fn died(&mut self, uid: u32, file: FileId, why: &str, now: Instant) -> bool {
        let before = self.all.iter().find(|o| (o.uid, o.file) == (uid, file) && now < o.until);
        let deaths = before.map_or(1, |o| o.deaths + 1);
        self.note(uid, file, deaths, why, now);
        deaths >= DEATHS
    }

    fn note(&mut self, uid: u32, file: FileId, deaths: u32, why: &str, now: Instant) {
        self.all.retain(|o| now < o.until && (o.uid, o.file) != (uid, file));
        if self.all.iter().filter(|o| o.uid == uid).count() >= OF_USER
            && let Some(first) = self.all.iter().position(|o| o.uid == uid)
        {
            self.all.remove(first);
        }
        if self.all.len() >= KNOWN {
            self.all.remove(0);
        }
        self.all.push(ShunnedFile { uid, file, until: now + TIME, deaths, why: why.to_owned() });
    }

    /// Why a user's runs with this file are not recorded.
    pub fn why(&self, uid: u32, file: FileId, now: Instant) -> Option<&str> {
        let is = |o: &&ShunnedFile| (o.uid, o.file) == (uid, file) && o.deaths >= DEATHS && now < o.until;
        self.all.iter().find(is).map(|o| o.why.as_str())
    }

    /// The files quarantined now.
    pub fn told(&self, now: Instant) -> Vec<Quarantined> {
        let quarantined = self.all.iter().filter(|o| o.deaths >= DEATHS && now < o.until);
        let told = |o: &ShunnedFile| Quarantined {
            uid: o.uid,
            file: shown(o.file),
            why: o.why.clone(),
            left_s: o.until.saturating_duration_since(now).as_secs(),
        };
        quarantined.map(told).collect()
    }
}

/// A file in the terms of find(1) -inum and stat(1).
pub fn shown(file: FileId) -> String {
    format!("inode {} of device {:x}", file.1, file.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shunned_for_its_user_and_for_a_while() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        quarantine.add(5, (1, 2), "silent", now);
        assert_eq!(quarantine.why(5, (1, 2), now), Some("silent"));
        assert_eq!((quarantine.why(0, (1, 2), now), quarantine.why(5, (1, 3), now)), (None, None));
        assert_eq!(quarantine.told(now)[0].left_s, 600);
        assert_eq!(quarantine.why(5, (1, 2), now + TIME), None);
        assert!(quarantine.told(now + TIME).is_empty());
    }

    #[test]
    fn one_death_may_have_another_cause_and_two_have_not() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        assert!(!quarantine.died(5, (1, 2), "it died", now));
        assert!(quarantine.told(now).is_empty() && quarantine.why(5, (1, 2), now).is_none());
        assert!(quarantine.died(5, (1, 2), "it died", now));
        assert_eq!(quarantine.why(5, (1, 2), now), Some("it died"));
    }

    #[test]
    fn a_user_with_many_files_pushes_out_his_own() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        quarantine.add(0, (1, 1), "root's", now);
        (0..1000).for_each(|inode| quarantine.add(5, (1, inode), "", now));
        assert_eq!(quarantine.told(now).len(), 1 + OF_USER);
        assert_eq!(quarantine.why(0, (1, 1), now), Some("root's"));
        (0..1000).for_each(|uid| quarantine.add(uid, (1, 7), "", now));
        assert!(quarantine.told(now).len() <= KNOWN);
    }
}
