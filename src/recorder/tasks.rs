//! Requests that a server takes in: which of its tasks are requests of clients, and which slot computes each.

use std::io::Write;

use heapless::Deque;

use crate::capture::event;
use pfi::record::ServerTask;
use pfi::{Encoder, WriteError};
use requests::Arrival;

/// Requests without a result, of all processes.
const WAITING: usize = 1024;
/// Slot in an event of a request that is taken in, as in src/bpf/event.h.
const ARRIVES: i32 = -2;
/// A server has fewer slots (LLAMA_MAX_SEQ is 256; llama-cparams.h, 2025-08).
const SLOTS: u64 = 4096;
/// Maximum requests posted together.
const TOGETHER: u64 = 256;
/// Processes, and threads that compute, that are remembered.
const KNOWN: usize = 16;

/// Requests whose first result is still to come.
#[derive(Default)]
pub struct ServerTasks {
    /// Process, number, and when it was taken in, oldest first.
    waiting: Deque<(u32, i32, u64), WAITING>,
    /// The fewest bytes of an array of requests, by process: most arrays have one request.
    one: heapless::Vec<(u32, u64), KNOWN>,
    /// Processes and threads that had results.
    workers: heapless::Vec<(u32, u32), KNOWN>,
}

impl ServerTasks {
    /// A server has taken in requests, or has a result.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn take<W: Write>(
        &mut self,
        e: &event::Task,
        enc: &mut Encoder<W>,
    ) -> Result<Option<Arrival>, WriteError> {
        let (pid, tid, t) = (e.h.tgid, e.h.tid, e.h.ts as i64);
        if e.slot != ARRIVES {
            self.add_worker((pid, tid));
            // Results without a slot: of what is no request, and of a part of an answer.
            let seq = u64::try_from(e.slot).ok().filter(|slot| *slot < SLOTS);
            let of = |w: &(u32, i32, u64)| (w.0, w.1) == (pid, e.task);
            let Some(&(.., at)) = self.waiting.iter().find(|w| of(w)).filter(|_| seq.is_some()) else {
                return Ok(None);
            };
            self.remove(|w| of(&w));
            enc.server_task(&ServerTask { pid, tid, t, task: e.task.into(), seq })?;
            return Ok(Some(Arrival { pid, at: at as i64, seq }));
        }
        // The thread that computes posts tasks to itself.
        if self.workers.contains(&(pid, tid)) || e.task < 0 {
            return Ok(None);
        }
        for task in (0..self.number(pid, e.bytes)).filter_map(|i| e.task.checked_add(i)) {
            if self.waiting.is_full() {
                self.waiting.pop_front();
            }
            let _ = self.waiting.push_back((pid, task, e.h.ts));
            enc.server_task(&ServerTask { pid, tid, t, task: task.into(), seq: None })?;
        }
        Ok(Some(Arrival { pid, at: t, seq: None }))
    }

    /// A process has ended.
    pub fn forget(&mut self, pid: u32) {
        self.remove(|w| w.0 == pid);
        self.one.retain(|o| o.0 != pid);
        self.workers.retain(|w| w.0 != pid);
    }

    fn remove(&mut self, which: impl Fn((u32, i32, u64)) -> bool) {
        for _ in 0..self.waiting.len() {
            if let Some(w) = self.waiting.pop_front().filter(|w| !which(*w)) {
                let _ = self.waiting.push_back(w);
            }
        }
    }

    fn add_worker(&mut self, thread: (u32, u32)) {
        if !self.workers.contains(&thread) {
            if self.workers.is_full() {
                self.workers.remove(0);
            }
            let _ = self.workers.push(thread);
        }
    }

    /// How many requests are in an array of this many bytes, with consecutive numbers; 0 bytes: it is one request.
    fn number(&mut self, pid: u32, bytes: u64) -> i32 {
        if bytes == 0 {
            return 1;
        }
        let Some(one) = self.one.iter_mut().find(|o| o.0 == pid) else {
            if self.one.is_full() {
                self.one.remove(0);
            }
            let _ = self.one.push((pid, bytes));
            return 1;
        };
        one.1 = one.1.min(bytes);
        if bytes.is_multiple_of(one.1) { (bytes / one.1).min(TOGETHER) as i32 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::event::{Head, Task};
    use crate::recorder::sample;
    use pfi::record::Record;
    use pfi::{EncoderConfig, Trace};

    #[test]
    fn requests_of_clients_have_their_first_results() {
        let mut enc =
            Encoder::new(Vec::new(), EncoderConfig::default(), &sample::HEADER).expect("memory takes it");
        let mut tasks = ServerTasks::default();
        let event = |tid, task, slot, bytes| {
            let h = Head { ts: 100, tgid: 5, tid, ..Head::default() };
            Task { h, bytes, task, slot }
        };
        let told = [
            // A request, two together, a result of none, and two of one.
            event(7, 1, ARRIVES, 2760),
            event(8, 2, ARRIVES, 5520),
            event(6, 99, 0, 0),
            event(6, 3, 1, 0),
            event(6, 3, 1, 0),
            // What the computing thread posts; a result without a slot; one of another process.
            event(6, 4, ARRIVES, 0),
            event(6, 1, -1, 0),
            Task { h: Head { tgid: 4, ..Head::default() }, ..event(6, 1, 0, 0) },
            event(6, 1, 0, 0),
            // Cancelled ones have no number of their own. No number follows; no array is as long.
            event(9, -1, ARRIVES, 5520),
            event(9, i32::MAX, ARRIVES, u64::MAX - u64::MAX % 2760),
        ];
        let take = |e: &Task| tasks.take(e, &mut enc).expect("memory takes it");
        let arrivals: Vec<Arrival> = told.iter().filter_map(take).filter(|a| a.seq.is_some()).collect();
        let of = |seq| Arrival { pid: 5, at: 100, seq: Some(seq) };
        assert_eq!(arrivals, [of(1), of(0)]);
        tasks.forget(5);
        assert!(tasks.waiting.is_empty() && tasks.one.is_empty() && !tasks.workers.contains(&(5, 6)));
        (0..2000).for_each(|n| {
            tasks.take(&event(7, n, ARRIVES, 0), &mut enc).expect("memory takes it");
        });
        assert_eq!(tasks.waiting.len(), WAITING);
        let trace =
            Trace::from_bytes(enc.finish(&sample::footer()).expect("memory takes it")).expect("a trace");
        let block = trace.block(0).expect("a whole block");
        let records = block.records().map(|r| r.expect("a whole record"));
        let found: Vec<(i64, Option<u64>)> = records
            .filter_map(|r| match r {
                Record::ServerTask(t) => Some((t.task, t.seq)),
                _ => None,
            })
            .take(6)
            .collect();
        assert_eq!(
            found,
            [(1, None), (2, None), (3, None), (3, Some(1)), (1, Some(0)), (i32::MAX.into(), None)]
        );
    }
}
