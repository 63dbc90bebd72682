//! Splits one recording into several traces: ends one and begins the next, and makes the two blocks that enclose
//! an excerpt of a recording saved as a separate trace.

use std::io::Write;

use super::super::block::{BLOCK_HEADER, BlockHeader, Frame, Predictors, file_header, next_record};
use super::super::describe::Past;
use super::super::open::{WriteError, def};
use super::super::output::{Growing, Output};
use super::super::predict::CallPredictor;
use super::super::record::{Footer, Header, Record, StateAt};
use super::causes::state_key;
use super::{Encoder, key_of};

impl<W: Write> Encoder<W> {
    /// Completes the open block and writes the last block of a trace.
    pub(super) fn put_last(&mut self, footer: &Footer) -> Result<(), WriteError> {
        self.seal()?;
        self.put_kept()?;
        self.open.put(Record::Footer(footer.clone()))?;
        self.seal()
    }

    /// The header, and all records that every trace of the recording repeats.
    fn put_kept(&mut self) -> Result<(), WriteError> {
        self.open.put_def(&mut self.header)?;
        self.kept.iter_mut().try_for_each(|(_, d)| self.open.put_def(d))
    }

    /// Ends the trace as [`Encoder::finish`] does and continues in `out`, with a trace that begins with `header`
    /// and the known engines, modules, probes, processes, rungs and features. Returns the output of the trace
    /// that ended.
    pub fn rotate(&mut self, out: W, footer: &Footer, header: &Header) -> Result<W, WriteError>
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

    /// What a probe hit costs was measured after the trace had begun: its last block says it.
    ///
    /// # Errors
    /// None that can happen: the header was written before.
    pub fn hit_cost(&mut self, hit_ns: u32) -> Result<(), WriteError> {
        let mut before = Predictors { calls: CallPredictor::new(0), tensors: Past::default() };
        let mut bytes = self.header.bytes.as_slice();
        if let Some(Frame::Record(Record::Header(begun))) = next_record(&mut bytes, &mut before) {
            self.header = def(&Record::Header(Header { hit_ns, ..begun }))?;
        }
        Ok(())
    }

    /// A process has ended: later traces need not name it.
    pub fn forget_process(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.drop_kept(key_of("process", pid));
        self.forget_states(pid);
    }

    /// The next trace of the recording does not repeat what this one says of a process's state.
    pub fn forget_states(&mut self, pid: u32) {
        [StateAt::Start, StateAt::Change, StateAt::End]
            .into_iter()
            .for_each(|at| self.drop_kept(state_key(pid, at)));
    }

    fn drop_kept(&mut self, key: u64) {
        if let Some(i) = self.kept.iter().position(|(k, _)| *k == key) {
            self.kept_bytes = self.kept_bytes.saturating_sub(self.kept.remove(i).1.bytes.len());
        }
    }

    /// Completes the open block, so that everything recorded so far is in complete blocks.
    pub fn seal_now(&mut self) -> Result<(), WriteError> {
        self.seal()
    }

    /// A separate block for either end of a trace made of some of this trace's blocks; its number is 0. Call it
    /// after [`Encoder::seal_now`]. With a footer it is a last block.
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
