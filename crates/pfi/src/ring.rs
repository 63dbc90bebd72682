//! Flight recorder: the last minutes of a recording, kept in memory block by block and written as a trace on
//! request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::rc::Rc;

use super::block::{BLOCK_HEADER, BlockHeader, file_header};
use super::output::Output;

struct RingBlock {
    header: BlockHeader,
    bytes: Vec<u8>,
    /// Event counts at its end, once known.
    counts: Option<Vec<u64>>,
}

/// The blocks kept.
pub struct BlockRing {
    blocks: VecDeque<RingBlock>,
    bytes: usize,
    span_ns: u64,
    most: usize,
    /// Event counts where the ring begins.
    base: Vec<u64>,
    dropped: u64,
}

impl BlockRing {
    /// Keeps blocks of the last `span_ns`, at most `most` bytes of them, but always the newest one.
    pub fn new(span_ns: u64, most: usize) -> BlockRing {
        BlockRing { blocks: VecDeque::new(), bytes: 0, span_ns, most, base: Vec::new(), dropped: 0 }
    }

    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Blocks dropped from it.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Event counts where the kept part begins: those stamped on the last dropped block; empty if the ring goes
    /// back to the start of the recording.
    pub fn base(&self) -> &[u64] {
        &self.base
    }

    /// Sets the event counts after the blocks that came since the last call.
    pub fn stamp(&mut self, counts: &[u64]) {
        for block in self.blocks.iter_mut().rev().take_while(|b| b.counts.is_none()) {
            block.counts = Some(counts.to_vec());
        }
    }

    /// Whether blocks have come since the last [`BlockRing::stamp`].
    pub fn unstamped(&self) -> bool {
        self.blocks.back().is_some_and(|b| b.counts.is_none())
    }

    fn push(&mut self, bytes: &[u8]) {
        // Only the file header, which is written separately, is not a block.
        let Some(header) = BlockHeader::parse(bytes) else { return };
        self.bytes += bytes.len();
        self.blocks.push_back(RingBlock { header, bytes: bytes.to_vec(), counts: None });
        let oldest = header.first_ts.saturating_sub(self.span_ns);
        // A block extends to where the next one begins.
        while self.blocks.get(1).is_some_and(|b| b.header.first_ts < oldest || self.bytes > self.most) {
            let Some(gone) = self.blocks.pop_front() else { break };
            self.bytes -= gone.bytes.len();
            self.dropped += 1;
            if let Some(counts) = gone.counts {
                self.base = counts;
            }
        }
    }

    /// Writes the kept blocks as a trace, between a first and a last block. The ring is unchanged.
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

/// The ring as an output for a trace.
pub struct IntoRing(pub Rc<RefCell<BlockRing>>);

impl Write for IntoRing {
    /// The encoder appends a complete block at a time if the output cannot be overwritten.
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
