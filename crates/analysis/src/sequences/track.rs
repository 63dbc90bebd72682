//! The requests of all sequences, call by call.

use std::collections::HashMap;

use super::super::call::Call;
use super::batch::CallBatch;
use super::data::{CallWork, SeqRequest, TokenStep};
use pfi::record::{Chunk, Entry, MemoryCall};
use pfi::track::{ChunkWork, SeqKey, SequenceTracker};

/// Follows all sequences.
#[derive(Default)]
pub struct Tracker {
    sequences: SequenceTracker,
    /// Index of the last request of each.
    last: HashMap<SeqKey, usize>,
    pub requests: Vec<SeqRequest>,
    /// Chunks of sequences that found no room.
    pub untracked: u64,
}

impl Tracker {
    /// A call with its batch.
    pub fn call(&mut self, index: usize, call: &Call, batch: &CallBatch) -> CallWork {
        let mut work = CallWork { context: batch.context, chunks: Vec::new(), unread: batch.unread };
        for chunk in &batch.chunks {
            match self.chunk((call.pid, batch.context, chunk.seq), index, call, chunk) {
                Some((kind, request)) => work.chunks.push((*chunk, kind, request)),
                None => self.untracked += 1,
            }
        }
        work
    }

    fn chunk(&mut self, key: SeqKey, index: usize, call: &Call, chunk: &Chunk) -> Option<(ChunkWork, usize)> {
        let seen = self.sequences.chunk(key, chunk, call.entry == Some(Entry::Encode))?;
        let last = self.last.get(&key).copied();
        if let (Some(accepted), Some(last)) = (seen.accepted, last) {
            settle(&mut self.requests, last, accepted);
        }
        let i = match last.filter(|_| !seen.begins) {
            Some(last) => last,
            None => {
                self.requests.push(SeqRequest::begin(key, call, chunk, seen.late));
                self.last.insert(key, self.requests.len() - 1);
                self.requests.len() - 1
            }
        };
        if let Some(r) = self.requests.get_mut(i) {
            r.take(index, call, chunk, seen.work);
        }
        Some((seen.work, i))
    }

    /// A change of a context's memory.
    pub fn memory(&mut self, m: &MemoryCall) {
        let Tracker { sequences, last, requests, .. } = self;
        sequences.memory(m, &mut |key, accepted| {
            last.get(&key).into_iter().for_each(|i| settle(requests, *i, accepted));
        });
    }
}

/// The number of accepted tokens of a request's last draft is known.
fn settle(requests: &mut [SeqRequest], request: usize, accepted: u64) {
    if let Some(step) = requests.get_mut(request).and_then(|r| r.steps.last_mut()) {
        *step = TokenStep { accepted: Some(accepted), ..*step };
    }
}
