//! The service's metrics: what is exposed to Prometheus and pushed by OpenTelemetry's protocol. Units are seconds, bytes
//! and joules; unknown values are omitted.
//!
//! Counters and histograms only grow while the service runs, and have no label that names a process: those of several
//! machines can be added up. Their number is bounded, however many engines come and go.

pub mod exposition;
pub mod family;
pub mod otlp;
mod processes;
#[cfg(test)]
mod tests;

use self::family::Kind::{Counter, Gauge, Histogram};
use self::family::{Families, Family, Label, Metric, Value};
use crate::status::{ServicePhase, ServiceState};
use crate::totals::ModelTotal;
use agent::recorder::tally::{self, DURATION_NS, FIRST_TOKEN_NS, OUTPUT_TOKEN_NS, RequestTally};
use requests::Unobserved;

static UP: Metric = Metric::new("profinfer.up", "", Gauge, "1 while the service runs.");
static BUILD: Metric = Metric::new("profinfer.build_info", "", Gauge, "Version of the service.");
static STATE: Metric = Metric::new("profinfer.state", "", Gauge, "1 for the current state of the service.");
static WRONG: Metric = Metric::new(
    "profinfer.configuration_errors",
    "{error}",
    Gauge,
    "Errors found when the configuration was last read.",
);
static RUNS_SEEN: Metric = Metric::new("profinfer.runs_seen", "{run}", Counter, "Engine runs seen.");
static OUTCOMES: Metric =
    Metric::new("profinfer.runs", "{run}", Counter, "Engine runs that have ended, by outcome.");
static PUT_OFF: Metric = Metric::new(
    "profinfer.files_put_off",
    "{file}",
    Counter,
    "Mapped files whose examination was delayed because a user exceeded the share of time.",
);
static GOING: Metric = Metric::new("profinfer.runs_going", "{run}", Gauge, "Engine runs in progress.");
static FILES: Metric = Metric::new("profinfer.files", "{file}", Gauge, "Recordings in the directory.");
static WRITING: Metric =
    Metric::new("profinfer.files_writing", "{file}", Gauge, "Recordings that are being written.");
static BYTES: Metric = Metric::new("profinfer.files_bytes", "By", Gauge, "Size of all recordings.");
static COUNTED: Metric = Metric::new(
    "profinfer.quota_used",
    "By",
    Gauge,
    "Bytes counted against the quota; a recording being written counts with its maximum size.",
);
static QUOTA: Metric =
    Metric::new("profinfer.quota", "By", Gauge, "Maximum size of all recordings together.");
static REMOVED: Metric = Metric::new(
    "profinfer.files_removed",
    "{file}",
    Counter,
    "Recordings removed because of the quota or their age.",
);
static RESIDENT: Metric =
    Metric::new("profinfer.resident_memory", "By", Gauge, "Memory of the service and its recorders.");
static CPU: Metric = Metric::new("profinfer.cpu", "s", Counter, "CPU time of the service and its recorders.");
static EVENTS: Metric = Metric::new(
    "profinfer.events",
    "{event}",
    Counter,
    "Events of the recordings of a rule, including lost ones.",
);
static LOST: Metric = Metric::new(
    "profinfer.events_lost",
    "{event}",
    Counter,
    "Events of the recordings of a rule that were lost.",
);
static TOKENS: Metric = Metric::new("profinfer.tokens", "{token}", Counter, "Tokens decoded.");
static UNOBSERVED: Metric = Metric::new(
    "profinfer.requests_unobserved",
    "{request}",
    Counter,
    "Requests, or the rest of one, that are in none of the histograms, by reason.",
);
static FIRST_TOKEN: Metric = Metric::new(
    "gen_ai.server.time_to_first_token",
    "s",
    Histogram,
    "Time from when the server took a request in, or else the start of its first call, to the end of the call that gave its \
     first token.",
);
static OUTPUT_TOKEN: Metric = Metric::new(
    "gen_ai.server.time_per_output_token",
    "s",
    Histogram,
    "Time from token to token of a request, after its first one.",
);
static DURATION: Metric = Metric::new(
    "gen_ai.server.request.duration",
    "s",
    Histogram,
    "Time from when the server took a request in, or else the start of its first call, to the end of the call for its last \
     token.",
);
static ENERGY: Metric = Metric::new("hw.energy", "J", Counter, "Energy taken by the hardware.");
static FAULTS: Metric =
    Metric::new("process.paging.faults", "{fault}", Counter, "Page faults of the recorded processes.");
static SCRAPES: Metric =
    Metric::new("profinfer.scrapes", "{request}", Counter, "Requests to the metrics listener, by answer.");
static EXPORTS: Metric = Metric::new(
    "profinfer.otlp_exports",
    "{request}",
    Counter,
    "Exports by OpenTelemetry's protocol that have ended, by outcome.",
);
static REJECTED: Metric = Metric::new(
    "profinfer.otlp_points_rejected",
    "{point}",
    Counter,
    "Values that a receiver has not taken from exports it accepted.",
);

/// A histogram of requests: the metric, its bounds, and where it is.
type OfRequests = (&'static Metric, &'static [u64], fn(&RequestTally) -> tally::Histogram);

static HISTOGRAMS: [OfRequests; 3] = [
    (&FIRST_TOKEN, &FIRST_TOKEN_NS, |t| t.first_token),
    (&OUTPUT_TOKEN, &OUTPUT_TOKEN_NS, |t| t.output_token),
    (&DURATION, &DURATION_NS, |t| t.duration),
];

/// The convention has no name for what cannot be seen from outside: whether a server was asked for a chat.
const OPERATION: (&str, &str) = ("gen_ai.operation.name", "text_completion");
const PROVIDER: (&str, &str) = ("gen_ai.provider.name", "ggml");

/// All metrics. With `per_process`, those of each process, which cannot be added up and whose number is not that of the
/// models, too.
pub fn families(state: &ServiceState, per_process: bool) -> Vec<Family> {
    let mut out = Families::default();
    service(&mut out, state);
    recordings(&mut out, state);
    requests(&mut out, state);
    hardware(&mut out, state);
    network(&mut out, state);
    if per_process {
        processes::add(&mut out, state);
    }
    out.0
}

fn service(out: &mut Families, state: &ServiceState) {
    let counts = &state.counts;
    out.count(&UP, None, 1);
    out.count(&BUILD, Some(("version", &state.version)), 1);
    for (name, phase) in [
        ("waiting", ServicePhase::Waiting),
        ("recording", ServicePhase::Recording),
        ("stopping", ServicePhase::Stopping),
    ] {
        out.count(&STATE, Some(("state", name)), u64::from(state.state == phase));
    }
    out.count(&WRONG, None, state.configuration.errors.len() as u64);
    out.count(&RUNS_SEEN, None, counts.seen);
    for (name, n) in [
        ("recorded", counts.recorded),
        ("nothing recorded", counts.empty),
        ("left out by rule", state.totals.left.ignored),
        ("left out by sample_one_in", state.totals.left.sampled),
        ("left out by max_concurrent", counts.max_concurrent),
        ("missed", counts.missed),
    ] {
        out.count(&OUTCOMES, Some(("outcome", name)), n);
    }
    out.count(&PUT_OFF, None, state.finder.files_put_off);
    out.count(&GOING, None, state.going().count() as u64);
    if let Some(n) = state.own.resident_bytes {
        out.count(&RESIDENT, None, n);
    }
    if let Some(x) = state.own.cpu_seconds {
        out.add(&CPU, Vec::new(), Value::Number(x));
    }
}

fn recordings(out: &mut Families, state: &ServiceState) {
    let store = &state.store;
    for (metric, n) in [
        (&FILES, store.files),
        (&WRITING, store.writing),
        (&BYTES, store.bytes),
        (&COUNTED, store.counted),
        (&QUOTA, store.quota),
        (&REMOVED, state.files_removed),
    ] {
        out.count(metric, None, n);
    }
    for (metric, lost) in [(&EVENTS, false), (&LOST, true)] {
        for of in &state.totals.events {
            out.count(metric, Some(("rule", &of.rule)), if lost { of.lost } else { of.seen });
        }
    }
}

/// Labels of a rule's model, as far as it is known, after others. With the rule: a user's file can state the name of any
/// other model, but not what rule applies to the user.
fn labels(of: &ModelTotal, mut all: Vec<Label>) -> Vec<Label> {
    let model = &of.model;
    all.push(("rule", of.rule.clone()));
    for (label, text) in [("gen_ai.request.model", &model.name), ("ggml.quantization", &model.quantization)] {
        all.extend(text.iter().map(|text| (label, text.clone())));
    }
    all
}

fn requests(out: &mut Families, state: &ServiceState) {
    let models = &state.totals.models;
    for (metric, bounds, of) in HISTOGRAMS {
        for m in models.iter() {
            let asked = [OPERATION, PROVIDER].map(|(label, text)| (label, text.to_owned()));
            let value = Value::Histogram(Box::new(of(&m.tally)), bounds);
            out.add(metric, labels(m, asked.into()), value);
        }
    }
    for m in models.iter() {
        out.add(&TOKENS, labels(m, Vec::new()), Value::Whole(m.tally.tokens));
    }
    for m in models.iter() {
        for ((_, reason), n) in Unobserved::ALL.iter().zip(m.tally.unobserved).filter(|(_, n)| *n > 0) {
            let reason = vec![("reason", (*reason).to_owned())];
            out.add(&UNOBSERVED, labels(m, reason), Value::Whole(n));
        }
    }
}

fn hardware(out: &mut Families, state: &ServiceState) {
    for counter in &state.energy {
        let labels = vec![("hw.id", counter.id.clone()), ("hw.type", counter.kind.to_owned())];
        out.add(&ENERGY, labels, Value::Number(counter.joules));
    }
    if let Some(faults) = state.faults {
        for (kind, n) in [("major", faults.major), ("minor", faults.minor)] {
            out.count(&FAULTS, Some(("system.paging.fault.type", kind)), n);
        }
    }
}

fn network(out: &mut Families, state: &ServiceState) {
    let Some(network) = &state.network else { return };
    let (scrapes, exports) = (&network.scrapes, &network.exports);
    if network.listen.is_some() {
        for (answer, n) in
            [("metrics", scrapes.served), ("error", scrapes.refused), ("closed", scrapes.closed)]
        {
            out.count(&SCRAPES, Some(("answer", answer)), n);
        }
    }
    if network.endpoint.is_some() {
        for (outcome, n) in
            [("accepted", exports.accepted), ("failed", exports.failed), ("dropped", exports.dropped)]
        {
            out.count(&EXPORTS, Some(("outcome", outcome)), n);
        }
        out.count(&REJECTED, None, exports.rejected);
    }
}
