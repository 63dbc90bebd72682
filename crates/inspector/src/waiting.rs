//! What remains to be examined, by the user of its processes: in turn, so that nobody waits for another user's mass
//! of files, and no more time for each than their share.
//!
//! Root is not limited: root does not need us to harm the machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::pool::{InspectJob, LookRequest, LookResult, Mapped};
use common::order;

/// The user without a limit, and with a looker in reserve.
pub const ROOT: u32 = 0;
/// Maximum time of examination for a user in one burst, and the part of it reserved for notices.
const BURST: Duration = Duration::from_secs(2);
const RESERVE: Duration = Duration::from_secs(1);
/// How fast it is refilled: a tenth of the time.
const SHARE: u32 = 10;
/// Nothing is started with less than this.
const LEAST: Duration = Duration::from_millis(100);
/// Maximum waiting notices of a user, and of all users; beyond that their processes are examined completely.
const MOST: usize = 256;
const MOST_OF_ALL: usize = 4096;
/// Maximum processes waiting to be examined.
const PROCESSES: usize = 1 << 16;
/// Maximum bytes and notices of a job.
const JOB_BYTES: usize = 24 << 10;
const JOB: usize = 64;
/// A process that was only partly examined is examined again after a second, then after longer and longer delays up
/// to this.
const LATEST: Duration = Duration::from_secs(64);
/// Maximum users reported.
const TOLD: usize = 16;

/// A user whose files or processes are not all examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HeldBack {
    pub uid: u32,
    /// Mapped files that were not examined because the user's share was used up or they could not be read in time.
    pub files: u64,
    /// Processes waiting to be examined.
    pub processes: u64,
}

struct UserQueue {
    mapped: VecDeque<Mapped>,
    looks: BTreeSet<u32>,
    /// Processes to examine again, and when.
    again: BTreeSet<u32>,
    due: Instant,
    wait: Duration,
    /// A looker is currently working for this user.
    busy: bool,
    left: Duration,
    at: Instant,
    files: u64,
}

impl UserQueue {
    fn new(now: Instant) -> UserQueue {
        UserQueue {
            mapped: VecDeque::new(),
            looks: BTreeSet::new(),
            again: BTreeSet::new(),
            due: now,
            wait: Duration::ZERO,
            busy: false,
            left: BURST,
            at: now,
            files: 0,
        }
    }

    fn refill(&mut self, now: Instant) {
        self.left = BURST.min(self.left + now.saturating_duration_since(self.at) / SHARE);
        self.at = now;
        if now >= self.due {
            self.looks.append(&mut self.again);
        }
    }

    /// Time currently available for notices, and for processes.
    fn may(&self, root: bool) -> (Duration, Duration) {
        let enough = |left: Duration| if left >= LEAST { left } else { Duration::ZERO };
        match root {
            true => (BURST, BURST),
            false => (enough(self.left), enough(self.left.saturating_sub(RESERVE))),
        }
    }

    fn job(&mut self, user: u32) -> Option<InspectJob> {
        let (notices, processes) = self.may(user == ROOT);
        let mut asks = Vec::new();
        let mut bytes = 0;
        if !self.mapped.is_empty() && notices > Duration::ZERO {
            while let Some(one) = self.mapped.front() {
                bytes += one.bytes();
                if !asks.is_empty() && (bytes > JOB_BYTES || asks.len() >= JOB) {
                    break;
                }
                asks.extend(self.mapped.pop_front().map(LookRequest::Mapped));
            }
            return Some(InspectJob { user, may_ns: notices.as_nanos() as u64, asks });
        }
        if processes > Duration::ZERO {
            // The highest pid is most often the newest process.
            let mut next = || self.looks.pop_last().map(LookRequest::All);
            asks.extend(std::iter::from_fn(&mut next).take(JOB / 8));
        }
        (!asks.is_empty()).then_some(InspectJob { user, may_ns: processes.as_nanos() as u64, asks })
    }

    /// Waiting processes, now and for later.
    fn processes(&self) -> usize {
        self.looks.len() + self.again.len()
    }

    fn rests(&self) -> bool {
        !self.busy
            && self.left == BURST
            && self.mapped.is_empty()
            && self.looks.is_empty()
            && self.again.is_empty()
    }
}

/// Everything that waits.
#[derive(Default)]
pub struct WaitingWork {
    users: BTreeMap<u32, UserQueue>,
    /// Waiting notices and processes, of all users.
    notices: usize,
    looks: usize,
    /// The user whose turn was last.
    last: u32,
    /// Mapped files not examined so far, and processes that found no room here.
    pub files: u64,
    pub processes: u64,
}

impl WaitingWork {
    fn user(&mut self, user: u32) -> &mut UserQueue {
        self.users.entry(user).or_insert_with(|| UserQueue::new(Instant::now()))
    }

    /// A process has mapped this.
    pub fn mapped(&mut self, user: u32, mapped: Mapped) {
        let (all, pid) = (self.notices, mapped.pid);
        let waits = &mut self.user(user).mapped;
        if waits.len() >= MOST || all >= MOST_OF_ALL {
            self.look(user, pid);
        } else if !waits.iter().any(|m| (m.pid, m.key()) == (pid, mapped.key())) {
            waits.push_back(mapped);
            self.notices += 1;
        }
    }

    /// Requests that all mappings of a process are examined. False: there is no room.
    pub fn look(&mut self, user: u32, pid: u32) -> bool {
        let room = self.looks < PROCESSES;
        if room {
            self.looks += usize::from(self.user(user).looks.insert(pid));
        } else {
            self.processes += 1;
        }
        room
    }

    /// The next job, of root or of a user other than root.
    pub fn next(&mut self, root: bool, now: Instant) -> Option<InspectJob> {
        let behind: Vec<u32> = self.users.range(self.last.saturating_add(1)..).map(|(id, _)| *id).collect();
        let before = self.users.range(..=self.last).map(|(id, _)| *id);
        let turn: Vec<u32> = behind.into_iter().chain(before).filter(|id| (*id == ROOT) == root).collect();
        for id in turn {
            let Some(user) = self.users.get_mut(&id).filter(|u| !u.busy) else { continue };
            let had = (user.mapped.len(), user.processes());
            user.refill(now);
            let job = user.job(id);
            self.notices -= had.0 - user.mapped.len();
            // Some of those to examine again may be among the others by now.
            self.looks -= had.1 - user.processes();
            if let Some(job) = job {
                user.busy = true;
                if !root {
                    self.last = id;
                }
                return Some(job);
            }
        }
        None
    }

    /// A job is done, or was given up.
    pub fn done(&mut self, id: u32, done: &LookResult, now: Instant) {
        let user = self.user(id);
        let had = user.processes();
        user.busy = false;
        user.refill(now);
        user.left = user.left.saturating_sub(Duration::from_nanos(done.cost_ns));
        user.files += done.skipped;
        user.wait = match done.left.is_empty() {
            true => Duration::ZERO,
            false => (user.wait * 2).clamp(Duration::from_secs(1), LATEST),
        };
        if !done.left.is_empty() {
            user.again.extend(&done.left);
            user.due = now + user.wait;
        }
        let has = user.processes();
        self.looks = self.looks + has - had;
        self.files += done.skipped;
    }

    /// Forgets users without anything left to examine.
    pub fn tick(&mut self, now: Instant) {
        for user in self.users.values_mut() {
            let had = user.processes();
            user.refill(now);
            self.looks -= had - user.processes();
        }
        self.users.retain(|_, u| !u.rests());
    }

    /// Whether there may be work that no event announces.
    pub fn any(&self) -> bool {
        self.users.values().any(|u| !u.mapped.is_empty() || !u.looks.is_empty() || !u.again.is_empty())
    }

    /// Users over their limits; those with the most first.
    pub fn held_back(&self) -> Vec<HeldBack> {
        let of = |(uid, u): (&u32, &UserQueue)| HeldBack {
            uid: *uid,
            files: u.files,
            processes: u.processes() as u64,
        };
        let mut all: Vec<HeldBack> = self.users.iter().filter(|(_, u)| u.files > 0).map(of).collect();
        order::by_key(&mut all, |h| (!h.files, !u64::from(h.uid)));
        all.truncate(TOLD);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(pid: u32, inode: u64) -> Mapped {
        Mapped { pid, inode, path: b"/x".to_vec(), ..Mapped::default() }
    }

    fn cost(ms: u64) -> LookResult {
        LookResult { cost_ns: ms * 1_000_000, ..LookResult::default() }
    }

    #[test]
    fn users_are_served_in_turn_and_one_job_each_at_a_time() {
        let (mut all, now) = (WaitingWork::default(), Instant::now());
        for inode in 0..200 {
            all.mapped(5, mapped(50, inode));
        }
        for user in [7, 9] {
            all.mapped(user, mapped(user * 10, 1));
        }
        let mut turn: Vec<u32> = std::iter::from_fn(|| all.next(false, now)).map(|job| job.user).collect();
        turn.sort_unstable();
        assert_eq!(turn, [5, 7, 9]);
        for user in turn {
            all.done(user, &cost(1), now);
        }
        assert_eq!(all.next(false, now).map(|job| (job.user, job.asks.len())), Some((5, JOB)));
        assert!(all.next(true, now).is_none());
        all.mapped(ROOT, mapped(1, 1));
        assert_eq!(all.next(true, now).map(|job| job.user), Some(ROOT));
    }

    #[test]
    fn a_share_that_is_used_up_comes_back() {
        let (mut all, now) = (WaitingWork::default(), Instant::now());
        let next = |all: &mut WaitingWork, after: u64| {
            all.mapped(5, mapped(50, 1));
            let job = all.next(false, now + Duration::from_secs(after));
            job.map(|job| job.may_ns / 1_000_000)
        };
        assert_eq!(next(&mut all, 0), Some(2000));
        all.done(5, &cost(2500), now);
        assert_eq!(next(&mut all, 0), None);
        assert_eq!(next(&mut all, 3), Some(300));
        all.done(5, &LookResult { skipped: 7, left: vec![50], ..cost(0) }, now + Duration::from_secs(3));
        assert_eq!(all.held_back(), [HeldBack { uid: 5, files: 7, processes: 1 }]);
        // Processes leave some time for notices.
        all.tick(now + Duration::from_secs(5));
        assert!(all.next(false, now + Duration::from_secs(5)).is_none());
        let job = all.next(false, now + Duration::from_secs(60)).expect("his share is back");
        assert!(matches!(job.asks[..], [LookRequest::All(50)]) && job.may_ns == 1_000_000_000, "{job:?}");
        all.done(5, &cost(0), now + Duration::from_secs(60));
        assert!(!all.any() && all.files == 7);
        all.tick(now + Duration::from_secs(90));
        assert!(all.users.is_empty() && all.held_back().is_empty());
    }

    #[test]
    fn root_is_not_held_back() {
        let (mut all, now) = (WaitingWork::default(), Instant::now());
        for _ in 0..3 {
            all.look(ROOT, 50);
            assert!(all.next(true, now).is_some());
            all.done(ROOT, &cost(5000), now);
        }
    }

    #[test]
    fn what_is_left_is_looked_at_later_each_time() {
        let (mut all, now) = (WaitingWork::default(), Instant::now());
        let mut at = now;
        let mut waits = Vec::new();
        all.look(5, 50);
        for _ in 0..8 {
            assert!(all.next(false, at).is_some());
            all.done(5, &LookResult { left: vec![50], skipped: 1, ..cost(0) }, at);
            let from = at;
            while all.users[&5].due > at {
                at += Duration::from_secs(1);
                all.tick(at);
            }
            waits.push((at - from).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn a_mass_becomes_a_look_at_the_process_and_is_bounded() {
        let mut all = WaitingWork::default();
        for inode in 0..100_000 {
            all.mapped(5, mapped(50, inode / 2));
        }
        let user = &all.users[&5];
        assert_eq!((user.mapped.len(), user.looks.len()), (MOST, 1));
        for user in 100..1000 {
            (0..MOST as u64).for_each(|inode| all.mapped(user, mapped(50, inode)));
        }
        assert_eq!(all.users.values().map(|u| u.mapped.len()).sum::<usize>(), MOST_OF_ALL);
        let found_room = (0..PROCESSES as u32 + 10).filter(|&pid| all.look(5, pid)).count();
        assert!(found_room < PROCESSES + 1);
        assert!(all.processes > 0 && all.held_back().is_empty());
        // Everything is handed out eventually, and the counters match what was waiting.
        let mut now = Instant::now();
        while all.any() {
            now += Duration::from_secs(1);
            while let Some(job) = all.next(false, now) {
                all.done(job.user, &cost(0), now);
            }
        }
        assert_eq!((all.notices, all.looks), (0, 0));
    }
}
