//! The part of the block writer that handles the records of `sequence`.

use std::io::Write;

use super::{Encoder, WriteError};
use crate::coding::put_chunks;
use crate::record::*;

impl<W: Write> Encoder<W> {
    /// The tokens of a batch; the data of `batch` is taken from `chunks`.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn ubatch(&mut self, batch: &Ubatch, chunks: impl Iterator<Item = Chunk>) -> Result<(), WriteError> {
        self.begin_at(batch.pid, batch.t, 0)?;
        self.data.clear();
        put_chunks(&mut self.data, chunks);
        self.open.put(Record::Ubatch(Ubatch { data: &self.data, ..*batch }))
    }

    /// What tokens of a batch are; the data of `content` is taken from `hashes`.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn content(
        &mut self,
        content: &Content,
        hashes: impl Iterator<Item = u64>,
    ) -> Result<(), WriteError> {
        self.begin_at(content.pid, content.t, 0)?;
        self.data.clear();
        hashes.for_each(|hash| self.data.extend_from_slice(&hash.to_le_bytes()));
        self.open.put(Record::Content(Content { data: &self.data, ..*content }))
    }

    /// A change of a context's memory.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn memory(&mut self, call: &MemoryCall) -> Result<(), WriteError> {
        self.begin_at(call.pid, call.t, 0)?;
        self.open.put(Record::Memory(*call))
    }

    /// A request of a server.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn server_task(&mut self, task: &ServerTask) -> Result<(), WriteError> {
        self.begin_at(task.pid, task.t, 0)?;
        self.open.put(Record::ServerTask(*task))
    }
}
