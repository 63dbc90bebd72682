//! Finds the processes that have a GGML engine in memory, as soon as they have. Uses `facts`, `notice`, `polled`,
//! `privileges`, `recognise` and `timer`.
//!
//! Where the kernel tells of mappings and execs, nothing is asked as long as nothing happens. Else `/proc` is looked through
//! four times a second. In both cases all processes are looked at when the finder begins, and again when something was lost.
//!
//! **Children.** A child of fork has its parent's mappings without ever having mapped anything, and the kernel tells
//! nothing. That is left so: a session that records the parent follows its children by itself, from the moment of the
//! fork, so that a thousand of them cost nothing here, and looks for those of before by itself. Whenever all processes are
//! looked at, children are found like any other, and [`Found::parent`] says whose they are. Children whose parent and its
//! recording are gone are engines that nobody sees: whoever knows of such calls [`Finder::look_again`].

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::facts;
use super::notice::{Notice, Watch};
use super::polled::Polled;
use super::recognise::Recogniser;
use super::timer::Timer;
use crate::agent::maps::{FileId, Mapping};
use crate::agent::privileges::{self, Cap, Privileges};
use crate::agent::usage;

/// Between two looks through `/proc` where the kernel does not tell.
const POLLING: Duration = Duration::from_millis(250);
/// Between two looks at processes that were found, at the list of CPUs, and after losses.
const TICK: Duration = Duration::from_secs(1);
/// After notices no others are waited for, so long: programs come with several, and a compiler with hundreds.
const REST: Duration = Duration::from_millis(10);
/// So long at most processes are looked at in one go.
const PATIENCE: Duration = Duration::from_millis(50);
/// Between a loss and the look at all processes.
const AFTER_LOSS: Duration = Duration::from_millis(500);
/// While a program begins, its stack's beginning moves down by the size of its lists of arguments; another program's is
/// elsewhere in gigabytes. Bytes.
const STACK_MOVES: u64 = 1 << 20;

/// A process that has an engine in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Numbers are those of the finder's own namespaces, in containers too.
    pub pid: u32,
    /// When it began, clock ticks since boot.
    pub start: u64,
    /// Its program as the process sees it; empty where we may not know.
    pub exe: PathBuf,
    /// Effective user.
    pub uid: u32,
    /// Path in the one hierarchy of control groups (v2); None where the machine has none such.
    pub cgroup: Option<String>,
    /// The file that has GGML's base code. Other parts of the engine may be mapped later.
    pub base: FileId,
    /// Its path as the process saw it when it mapped it; empty where the kernel could not tell.
    pub path: PathBuf,
    /// It came by fork from this process, whose memory it had: a recording of that one, if it had begun, follows it.
    pub parent: Option<u32>,
}

/// A process that was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    pid: u32,
    start: u64,
    stack: u64,
    base: FileId,
    /// [`Found::parent`]. Without that one it is another that nobody was told of.
    parent: Option<u32>,
    /// When it was found, CLOCK_MONOTONIC ns.
    since: u64,
}

impl Known {
    /// The same program in the same process.
    fn runs_on_in(&self, stat: &facts::Stat) -> bool {
        self.start == stat.start && self.stack.abs_diff(stat.stack) < STACK_MOVES
    }
}

enum Road {
    Told(Watch),
    Asked(Polled, String),
}

/// The finder. Its descriptors are closed at an exec; the child of a fork can do nothing with it but drop it.
pub struct Finder {
    road: Road,
    files: Recogniser,
    known: Vec<Known>,
    /// Processes still to be looked at.
    to_look: Vec<u32>,
    /// All are to be looked at, at the next tick.
    again: bool,
    notices: Vec<Notice>,
    timer: Timer,
    tick: Instant,
    /// Notices are not waited for before the timer.
    resting: bool,
    /// Notices that were lost so far.
    pub lost: u64,
    /// Notices so far.
    pub told: u64,
    /// Mapped files that we were not allowed to look at, as often as they were mapped.
    pub unseen: u64,
    /// Why not even that is known of some processes, or what else is missing.
    lacks: String,
}

impl Finder {
    /// Begins. Processes that run already are found by the first calls of [`Finder::poll`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> std::io::Result<Finder> {
        let road = match Watch::open() {
            Ok(watch) => Road::Told(watch),
            Err(why) => Road::Asked(Polled::default(), why),
        };
        Finder::by(road)
    }

    /// Begins by looking through `/proc`, whatever the kernel would tell; `why` is for [`Finder::road`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn by_asking(why: &str) -> std::io::Result<Finder> {
        Finder::by(Road::Asked(Polled::default(), why.to_owned()))
    }

    fn by(road: Road) -> std::io::Result<Finder> {
        let timer = Timer::new()?;
        timer.set(Duration::ZERO);
        Ok(Finder {
            // To who asks all are new at first.
            to_look: if matches!(road, Road::Told(_)) { facts::processes() } else { Vec::new() },
            road,
            files: Recogniser::default(),
            known: Vec::new(),
            again: false,
            notices: Vec::new(),
            timer,
            tick: Instant::now(),
            resting: false,
            lost: 0,
            told: 0,
            unseen: 0,
            lacks: lacks(&privileges::read()),
        })
    }

    /// How engines are found, and which are not, in words.
    pub fn road(&self) -> String {
        let by = match &self.road {
            Road::Told(watch) => {
                format!("the kernel's notices of mappings and execs on {} CPUs", watch.cpus())
            }
            Road::Asked(_, why) => format!(
                "a look through /proc every {} ms, for the kernel gives no notices: {why}",
                POLLING.as_millis()
            ),
        };
        let unseen = match self.unseen {
            0 => String::new(),
            n => format!("; {n} mapped files could not be opened: that needs CAP_DAC_READ_SEARCH, or root"),
        };
        format!("{by}{}{unseen}", self.lacks)
    }

    /// True: the kernel tells. False: an engine may run for a quarter of a second before it is found, and one that ends sooner
    /// never is.
    pub fn is_told(&self) -> bool {
        matches!(self.road, Road::Told(_))
    }

    /// Processes that were found and have not ended, as far as is known.
    pub fn alive(&self) -> usize {
        self.known.len()
    }

    /// What to wait for just now: after each wait, whatever ended it, call [`Finder::poll`], then ask again.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.timer.as_fd()];
        if let (Road::Told(watch), false) = (&self.road, self.resting) {
            fds.extend(watch.fds());
        }
        fds
    }

    /// At the next tick all processes are looked at, and those told of that were not before.
    pub fn look_again(&mut self) {
        self.again = true;
    }

    /// The processes found since the last call, each once for as long as it runs one program with one engine. Does not wait.
    pub fn poll(&mut self) -> Vec<Found> {
        let begin = Instant::now();
        let mut found = Vec::new();
        self.files.next_round();
        let told = self.listen(&mut found);
        if begin >= self.tick {
            self.at_tick();
            let every = if self.is_told() { TICK } else { POLLING };
            self.tick = begin + every;
        }
        while let Some(pid) = self.to_look.pop() {
            self.look(pid, &mut found);
            if begin.elapsed() > PATIENCE {
                break;
            }
        }
        self.resting = told;
        let until_tick = self.tick.saturating_duration_since(Instant::now());
        self.timer.set(match (self.to_look.is_empty(), told) {
            (false, _) => Duration::ZERO,
            (true, true) => REST.min(until_tick),
            (true, false) => until_tick,
        });
        found
    }

    /// Takes notices; true if the kernel told anything.
    fn listen(&mut self, found: &mut Vec<Found>) -> bool {
        let Road::Told(watch) = &mut self.road else { return false };
        let mut notices = std::mem::take(&mut self.notices);
        let any = watch.read(&mut |notice| notices.push(notice));
        self.told += notices.len() as u64;
        for notice in notices.drain(..) {
            match notice {
                Notice::Mapped { pid, time, mapping } => self.meet(pid, &mapping, time, false, found),
                // What was found later than this is of the new program already.
                Notice::Exec { pid, time } => self.known.retain(|k| k.pid != pid || k.since >= time),
                Notice::Lost(n) => {
                    self.lost += n;
                    self.again = true;
                    self.tick = self.tick.min(Instant::now() + AFTER_LOSS);
                }
            }
        }
        self.notices = notices;
        any
    }

    fn at_tick(&mut self) {
        let stays = |k: &Known, s: facts::Stat| s.start == k.start && k.parent.is_none_or(|p| p == s.parent);
        self.known.retain(|k| facts::stat(k.pid).is_some_and(|s| stays(k, s)));
        match &mut self.road {
            Road::Told(watch) => match watch.renew() {
                Ok(gap) => self.again |= gap,
                Err(e) => {
                    // Half the machine is worse than all of it a little later.
                    let why = format!("a CPU that came on cannot be watched: {e}");
                    self.road = Road::Asked(Polled::default(), why);
                }
            },
            Road::Asked(all, _) if self.to_look.is_empty() => self.to_look = all.changed(),
            Road::Asked(..) => {}
        }
        if std::mem::take(&mut self.again) {
            self.to_look = facts::processes();
        }
    }

    /// Looks at all that a process has mapped.
    fn look(&mut self, pid: u32, found: &mut Vec<Found>) {
        let now = usage::clock_ns(libc::CLOCK_MONOTONIC);
        facts::images(pid, &mut |mapping| self.meet(pid, &mapping, now, true, found));
    }

    /// A process has this mapped since `time`, or, where that was `seen`, at that time.
    fn meet(&mut self, pid: u32, mapping: &Mapping, time: u64, seen: bool, found: &mut Vec<Found>) {
        let base = match self.files.base(pid, mapping) {
            Ok(Some(base)) => base,
            Ok(None) => return,
            Err(e) => return self.miss(&e),
        };
        let Some(stat) = facts::stat(pid) else { return };
        let known = Known { pid, start: stat.start, stack: stat.stack, base, parent: None, since: time };
        // Another process of the same number, or another program.
        self.known.retain(|k| k.pid != pid || k.runs_on_in(&stat));
        if self.known.iter().any(|k| (k.pid, k.base) == (pid, base)) {
            return;
        }
        // One that ends just now is none.
        let Some(uid) = facts::user(pid) else { return };
        // What maps something by itself is no copy of its parent.
        let copy = || {
            let parent = facts::stat(stat.parent)?;
            (seen && stat.stack != 0 && parent.stack == stat.stack).then_some(stat.parent)
        };
        let (exe, cgroup, parent) = (facts::program(pid), facts::cgroup(pid), copy());
        self.known.push(Known { parent, ..known });
        let path = mapping.path.clone();
        found.push(Found { pid, start: stat.start, exe, uid, cgroup, base, path, parent });
    }

    /// A file could not be looked at. That its process has ended meanwhile is no news.
    fn miss(&mut self, e: &std::io::Error) {
        if e.kind() == std::io::ErrorKind::PermissionDenied {
            self.unseen += 1;
        }
    }
}

/// What is not seen for want of a capability, behind a semicolon.
fn lacks(privileges: &Privileges) -> String {
    match privileges.lacking_of(&[Cap::SysPtrace])[..] {
        [] => String::new(),
        _ => format!("; other users' processes are not seen: {} is missing", Cap::SysPtrace.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_said() {
        let all = Privileges { effective: u64::MAX, ..Privileges::default() };
        assert_eq!(lacks(&all), "");
        assert!(lacks(&Privileges::default()).contains("CAP_SYS_PTRACE is missing"));
        let mut finder = Finder::by_asking("it is a test").expect("descriptors");
        assert!(finder.road().contains("gives no notices: it is a test"), "{}", finder.road());
        finder.miss(&std::io::ErrorKind::NotFound.into());
        assert_eq!(finder.unseen, 0);
        finder.miss(&std::io::ErrorKind::PermissionDenied.into());
        assert!(finder.road().contains("1 mapped files could not be opened"), "{}", finder.road());
    }

    #[test]
    fn a_stack_tells_programs_apart() {
        let known = Known { pid: 5, start: 7, stack: 0x7ffc_0000_0000, base: (1, 2), parent: None, since: 0 };
        let stat = facts::Stat { parent: 1, start: 7, size: 1, stack: 0x7ffc_0000_0000 - 4096 };
        assert!(known.runs_on_in(&stat));
        assert!(!known.runs_on_in(&facts::Stat { start: 8, ..stat }));
        assert!(!known.runs_on_in(&facts::Stat { stack: 0x7ffd_0000_0000, ..stat }));
    }
}
