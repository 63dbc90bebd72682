//! What the service's metrics count of a recording: its records, taken as the recorder would have while it ran.

use std::collections::HashMap;
use std::path::Path;

use pfi::Trace;
use pfi::record::{Chunk, Device, Entry, MemoryCall, Record, ServerTask, Token};
use profinfer::recorder::requests::{RequestCall, Requests};
use profinfer::recorder::tally::{Histogram, RequestTally};
use profinfer::recorder::tasks::Arrival;
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
    // Context and chunks, by the number of the call.
    let mut batches: HashMap<u64, (u64, Vec<Chunk>)> = HashMap::new();
    for i in 0..trace.blocks().len() {
        let Ok(block) = trace.block(i) else { continue };
        for record in block.records().flatten() {
            match record {
                Record::Token(call) => happened.push(Happened::Call(call)),
                Record::Memory(call) => happened.push(Happened::Memory(call)),
                Record::ServerTask(task) => happened.push(Happened::Task(task)),
                Record::Ubatch(batch) => {
                    let known = batches.entry(batch.token.unwrap_or(u64::MAX)).or_default();
                    known.0 = batch.context;
                    known.1.extend(pfi::chunks(&batch));
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
                let end = (call.device != Device::Unseen).then_some(what.at() as u64);
                let (width, context) = (call.n_tokens.unwrap_or(0), batch.map_or(1, |(context, _)| *context));
                let call =
                    RequestCall { pid: call.pid, run: call.pid, context, width, start: call.t as u64, end };
                match batch {
                    Some((_, chunks)) => requests.chunks(&call, chunks),
                    None => requests.call(&call),
                }
            }
            Happened::Memory(call) => requests.memory(call, false),
            Happened::Task(task) => {
                let at = *arrived.entry(task.task).or_insert(task.t as u64);
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
