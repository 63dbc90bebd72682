//! What the service says of a recording: its records, taken as the recorder would have while it ran. Of its metrics, what a
//! scraper and a receiver get; of `watch`, what an event has of the work since the run began.

use std::collections::HashMap;
use std::path::Path;

use agent::recorder::requests::Requests;
use agent::recorder::tally::RequestTally;
use analysis::streams::live::Live;
use pfi::Trace;
use pfi::record::{Device, Entry, MemoryCall, Record, ServerTask, Token};
use requests::{Arrival, Call, CallBatch};
use serde_json::{Value, json};
use service::metrics::{exposition, families, otlp};
use service::recorder::figures::RunFigures;
use service::run::Run;
use service::status::ServiceState;
use service::totals::ModelTally;
use service::watch::worked::WorkThen;

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

/// The fields of an event that has all of the run's work.
pub fn watch(file: &Path, pid: u32) -> Value {
    let trace = Trace::open(file).expect("a trace");
    let mut live = Live::default();
    for i in 0..trace.blocks().len() {
        if let Ok(block) = trace.block(i) {
            live.feed(&block);
        }
    }
    let figures =
        RunFigures { whole: true, work: live.work(pid), unknown: None, energy: live.energy(&[pid]) };
    let run = Run { pid, figures: Some(Box::new(figures)), ..Run::default() };
    WorkThen::default().since(&run).fields()
}

/// What has the names of metrics, as a scraper reads it and as a receiver gets it.
pub struct Exposed {
    pub scraped: Value,
    pub pushed: Value,
}

/// The counters and histograms of requests.
pub fn metrics(file: &Path) -> Exposed {
    let mut state = ServiceState::default();
    state.totals.models.add("r", ModelTally { tally: tally(file), ..ModelTally::default() }, 0);
    let families = families(&state, false);
    let times = otlp::Times { began: 0, now: 1 };
    let pushed = serde_json::from_str(&otlp::request(&families, &[], "1", times)).expect("JSON");
    Exposed { scraped: scraped(&exposition::text(&families)), pushed: received(&pushed) }
}

/// The same names for both: n and mean of a histogram in seconds, and two counters.
fn named(histogram: &dyn Fn(&str) -> (f64, f64), counter: &dyn Fn(&str) -> f64) -> Value {
    let told = |name: &str| {
        let (n, sum) = histogram(name);
        json!({ "n": n, "mean_ns": 1e9 * sum / n.max(1.0) })
    };
    json!({
        "requests": histogram("gen_ai.server.request.duration").0,
        "tokens": counter("profinfer.tokens"),
        "first_token": told("gen_ai.server.time_to_first_token"),
        "output_token": told("gen_ai.server.time_per_output_token"),
        "duration": told("gen_ai.server.request.duration"),
        "unobserved": counter("profinfer.requests_unobserved"),
    })
}

/// Sums over the lines of a metric in Prometheus' text.
fn scraped(text: &str) -> Value {
    let sum = |name: String| -> f64 {
        let of = text.lines().filter_map(|l| l.strip_prefix(&name)?.rsplit_once(' ')?.1.parse::<f64>().ok());
        of.sum()
    };
    let plain = |name: &str| name.replace('.', "_");
    named(
        &|name| {
            let name = plain(name) + "_seconds";
            (sum(format!("{name}_count{{")), sum(format!("{name}_sum{{")))
        },
        &|name| sum(plain(name) + "_total{"),
    )
}

/// Sums over the points of a metric in OpenTelemetry's protocol.
fn received(request: &Value) -> Value {
    let metrics = request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().expect("metrics");
    let points = |name: &str, kind: &str| -> Vec<Value> {
        let of = metrics.iter().filter(|m| m["name"] == name);
        of.filter_map(|m| m[kind]["dataPoints"].as_array()).flatten().cloned().collect()
    };
    let whole = |value: &Value| value.as_str().and_then(|n| n.parse::<f64>().ok()).expect("an integer");
    named(
        &|name| {
            let all = points(name, "histogram");
            (
                all.iter().map(|p| whole(&p["count"])).sum(),
                all.iter().map(|p| p["sum"].as_f64().expect("a number")).sum(),
            )
        },
        &|name| points(name, "sum").iter().map(|p| whole(&p["asInt"])).sum(),
    )
}

fn tally(file: &Path) -> RequestTally {
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
    all
}
