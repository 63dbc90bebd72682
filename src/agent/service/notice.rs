//! What the kernel tells of the whole machine: files that processes map to execute, and execs. Uses `capset`, `maps`, `perf`
//! (events and rings), `refusal` and `usage`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::agent::maps::Mapping;
use crate::agent::perf::event;
use crate::agent::perf::ring::{Area, Record, Ring};
use crate::agent::refusal::{self, Act};
use crate::agent::{capset, privileges, usage};

/// Bytes of a CPU's ring: some three hundred records. Overflow is told, and costs a look at all processes.
const RING_BYTES: u32 = 32 << 10;
/// Time asleep that is no error of reading two clocks one after the other, ns.
const ASLEEP_NS: u64 = 10_000_000;

/// What happened, and when (CLOCK_MONOTONIC, ns). Those of one CPU come in order, those of several do not.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    /// The process maps a file to execute.
    Mapped { pid: u32, time: u64, mapping: Mapping },
    /// The process begins another program, whose mappings follow.
    Exec { pid: u32, time: u64 },
    /// So many records found no room. 0: that may have happened, and the kernel will tell when it has more to say.
    Lost(u64),
}

impl Notice {
    fn of(record: Record<'_>) -> Option<Notice> {
        match record {
            // No file, and no process that this namespace of pids has.
            Record::Mapped(area) if area.inode == 0 || area.tgid == 0 => None,
            Record::Mapped(area) => {
                Some(Notice::Mapped { pid: area.tgid, time: area.time, mapping: mapping(&area) })
            }
            Record::Exec { tgid, time } => Some(Notice::Exec { pid: tgid, time }),
            Record::Lost(n) => Some(Notice::Lost(n)),
            _ => None,
        }
    }
}

fn mapping(area: &Area<'_>) -> Mapping {
    // Where the kernel could not tell the path, it says why behind two slashes.
    let path = if area.path.starts_with(b"//") { &[][..] } else { area.path };
    let deleted = path.strip_suffix(b" (deleted)");
    Mapping {
        start: area.start,
        end: area.start.saturating_add(area.len),
        offset: area.offset,
        executable: true,
        major: area.dev.0,
        minor: area.dev.1,
        inode: area.inode,
        path: PathBuf::from(OsStr::from_bytes(deleted.unwrap_or(path))),
        deleted: deleted.is_some(),
    }
}

/// All CPUs' events and rings. Closed at an exec; in the child of a fork it can only be dropped.
pub struct Watch {
    rings: Vec<(u32, Ring)>,
    /// Time that the machine has slept, ns.
    asleep: u64,
}

impl Watch {
    /// Asks the kernel.
    ///
    /// # Errors
    /// It refuses; the text says what is missing.
    pub fn open() -> Result<Watch, String> {
        let mut watch = Watch { rings: Vec::new(), asleep: asleep() };
        watch.add().map_err(|e| match e.raw_os_error() {
            Some(errno) => refusal::reason(Act::Watch, errno, &privileges::read()),
            None => e.to_string(),
        })?;
        Ok(watch)
    }

    /// Opens the rings of CPUs that have none. True: there are new ones.
    fn add(&mut self) -> io::Result<bool> {
        let before = self.rings.len();
        for cpu in event::online() {
            if self.rings.iter().any(|(c, _)| *c == cpu) {
                continue;
            }
            let _all = capset::raised();
            match event::images(cpu).and_then(|event| Ring::of(event, RING_BYTES)) {
                Ok(ring) => self.rings.push((cpu, ring)),
                // It has gone off just now.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => return Err(e),
            }
        }
        match self.rings.is_empty() {
            true => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            false => Ok(self.rings.len() > before),
        }
    }

    /// How many CPUs are watched.
    pub fn cpus(&self) -> usize {
        self.rings.len()
    }

    /// Readable when notices wait.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|(_, ring)| ring.as_fd())
    }

    /// Hands on what one of the rings, by its place among all, has told so far: no more than it has room for. True: something
    /// was, if only of no interest.
    pub fn read(&mut self, place: usize, take: &mut dyn FnMut(Notice)) -> bool {
        let Some((_, ring)) = self.rings.get_mut(place) else { return false };
        let mut any = false;
        if ring.is_tight() {
            take(Notice::Lost(0));
        }
        let malformed = ring.malformed;
        ring.read(&mut |record| {
            any = true;
            if let Some(notice) = Notice::of(record) {
                take(notice);
            }
        });
        if ring.malformed > malformed {
            take(Notice::Lost(ring.malformed - malformed));
        }
        any
    }

    /// Follows CPUs that went on and off. True: what happened meanwhile on some CPU was not told.
    ///
    /// # Errors
    /// A CPU that came on cannot be watched.
    pub fn renew(&mut self) -> io::Result<bool> {
        let online = event::online();
        self.rings.retain(|(cpu, ring)| online.contains(cpu) && !hung_up(ring));
        // Of CPUs that were off while the machine slept the events are dead, though nothing shows it.
        let slept = asleep();
        if slept.saturating_sub(self.asleep) > ASLEEP_NS {
            self.rings.clear();
        }
        self.asleep = slept;
        self.add()
    }
}

/// Time that the machine has slept since it started, ns.
fn asleep() -> u64 {
    let awake = usage::clock_ns(libc::CLOCK_MONOTONIC);
    usage::clock_ns(libc::CLOCK_BOOTTIME).saturating_sub(awake)
}

/// Its event will never come again.
fn hung_up(ring: &Ring) -> bool {
    let mut polled = libc::pollfd { fd: ring.as_fd().as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one descriptor, open, as said.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 && polled.revents & (libc::POLLHUP | libc::POLLERR) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(path: &[u8]) -> Area<'_> {
        Area { tgid: 5, time: 9, start: 0x1000, len: 0x2000, offset: 0x800, dev: (8, 1), inode: 77, path }
    }

    #[test]
    fn a_notice_is_of_a_file() {
        let Some(Notice::Mapped { pid, time, mapping }) = Notice::of(Record::Mapped(area(b"/a b (deleted)")))
        else {
            panic!("no notice")
        };
        assert_eq!((pid, time, mapping.start, mapping.end), (5, 9, 0x1000, 0x3000));
        assert_eq!((mapping.path.as_os_str().as_bytes(), mapping.deleted), (&b"/a b"[..], true));
        assert_eq!(Notice::of(Record::Mapped(Area { inode: 0, ..area(b"//anon") })), None);
        assert_eq!(Notice::of(Record::Mapped(Area { tgid: 0, ..area(b"/a") })), None);
        let far = Notice::of(Record::Mapped(Area { len: u64::MAX, ..area(b"//toolong") }));
        let Some(Notice::Mapped { mapping, .. }) = far else { panic!("no notice") };
        assert_eq!((mapping.end, mapping.path.as_os_str().len()), (u64::MAX, 0));
    }
    #[test]
    fn a_cpu_that_comes_on_is_watched_and_a_gap_is_told() {
        let mut watch = match Watch::open() {
            Ok(watch) => watch,
            Err(why) => return println!("skipped: {why}"),
        };
        let cpus = watch.cpus();
        assert!(!watch.renew().expect("renewed"));
        watch.rings.pop();
        assert!(watch.renew().expect("renewed") && watch.cpus() == cpus);
        // As if it had slept meanwhile.
        watch.asleep = watch.asleep.wrapping_sub(2 * ASLEEP_NS);
        let slept = watch.asleep < asleep();
        assert_eq!(watch.renew().expect("renewed"), slept);
        assert_eq!(watch.cpus(), cpus);
    }
}
