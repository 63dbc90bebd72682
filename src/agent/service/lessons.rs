//! What recorders have learnt of this machine: kept in the service's directory, so that one that begins anew can record at
//! once. Uses `place`, `recording` and `replace`.

use std::fs;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::place::Place;
use super::replace::replace;
use crate::agent::recording::{Learnt, Options};

/// The file's name in the directory.
const NAME: &str = ".learnt";
/// Most bytes of it, and most kinds of recording: those of configurations long gone make room.
const MOST: u64 = 64 << 10;
const KINDS: usize = 16;

/// What is kept: it holds until the machine begins anew, for the program that learnt it.
#[derive(Serialize, Deserialize)]
struct Kept {
    boot: String,
    version: String,
    all: Vec<(String, Learnt)>,
}

/// What is known.
#[derive(Default)]
pub struct Lessons {
    /// By kind of recording.
    all: Vec<(String, Learnt)>,
    /// There is more than was kept.
    pub news: bool,
}

/// Recordings of one kind need to know the same.
pub fn kind(o: &Options) -> String {
    format!("{:?} {:?} {} {}", o.source, o.counters, o.sched, o.budget.is_some())
}

/// Which start of the machine this is.
fn boot() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

impl Lessons {
    /// What is known for recordings of this kind.
    pub fn of(&self, kind: &str) -> Option<&Learnt> {
        self.all.iter().find(|(k, _)| k == kind).map(|(_, learnt)| learnt)
    }

    pub fn learn(&mut self, kind: String, learnt: Learnt) {
        self.all.retain(|(k, _)| *k != kind);
        self.all.drain(..(self.all.len() + 1).saturating_sub(KINDS));
        self.all.push((kind, learnt));
        self.news = true;
    }

    /// Takes what was kept by this version of the program since the machine began. Anything else is as if there were nothing:
    /// it is learnt again. Gives how many kinds of recording are known.
    pub fn recall(&mut self, place: &Place, version: &str) -> usize {
        let mut bytes = Vec::new();
        let read = place.read(NAME).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
        let kept = read.ok().and_then(|_| postcard::from_bytes::<Kept>(&bytes).ok());
        let kept = kept.filter(|k| k.version == version && boot().is_ok_and(|boot| boot == k.boot));
        self.all = kept.map(|k| k.all).unwrap_or_default();
        self.all.len()
    }

    /// Keeps what is known. What a recorder could not find out is not kept: it may be found the next time.
    ///
    /// # Errors
    /// The system refuses; what was kept before is as it was.
    pub fn keep(&mut self, place: &Place, version: &str) -> io::Result<()> {
        self.news = false;
        let all = self.all.iter().filter(|(_, learnt)| learnt.hit_ns > 0).cloned().collect();
        let kept = Kept { boot: boot()?, version: version.into(), all };
        let mut buffer = vec![0; MOST as usize];
        let bytes = postcard::to_slice(&kept, &mut buffer).map_err(|_| io::ErrorKind::FileTooLarge)?;
        replace(&place.at(NAME), 0o600, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(hit_ns: u32) -> Learnt {
        Learnt { hit_ns, prices: None, unfit: Some("why".into()) }
    }

    #[test]
    fn what_was_learnt_is_known_to_the_next_of_the_same_version() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Place::open(&dir.path().join("own")).expect("a place");
        let mut lessons = Lessons::default();
        assert_eq!(lessons.recall(&place, "1"), 0, "nothing was kept");
        lessons.learn("a".into(), learnt(5));
        lessons.learn("a".into(), learnt(7));
        lessons.learn("unknown".into(), learnt(0));
        assert!(lessons.news);
        lessons.keep(&place, "1").expect("kept");
        assert!(!lessons.news);

        let mut next = Lessons::default();
        assert_eq!(next.recall(&place, "1"), 1, "what could not be found out is not kept");
        assert_eq!((next.of("a"), next.of("unknown")), (Some(&learnt(7)), None));
        assert_eq!(next.recall(&place, "2"), 0, "another version may mean something else by it");
        assert_eq!(next.of("a"), None);
    }

    #[test]
    fn what_is_damaged_or_of_another_boot_is_not_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Place::open(&dir.path().join("own")).expect("a place");
        let mut lessons = Lessons::default();
        lessons.learn("a".into(), learnt(7));
        lessons.keep(&place, "1").expect("kept");
        let whole = fs::read(place.at(NAME)).expect("the file");
        for end in 0..whole.len() {
            fs::write(place.at(NAME), &whole[..end]).expect("written");
            assert_eq!(Lessons::default().recall(&place, "1"), 0, "{end} bytes of it");
        }
        let mut other = whole;
        // Behind its length: the boot's first character.
        other[1] = if other[1] == b'0' { b'1' } else { b'0' };
        fs::write(place.at(NAME), &other).expect("written");
        assert_eq!(Lessons::default().recall(&place, "1"), 0);
    }
}
