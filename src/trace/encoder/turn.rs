//! One recording in several traces: the end of one and the beginning of the next, and the two blocks between which a part of
//! a recording becomes a trace of its own. Uses what the encoder uses.

use std::io::Write;

use super::super::block::{BLOCK_HEADER, BlockHeader, file_header};
use super::super::open::{WriteError, def};
use super::super::output::{Growing, Output};
use super::super::record::{Footer, Header, Record};
use super::{Encoder, key_of};

impl<W: Write> Encoder<W> {
    /// The last block of a trace, and what is open before it.
    pub(super) fn put_last(&mut self, footer: &Footer) -> Result<(), WriteError> {
        self.seal()?;
        self.put_kept()?;
        self.open.put(Record::Footer(footer.clone()))?;
        self.seal()
    }

    /// The header, and all that every trace of the recording is to say.
    fn put_kept(&mut self) -> Result<(), WriteError> {
        self.open.put_def(&mut self.header)?;
        self.kept.iter_mut().try_for_each(|(_, d)| self.open.put_def(d))
    }

    /// Ends the trace as [`Encoder::finish`] does and goes on in `out`, with a trace that begins with `header` and with what
    /// was said of engines, modules, probes, processes, rungs and features. Gives the place of the one that ended.
    pub fn turn(&mut self, out: W, footer: &Footer, header: &Header) -> Result<W, WriteError>
    where
        W: Output,
    {
        self.put_last(footer)?;
        let written = self.out.written();
        let old = std::mem::replace(&mut self.out, Growing::new(out));
        let old = old.finish().map_err(|source| WriteError::Io { block: self.seq() - 1, written, source })?;
        self.header = def(&Record::Header(header.clone()))?;
        (self.first, self.last_ts) = (self.open.number, header.mono_ns);
        let begun = self.out.append(&file_header());
        self.check(begun)?;
        self.put_kept()?;
        Ok(old)
    }

    /// A process has ended: traces from the next one on need not name it.
    pub fn forget_process(&mut self, pid: u32) {
        self.processes.remove(&pid);
        let key = key_of("process", pid);
        if let Some(i) = self.kept.iter().position(|(k, _)| *k == key) {
            self.kept_bytes = self.kept_bytes.saturating_sub(self.kept.remove(i).1.bytes.len());
        }
    }

    /// Completes what is open, so that all that is recorded by now is in blocks.
    pub fn seal_now(&mut self) -> Result<(), WriteError> {
        self.seal()
    }

    /// A block by itself that may stand at either end of a trace made of some of this one's blocks; its number is 0. To be
    /// called after [`Encoder::seal_now`]. With a footer it is a last block.
    pub fn loose(&mut self, header: &Header, footer: Option<&Footer>) -> Result<Vec<u8>, WriteError> {
        self.header = def(&Record::Header(header.clone()))?;
        self.put_kept()?;
        if let Some(footer) = footer {
            self.open.put(Record::Footer(footer.clone()))?;
        }
        let mut bytes = self.open.bytes.clone();
        let payload = bytes.split_off(BLOCK_HEADER.min(bytes.len()));
        let crc = crc32c::crc32c(&payload);
        let mut block = BlockHeader::new(payload.len(), crc, 0, header.mono_ns).to_bytes().to_vec();
        block.extend_from_slice(&payload);
        self.open.next();
        Ok(block)
    }
}
