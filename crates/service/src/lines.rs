//! Log lines: whatever they contain, each is one line of bounded length; and no user's engines can flood the log.

use std::time::{Duration, Instant};

use common::plain::hides;

/// Burst of lines for one user, and for all users except root together; after that, one each per interval.
const BURST: u32 = 20;
const BURST_OF_ALL: u32 = 60;
const EVERY: Duration = Duration::from_secs(3);
const EVERY_OF_ALL: Duration = Duration::from_secs(1);
/// Maximum known users with omitted lines.
const USERS: usize = 64;
/// Maximum characters per line.
const LONGEST: usize = 1000;

/// Foreign text as part of one line: characters that hide are escaped, and text that then has more than `most` characters
/// is cut. A text that was made plain stays as it is.
pub fn plain(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(most));
    let mut n = 0;
    for c in text.chars() {
        let shown = if hides(c) { c.escape_default().len() } else { 1 };
        n += shown;
        if n > most {
            out.push('…');
            break;
        }
        if shown > 1 { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// What is reported of a user only once in a while.
#[derive(Debug, Default)]
pub struct Seldom {
    said: Vec<(u32, Instant)>,
}

impl Seldom {
    /// Whether it is due: never reported, or last reported at least `every` ago.
    pub fn is_due(&mut self, uid: u32, every: Duration, now: Instant) -> bool {
        self.said.retain(|(_, at)| now.saturating_duration_since(*at) < every);
        let due = self.said.iter().all(|(of, _)| *of != uid) && self.said.len() < USERS;
        if due {
            self.said.push((uid, now));
        }
        due
    }
}

/// Lines that may still be written.
#[derive(Debug)]
struct Allowance {
    left: u32,
    most: u32,
    every: Duration,
    since: Instant,
}

impl Allowance {
    fn new(most: u32, every: Duration, now: Instant) -> Allowance {
        Allowance { left: most, most, every, since: now }
    }

    fn renew(&mut self, now: Instant) {
        let came = now.saturating_duration_since(self.since).as_nanos() / self.every.as_nanos().max(1);
        let came = u32::try_from(came).unwrap_or(u32::MAX);
        self.since =
            if self.left.saturating_add(came) >= self.most { now } else { self.since + self.every * came };
        self.left = self.left.saturating_add(came).min(self.most);
    }
}

#[derive(Debug)]
struct UserLines {
    uid: u32,
    own: Allowance,
    left_out: u64,
}

/// Lines waiting to be written.
#[derive(Debug)]
pub struct LineQueue {
    lines: Vec<String>,
    users: Vec<UserLines>,
    others: Allowance,
    /// Omitted lines of users that are not known any longer.
    left_out: u64,
}

impl LineQueue {
    pub fn new(now: Instant) -> LineQueue {
        let others = Allowance::new(BURST_OF_ALL, EVERY_OF_ALL, now);
        LineQueue { lines: Vec::new(), users: Vec::new(), others, left_out: 0 }
    }

    /// Adds a line caused by a user's engines; None: by no user.
    pub fn say(&mut self, uid: Option<u32>, now: Instant, text: &str) {
        let Some(uid) = uid else { return self.lines.push(plain(text, LONGEST)) };
        let i = self.users.iter().position(|of| of.uid == uid).unwrap_or_else(|| {
            self.make_room(now);
            self.users.push(UserLines { uid, own: Allowance::new(BURST, EVERY, now), left_out: 0 });
            self.users.len() - 1
        });
        if self.take(i, now) {
            self.lines.push(plain(text, LONGEST));
        } else {
            self.users[i].left_out += 1;
        }
    }

    fn take(&mut self, i: usize, now: Instant) -> bool {
        let of = &mut self.users[i];
        of.own.renew(now);
        self.others.renew(now);
        let others = if of.uid == 0 { u32::MAX } else { self.others.left };
        let may = of.own.left > 0 && others > 0;
        if may {
            of.own.left -= 1;
            self.others.left -= u32::from(of.uid != 0);
        }
        may
    }

    /// Removes the user who has been silent longest.
    fn make_room(&mut self, now: Instant) {
        if self.users.len() < USERS {
            return;
        }
        self.users.iter_mut().for_each(|of| of.own.renew(now));
        let idlest = (0..self.users.len()).max_by_key(|&i| self.users[i].own.left).unwrap_or(0);
        self.left_out += self.users.remove(idlest).left_out;
    }

    /// Reports how many lines were omitted, once there is room for that.
    pub fn tell_left_out(&mut self, now: Instant) {
        for i in 0..self.users.len() {
            if self.users[i].left_out > 0 && self.take(i, now) {
                let n = std::mem::take(&mut self.users[i].left_out);
                self.lines.push(format!(
                    "{n} more lines about engines of user {} were suppressed",
                    self.users[i].uid
                ));
            }
        }
        self.others.renew(now);
        if self.left_out > 0 && self.others.left > 0 {
            self.others.left -= 1;
            let n = std::mem::take(&mut self.left_out);
            self.lines.push(format!("{n} more lines about engines of other users were suppressed"));
        }
    }

    /// Takes the lines.
    pub fn take_all(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(plain("a\nb\u{202e}c\u{9b}ä", 100), "a\\nb\\u{202e}c\\u{9b}ä");
        assert_eq!(plain(&"x".repeat(5000), 3), "xxx…");
        // What is shown is bounded, not what is read.
        assert_eq!(plain("ab\u{e0041}\u{e0041}", 12), "ab\\u{e0041}…");
    }

    proptest! {
        #[test]
        fn no_line_hides_anything_and_a_plain_text_stays(
            text in "(.|[\u{ad}\u{61c}\u{180e}\u{fff9}\u{1d173}\u{e0041}\\\\])*", most in 0usize..40,
        ) {
            let once = plain(&text, most);
            prop_assert!(!once.contains(hides) && once.chars().count() <= most + 1, "{once:?}");
            prop_assert_eq!(plain(&once, most), once);
        }
    }

    #[test]
    fn one_user_floods_neither_the_log_nor_the_memory() {
        let begin = Instant::now();
        let mut lines = LineQueue::new(begin);
        for n in 0..10_000u64 {
            let now = begin + Duration::from_millis(n);
            lines.say(Some(65534), now, "again");
            lines.tell_left_out(now);
        }
        lines.say(Some(0), begin + Duration::from_secs(10), "root's");
        let said = lines.take_all();
        assert!(said.len() < 30, "{}", said.len());
        assert_eq!(said.last().map(String::as_str), Some("root's"));
        lines.tell_left_out(begin + Duration::from_secs(20));
        let told = lines.take_all();
        assert!(told[0].contains("lines about engines of user 65534 were suppressed"), "{told:?}");
        // Many users.
        for uid in 0..100_000 {
            lines.say(Some(uid), begin + Duration::from_secs(30), "again");
        }
        assert!(lines.users.len() <= USERS && lines.take_all().len() <= BURST_OF_ALL as usize + 1);
        lines.tell_left_out(begin + Duration::from_secs(60));
        assert!(lines.take_all().iter().any(|l| l.contains("of other users")));
        lines.say(Some(0), begin + Duration::from_secs(60), "root's");
        assert_eq!(lines.take_all(), ["root's"]);
        // Lines of no user are always written.
        (0..100).for_each(|_| lines.say(None, begin, "x"));
        assert_eq!(lines.take_all().len(), 100);
    }
}
