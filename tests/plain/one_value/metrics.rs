//! What the service's metrics count of a recording: its records, taken as the recorder would have while it ran.

use std::collections::HashMap;
use std::path::Path;

use agent::recorder::requests::Requests;
use agent::recorder::tally::{Histogram, RequestTally};
use pfi::Trace;
use pfi::record::{Device, Entry, MemoryCall, Record, ServerTask, Token};
use requests::{Arrival, Call, CallBatch};
use serde_json::{Value, json};

enum Happened {
    Call(Token),
    Memory(MemoryCall),
    Task(ServerTask),
}

impl Happened {
    fn at(&self) -> i64 {
        match self {
            Happened::Call(call) => call.t.saturating_add_unsigned(call.dur),
            Happened::Memory(call) => call.t,
            Happened::Task(task) => task.t,
        }
    }
}

/// The counters and histograms of requests.
pub fn view(file: &Path) -> Value {
    let trace = Trace::open(file).expect("a trace");
    let mut happened: Vec<Happened> = Vec::new();
    // By the number of the call.
    let mut batches: HashMap<u64, CallBatch> = HashMap::new();
    for i in 0..trace.blocks().len() {
        let Ok(block) = trace.block(i) else { continue };
        for record in block.records().flatten() {
            match record {
                Record::Token(call) => happened.push(Happened::Call(call)),
                Record::Memory(call) => happened.push(Happened::Memory(call)),
                Record::ServerTask(task) => happened.push(Happened::Task(task)),
                Record::Ubatch(batch) => {
                    let known = batches.entry(batch.token.unwrap_or(u64::MAX)).or_default();
                    known.add(&batch, pfi::chunks(&batch), usize::MAX);
                }
                _ => {}
            }
        }
    }
    happened.sort_by_key(Happened::at);
    let (mut requests, mut arrived) = (Requests::default(), HashMap::new());
    for what in &happened {
        match what {
            Happened::Call(call) if call.entry == Entry::Encode || call.cut => {}
            Happened::Call(call) => {
                let batch = batches.get(&call.seq);
                let (start, end, seen) = (call.t, what.at(), call.device != Device::Unseen);
                let (width, context) = (call.n_tokens.unwrap_or(0), batch.map_or(1, |batch| batch.context));
                let (id, pid) = (call.seq, call.pid);
                let call = Call { id, pid, context, width, start, end, seen, encodes: false };
                requests.call(pid, &call, batch.map_or(&[][..], |batch| &batch.chunks));
            }
            Happened::Memory(call) => requests.memory(call, false),
            Happened::Task(task) => {
                let at = *arrived.entry(task.task).or_insert(task.t);
                requests.arrival(&Arrival { pid: task.pid, at, seq: task.seq });
            }
        }
    }
    happened.iter().for_each(|what| {
        if let Happened::Call(call) = what {
            requests.exit(call.pid);
        }
    });
    let mut all = RequestTally::default();
    while let Some((_, tally)) = requests.take() {
        all.add(&tally);
    }
    let told =
        |h: &Histogram| json!({ "n": h.count(), "mean_ns": h.sum_ns as f64 / h.count().max(1) as f64 });
    json!({
        "requests": all.duration.count(),
        "tokens": all.tokens,
        "first_token": told(&all.first_token),
        "output_token": told(&all.output_token),
        "duration": told(&all.duration),
        "unobserved": all.unobserved.iter().sum::<u64>(),
    })
}
