//! What requests are read from: the calls with their batches, the changes of memory, and what a server took in.

use std::collections::{HashMap, HashSet};

use crate::recorded::call::Call;
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::{Device, Entry, MemoryCall, ServerTask};
use requests::{Arrival, CallBatch, Event, Requests};

/// The part of a recording that says what was computed.
pub struct Given<'a> {
    /// By start. Those shown have their index as id; other calls of their processes have greater ones.
    pub calls: Vec<(requests::Call, CallBatch)>,
    memory: Vec<&'a MemoryCall>,
    /// When each of them was reported.
    arrivals: Vec<(i64, Arrival)>,
}

impl<'a> Given<'a> {
    /// Of the calls shown, and of other contexts of their processes: one may be a draft model's.
    pub fn of(loaded: &'a Loaded<'_>, calls: &[Call]) -> Given<'a> {
        let shown = calls.iter().enumerate().map(|(i, c)| (c.seq, call(i, c)));
        let beside = loaded.aside.iter().enumerate().map(|(i, t)| {
            (t.seq, {
                let end = t.t.saturating_add_unsigned(t.dur);
                let seen = !t.cut && t.device != Device::Unseen;
                let (id, encodes) = ((calls.len() + i) as u64, t.entry == Entry::Encode);
                requests::Call { id, pid: t.pid, context: 0, width: 0, start: t.t, end, seen, encodes }
            })
        });
        let mut with: HashMap<u64, (requests::Call, Option<CallBatch>)> =
            beside.chain(shown).map(|(seq, call)| (seq, (call, None))).collect();
        for part in &loaded.causes.ubatches {
            if let Some((_, batch)) = part.token.and_then(|seq| with.get_mut(&seq)) {
                batch.get_or_insert_default().add(part, pfi::chunks(part), usize::MAX);
            }
        }
        let known = with.into_values().filter_map(|(call, batch)| {
            let batch = batch?;
            Some((requests::Call { context: batch.context, ..call }, batch))
        });
        let mut all: Vec<(requests::Call, CallBatch)> = known.collect();
        let is_shown = |call: &requests::Call| call.id < calls.len() as u64;
        let own: HashSet<(u32, u64)> =
            all.iter().filter(|(c, _)| is_shown(c)).map(|(c, _)| (c.pid, c.context)).collect();
        all.retain(|(c, _)| is_shown(c) || !own.contains(&(c.pid, c.context)));
        order::by_key(&mut all, |(c, _)| (order::time(c.start), c.id));
        let mut memory: Vec<&MemoryCall> = loaded.causes.memory.iter().collect();
        order::by_key(&mut memory, |m| (order::time(m.t), 0));
        Given { calls: all, memory, arrivals: arrivals(&loaded.causes.server_tasks) }
    }

    /// Gives it to those who follow requests, in the order of time.
    pub fn read(&self, requests: &mut Requests, sink: &mut dyn FnMut(Event)) {
        let (mut memory, mut arrivals) = (self.memory.iter().peekable(), self.arrivals.iter().peekable());
        for (call, batch) in &self.calls {
            while let Some((_, arrival)) = arrivals.next_if(|(t, _)| *t < call.start) {
                requests.arrival(arrival, sink);
            }
            while let Some(m) = memory.next_if(|m| m.t <= call.start) {
                requests.memory(m, false, sink);
            }
            requests.call(call, &batch.chunks, sink);
        }
        memory.for_each(|m| requests.memory(m, false, sink));
        arrivals.for_each(|(_, arrival)| requests.arrival(arrival, sink));
        requests.finish(sink);
    }
}

fn call(index: usize, c: &Call) -> requests::Call {
    let (start, end, encodes) = (c.start, c.end(), c.entry == Some(Entry::Encode));
    requests::Call { id: index as u64, pid: c.pid, context: 0, width: 0, start, end, seen: !c.cut, encodes }
}

/// What a server told of its requests: by its own numbers of them, and the slot that the first result of each names.
fn arrivals(tasks: &[ServerTask]) -> Vec<(i64, Arrival)> {
    let mut sorted: Vec<&ServerTask> = tasks.iter().collect();
    order::by_key(&mut sorted, |t| (order::time(t.t), 0));
    let mut arrived: HashMap<(u32, i64), i64> = HashMap::new();
    let told = sorted.into_iter().filter_map(|task| {
        let (pid, seq) = (task.pid, task.seq);
        let at = match seq {
            Some(_) => arrived.remove(&(pid, task.task))?,
            None => {
                arrived.insert((pid, task.task), task.t);
                task.t
            }
        };
        Some((task.t, Arrival { pid, at, seq }))
    });
    told.collect()
}
