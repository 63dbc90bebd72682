//! What the kernel reports for the entire machine: files mapped executable, and execs.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use agent::capture::perf::event;
use agent::capture::perf::ring::{Area, PerfRecord, Ring};
use machine::diagnose::{self, Act};
use machine::maps::Mapping;
use machine::{capset, privileges, ready, usage};

/// Size of a CPU's ring, bytes: about three hundred records. An overflow is reported, and costs a scan of all
/// processes.
const RING_BYTES: u32 = 32 << 10;
/// Suspend time larger than the error of reading two clocks one after the other, ns.
const ASLEEP_NS: u64 = 10_000_000;

/// An event and its time (CLOCK_MONOTONIC, ns). Events of one CPU are in order, those of different CPUs are not.
#[derive(Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The process maps a file executable.
    Mapped { pid: u32, time: u64, mapping: Mapping },
    /// The process starts another program, whose mappings follow.
    Exec { pid: u32, time: u64 },
    /// This many records found no room. 0: possibly some did, and the kernel will say so with its next record.
    Lost(u64),
}

impl ProcessEvent {
    fn of(record: PerfRecord<'_>) -> Option<ProcessEvent> {
        match record {
            // No file, or a process outside this pid namespace.
            PerfRecord::Mapped(area) if area.inode == 0 || area.tgid == 0 => None,
            PerfRecord::Mapped(area) => {
                Some(ProcessEvent::Mapped { pid: area.tgid, time: area.time, mapping: mapping(&area) })
            }
            PerfRecord::Exec { tgid, time } => Some(ProcessEvent::Exec { pid: tgid, time }),
            PerfRecord::Lost(n) => Some(ProcessEvent::Lost(n)),
            _ => None,
        }
    }
}

fn mapping(area: &Area<'_>) -> Mapping {
    // Where the kernel could not determine the path, it gives the reason after two slashes.
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

/// The kernel does not report these events; says what is missing.
#[derive(Debug, thiserror::Error)]
#[error("{}", reason(.0))]
pub struct WatchError(#[from] io::Error);

fn reason(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(errno) => diagnose::reason(Act::Watch, errno, &privileges::read()),
        None => e.to_string(),
    }
}

/// The events and rings of all CPUs. Closed on exec; in a forked child it can only be dropped.
pub struct ProcessWatch {
    rings: Vec<(u32, Ring)>,
    /// Time that the machine was suspended, ns.
    asleep: u64,
}

impl ProcessWatch {
    /// Opens the events.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open() -> Result<ProcessWatch, WatchError> {
        let mut watch = ProcessWatch { rings: Vec::new(), asleep: asleep() };
        watch.add()?;
        Ok(watch)
    }

    /// Opens rings for CPUs that have none. True: there are new ones.
    fn add(&mut self) -> io::Result<bool> {
        let before = self.rings.len();
        for cpu in event::online() {
            if self.rings.iter().any(|(c, _)| *c == cpu) {
                continue;
            }
            let _all = capset::raised();
            match event::images(cpu).and_then(|event| Ring::of(event, RING_BYTES)) {
                Ok(ring) => self.rings.push((cpu, ring)),
                // It has just gone offline.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => return Err(e),
            }
        }
        match self.rings.is_empty() {
            true => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            false => Ok(self.rings.len() > before),
        }
    }

    /// Number of watched CPUs.
    pub fn cpus(&self) -> usize {
        self.rings.len()
    }

    /// Readable when there are notices.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|(_, ring)| ring.as_fd())
    }

    /// Passes on what the ring at this position has so far, at most its capacity. True: there was something, even
    /// if irrelevant.
    pub fn read(&mut self, place: usize, take: &mut dyn FnMut(ProcessEvent)) -> bool {
        let Some((_, ring)) = self.rings.get_mut(place) else { return false };
        let mut any = false;
        if ring.is_tight() {
            take(ProcessEvent::Lost(0));
        }
        let malformed = ring.malformed;
        ring.read(&mut |record| {
            any = true;
            if let Some(notice) = ProcessEvent::of(record) {
                take(notice);
            }
        });
        if ring.malformed > malformed {
            take(ProcessEvent::Lost(ring.malformed - malformed));
        }
        any
    }

    /// Follows CPUs that went online or offline. True: events on some CPU were missed meanwhile.
    ///
    /// # Errors
    /// A CPU that came online cannot be watched.
    pub fn renew(&mut self) -> io::Result<bool> {
        let online = event::online();
        self.rings.retain(|(cpu, ring)| online.contains(cpu) && !hung_up(ring));
        // Events of CPUs that were offline during a suspend are dead, although nothing shows it.
        let slept = asleep();
        if slept.saturating_sub(self.asleep) > ASLEEP_NS {
            self.rings.clear();
        }
        self.asleep = slept;
        self.add()
    }
}

/// Time that the machine was suspended since boot, ns.
fn asleep() -> u64 {
    let awake = usage::clock_ns(libc::CLOCK_MONOTONIC);
    usage::clock_ns(libc::CLOCK_BOOTTIME).saturating_sub(awake)
}

/// Whether its event has ended for good.
fn hung_up(ring: &Ring) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(ring.as_fd(), PollFlags::empty())];
    ready::wait(&mut polled, Duration::ZERO)
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(path: &[u8]) -> Area<'_> {
        Area { tgid: 5, time: 9, start: 0x1000, len: 0x2000, offset: 0x800, dev: (8, 1), inode: 77, path }
    }

    #[test]
    fn a_notice_is_of_a_file() {
        let Some(ProcessEvent::Mapped { pid, time, mapping }) =
            ProcessEvent::of(PerfRecord::Mapped(area(b"/a b (deleted)")))
        else {
            panic!("no notice")
        };
        assert_eq!((pid, time, mapping.start, mapping.end), (5, 9, 0x1000, 0x3000));
        assert_eq!((mapping.path.as_os_str().as_bytes(), mapping.deleted), (&b"/a b"[..], true));
        assert_eq!(ProcessEvent::of(PerfRecord::Mapped(Area { inode: 0, ..area(b"//anon") })), None);
        assert_eq!(ProcessEvent::of(PerfRecord::Mapped(Area { tgid: 0, ..area(b"/a") })), None);
        let far = ProcessEvent::of(PerfRecord::Mapped(Area { len: u64::MAX, ..area(b"//toolong") }));
        let Some(ProcessEvent::Mapped { mapping, .. }) = far else { panic!("no notice") };
        assert_eq!((mapping.end, mapping.path.as_os_str().len()), (u64::MAX, 0));
    }
    #[test]
    fn a_cpu_that_comes_on_is_watched_and_a_gap_is_told() {
        let mut watch = match ProcessWatch::open() {
            Ok(watch) => watch,
            Err(why) => return crate::skips::lacking(&why.to_string()),
        };
        let cpus = watch.cpus();
        assert!(!watch.renew().expect("renewed"));
        watch.rings.pop();
        assert!(watch.renew().expect("renewed") && watch.cpus() == cpus);
        // As if the machine had been suspended meanwhile.
        watch.asleep = watch.asleep.wrapping_sub(2 * ASLEEP_NS);
        let slept = watch.asleep < asleep();
        assert_eq!(watch.renew().expect("renewed"), slept);
        assert_eq!(watch.cpus(), cpus);
    }
}
