//! File header, block header and record framing in a block's payload. Bytes in, bytes out, no I/O.
#![warn(clippy::indexing_slicing)]

use super::coding::{put_varint, varint};
use super::describe::Past;
use super::predict::CallPredictor;
use super::record::{KIND_NAMES, Record};
use super::tensors::KeptTensor;

/// Major version. A reader refuses a file with a greater one.
pub const MAJOR: u16 = 1;
/// Minor version. It grows when a record kind is added or a field is appended to a record.
pub const MINOR: u16 = 13;
/// Size of the file header, bytes.
pub const FILE_HEADER: usize = 16;
/// Size of a block header, bytes.
pub const BLOCK_HEADER: usize = 40;
/// Longest payload of a block, bytes.
pub const MAX_PAYLOAD: usize = 16 << 20;

/// As in PNG: a non-ASCII byte and both line endings, so that a text-mode transfer shows.
pub(crate) const FILE_MAGIC: [u8; 8] = *b"\x89PFI\r\n\x1a\n";
pub(crate) const BLOCK_MAGIC: [u8; 8] = *b"\xF1PFIblk\xB7";

/// A block header as read; its own checksum has been verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub major: u16,
    pub minor: u16,
    pub len: u32,
    pub seq: u32,
    pub first_ts: u64,
    pub payload_crc: u32,
}

/// A file header as read.
pub(crate) enum FileHeader {
    Good {
        major: u16,
        minor: u16,
    },
    /// The magic is right but the checksum is wrong.
    Damaged,
    Foreign,
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

pub(crate) fn file_header() -> [u8; FILE_HEADER] {
    let mut h = [0; FILE_HEADER];
    h[..8].copy_from_slice(&FILE_MAGIC);
    h[8..10].copy_from_slice(&MAJOR.to_le_bytes());
    h[10..12].copy_from_slice(&MINOR.to_le_bytes());
    let crc = crc32c::crc32c(&h[..12]);
    h[12..].copy_from_slice(&crc.to_le_bytes());
    h
}

pub(crate) fn parse_file_header(data: &[u8]) -> FileHeader {
    if !data.starts_with(&FILE_MAGIC) {
        return FileHeader::Foreign;
    }
    let fields = || {
        let crc = u32_at(data, 12)?;
        (crc32c::crc32c(data.get(..12)?) == crc).then_some((u16_at(data, 8)?, u16_at(data, 10)?))
    };
    fields().map_or(FileHeader::Damaged, |(major, minor)| FileHeader::Good { major, minor })
}

impl BlockHeader {
    /// Header with this version for a payload of `len` bytes.
    pub fn new(len: usize, payload_crc: u32, seq: u32, first_ts: u64) -> BlockHeader {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        BlockHeader { major: MAJOR, minor: MINOR, len, seq, first_ts, payload_crc }
    }

    pub fn to_bytes(self) -> [u8; BLOCK_HEADER] {
        let mut h = [0; BLOCK_HEADER];
        h[..8].copy_from_slice(&BLOCK_MAGIC);
        h[8..10].copy_from_slice(&self.major.to_le_bytes());
        h[10..12].copy_from_slice(&self.minor.to_le_bytes());
        h[12..16].copy_from_slice(&self.len.to_le_bytes());
        h[16..20].copy_from_slice(&self.seq.to_le_bytes());
        h[24..32].copy_from_slice(&self.first_ts.to_le_bytes());
        h[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&h[..36]);
        h[36..].copy_from_slice(&crc.to_le_bytes());
        h
    }

    /// The header at the start of `data`, if there is an intact one.
    pub fn parse(data: &[u8]) -> Option<BlockHeader> {
        let h = data.get(..BLOCK_HEADER)?;
        if !h.starts_with(&BLOCK_MAGIC) || crc32c::crc32c(h.get(..36)?) != u32_at(h, 36)? {
            return None;
        }
        let header = BlockHeader {
            major: u16_at(h, 8)?,
            minor: u16_at(h, 10)?,
            len: u32_at(h, 12)?,
            seq: u32_at(h, 16)?,
            first_ts: u64_at(h, 24)?,
            payload_crc: u32_at(h, 32)?,
        };
        (header.len as usize <= MAX_PAYLOAD).then_some(header)
    }
}

/// Appends a record's bytes to a buffer that the caller owns.
struct Appender<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Appender<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// The earlier records of a block, from which the next one is predicted.
pub(crate) struct Predictors {
    pub calls: CallPredictor,
    pub tensors: Past,
}

/// Serialises and deserialises the self-contained record kinds.
macro_rules! plain {
    ($($name:ident),*) => {
        fn put_plain(out: &mut Vec<u8>, record: &Record) -> Result<(), postcard::Error> {
            match record {
                $(Record::$name(r) => postcard::serialize_with_flavor(r, Appender(out)),)*
                _ => Ok(()),
            }
        }

        fn take_plain<'a>(kind: usize, body: &'a [u8]) -> Option<Record<'a>> {
            let mut de = postcard::Deserializer::from_flavor(RecordBytes { rest: body, zeros: 0 });
            match *KIND_NAMES.get(kind)? {
                $(stringify!($name) => serde::Deserialize::deserialize(&mut de).ok().map(Record::$name),)*
                _ => None,
            }
        }
    };
}

plain!(
    Header,
    Process,
    Engine,
    Module,
    Probe,
    OpDef,
    TypeDef,
    Plan,
    Backend,
    Rung,
    Notice,
    Footer,
    Counter,
    OpCounts,
    OffCpu,
    Task,
    Experts,
    PhaseCall,
    Sensor,
    Sample,
    LevelChange,
    Feature,
    Enqueued,
    KernelName,
    DeviceKernels,
    Dispatches,
    Batches,
    Peaks,
    TargetState,
    DeviceRing,
    Submissions,
    OpCpus,
    Ubatch,
    Memory,
    ServerTask,
    SamplerName,
    SamplerCall,
    FileRead,
    TensorData,
    ReadFile,
    Content,
    Usage
);

/// Appends `body`, prefixed with its length.
fn put_body(out: &mut Vec<u8>, body: &[u8]) {
    put_varint(out, body.len() as u64);
    out.extend_from_slice(body);
}

/// Appends a self-contained record with its length prefix; `body` is scratch space.
pub(crate) fn put_record(
    out: &mut Vec<u8>,
    body: &mut Vec<u8>,
    record: &Record,
) -> Result<(), postcard::Error> {
    body.clear();
    body.push(record.kind() as u8);
    put_plain(body, record)?;
    put_body(out, body);
    Ok(())
}

/// Appends a record of kinds 10 to 14; its time is absolute.
pub(crate) fn put_call(out: &mut Vec<u8>, body: &mut Vec<u8>, calls: &mut CallPredictor, record: &Record) {
    body.clear();
    body.push(record.kind() as u8);
    if calls.put(body, record) {
        put_body(out, body);
    }
}

/// Appends a Tensor record.
pub(crate) fn put_tensor(
    out: &mut Vec<u8>,
    body: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
    past: &mut Past,
    id: u32,
    content: &KeptTensor,
) {
    body.clear();
    body.push(TENSOR as u8);
    past.put(body, scratch, id, content);
    put_body(out, body);
}

pub(crate) const TENSOR: usize = 7;
const TOKEN: usize = 10;
const SLICES: usize = 14;

/// The bytes of a record, followed by a zero for each field that an older writer did not have.
struct RecordBytes<'de> {
    rest: &'de [u8],
    zeros: u32,
}

/// Most zero bytes supplied for appended fields; bounds what a hostile length can make the decoder produce.
const MAX_ZEROS: u32 = 64;

impl<'de> postcard::de_flavors::Flavor<'de> for RecordBytes<'de> {
    type Remainder = ();
    type Source = ();

    fn pop(&mut self) -> postcard::Result<u8> {
        if let Some((byte, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(*byte);
        }
        self.zeros += 1;
        if self.zeros > MAX_ZEROS { Err(postcard::Error::DeserializeUnexpectedEnd) } else { Ok(0) }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }

    fn try_take_n(&mut self, n: usize) -> postcard::Result<&'de [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.rest = rest;
        Ok(taken)
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// The next item in a payload.
#[expect(clippy::large_enum_variant, reason = "one at a time, never kept")]
pub(crate) enum Frame<'a> {
    Record(Record<'a>),
    /// A kind that this version does not know, or padding.
    Unknown,
    /// Not decodable; `next_record` has already moved on to the next record.
    Bad,
}

/// Splits the next record off `rest`. None at the end, or if its length runs past the end (`rest` is then
/// unchanged).
pub(crate) fn next_record<'a>(rest: &mut &'a [u8], before: &mut Predictors) -> Option<Frame<'a>> {
    let (len, used) = varint(rest, 0)?;
    let (body, after) = rest.get(used..)?.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = after;
    if body.is_empty() {
        return Some(Frame::Unknown);
    }
    let Some((kind, fields)) = varint(body, 0).and_then(|(kind, at)| Some((kind, body.get(at..)?))) else {
        return Some(Frame::Bad);
    };
    let record = match kind as usize {
        _ if kind >= KIND_NAMES.len() as u64 => return Some(Frame::Unknown),
        TENSOR => before.tensors.take(fields).map(Record::Tensor),
        kind @ TOKEN..=SLICES => before.calls.take(kind, fields),
        kind => take_plain(kind, fields),
    };
    Some(record.map_or(Frame::Bad, Frame::Record))
}
