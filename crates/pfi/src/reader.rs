//! The reader: finds the blocks of a trace, intact or damaged, and decodes their records. All input is untrusted.
#![warn(clippy::indexing_slicing)]

use common::order;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use super::block::{
    BLOCK_HEADER, BLOCK_MAGIC, BlockHeader, FILE_HEADER, FileHeader, Frame, MAJOR, MINOR, Predictors,
    next_record, parse_file_header,
};
pub use super::coding::{SliceIter, SliceTime, counts, expert_ids, plan_hits, sensor_values, slice_iter};
use super::describe::Past;
use super::predict::CallPredictor;
use super::record::Record;
use super::spool;
use super::store::TraceBytes;

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
        "the trace has format version {major}.{minor}, but this profinfer reads up to {MAJOR}.x: use a \
         newer profinfer"
    )]
    Newer { major: u16, minor: u16 },
    #[error(
        "no room in {dir} for a trace read from a pipe: at most {most} bytes may be used there; set TMPDIR \
         to another directory, or give the trace as a file"
    )]
    NoRoom { dir: String, most: u64 },
}

/// Lost or doubtful data, with its place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// First byte affected.
    pub offset: u64,
    /// Bytes affected; 0 if no data in the file was lost.
    pub bytes: u64,
    pub kind: DamageKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DamageKind {
    /// The file header; the blocks do not depend on it.
    FileHeader,
    /// Bytes between blocks that belong to no block, skipped up to the next one.
    Skipped,
    /// The file ends inside a block.
    TornTail,
    /// Block `seq` does not match its checksum.
    Checksum { seq: u32 },
    /// Blocks `from..=to` are missing.
    Missing { from: u32, to: u32 },
    /// Block `seq` follows a block with the same or a greater number.
    OutOfOrder { seq: u32 },
    /// Block `seq` was written by a newer major version.
    NewerBlock { seq: u32, major: u16 },
    /// A record in block `seq` could not be decoded.
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
            DamageKind::OutOfOrder { seq } => write!(f, "block {seq} is out of order, skipped"),
            DamageKind::NewerBlock { seq, major } => {
                write!(f, "block {seq} has the newer format version {major}")
            }
            DamageKind::Record { seq, why } => write!(f, "a record of block {seq} cannot be decoded: {why}"),
            DamageKind::Missing { .. } | DamageKind::NoFooter => Ok(()),
        }
    }
}

/// Location of a block. Its header's checksum was verified, its payload's was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRef {
    /// Offset of the block header in the file.
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

    /// The payload, if size and checksum match.
    fn checked<'p>(&self, payload: &'p [u8]) -> Result<&'p [u8], Damage> {
        let damage = |kind| Damage { offset: self.offset, bytes: self.total(), kind };
        match payload.len() == self.len as usize {
            // It was complete when the trace was opened.
            false => Err(damage(DamageKind::TornTail)),
            true if crc32c::crc32c(payload) != self.crc => {
                Err(damage(DamageKind::Checksum { seq: self.seq }))
            }
            true => Ok(payload),
        }
    }
}

/// A block's payload once read and checked, or what is wrong with it.
type CachedPayload = OnceLock<Result<Box<[u8]>, Damage>>;

/// An open trace.
pub struct Trace {
    store: TraceBytes,
    version: (u16, u16),
    blocks: Vec<BlockRef>,
    /// One per block if the trace is in a file.
    kept: Vec<CachedPayload>,
    damage: Vec<Damage>,
}

impl Trace {
    /// Opens a file. The file may grow while it is read; later data is not seen. It may also be truncated
    /// meanwhile: the missing blocks are then reported as damage. A pipe is read to its end.
    pub fn open(path: &Path) -> Result<Trace, ReadError> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Trace::from_reader(&mut file);
        }
        Trace::index(TraceBytes::File(file, meta.len()))
    }

    /// Reads a trace in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Trace, ReadError> {
        Trace::index(TraceBytes::Memory(bytes))
    }

    /// Reads a trace from a pipe to its end. A long one is spooled to an unnamed file in the directory for
    /// temporary files.
    pub fn from_reader(input: &mut dyn io::Read) -> Result<Trace, ReadError> {
        Trace::index(spool::all_of(input)?)
    }

    fn index(store: TraceBytes) -> Result<Trace, ReadError> {
        if store.len() == 0 {
            return Err(ReadError::Empty);
        }
        let mut head = [0; 512];
        let got = store.read(0, &mut head)?;
        let head = head.get(..got).unwrap_or_default();
        let (start, version) = match parse_file_header(head) {
            FileHeader::Good { major, minor } if major > MAJOR => {
                return Err(ReadError::Newer { major, minor });
            }
            FileHeader::Good { major, minor } => (FILE_HEADER as u64, Some((major, minor))),
            FileHeader::Damaged => (FILE_HEADER as u64, None),
            FileHeader::Foreign => (0, None),
        };
        let mut scan = Scan { store: &store, blocks: Vec::new(), damage: Vec::new(), newer: None, version };
        if version.is_none() {
            scan.damage.push(damage(0, store.len().min(FILE_HEADER as u64), DamageKind::FileHeader));
        }
        scan.run(start)?;
        let Scan { blocks, damage, newer, version, .. } = scan;
        if blocks.is_empty() && version.is_none() {
            return match newer {
                Some((major, minor)) => Err(ReadError::Newer { major, minor }),
                None => Err(ReadError::NotATrace(looks_like(head))),
            };
        }
        let kept = match store {
            TraceBytes::File(..) => blocks.iter().map(|_| CachedPayload::new()).collect(),
            TraceBytes::Memory(_) => Vec::new(),
        };
        Ok(Trace { store, version: version.unwrap_or((MAJOR, 0)), blocks, kept, damage })
    }

    /// Major and minor version of the format. With a minor version above [`MINOR`], some records may have been
    /// skipped as unknown.
    pub fn version(&self) -> (u16, u16) {
        self.version
    }

    /// True if the file has a later minor version than this reader knows.
    pub fn is_newer_minor(&self) -> bool {
        self.version > (MAJOR, MINOR)
    }

    /// Size of the file, bytes.
    pub fn size(&self) -> u64 {
        self.store.len()
    }

    /// The blocks found, in file order.
    pub fn blocks(&self) -> &[BlockRef] {
        &self.blocks
    }

    /// Identifies the contents: equal for copies of a trace, and different for other traces as far as 64 bits and the
    /// checksums of the blocks tell them apart (FNV-1a).
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for b in &self.blocks {
            let parts = [u64::from(b.seq), u64::from(b.len), b.first_ts, u64::from(b.crc)];
            for byte in parts.into_iter().flat_map(u64::to_le_bytes) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        hash
    }

    /// Block `i` of `blocks()`, checked against its checksum.
    pub fn block(&self, i: usize) -> Result<Block<'_>, Damage> {
        let gone = || damage(self.size(), 0, DamageKind::Record { seq: u32::MAX, why: "no such block" });
        let at = self.blocks.get(i).ok_or_else(gone)?;
        let payload = match (&self.store, self.kept.get(i)) {
            (TraceBytes::Memory(bytes), _) => {
                let from = at.offset as usize + BLOCK_HEADER;
                at.checked(bytes.get(from..from + at.len as usize).unwrap_or_default())?
            }
            (store, Some(kept)) => kept
                .get_or_init(|| {
                    let payload = store.take(at.offset + BLOCK_HEADER as u64, at.len as usize);
                    at.checked(&payload)?;
                    Ok(payload)
                })
                .as_deref()
                .map_err(Damage::clone)?,
            _ => return Err(gone()),
        };
        Ok(Block { at: *at, payload })
    }

    /// Damage in the structure of the file, in file order: skipped bytes, a torn tail, missing blocks, no footer.
    /// Checksum errors in a payload are found by [`Trace::block`] and [`Trace::verify`].
    pub fn damage(&self) -> Vec<Damage> {
        let mut all = self.damage.clone();
        if !self.has_footer() {
            all.push(damage(self.size(), 0, DamageKind::NoFooter));
        }
        all
    }

    /// Like `damage`, but reads every block and every record.
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

    /// True if the last block says that the recording ended cleanly.
    pub fn has_footer(&self) -> bool {
        let last = self.blocks.len().checked_sub(1).and_then(|i| self.block(i).ok());
        last.is_some_and(|b| b.records().any(|r| matches!(r, Ok(Record::Footer(_)))))
    }
}

fn damage(offset: u64, bytes: u64, kind: DamageKind) -> Damage {
    Damage { offset, bytes, kind }
}

/// One pass over the block headers.
struct Scan<'a> {
    store: &'a TraceBytes,
    blocks: Vec<BlockRef>,
    damage: Vec<Damage>,
    newer: Option<(u16, u16)>,
    version: Option<(u16, u16)>,
}

impl Scan<'_> {
    fn run(&mut self, start: u64) -> io::Result<()> {
        let len = self.store.len();
        let mut pos = start;
        // Start of bytes that belong to no block.
        let mut lost = start;
        while let Some(at) = self.find(pos)? {
            let Some(header) = self.header(at)? else { break };
            self.skipped(lost, at);
            let inside = at + BLOCK_HEADER as u64;
            let end = inside + u64::from(header.len);
            // A block that is not followed by another block or the end of the file may have lost bytes; another
            // header inside it shows that. Only then is it dropped unread; each byte is searched once.
            if end != len && self.header(end)?.is_none() {
                let inner = self.find(inside)?.filter(|p| *p < end);
                if inner.is_some() || end > len {
                    (pos, lost) = (inner.unwrap_or(len), at);
                    continue;
                }
            }
            self.accept(at, end - at, &header);
            (pos, lost) = (end, end);
        }
        self.tail(lost)
    }

    /// The block header at `at`, if there is an intact one.
    fn header(&self, at: u64) -> io::Result<Option<BlockHeader>> {
        let mut bytes = [0; BLOCK_HEADER];
        let got = self.store.read(at, &mut bytes)?;
        Ok(bytes.get(..got).and_then(BlockHeader::parse))
    }

    /// Position of the next intact block header, starting at `pos`.
    fn find(&self, mut pos: u64) -> io::Result<Option<u64>> {
        /// Bytes searched at a time.
        const PIECE: usize = 256 << 10;
        if self.header(pos)?.is_some() {
            return Ok(Some(pos));
        }
        let mut bytes = Vec::new();
        // No header begins in a hole.
        while let Some(from) = self.store.data_from(pos) {
            bytes.resize(PIECE, 0);
            let got = self.store.read(from, &mut bytes)?;
            bytes.truncate(got);
            let mut at = 0;
            while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= BLOCK_HEADER) {
                if rest.starts_with(&BLOCK_MAGIC) && BlockHeader::parse(rest).is_some() {
                    return Ok(Some(from + at as u64));
                }
                let next = rest.iter().skip(1).position(|b| *b == BLOCK_MAGIC[0]);
                at += next.map_or(rest.len(), |next| next + 1);
            }
            if got < PIECE {
                return Ok(None);
            }
            pos = from + (PIECE - BLOCK_HEADER + 1) as u64;
        }
        Ok(None)
    }

    fn skipped(&mut self, from: u64, to: u64) {
        // The damaged file header already accounts for its bytes.
        let from = if self.version.is_none() { from.max(to.min(FILE_HEADER as u64)) } else { from };
        if from < to {
            self.damage.push(damage(from, to - from, DamageKind::Skipped));
        }
    }

    fn tail(&mut self, from: u64) -> io::Result<()> {
        let len = self.store.len();
        let from = if self.version.is_none() { from.max(FILE_HEADER as u64) } else { from };
        if from < len {
            let mut rest = [0; BLOCK_MAGIC.len()];
            let got = self.store.read(from, &mut rest)?;
            // After a block there may be more of it that its header does not count yet.
            let torn =
                !self.blocks.is_empty() || rest.iter().take(got).zip(BLOCK_MAGIC).all(|(a, b)| *a == b);
            let kind = if torn { DamageKind::TornTail } else { DamageKind::Skipped };
            self.damage.push(damage(from, len - from, kind));
        }
        Ok(())
    }

    fn accept(&mut self, at: u64, total: u64, header: &BlockHeader) {
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
            offset: at,
            len: header.len,
            seq,
            first_ts: header.first_ts,
            crc: header.payload_crc,
        });
    }
}

/// A block with a correct checksum.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    at: BlockRef,
    payload: &'a [u8],
}

impl<'a> Block<'a> {
    /// The block at the start of `data`, as far as it has been written, and its length in bytes; None if it is
    /// incomplete. Used to read a trace during recording, while its last block grows.
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

    /// The records in order, with absolute `t`. Unknown kinds are left out. A record that cannot be decoded
    /// yields an error; the following ones are still returned.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'a>, Damage>> + use<'a> {
        let (at, payload) = (self.at, self.payload);
        let mut rest = payload;
        let mut state = Predictors { calls: CallPredictor::new(at.first_ts), tensors: Past::default() };
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
                    Some(Frame::Bad) => return bad(before - rest.len(), "its bytes do not match its kind"),
                    None => {
                        rest = &[];
                        return bad(before, "its length exceeds the block");
                    }
                }
            }
        })
    }
}

/// Guesses what a file is if it is not a trace, for the error message.
pub(super) fn looks_like(data: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 10] = [
        (b"\x89PFI", "a trace that was changed in transfer (text mode?)"),
        (b"\x1f\x8b", "gzip data: unpack it first"),
        (b"\x28\xb5\x2f\xfd", "zstd data: unpack it first"),
        (b"\xfd7zXZ", "xz data: unpack it first"),
        (b"PK\x03\x04", "a zip archive: unpack it first"),
        (b"\x7fELF", "a program or library (ELF)"),
        (b"GGUF", "a model file (GGUF)"),
        (b"PERFILE2", "a perf recording"),
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
