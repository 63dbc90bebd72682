//! The last minutes of a recording, kept in memory block by block, and written as a trace when somebody asks.
//! Uses the block layout and the output.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::rc::Rc;

use super::block::{BLOCK_HEADER, BlockHeader, file_header};
use super::output::Output;

struct Block {
    header: BlockHeader,
    bytes: Vec<u8>,
    /// How the books stood at its end, once that was told.
    books: Option<Vec<u64>>,
}

/// The blocks kept.
pub struct Ring {
    blocks: VecDeque<Block>,
    bytes: usize,
    span_ns: u64,
    most: usize,
    /// How the books stood where the ring begins.
    base: Vec<u64>,
    dropped: u64,
}

impl Ring {
    /// Keeps blocks of the last `span_ns`, and at most `most` bytes of them; the newest one always.
    pub fn new(span_ns: u64, most: usize) -> Ring {
        Ring { blocks: VecDeque::new(), bytes: 0, span_ns, most, base: Vec::new(), dropped: 0 }
    }

    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Blocks that it holds no more.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How the books stood where what is kept begins: as told with the last block that was dropped; empty at the recording's
    /// own beginning.
    pub fn base(&self) -> &[u64] {
        &self.base
    }

    /// Tells how the books stand after the blocks that came since.
    pub fn stamp(&mut self, books: &[u64]) {
        for block in self.blocks.iter_mut().rev().take_while(|b| b.books.is_none()) {
            block.books = Some(books.to_vec());
        }
    }

    /// Whether blocks came that [`Ring::stamp`] was not told of.
    pub fn unstamped(&self) -> bool {
        self.blocks.back().is_some_and(|b| b.books.is_none())
    }

    fn push(&mut self, bytes: &[u8]) {
        // The file's own header, and nothing else, is no block.
        let Some(header) = BlockHeader::parse(bytes) else { return };
        self.bytes += bytes.len();
        self.blocks.push_back(Block { header, bytes: bytes.to_vec(), books: None });
        let oldest = header.first_ts.saturating_sub(self.span_ns);
        // A block reaches to where the next one begins.
        while self.blocks.get(1).is_some_and(|b| b.header.first_ts < oldest || self.bytes > self.most) {
            let Some(gone) = self.blocks.pop_front() else { break };
            self.bytes -= gone.bytes.len();
            self.dropped += 1;
            if let Some(books) = gone.books {
                self.base = books;
            }
        }
    }

    /// Writes what is kept as a trace, between a first and a last block. The ring stays as it is.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write, first: &[u8], last: &[u8]) -> io::Result<()> {
        out.write_all(&file_header())?;
        let kept = self.blocks.iter().map(|b| b.bytes.as_slice());
        for (seq, block) in [first].into_iter().chain(kept).chain([last]).enumerate() {
            let Some(header) = BlockHeader::parse(block) else { continue };
            out.write_all(&BlockHeader { seq: seq as u32, ..header }.to_bytes())?;
            out.write_all(block.get(BLOCK_HEADER..).unwrap_or_default())?;
        }
        out.flush()
    }
}

/// The ring as the place where a trace is written.
pub struct IntoRing(pub Rc<RefCell<Ring>>);

impl Write for IntoRing {
    /// Takes what the encoder appends, which is a whole block at a time where a place cannot be overwritten.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for IntoRing {
    fn seekable(&self) -> bool {
        false
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
