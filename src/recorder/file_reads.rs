//! Which bytes of its mapped files the kernel reads for a target: models that do not fit into memory are read again and again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Write;
use std::time::Instant;

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
/// Files that are watched at a time: large models have some fifty parts.
const FILES: usize = 1024;
/// Reading a list of mappings may take this part of the time.
const LOOKING: u32 = 200;
/// Processes whose mappings are known at a time, and mappings of a process.
const PROCESSES: usize = 1024;
const MAPPINGS: usize = 4096;
/// Pages that follow each other within this time, ns, are one read.
const TOGETHER: u64 = 1_000_000;

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

/// By thread and file, the read that may go on, and the next byte in the file.
type OpenReads = HashMap<(u32, u32), (u64, FileRead)>;

/// Reads of the targets' mapped files.
#[derive(Default)]
pub struct FileReads {
    watch: Option<Result<CacheWatch, NoFileReads>>,
    /// Those watched, by id.
    files: Vec<WatchedFile>,
    /// Files that there was no room for.
    too_many: bool,
    mapped: HashMap<u32, Vec<Mapping>>,
    /// When each process is looked at again.
    due: HashMap<u32, Instant>,
    open: OpenReads,
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
        let begin = Instant::now();
        if self.due.get(&pid).is_some_and(|due| begin < *due) {
            return;
        }
        if let Ok(maps) = maps::read(pid) {
            self.know(pid, &maps);
        }
        self.due.insert(pid, Instant::now() + begin.elapsed() * LOOKING);
    }

    fn know(&mut self, pid: u32, maps: &[Mapping]) {
        let code: BTreeSet<CachedFile> = maps.iter().filter(|m| m.executable).map(file_of).collect();
        let large = |m: &Mapping| m.is_file() && m.end - m.start >= SMALLEST && !code.contains(&file_of(m));
        let mapped: Vec<Mapping> = maps.iter().filter(|m| large(m)).take(MAPPINGS).cloned().collect();
        let mut new: Vec<WatchedFile> = Vec::new();
        for m in &mapped {
            if !self.files.iter().chain(&new).any(|of| of.file == file_of(m)) {
                new.push(WatchedFile::of(m));
            }
        }
        self.too_many |= self.files.len() + new.len() > FILES;
        new.truncate(FILES.saturating_sub(self.files.len()));
        if !new.is_empty() {
            let files: Vec<CachedFile> = new.iter().map(|of| of.file).collect();
            let watch = self.watch.get_or_insert_with(CacheWatch::new);
            if let Ok(on) = watch
                && let Err(why) = on.add(&files)
            {
                *watch = Err(why);
            }
            self.files.append(&mut new);
        }
        // Events of a process may arrive after its end: none is forgotten with it.
        if self.mapped.len() >= PROCESSES {
            self.mapped.clear();
            self.due.clear();
        }
        // Parts that are no longer mapped stay known, for the same reason.
        let known = self.mapped.entry(pid).or_default();
        known.retain(|m| !mapped.iter().any(|new| new.start < m.end && m.start < new.end));
        if known.len() >= MAPPINGS {
            known.clear();
        }
        known.extend(mapped);
        self.tensors = 0;
    }

    /// Writes what was read, and where the weights are; with `end`, nothing follows.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn pass<W: Write>(&mut self, drain: &mut Drain<W>, end: bool) -> Result<(), WriteError> {
        self.write(&mut drain.enc, end)?;
        self.place(&mut drain.tensors, &mut drain.enc)
    }

    fn write<W: Write>(&mut self, enc: &mut Encoder<W>, end: bool) -> Result<(), WriteError> {
        let mut done = Vec::new();
        if let Some(Ok(watch)) = &mut self.watch {
            if end {
                watch.stop();
            }
            let (mapped, files, open) = (&self.mapped, &self.files, &mut self.open);
            let (bytes, elsewhere) = (&mut self.bytes, &mut self.elsewhere);
            let mut last = 0;
            watch.take(&mut |added| {
                last = added.t;
                let Some((file, addr)) = place_of(mapped, files, &added) else { return };
                *bytes += added.bytes;
                *elsewhere += if addr == 0 { added.bytes } else { 0 };
                done.extend(goes_on(open, &added, file, addr));
            });
            self.lost += std::mem::take(&mut watch.lost) + std::mem::take(&mut watch.malformed);
            // What may still go on is kept for the next turn.
            let over =
                |(_, read): &(u64, FileRead)| end || last == 0 || read.t as u64 + read.dur + TOGETHER < last;
            done.extend(self.open.extract_if(|_, open| over(open)).map(|(_, (_, read))| read));
        }
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

/// The file's id, and where the process has these pages mapped; 0: nowhere. None: not a target's.
fn place_of(
    mapped: &HashMap<u32, Vec<Mapping>>,
    files: &[WatchedFile],
    added: &AddedPages,
) -> Option<(u32, u64)> {
    let mapped = mapped.get(&added.tgid)?;
    let file = files.iter().position(|of| of.file == added.file)?;
    let holds = |m: &&Mapping| {
        file_of(m) == added.file
            && added.offset.checked_sub(m.offset).is_some_and(|into| into < m.end.saturating_sub(m.start))
    };
    let addr = mapped.iter().find(holds).map_or(0, |m| m.start + (added.offset - m.offset));
    Some((u32::try_from(file).ok()?, addr))
}

/// Adds pages to the read of their thread and file that they continue. Otherwise that one has ended, and a new one begins.
fn goes_on(open: &mut OpenReads, added: &AddedPages, file: u32, addr: u64) -> Option<FileRead> {
    let &AddedPages { tgid, tid, t, offset, bytes, .. } = added;
    let (next, read) =
        (offset.saturating_add(bytes), FileRead { pid: tgid, tid, file, t: t as i64, dur: 0, addr, bytes });
    let at = open.entry((tid, file));
    let std::collections::hash_map::Entry::Occupied(mut before) = at else {
        at.insert_entry((next, read));
        return None;
    };
    let (expected, known) = before.get_mut();
    let follows = *expected == offset && known.pid == tgid && (known.addr == 0) == (addr == 0);
    if follows && t.saturating_sub(known.t as u64 + known.dur) <= TOGETHER {
        *expected = next;
        known.bytes += bytes;
        known.dur = t.saturating_sub(known.t as u64);
        return None;
    }
    Some(before.insert((next, read)).1)
}

fn file_of(m: &Mapping) -> CachedFile {
    (kernel_device(m.major, m.minor), m.inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(tid: u32, t: u64, offset: u64, bytes: u64) -> AddedPages {
        AddedPages { tgid: 1, tid, t, file: (7, 9), offset, bytes }
    }

    #[test]
    fn pages_that_follow_each_other_are_one_read() {
        let mut open = OpenReads::new();
        let mut take = |added: AddedPages| goes_on(&mut open, &added, 0, 0x1000_0000 + added.offset);
        assert_eq!(take(pages(1, 100, 0, 8192)), None);
        // Another thread's do not end it.
        assert_eq!(take(pages(2, 150, 65536, 4096)), None);
        assert_eq!(take(pages(1, 200, 8192, 4096)), None);
        let whole = FileRead { pid: 1, tid: 1, file: 0, t: 100, dur: 100, addr: 0x1000_0000, bytes: 12288 };
        assert_eq!(take(pages(1, 300, 40960, 4096)), Some(whole));
        // The next ones, but much later.
        let short = FileRead { t: 300, dur: 0, addr: 0x1000_0000 + 40960, bytes: 4096, ..whole };
        assert_eq!(take(pages(1, 400 + TOGETHER, 45056, 4096)), Some(short));
    }

    #[test]
    fn a_place_is_that_of_the_mapping_that_holds_it() {
        let map = |start: u64, end: u64, offset: u64| Mapping {
            start,
            end,
            offset,
            executable: false,
            major: 0,
            minor: 7,
            inode: 9,
            path: "/m.gguf".into(),
            deleted: false,
        };
        let mapped = HashMap::from([(1, vec![map(0x10000, 0x20000, 0), map(0x80000, 0x90000, 0x40000)])]);
        let files = [WatchedFile::of(&mapped[&1][0])];
        let of = |offset| place_of(&mapped, &files, &pages(1, 0, offset, 4096));
        assert_eq!(
            [0, 0xf000, 0x40000, 0x4f000].map(of),
            [0x10000, 0x1f000, 0x80000, 0x8f000].map(|at| Some((0, at)))
        );
        assert_eq!([0x10000, 0x50000, u64::MAX].map(of), [Some((0, 0)); 3]);
        let other = AddedPages { tgid: 2, ..pages(1, 0, 0, 4096) };
        assert_eq!(place_of(&mapped, &files, &other), None);
        assert_eq!(place_of(&mapped, &files, &AddedPages { file: (7, 8), ..pages(1, 0, 0, 4096) }), None);
    }
}
