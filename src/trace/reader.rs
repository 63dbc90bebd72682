//! The reader: finds the blocks of a trace, whole or damaged, and decodes their records. All bytes are untrusted.
//! Uses the block layout, the records and their codings.

use crate::order;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::block::{
    BLOCK_HEADER, BLOCK_MAGIC, Before, BlockHeader, FILE_HEADER, FileHeader, Frame, MAJOR, MINOR,
    next_record, parse_file_header,
};
pub use super::coding::{SliceIter, SliceTime, counts, expert_ids, plan_hits, sensor_values, slice_iter};
use super::describe::Past;
use super::predict::Calls;
use super::record::Record;

/// Why a trace could not be opened at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read the trace: {0}")]
    Io(#[from] io::Error),
    #[error("the trace is empty: the recording wrote nothing")]
    Empty,
    #[error("not a profinfer trace: it looks like {0}")]
    NotATrace(&'static str),
    #[error(
        "the trace has format version {major}.{minor}, this profinfer reads up to {MAJOR}.x: use a newer profinfer"
    )]
    Newer { major: u16, minor: u16 },
}

/// Something lost or doubtful, with its place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// First byte affected.
    pub offset: u64,
    /// Bytes affected; 0 where nothing that is in the file was lost.
    pub bytes: u64,
    pub kind: DamageKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DamageKind {
    /// The file header; the blocks do not depend on it.
    FileHeader,
    /// Bytes between blocks that are none, skipped to the next block.
    Skipped,
    /// The file ends inside a block.
    TornTail,
    /// Block `seq` does not match its checksum.
    Checksum { seq: u32 },
    /// Blocks `from..=to` are not there.
    Missing { from: u32, to: u32 },
    /// Block `seq` comes after a block of the same or a greater number.
    OutOfOrder { seq: u32 },
    /// Block `seq` was written by a newer major version.
    NewerBlock { seq: u32, major: u16 },
    /// A record of block `seq` that could not be decoded.
    Record { seq: u32, why: &'static str },
    /// No footer.
    NoFooter,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.kind {
            DamageKind::Missing { from, to } if from == to => {
                return write!(f, "block {from} is missing before offset {}", self.offset);
            }
            DamageKind::Missing { from, to } => {
                return write!(f, "blocks {from} to {to} are missing before offset {}", self.offset);
            }
            DamageKind::NoFooter => return write!(f, "the recording did not end cleanly (no footer)"),
            _ => write!(f, "{} bytes lost at offset {}: ", self.bytes, self.offset)?,
        }
        match &self.kind {
            DamageKind::FileHeader => write!(f, "the file header is damaged"),
            DamageKind::Skipped => write!(f, "not a block, skipped to the next one"),
            DamageKind::TornTail => write!(f, "the file ends inside a block, or before it was complete"),
            DamageKind::Checksum { seq } => write!(f, "block {seq} does not match its checksum"),
            DamageKind::OutOfOrder { seq } => write!(f, "block {seq} is out of order, left out"),
            DamageKind::NewerBlock { seq, major } => {
                write!(f, "block {seq} has the newer format version {major}")
            }
            DamageKind::Record { seq, why } => write!(f, "a record of block {seq} cannot be decoded: {why}"),
            DamageKind::Missing { .. } | DamageKind::NoFooter => Ok(()),
        }
    }
}

enum Data {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl std::ops::Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Data::Mapped(map) => map,
            Data::Owned(bytes) => bytes,
        }
    }
}

/// Where a block is; its header's checksum was verified, its payload's was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRef {
    /// Of the block header in the file.
    pub offset: u64,
    /// Bytes of the payload.
    pub len: u32,
    pub seq: u32,
    /// ns, CLOCK_MONOTONIC.
    pub first_ts: u64,
    crc: u32,
}

impl BlockRef {
    fn total(&self) -> u64 {
        BLOCK_HEADER as u64 + u64::from(self.len)
    }
}

/// An open trace.
pub struct Trace {
    data: Data,
    version: (u16, u16),
    blocks: Vec<BlockRef>,
    damage: Vec<Damage>,
}

impl Trace {
    /// Maps a file. It may still grow while it is read; what comes later is not seen.
    pub fn open(path: &Path) -> Result<Trace, ReadError> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            let mut bytes = Vec::new();
            (&file).read_to_end(&mut bytes)?;
            return Trace::from_bytes(bytes);
        }
        if file.metadata()?.len() == 0 {
            return Err(ReadError::Empty);
        }
        // SAFETY: the mapping is only read, as bytes of which no value is invalid. A writer that changes them meanwhile
        // can make the reader see damage, which it is made for; a trace being written never shrinks.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Trace::index(Data::Mapped(map))
    }

    /// Takes a trace that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Trace, ReadError> {
        Trace::index(Data::Owned(bytes))
    }

    fn index(data: Data) -> Result<Trace, ReadError> {
        if data.is_empty() {
            return Err(ReadError::Empty);
        }
        let (start, version) = match parse_file_header(&data) {
            FileHeader::Good { major, minor } if major > MAJOR => {
                return Err(ReadError::Newer { major, minor });
            }
            FileHeader::Good { major, minor } => (FILE_HEADER, Some((major, minor))),
            FileHeader::Damaged => (FILE_HEADER, None),
            FileHeader::Foreign => (0, None),
        };
        let mut scan = Scan { data: &data, blocks: Vec::new(), damage: Vec::new(), newer: None, version };
        if version.is_none() {
            scan.damage.push(damage(0, FILE_HEADER.min(data.len()), DamageKind::FileHeader));
        }
        scan.run(start);
        let Scan { blocks, damage, newer, version, .. } = scan;
        if blocks.is_empty() && version.is_none() {
            return match newer {
                Some((major, minor)) => Err(ReadError::Newer { major, minor }),
                None => Err(ReadError::NotATrace(looks_like(&data))),
            };
        }
        Ok(Trace { data, version: version.unwrap_or((MAJOR, 0)), blocks, damage })
    }

    /// Major and minor version of the format. With a minor version above [`MINOR`] there may be records that were
    /// skipped as unknown.
    pub fn version(&self) -> (u16, u16) {
        self.version
    }

    /// True when the file comes from a later minor version than this reader knows.
    pub fn is_newer_minor(&self) -> bool {
        self.version > (MAJOR, MINOR)
    }

    /// Size of the file, bytes.
    pub fn size(&self) -> u64 {
        self.data.len() as u64
    }

    /// The blocks found, in file order.
    pub fn blocks(&self) -> &[BlockRef] {
        &self.blocks
    }

    /// Block `i` of `blocks()`, checked against its checksum.
    pub fn block(&self, i: usize) -> Result<Block<'_>, Damage> {
        let Some(block) = self.blocks.get(i) else {
            return Err(damage(
                self.data.len(),
                0,
                DamageKind::Record { seq: u32::MAX, why: "no such block" },
            ));
        };
        let at = block.offset as usize + BLOCK_HEADER;
        let payload = self.data.get(at..at + block.len as usize).unwrap_or_default();
        if crc32c::crc32c(payload) != block.crc {
            let (offset, bytes) = (block.offset, block.total());
            return Err(Damage { offset, bytes, kind: DamageKind::Checksum { seq: block.seq } });
        }
        Ok(Block { at: *block, payload })
    }

    /// Damage found in the structure of the file, in file order: bytes skipped, a torn tail, missing blocks, no footer.
    /// A payload that does not match its checksum is found by [`Trace::block`], or by [`Trace::verify`].
    pub fn damage(&self) -> Vec<Damage> {
        let mut all = self.damage.clone();
        if !self.has_footer() {
            all.push(damage(self.data.len(), 0, DamageKind::NoFooter));
        }
        all
    }

    /// Like `damage`, after reading every block and every record.
    pub fn verify(&self) -> Vec<Damage> {
        let mut all = self.damage();
        for i in 0..self.blocks.len() {
            match self.block(i) {
                Ok(block) => all.extend(block.records().filter_map(Result::err)),
                Err(e) => all.push(e),
            }
        }
        order::by_key(&mut all, |d| (d.offset, (d.kind == DamageKind::NoFooter).into()));
        all
    }

    /// True when the last block says that the recording ended cleanly.
    pub fn has_footer(&self) -> bool {
        let last = self.blocks.len().checked_sub(1).and_then(|i| self.block(i).ok());
        last.is_some_and(|b| b.records().any(|r| matches!(r, Ok(Record::Footer(_)))))
    }
}

fn damage(offset: usize, bytes: usize, kind: DamageKind) -> Damage {
    Damage { offset: offset as u64, bytes: bytes as u64, kind }
}

/// One pass over the block headers.
struct Scan<'a> {
    data: &'a [u8],
    blocks: Vec<BlockRef>,
    damage: Vec<Damage>,
    newer: Option<(u16, u16)>,
    version: Option<(u16, u16)>,
}

impl Scan<'_> {
    fn run(&mut self, start: usize) {
        let mut pos = start;
        // Begin of bytes that belong to no block.
        let mut lost = start;
        while let Some(at) = self.find(pos) {
            let Some(header) = self.data.get(at..).and_then(BlockHeader::parse) else { break };
            self.skipped(lost, at);
            let end = at + BLOCK_HEADER + header.len as usize;
            // A block that is not followed by another one, or by the end, may have lost bytes: another header inside
            // it says so. Only then is it given up unread; each byte is searched once.
            if end != self.data.len() && self.data.get(end..).and_then(BlockHeader::parse).is_none() {
                let inner = self.find(at + BLOCK_HEADER).filter(|p| *p < end);
                if inner.is_some() || end > self.data.len() {
                    (pos, lost) = (inner.unwrap_or(self.data.len()), at);
                    continue;
                }
            }
            self.accept(at, end - at, &header);
            (pos, lost) = (end, end);
        }
        self.tail(lost);
    }

    /// Where the next intact block header is, from `pos` on.
    fn find(&self, mut pos: usize) -> Option<usize> {
        loop {
            let rest = self.data.get(pos..)?;
            if rest.starts_with(&BLOCK_MAGIC) && BlockHeader::parse(rest).is_some() {
                return Some(pos);
            }
            let next = rest.get(1..)?.iter().position(|b| *b == BLOCK_MAGIC[0])?;
            pos += 1 + next;
        }
    }

    fn skipped(&mut self, from: usize, to: usize) {
        // The damaged file header already stands for its bytes.
        let from = if self.version.is_none() { from.max(FILE_HEADER.min(to)) } else { from };
        if from < to {
            self.damage.push(damage(from, to - from, DamageKind::Skipped));
        }
    }

    fn tail(&mut self, from: usize) {
        let len = self.data.len();
        let from = if self.version.is_none() { from.max(FILE_HEADER) } else { from };
        if from < len {
            let rest = self.data.get(from..).unwrap_or_default();
            // After a block there may be more of it that its header does not count yet.
            let torn = !self.blocks.is_empty() || rest.iter().zip(BLOCK_MAGIC).all(|(a, b)| *a == b);
            let kind = if torn { DamageKind::TornTail } else { DamageKind::Skipped };
            self.damage.push(damage(from, len - from, kind));
        }
    }

    fn accept(&mut self, at: usize, total: usize, header: &BlockHeader) {
        let seq = header.seq;
        if header.major > MAJOR {
            self.newer = Some((header.major, header.minor));
            self.damage.push(damage(at, total, DamageKind::NewerBlock { seq, major: header.major }));
            return;
        }
        let expected = match self.blocks.last() {
            Some(last) if seq <= last.seq => {
                self.damage.push(damage(at, total, DamageKind::OutOfOrder { seq }));
                return;
            }
            Some(last) => last.seq + 1,
            None => 0,
        };
        if seq > expected {
            self.damage.push(damage(at, 0, DamageKind::Missing { from: expected, to: seq - 1 }));
        }
        self.version = self.version.max(Some((header.major, header.minor)));
        self.blocks.push(BlockRef {
            offset: at as u64,
            len: header.len,
            seq,
            first_ts: header.first_ts,
            crc: header.payload_crc,
        });
    }
}

/// A block whose checksum was right.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    at: BlockRef,
    payload: &'a [u8],
}

impl<'a> Block<'a> {
    /// The block that `data` begins with, as far as it has been written, and its length in bytes; None: there is no whole
    /// one. A trace that is being recorded is read so: its last block grows.
    pub fn first(data: &'a [u8]) -> Option<(Block<'a>, usize)> {
        let BlockHeader { len, seq, first_ts, payload_crc: crc, .. } =
            BlockHeader::parse(data).filter(|h| h.major <= MAJOR)?;
        let payload = data.get(BLOCK_HEADER..)?.get(..len as usize)?;
        let at = BlockRef { offset: 0, len, seq, first_ts, crc };
        (crc32c::crc32c(payload) == crc).then_some((Block { at, payload }, BLOCK_HEADER + payload.len()))
    }

    pub fn seq(&self) -> u32 {
        self.at.seq
    }

    /// ns, CLOCK_MONOTONIC.
    pub fn first_ts(&self) -> u64 {
        self.at.first_ts
    }

    /// The records in order, `t` absolute. Records of unknown kinds are left out; one that cannot be decoded is an
    /// error, and the ones after it still come.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'a>, Damage>> + use<'a> {
        let (at, payload) = (self.at, self.payload);
        let mut rest = payload;
        let mut state = Before { calls: Calls::new(at.first_ts), tensors: Past::default() };
        std::iter::from_fn(move || {
            loop {
                let before = rest.len();
                if before == 0 {
                    return None;
                }
                let place = at.offset + (BLOCK_HEADER + payload.len() - before) as u64;
                let bad = |bytes: usize, why| {
                    Some(Err(Damage {
                        offset: place,
                        bytes: bytes as u64,
                        kind: DamageKind::Record { seq: at.seq, why },
                    }))
                };
                match next_record(&mut rest, &mut state) {
                    Some(Frame::Record(mut record)) => {
                        if let Some(t) = record.relative_time() {
                            *t = t.wrapping_add(at.first_ts as i64);
                        }
                        return Some(Ok(record));
                    }
                    Some(Frame::Unknown) => {}
                    Some(Frame::Bad) => return bad(before - rest.len(), "its bytes do not fit its kind"),
                    None => {
                        rest = &[];
                        return bad(before, "its length runs past the block");
                    }
                }
            }
        })
    }
}

/// A guess at what a file is that is no trace, for the error message.
fn looks_like(data: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 10] = [
        (b"\x89PFI", "a trace that was changed in transfer (text mode?)"),
        (b"\x1f\x8b", "gzip data: unpack it first"),
        (b"\x28\xb5\x2f\xfd", "zstd data: unpack it first"),
        (b"\xfd7zXZ", "xz data: unpack it first"),
        (b"PK\x03\x04", "a zip archive: unpack it first"),
        (b"\x7fELF", "a program or library (ELF)"),
        (b"GGUF", "a model file (GGUF)"),
        (b"PERFILE2", "a recording of perf"),
        (b"{", "JSON text"),
        (b"[", "JSON text"),
    ];
    if let Some((_, what)) = KNOWN.iter().find(|(magic, _)| data.starts_with(magic)) {
        return what;
    }
    let head = data.get(..512).unwrap_or(data);
    if head.iter().all(|b| matches!(b, b'\t' | b'\n' | b'\r' | 0x20..=0x7e)) {
        "text"
    } else {
        "some other binary data"
    }
}
