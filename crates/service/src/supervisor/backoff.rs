//! Which rules get no recorder for a while, for one user or for all, and why; the delay grows with each repetition.

use std::time::{Duration, Instant};

/// Maximum delay.
const MOST: Duration = Duration::from_secs(600);
/// A delay is forgotten this long after it ended, or after its own length if that is longer.
const MEMORY: Duration = Duration::from_secs(60);
/// Maximum known delays.
const KNOWN: usize = 256;

/// The recorder of a rule, for a user; None: for nobody yet.
pub type RecorderKey = (String, Option<u32>);

#[derive(Debug)]
struct DelayedStart {
    key: RecorderKey,
    until: Instant,
    by: Duration,
    why: String,
}

impl DelayedStart {
    fn forgotten(&self) -> Instant {
        self.until + self.by.max(MEMORY)
    }
}

/// The delays.
#[derive(Debug, Default)]
pub struct RecorderBackoff {
    waits: Vec<DelayedStart>,
}

impl RecorderBackoff {
    /// RecorderBackoff by this time.
    pub fn by(&mut self, key: RecorderKey, by: Duration, why: &str, now: Instant) {
        self.waits.retain(|w| w.key != key && now < w.forgotten());
        if self.waits.len() >= KNOWN
            && let Some(first) = (0..self.waits.len()).min_by_key(|&i| self.waits[i].until)
        {
            self.waits.remove(first);
        }
        self.waits.push(DelayedStart { key, until: now + by, by, why: why.to_owned() });
    }

    /// RecorderBackoff by `first`, or by twice the last delay if that is not forgotten; returns the delay.
    pub fn longer(&mut self, key: RecorderKey, first: Duration, why: &str, now: Instant) -> Duration {
        let last = self.waits.iter().find(|w| w.key == key && now < w.forgotten()).map(|w| w.by);
        let by = last.map_or(first, |last| last.saturating_mul(2).clamp(first, MOST.max(first)));
        self.by(key, by, why, now);
        by
    }

    /// Why a user's runs of a rule currently get no recorder.
    pub fn why(&self, rule: &str, uid: Option<u32>, now: Instant) -> Option<&str> {
        let of =
            |w: &&DelayedStart| w.key.0 == rule && (w.key.1 == uid || w.key.1.is_none()) && now < w.until;
        self.waits.iter().find(of).map(|w| w.why.as_str())
    }

    pub fn clear(&mut self) {
        self.waits.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_again_waits_longer_and_nobody_else() {
        let (mut later, mut now) = (RecorderBackoff::default(), Instant::now());
        let (nobody, root) = (("a".to_owned(), Some(65534)), Some(0));
        let first = Duration::from_secs(5);
        let mut waits = Vec::new();
        for _ in 0..9 {
            let by = later.longer(nobody.clone(), first, "it died", now);
            assert_eq!(later.why("a", nobody.1, now), Some("it died"));
            assert_eq!((later.why("a", root, now), later.why("b", nobody.1, now)), (None, None));
            now += by;
            assert_eq!(later.why("a", nobody.1, now), None);
            waits.push(by.as_secs());
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        now += 2 * MOST;
        assert_eq!(later.longer(nobody, first, "it died", now), first, "forgotten");
        // A delay of nobody's recorder applies to all users.
        later.by(("a".to_owned(), None), first, "no room", now);
        assert_eq!(later.why("a", root, now), Some("no room"));
        for uid in 0..10_000 {
            later.by(("a".to_owned(), Some(uid)), first, "", now);
        }
        assert!(later.waits.len() <= KNOWN);
    }
}
