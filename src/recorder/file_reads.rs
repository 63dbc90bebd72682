//! Which bytes of its mapped files the kernel reads for a target (`--experts`): models that do not fit into memory are read again
//! and again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Write;

use crate::capture::file_reads::{AddedPages, CacheWatch, CachedFile, NoFileReads, kernel_device};
use crate::capture::structure::{TargetTensor, TensorTable};
use crate::recorder::drain::Drain;
use machine::maps::{self, Mapping};
use pfi::record::{Availability, Feature, FileRead, ReadFile, TensorData};
use pfi::{Encoder, WriteError};

/// Its name in the trace.
pub const NAME: &str = "file reads";
/// Files mapped in smaller pieces have no weights to speak of.
const SMALLEST: u64 = 1 << 20;
/// Files that are watched at a time.
const FILES: usize = 16;
/// Processes whose mappings are known at a time.
const PROCESSES: usize = 1024;
/// Pages that follow each other within this time, ns, are one read.
const TOGETHER: u64 = 1_000_000;
/// Reads that may be under way: the oldest are written first.
const OPEN: usize = 256;

/// A file that is watched.
struct WatchedFile {
    file: CachedFile,
    name: String,
    /// Where its read-ahead is set, and the value in KiB.
    read_ahead: Option<(String, u64)>,
    written: bool,
}

impl WatchedFile {
    fn of(m: &Mapping) -> WatchedFile {
        let name = m.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A partition has the setting of its disk.
        let places = [
            format!("/sys/class/bdi/{}:{}/read_ahead_kb", m.major, m.minor),
            format!("/sys/dev/block/{}:{}/../queue/read_ahead_kb", m.major, m.minor),
        ];
        let read = |place: String| {
            let value = std::fs::read_to_string(&place).ok()?.trim().parse().ok()?;
            Some((place, value))
        };
        WatchedFile { file: file_of(m), name, read_ahead: places.into_iter().find_map(read), written: false }
    }
}

/// A read that may go on.
struct OpenRead {
    file: CachedFile,
    /// The next byte in the file.
    next: u64,
    read: FileRead,
}

/// Reads of the targets' mapped files.
#[derive(Default)]
pub struct FileReads {
    watch: Option<Result<CacheWatch, NoFileReads>>,
    /// Those watched, by id.
    files: Vec<WatchedFile>,
    /// Files that there was no room for.
    too_many: bool,
    mapped: HashMap<u32, Vec<Mapping>>,
    open: Vec<OpenRead>,
    /// Version of the tensors that were looked at.
    tensors: u64,
    /// Process and data of the weights that are in this trace.
    placed: HashSet<(u32, u64)>,
    /// Of the trace that ends next.
    bytes: u64,
    elsewhere: u64,
    lost: u64,
}

impl FileReads {
    /// Watches what a process has mapped now.
    pub fn look(&mut self, pid: u32) {
        let Ok(maps) = maps::read(pid) else { return };
        let code: BTreeSet<CachedFile> = maps.iter().filter(|m| m.executable).map(file_of).collect();
        let large = |m: &Mapping| m.is_file() && m.end - m.start >= SMALLEST && !code.contains(&file_of(m));
        let mapped: Vec<Mapping> = maps.iter().filter(|m| large(m)).cloned().collect();
        for m in &mapped {
            let file = file_of(m);
            if self.files.iter().any(|known| known.file == file) {
                continue;
            }
            if self.files.len() == FILES {
                self.too_many = true;
                break;
            }
            let watch = self.watch.get_or_insert_with(CacheWatch::new);
            if let Ok(on) = watch
                && let Err(why) = on.add(file)
            {
                *watch = Err(why);
            }
            self.files.push(WatchedFile::of(m));
        }
        // Events of a process may arrive after its end: none is forgotten with it.
        if self.mapped.len() >= PROCESSES {
            self.mapped.clear();
        }
        // Parts that are no longer mapped stay known, for the same reason.
        let known = self.mapped.entry(pid).or_default();
        known.retain(|m| !mapped.iter().any(|new| new.start < m.end && m.start < new.end));
        known.extend(mapped);
        self.tensors = 0;
    }

    /// Writes what was read, and where the weights are; with `end`, nothing follows.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn pass<W: Write>(&mut self, drain: &mut Drain<W>, end: bool) -> Result<(), WriteError> {
        self.place(&mut drain.tensors, &mut drain.enc)?;
        self.write(&mut drain.enc, end)
    }

    fn write<W: Write>(&mut self, enc: &mut Encoder<W>, end: bool) -> Result<(), WriteError> {
        let mut taken = Vec::new();
        if let Some(Ok(watch)) = &mut self.watch {
            if end {
                watch.stop();
            }
            watch.take(&mut |added| taken.push(added));
            self.lost += std::mem::take(&mut watch.lost) + std::mem::take(&mut watch.malformed);
        }
        let last = taken.last().map(|added| added.t);
        for added in taken {
            self.add(added);
        }
        // What may still go on is kept for the next turn, but no longer than that.
        let over = |open: &OpenRead| {
            end || last.is_none_or(|last| open.read.t as u64 + open.read.dur + TOGETHER < last)
        };
        let spare = self.open.len().saturating_sub(OPEN);
        let mut at = 0;
        let mut done = Vec::new();
        self.open.retain(|open| {
            at += 1;
            let ended = at <= spare || over(open);
            if ended {
                done.push(open.read);
            }
            !ended
        });
        if !done.is_empty() {
            for (id, of) in (0..).zip(&mut self.files).filter(|(_, of)| !of.written) {
                let (setting, kb) =
                    of.read_ahead.as_ref().map_or(("", None), |(at, kb)| (at.as_str(), Some(*kb)));
                enc.read_file(&ReadFile { id, name: &of.name, setting, read_ahead_kb: kb })?;
                of.written = true;
            }
        }
        done.iter().try_for_each(|read| enc.file_read(read))
    }

    /// Writes where weights in the watched files are.
    fn place<W: Write>(&mut self, tensors: &mut TensorTable, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let version = std::mem::replace(&mut self.tensors, tensors.version());
        if self.mapped.is_empty() || version == self.tensors {
            return Ok(());
        }
        let within = |pid: u32, data: u64| {
            self.mapped.get(&pid).is_some_and(|maps| maps.iter().any(|m| (m.start..m.end).contains(&data)))
        };
        let of_weights = |(pid, addr, tensor): (u32, u64, &TargetTensor)| {
            (tensor.nop && tensor.data != 0).then_some((pid, addr, tensor.data))
        };
        let new: Vec<(u32, u64, u64)> = (tensors.iter().filter_map(of_weights))
            .filter(|(pid, _, data)| !self.placed.contains(&(*pid, *data)) && within(*pid, *data))
            .collect();
        for (pid, at, addr) in new {
            self.placed.insert((pid, addr));
            let tensor = tensors.intern(enc, pid, at)?;
            enc.tensor_data(&TensorData { tensor, addr })?;
        }
        Ok(())
    }

    fn add(&mut self, added: AddedPages) {
        let Some(mapped) = self.mapped.get(&added.tgid) else { return };
        let Some(id) = self.files.iter().position(|of| of.file == added.file) else { return };
        let place = |m: &&Mapping| {
            file_of(m) == added.file && (m.offset..m.offset + (m.end - m.start)).contains(&added.offset)
        };
        let addr = mapped.iter().find(place).map_or(0, |m| m.start + (added.offset - m.offset));
        self.bytes += added.bytes;
        if addr == 0 {
            self.elsewhere += added.bytes;
        }
        let goes_on = |open: &&mut OpenRead| {
            let r = &open.read;
            (r.pid, r.tid, open.file, open.next) == (added.tgid, added.tid, added.file, added.offset)
                && (r.addr == 0) == (addr == 0)
                && added.t.saturating_sub(r.t as u64 + r.dur) <= TOGETHER
        };
        match self.open.iter_mut().find(goes_on) {
            Some(open) => {
                open.next += added.bytes;
                open.read.bytes += added.bytes;
                open.read.dur = added.t.saturating_sub(open.read.t as u64);
            }
            None => self.open.push(OpenRead {
                file: added.file,
                next: added.offset.saturating_add(added.bytes),
                read: FileRead {
                    pid: added.tgid,
                    tid: added.tid,
                    file: id as u32,
                    t: added.t as i64,
                    dur: 0,
                    addr,
                    bytes: added.bytes,
                },
            }),
        }
    }

    /// Writes whether reads are in the trace that ends here; if they were not asked for, only if there are any.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn tell<W: Write>(&mut self, enc: &mut Encoder<W>, asked: bool) -> Result<(), WriteError> {
        self.placed.clear();
        self.tensors = 0;
        let take = std::mem::take::<u64>;
        let (bytes, elsewhere, lost) =
            (take(&mut self.bytes), take(&mut self.elsewhere), take(&mut self.lost));
        let (state, why) = match &self.watch {
            // No large file is mapped: the model is in memory of its own.
            None => return Ok(()),
            Some(Err(_)) if !asked => return Ok(()),
            Some(Ok(_)) if !asked && bytes == 0 && lost == 0 => return Ok(()),
            Some(Err(why)) => (Availability::None, why.to_string()),
            Some(Ok(_)) => {
                let mut why = format!("{bytes} bytes of mapped files, by mm_filemap_add_to_page_cache");
                for (n, what) in [(lost, "events lost"), (elsewhere, "bytes of them where nothing is mapped")]
                {
                    if n > 0 {
                        why.push_str(&format!("; {n} {what}"));
                    }
                }
                if self.too_many {
                    why.push_str(&format!("; files beyond the first {FILES} are left out"));
                }
                let whole = lost == 0 && !self.too_many;
                (if whole { Availability::Whole } else { Availability::Partly }, why)
            }
        };
        enc.feature(&Feature { name: NAME, state, why: &why })
    }
}

fn file_of(m: &Mapping) -> CachedFile {
    (kernel_device(m.major, m.minor), m.inode)
}
