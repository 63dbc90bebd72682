//! Metrics of each process: gauges of current runs, at most a hundred.

use super::exposition::seconds;
use super::family::Kind::{Counter, Gauge};
use super::family::{Families, Label, Metric, Value};
use crate::run::Run;
use crate::status::ServiceState;

/// Maximum runs reported.
const RUNS: usize = 100;

static LEVEL: Metric =
    Metric::new("profinfer.run_level_info", "", Gauge, "Current recording level of a run.");
static TOKENS: Metric = Metric::new("profinfer.run_tokens", "{token}", Counter, "Tokens decoded.");
static TTFT: Metric = Metric::new(
    "profinfer.run_ttft",
    "s",
    Gauge,
    "Duration of the first call that processed a complete prompt.",
);
static RATE: Metric = Metric::new(
    "profinfer.run_tokens_per_second",
    "{token}/s",
    Gauge,
    "Tokens decoded per second over the last 10 s of decoding.",
);
static COST: Metric =
    Metric::new("profinfer.run_cost", "1", Gauge, "Estimated recording overhead as a share of token time.");
static TPOT: Metric = Metric::new(
    "profinfer.run_tpot",
    "s",
    Gauge,
    "Percentiles of the time per decoded token since the run began.",
);

/// A run's value of a metric.
type OfRun = fn(&Run) -> Option<Value>;

/// Metrics with one value for each run.
const OF_RUN: [(&Metric, OfRun); 5] = [
    (&LEVEL, |_| Some(Value::Whole(1))),
    (&TOKENS, |r| Some(Value::Whole(r.tokens))),
    (&TTFT, |r| r.ttft_ns.map(seconds).map(Value::Number)),
    (&RATE, |r| r.rate.map(Value::Number)),
    (&COST, |r| r.cost.map(Value::Number)),
];

/// Adds the metrics of current runs.
pub fn add(out: &mut Families, state: &ServiceState) {
    let runs = told(state);
    for (metric, value) in OF_RUN {
        for run in &runs {
            let mut all = labels(run);
            if std::ptr::eq(metric, &LEVEL) {
                all.push(("level", run.level.clone()));
            }
            if let Some(value) = value(run) {
                out.add(metric, all, value);
            }
        }
    }
    for run in &runs {
        for (percentile, ns) in ["50", "90", "99"].into_iter().zip(run.tpot_ns) {
            if let Some(ns) = ns {
                let mut all = labels(run);
                all.push(("percentile", percentile.to_owned()));
                out.add(&TPOT, all, Value::Number(seconds(ns)));
            }
        }
    }
}

fn labels(run: &Run) -> Vec<Label> {
    vec![("pid", run.pid.to_string()), ("exe", run.exe.clone()), ("rule", run.rule.clone())]
}

/// The reported runs. Only one line per process: a duplicate would make the complete text invalid.
fn told(state: &ServiceState) -> Vec<&Run> {
    let mut runs: Vec<&Run> = Vec::new();
    for run in state.going() {
        match runs.iter().position(|r| r.pid == run.pid) {
            Some(older) => runs[older] = run,
            None if runs.len() < RUNS => runs.push(run),
            None => {}
        }
    }
    runs
}
