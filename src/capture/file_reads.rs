//! Pages of files that come into the page cache: the kernel's tracepoint, read as perf events on every CPU, for those files alone
//! that it is asked for.

use std::io;
use std::os::fd::OwnedFd;

use crate::capture::perf::event;
use crate::capture::perf::ring::{PerfRecord, Ring, merge};
use crate::capture::transport::page_size;
use machine::kernel::event_format::Field;
use machine::kernel::tracepoint;

/// include/trace/events/filemap.h: since Linux 3.12; `order` since 5.17.
const EVENT: (&str, &str) = ("filemap", "mm_filemap_add_to_page_cache");
/// Bytes of all rings together, and of one: at most some 60,000 events of a CPU, pages of 240 MB, between two turns of the
/// recorder's loop, 50 ms apart and sometimes more.
const ALL_BYTES: usize = 8 << 20;
const RING_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=4 << 20;

/// Files of one filter: the kernel takes 4096 letters, and each is at most 55.
const FILTERED: usize = 64;

/// Why reads are not recorded.
#[derive(Debug, thiserror::Error)]
pub enum NoFileReads {
    #[error("tracefs cannot be mounted: {0}")]
    Tracefs(#[source] io::Error),
    #[error("this kernel has no tracepoint mm_filemap_add_to_page_cache, or not as known")]
    Unknown,
    #[error("the kernel's tracepoint mm_filemap_add_to_page_cache cannot be read: {0}")]
    Refused(#[source] io::Error),
}

/// A file as the tracepoint names it: its device's number in the kernel's form, and its inode.
pub type CachedFile = (u64, u64);

/// The kernel's number of a device (include/linux/kdev_t.h).
pub fn kernel_device(major: u32, minor: u32) -> u64 {
    u64::from(major) << 20 | u64::from(minor)
}

/// Pages that came into the page cache together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddedPages {
    /// The thread that ran.
    pub tgid: u32,
    pub tid: u32,
    /// CLOCK_MONOTONIC, ns.
    pub t: u64,
    pub file: CachedFile,
    /// In the file, bytes.
    pub offset: u64,
    pub bytes: u64,
}

/// Where the event's fields are on this kernel.
#[derive(Debug, Clone, Copy)]
struct Fields {
    device: Field,
    inode: Field,
    index: Field,
    order: Option<Field>,
}

impl Fields {
    fn read(&self, raw: &[u8], (tgid, tid): (u32, u32), t: u64) -> Option<AddedPages> {
        let page = page_size() as u64;
        let order = self.order.map_or(Some(0), |order| order.number(raw))?;
        Some(AddedPages {
            tgid,
            tid,
            t,
            file: (self.device.number(raw)?, self.inode.number(raw)?),
            offset: self.index.number(raw)?.checked_mul(page)?,
            bytes: page.checked_shl(u32::try_from(order).ok()?).filter(|bytes| *bytes > 0)?,
        })
    }
}

/// The tracepoint, of the files watched so far.
pub struct CacheWatch {
    id: u32,
    fields: Fields,
    /// One for each CPU, once a file is watched.
    rings: Vec<Ring>,
    /// Events beside those that own a ring.
    events: Vec<OwnedFd>,
    next: Vec<(u64, u64)>,
    pub lost: u64,
    pub malformed: u64,
}

impl CacheWatch {
    /// Looks for the tracepoint.
    ///
    /// # Errors
    /// There is none that can be read.
    pub fn new() -> Result<CacheWatch, NoFileReads> {
        tracepoint::ensure_mounted().map_err(NoFileReads::Tracefs)?;
        let format = tracepoint::format(EVENT.0, EVENT.1).map_err(|_| NoFileReads::Unknown)?;
        let field = |name| format.field(name).ok_or(NoFileReads::Unknown);
        let fields = Fields {
            device: field("s_dev")?,
            inode: field("i_ino")?,
            index: field("index")?,
            order: format.field("order"),
        };
        let id = format.id.ok_or(NoFileReads::Unknown)?;
        let (rings, events, next) = (Vec::new(), Vec::new(), Vec::new());
        Ok(CacheWatch { id, fields, rings, events, next, lost: 0, malformed: 0 })
    }

    /// Watches these files, from now on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add(&mut self, files: &[CachedFile]) -> Result<(), NoFileReads> {
        event::allow_files();
        files.chunks(FILTERED).try_for_each(|some| self.add_some(some))
    }

    fn add_some(&mut self, files: &[CachedFile]) -> Result<(), NoFileReads> {
        let one = |(device, inode): &CachedFile| format!("(s_dev == {device} && i_ino == {inode})");
        let only = files.iter().map(one).collect::<Vec<_>>().join(" || ");
        let mut opened = Vec::new();
        for cpu in event::online() {
            let event = event::tracepoint(self.id, cpu, false, false).map_err(NoFileReads::Refused)?;
            event::filter(&event, &only).map_err(NoFileReads::Refused)?;
            opened.push(event);
        }
        let first = self.rings.is_empty();
        let bytes = (ALL_BYTES / opened.len().max(1)).clamp(*RING_BYTES.start(), *RING_BYTES.end()) as u32;
        for (i, event) in opened.into_iter().enumerate() {
            let done = match self.rings.get(i) {
                _ if first => Ring::of(event, bytes).and_then(|ring| {
                    event::enable(&ring)?;
                    self.rings.push(ring);
                    Ok(())
                }),
                Some(ring) => event::join(&event, ring).and_then(|()| {
                    event::enable(&event)?;
                    self.events.push(event);
                    Ok(())
                }),
                // A CPU that came online later has no ring.
                None => Ok(()),
            };
            done.map_err(NoFileReads::Refused)?;
        }
        Ok(())
    }

    /// Passes on what was added, in the order of time.
    pub fn take(&mut self, added: &mut dyn FnMut(AddedPages)) {
        let (fields, mut lost, mut malformed) = (self.fields, 0, 0);
        merge(&mut self.rings, &mut self.next, &mut |_, record| match record {
            PerfRecord::Sample { tgid, tid, time, raw } => match fields.read(raw, (tgid, tid), time) {
                Some(pages) => added(pages),
                None => malformed += 1,
            },
            PerfRecord::Lost(n) => lost += n,
            _ => {}
        });
        malformed += self.rings.iter_mut().map(|ring| std::mem::take(&mut ring.malformed)).sum::<u64>();
        (self.lost, self.malformed) = (self.lost + lost, self.malformed + malformed);
    }

    /// Ends it; what was added before can still be taken.
    pub fn stop(&self) {
        self.events.iter().for_each(|e| drop(event::disable(e)));
        self.rings.iter().for_each(|e| drop(event::disable(e)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::kernel::event_format::EventFormat;

    /// Of Linux 6.18, and of 5.10 without an order.
    const TODAY: &str = "ID: 500\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long pfn;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long i_ino;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long index;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:dev_t s_dev;\toffset:32;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned char order;\toffset:36;\tsize:1;\tsigned:0;\n";

    fn fields(text: &str) -> Fields {
        let format = EventFormat::parse(text);
        let field = |name| format.field(name).expect("a field");
        Fields {
            device: field("s_dev"),
            inode: field("i_ino"),
            index: field("index"),
            order: format.field("order"),
        }
    }

    #[test]
    fn an_event_says_which_bytes_of_which_file() {
        let mut raw = vec![0; 40];
        raw[16..24].copy_from_slice(&77u64.to_ne_bytes());
        raw[24..32].copy_from_slice(&3u64.to_ne_bytes());
        raw[32..36].copy_from_slice(&(254u32 << 20 | 1).to_ne_bytes());
        raw[36] = 2;
        let page = page_size() as u64;
        let file = (kernel_device(254, 1), 77);
        let wanted = AddedPages { tgid: 5, tid: 6, t: 7, file, offset: 3 * page, bytes: 4 * page };
        assert_eq!(fields(TODAY).read(&raw, (5, 6), 7), Some(wanted));
        let old: String =
            TODAY.lines().filter(|line| !line.contains("order")).map(|line| format!("{line}\n")).collect();
        assert_eq!(fields(&old).read(&raw, (5, 6), 7), Some(AddedPages { bytes: page, ..wanted }));
        // Neither a short event nor one of numbers that cannot be does harm.
        assert_eq!(fields(TODAY).read(&raw[..30], (5, 6), 7), None);
        raw[24..32].fill(0xff);
        assert_eq!(fields(TODAY).read(&raw, (5, 6), 7), None);
        raw[24..32].fill(0);
        raw[36] = 0xff;
        assert_eq!(fields(TODAY).read(&raw, (5, 6), 7), None);
    }
}
