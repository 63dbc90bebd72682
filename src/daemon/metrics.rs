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
use self::family::{Family, Label, Metric, Point, Value};
use super::model::ModelLabel;
use super::status::{ServicePhase, ServiceState};
use super::totals::ModelTally;
use crate::recorder::tally::{self, DURATION_NS, FIRST_TOKEN_NS, OUTPUT_TOKEN_NS, Unobserved};

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
    "Time from the start of a request's first call to the end of the call that gave its first token.",
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
    "Time from the start of a request's first call to the end of the call for its last token.",
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

/// The convention has no name for what cannot be seen from outside: whether a server was asked for a chat.
const OPERATION: (&str, &str) = ("gen_ai.operation.name", "text_completion");
const PROVIDER: (&str, &str) = ("gen_ai.provider.name", "ggml");

/// All metrics. With `per_process`, those of each process, which cannot be added up and whose number is not that of the
/// models, too.
pub fn families(state: &ServiceState, per_process: bool) -> Vec<Family> {
    let mut all = service(state);
    all.extend(recordings(state));
    all.extend(requests(state));
    all.extend(hardware(state));
    all.extend(network(state));
    if per_process {
        all.extend(processes::families(state));
    }
    all
}

fn service(state: &ServiceState) -> Vec<Family> {
    let counts = &state.counts;
    let phases = [
        ("waiting", ServicePhase::Waiting),
        ("recording", ServicePhase::Recording),
        ("stopping", ServicePhase::Stopping),
    ];
    let phase = |(name, phase): (&str, ServicePhase)| {
        Point::labelled("state", name, Value::Whole(u64::from(state.state == phase)))
    };
    let outcomes = [
        ("recorded", counts.recorded),
        ("left out by rule", state.totals.left.ignored),
        ("left out by sample_one_in", state.totals.left.sampled),
        ("left out by max_concurrent", counts.max_concurrent),
        ("missed", counts.missed),
        ("over budget", counts.over_budget),
    ];
    let outcomes = outcomes.into_iter().map(|(name, n)| Point::labelled("outcome", name, Value::Whole(n)));
    let own = &state.own;
    [
        Some(UP.alone(Value::Whole(1))),
        BUILD.of([Point::labelled("version", &state.version, Value::Whole(1))].into_iter()),
        STATE.of(phases.into_iter().map(phase)),
        Some(WRONG.alone(Value::Whole(state.configuration.errors.len() as u64))),
        Some(RUNS_SEEN.alone(Value::Whole(counts.seen))),
        OUTCOMES.of(outcomes),
        Some(PUT_OFF.alone(Value::Whole(state.finder.files_put_off))),
        Some(GOING.alone(Value::Whole(state.going().count() as u64))),
        own.resident_bytes.map(|n| RESIDENT.alone(Value::Whole(n))),
        own.cpu_seconds.map(|x| CPU.alone(Value::Number(x))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn recordings(state: &ServiceState) -> Vec<Family> {
    let store = &state.store;
    let whole = [
        (&FILES, store.files),
        (&WRITING, store.writing),
        (&BYTES, store.bytes),
        (&COUNTED, store.counted),
        (&QUOTA, store.quota),
        (&REMOVED, state.files_removed),
    ];
    let mut all: Vec<Family> = whole.into_iter().map(|(metric, n)| metric.alone(Value::Whole(n))).collect();
    let events = || state.totals.events.iter();
    all.extend(EVENTS.of(events().map(|e| Point::labelled("rule", &e.rule, Value::Whole(e.seen)))));
    all.extend(LOST.of(events().map(|e| Point::labelled("rule", &e.rule, Value::Whole(e.lost)))));
    all
}

/// What identifies a model, as far as it is known.
fn labels(model: &ModelLabel) -> Vec<Label> {
    let name = model.name.iter().map(|name| ("gen_ai.request.model", name.clone()));
    name.chain(model.quantization.iter().map(|q| ("ggml.quantization", q.clone()))).collect()
}

fn requests(state: &ServiceState) -> Vec<Family> {
    let models = || state.totals.models.iter();
    let histogram = |of: fn(&ModelTally) -> tally::Histogram, bounds: &'static [u64]| {
        models().map(move |m| {
            let mut all = vec![(OPERATION.0, OPERATION.1.to_owned()), (PROVIDER.0, PROVIDER.1.to_owned())];
            all.extend(labels(&m.model));
            Point::new(all, Value::Histogram(Box::new(of(m)), bounds))
        })
    };
    let unobserved = |m: &ModelTally| {
        let reasons = Unobserved::ALL.iter().zip(m.tally.unobserved).filter(|(_, n)| *n > 0);
        let point = |((_, reason), n): (&(Unobserved, &'static str), u64)| {
            let mut all = labels(&m.model);
            all.push(("reason", (*reason).to_owned()));
            Point::new(all, Value::Whole(n))
        };
        reasons.map(point).collect::<Vec<_>>()
    };
    [
        FIRST_TOKEN.of(histogram(|m| m.tally.first_token, &FIRST_TOKEN_NS)),
        OUTPUT_TOKEN.of(histogram(|m| m.tally.output_token, &OUTPUT_TOKEN_NS)),
        DURATION.of(histogram(|m| m.tally.duration, &DURATION_NS)),
        TOKENS.of(models().map(|m| Point::new(labels(&m.model), Value::Whole(m.tally.tokens)))),
        UNOBSERVED.of(models().flat_map(unobserved)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn hardware(state: &ServiceState) -> Vec<Family> {
    let energy = state.energy.iter().map(|counter| {
        let all = vec![("hw.id", counter.id.clone()), ("hw.type", counter.kind.to_owned())];
        Point::new(all, Value::Number(counter.joules))
    });
    let faults = state.faults.into_iter().flat_map(|faults| {
        [("major", faults.major), ("minor", faults.minor)]
            .map(|(kind, n)| Point::labelled("system.paging.fault.type", kind, Value::Whole(n)))
    });
    [ENERGY.of(energy), FAULTS.of(faults)].into_iter().flatten().collect()
}

fn network(state: &ServiceState) -> Vec<Family> {
    let Some(network) = &state.network else { return Vec::new() };
    let (scrapes, exports) = (&network.scrapes, &network.exports);
    let point = |label| move |(name, n): (&'static str, u64)| Point::labelled(label, name, Value::Whole(n));
    let answers = [("metrics", scrapes.served), ("error", scrapes.refused), ("closed", scrapes.closed)];
    let outcomes = [("accepted", exports.accepted), ("failed", exports.failed), ("dropped", exports.dropped)];
    [
        network.listen.as_ref().and_then(|_| SCRAPES.of(answers.into_iter().map(point("answer")))),
        network.endpoint.as_ref().and_then(|_| EXPORTS.of(outcomes.into_iter().map(point("outcome")))),
        network.endpoint.as_ref().map(|_| REJECTED.alone(Value::Whole(exports.rejected))),
    ]
    .into_iter()
    .flatten()
    .collect()
}
