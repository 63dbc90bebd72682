//! The part of the drain that handles batches of calls, and changes of a context's memory.

use std::io::Write;

use super::Drain;
use crate::capture::event;
use crate::recorder::calls::CallKind;
use crate::recorder::sequences::{self, CallOfBatch};
use pfi::WriteError;
use requests::Call;

impl<W: Write> Drain<W> {
    /// A call on a batch has returned.
    pub(super) fn batch_done(&mut self, call: &Call) {
        let chunks = self.sequences.take(call.id).unwrap_or_default();
        self.process_tree.batch(call, chunks);
    }

    pub(super) fn ubatch(&mut self, e: &event::Ubatch) -> Result<(), WriteError> {
        self.meet(&e.h);
        let read = e.n > 0;
        if let Some(shown) = self.shown(e.h.engine).filter(|_| read) {
            shown.ubatches += 1;
        }
        let mut call = self.calls.current(CallKind::Token, e.h.tid);
        if let Some(call) = &mut call {
            let single = e.chunk.iter().take(e.n as usize).all(|c| c.tokens == 1);
            let single = read.then_some(single && e.unread == 0);
            call.single = if call.single == Some(false) { call.single } else { single };
        }
        let call =
            call.map_or(CallOfBatch::default(), |c| CallOfBatch { token: Some(c.seq), context: c.object });
        self.sequences.ubatch(e, call, &mut self.enc)
    }

    /// What tokens of a batch are.
    pub(super) fn content(&mut self, e: &event::Content) -> Result<(), WriteError> {
        self.meet(&e.h);
        let Some(call) = self.calls.current(CallKind::Token, e.h.tid) else { return Ok(()) };
        sequences::content(e, call.seq, &mut self.enc)
    }

    /// A server has taken in requests, or has a result of one. What its own loop posts, on the thread that computes, is no
    /// request of a client.
    pub(super) fn task(&mut self, e: &event::Task) -> Result<(), WriteError> {
        self.meet(&e.h);
        if let Some(shown) = self.shown(e.h.engine) {
            shown.tasks += 1;
        }
        let arrival = self.server_tasks.take(e, &mut self.enc)?;
        arrival.into_iter().for_each(|arrival| self.process_tree.requests.arrival(&arrival));
        Ok(())
    }

    pub(super) fn memory(&mut self, e: &event::Memory) -> Result<(), WriteError> {
        self.meet(&e.h);
        if let Some(shown) = self.shown(e.h.engine) {
            shown.memory_calls += 1;
        }
        let Some(m) = self.sequences.memory(e) else { return Ok(()) };
        self.process_tree.requests.memory(&m, self.waiting.holds(m.pid));
        self.enc.memory(&m)
    }
}
