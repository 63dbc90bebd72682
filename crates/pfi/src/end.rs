//! How a trace file ended, determined without reading all of it.
#![warn(clippy::indexing_slicing)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::block::{BLOCK_HEADER, BlockHeader, FILE_HEADER, FILE_MAGIC};
use super::reader::Block;
use super::record::Record;

/// How a trace ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Before its first block was complete: it has nothing to read.
    Empty,
    /// No footer, data after the footer, or damage: `report` shows what is there.
    Cut,
    /// With a footer.
    Clean,
}

impl End {
    /// Walks the block headers and reads the last block.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(file: &mut File) -> io::Result<End> {
        let len = file.metadata()?.len();
        let magic = read(file, 0, len.min(FILE_MAGIC.len() as u64))?;
        if !FILE_MAGIC.starts_with(&magic) {
            return Ok(End::Cut);
        }
        let (mut at, mut last) = (FILE_HEADER as u64, None);
        while at + BLOCK_HEADER as u64 <= len {
            let head = read(file, at, BLOCK_HEADER as u64)?;
            let Some(header) = BlockHeader::parse(&head) else { return Ok(End::Cut) };
            let end = at + BLOCK_HEADER as u64 + u64::from(header.len);
            if end > len {
                break;
            }
            last = Some(at);
            at = end;
        }
        let Some(last) = last else { return Ok(End::Empty) };
        if at != len {
            return Ok(End::Cut);
        }
        let bytes = read(file, last, len - last)?;
        let closed =
            |block: &Block<'_>| block.records().any(|record| matches!(record, Ok(Record::Footer(_))));
        Ok(if Block::first(&bytes).is_some_and(|(block, _)| closed(&block)) { End::Clean } else { End::Cut })
    }
}

/// Up to `len` bytes at `at`, but never more than a block can have.
fn read(file: &mut File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    file.seek(SeekFrom::Start(at))?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}
