//! The state for Prometheus, for node_exporter to read from a directory (text format, version 0.0.4). Units are
//! seconds and bytes; unknown values are omitted.
//!
//! Only current runs have their own lines, and no more than a hundred: their number is bounded, however many
//! engines come and go. So is the number of recorders, which have their own lines too.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::run::Run;
use super::status::{ServicePhase, ServiceState};
use common::plain::hides;

/// Maximum runs reported.
const RUNS: usize = 100;

/// A metric: its name without `profinfer_`, its type and its help text.
type MetricFamily = (&'static str, &'static str, &'static str);

const UP: MetricFamily = ("up", "gauge", "1 while the service runs.");
const BUILD: MetricFamily = ("build_info", "gauge", "Version of the service.");
const STATE: MetricFamily = ("state", "gauge", "1 for the current state of the service.");
const WRONG: MetricFamily =
    ("configuration_errors", "gauge", "Errors found when the configuration was last read.");
const RUNS_SEEN: MetricFamily = ("runs_seen_total", "counter", "Engine runs seen.");
const OUTCOMES: MetricFamily = ("runs_total", "counter", "Engine runs by outcome.");
const PUT_OFF: MetricFamily = (
    "files_put_off_total",
    "counter",
    "Mapped files whose examination was delayed because a user exceeded the share of time.",
);
const GOING: MetricFamily = ("runs_going", "gauge", "Engine runs in progress.");
const FILES: MetricFamily = ("files", "gauge", "Recordings in the directory.");
const WRITING: MetricFamily = ("files_writing", "gauge", "Recordings that are being written.");
const BYTES: MetricFamily = ("files_bytes", "gauge", "Size of all recordings.");
const COUNTED: MetricFamily = (
    "quota_used_bytes",
    "gauge",
    "Bytes counted against the quota; a recording being written counts with its maximum size.",
);
const QUOTA: MetricFamily = ("quota_bytes", "gauge", "Maximum size of all recordings together.");
const REMOVED: MetricFamily =
    ("files_removed_total", "counter", "Recordings removed because of the quota or their age.");
const RESIDENT: MetricFamily = ("resident_memory_bytes", "gauge", "Memory of the service and its recorders.");
const CPU: MetricFamily = ("cpu_seconds_total", "counter", "CPU time of the service and its recorders.");
const LEVEL: MetricFamily = ("run_level_info", "gauge", "Current recording level of a run.");
const TPOT: MetricFamily = ("run_tpot_seconds", "gauge", "Time per decoded token since the run began.");

/// A run's value of a metric.
type OfRun = fn(&Run) -> Option<f64>;

/// Metrics of each run.
const OF_RUN: [(MetricFamily, OfRun); 4] = [
    (("run_tokens_total", "counter", "Tokens decoded."), |r| Some(r.tokens as f64)),
    (("run_ttft_seconds", "gauge", "Duration of the first call that processed a complete prompt."), |r| {
        r.ttft_ns.map(seconds)
    }),
    (("run_tokens_per_second", "gauge", "Tokens decoded per second over the last 10 s of decoding."), |r| {
        r.rate
    }),
    (("run_cost_ratio", "gauge", "Estimated recording overhead as a share of token time."), |r| r.cost),
];

/// A recorder's value of a metric.
type OfRecorder = fn(&Run) -> u64;

/// Metrics of each recorder: totals over all its runs.
const OF_RECORDER: [(MetricFamily, OfRecorder); 2] = [
    (("recorder_events_total", "counter", "Events of the recorder's recording, including lost ones."), |r| {
        r.seen
    }),
    (("recorder_events_lost_total", "counter", "Events of the recorder's recording that were lost."), |r| {
        r.lost
    }),
];

/// The complete text.
pub fn text(state: &ServiceState) -> String {
    let mut out = String::with_capacity(8192);
    let (counts, store, own) = (&state.counts, &state.store, &state.own);
    one(&mut out, UP, 1.0);
    head(&mut out, BUILD);
    sample(&mut out, BUILD, &[("version", &state.version)], 1.0);
    head(&mut out, STATE);
    for (name, phase) in [
        ("waiting", ServicePhase::Waiting),
        ("recording", ServicePhase::Recording),
        ("stopping", ServicePhase::Stopping),
    ] {
        sample(&mut out, STATE, &[("state", name)], f64::from(u8::from(state.state == phase)));
    }
    one(&mut out, WRONG, state.configuration.errors.len() as f64);
    one(&mut out, RUNS_SEEN, counts.seen as f64);
    head(&mut out, OUTCOMES);
    for (name, n) in [
        ("recorded", counts.recorded),
        ("left out by rule", counts.by_rule),
        ("left out by sample_one_in", counts.sample_one_in),
        ("left out by max_concurrent", counts.max_concurrent),
        ("missed", counts.missed),
        ("over budget", counts.over_budget),
    ] {
        sample(&mut out, OUTCOMES, &[("outcome", name)], n as f64);
    }
    one(&mut out, PUT_OFF, state.finder.files_put_off as f64);
    one(&mut out, GOING, state.going().count() as f64);
    for (metric, n) in [
        (FILES, store.files),
        (WRITING, store.writing),
        (BYTES, store.bytes),
        (COUNTED, store.counted),
        (QUOTA, store.quota),
        (REMOVED, store.removed),
    ] {
        one(&mut out, metric, n as f64);
    }
    for (metric, known) in [(RESIDENT, own.resident_bytes.map(|n| n as f64)), (CPU, own.cpu_seconds)] {
        if let Some(x) = known {
            one(&mut out, metric, x);
        }
    }
    recorders(&mut out, state);
    runs(&mut out, &told(state));
    out
}

/// Each recorder's counters appear once, however many runs share them, so that sums over the lines are correct.
fn recorders(out: &mut String, state: &ServiceState) {
    // Of its runs, the one reported last has the highest count.
    let mut last: BTreeMap<u32, &Run> = BTreeMap::new();
    for run in state.going() {
        let Some(recorder) = run.recorder else { continue };
        let most = last.entry(recorder).or_insert(run);
        if most.seen < run.seen {
            *most = run;
        }
    }
    for (metric, value) in OF_RECORDER {
        if !last.is_empty() {
            head(out, metric);
        }
        for (recorder, run) in &last {
            let labels = [("recorder", recorder.to_string()), ("rule", run.rule.clone())];
            sample(
                out,
                metric,
                &labels.each_ref().map(|(label, text)| (*label, text.as_str())),
                value(run) as f64,
            );
        }
    }
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

fn runs(out: &mut String, runs: &[&Run]) {
    let pids: Vec<String> = runs.iter().map(|r| r.pid.to_string()).collect();
    let all = || {
        runs.iter()
            .zip(&pids)
            .map(|(r, pid)| (*r, [("pid", pid.as_str()), ("exe", &r.exe), ("rule", &r.rule)]))
    };
    if !runs.is_empty() {
        head(out, LEVEL);
    }
    for (run, labels) in all() {
        sample(out, LEVEL, &with(&labels, "level", &run.level), 1.0);
    }
    for (metric, value) in OF_RUN {
        let known: Vec<_> = all().filter_map(|(run, labels)| Some((labels, value(run)?))).collect();
        if !known.is_empty() {
            head(out, metric);
        }
        for (labels, x) in known {
            sample(out, metric, &labels, x);
        }
    }
    if runs.iter().any(|r| r.tpot_ns.iter().any(Option::is_some)) {
        head(out, TPOT);
    }
    for (run, labels) in all() {
        for (quantile, ns) in ["0.5", "0.9", "0.99"].into_iter().zip(run.tpot_ns) {
            if let Some(ns) = ns {
                sample(out, TPOT, &with(&labels, "quantile", quantile), seconds(ns));
            }
        }
    }
}

fn with<'a>(labels: &[(&'a str, &'a str); 3], name: &'a str, value: &'a str) -> [(&'a str, &'a str); 4] {
    let [a, b, c] = *labels;
    [a, b, c, (name, value)]
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn one(out: &mut String, metric: MetricFamily, value: f64) {
    head(out, metric);
    sample(out, metric, &[], value);
}

/// Writing to a String cannot fail, so errors are ignored here and below.
fn head(out: &mut String, (name, kind, help): MetricFamily) {
    let _ = writeln!(out, "# HELP profinfer_{name} {help}\n# TYPE profinfer_{name} {kind}");
}

fn sample(out: &mut String, (name, ..): MetricFamily, labels: &[(&str, &str)], value: f64) {
    let _ = write!(out, "profinfer_{name}");
    for (i, (label, text)) in labels.iter().enumerate() {
        let _ = write!(out, "{}{label}=\"", if i == 0 { '{' } else { ',' });
        escape(out, text);
        out.push('"');
    }
    let end = if labels.is_empty() { "" } else { "}" };
    let _ = match value {
        x if x == f64::INFINITY => writeln!(out, "{end} +Inf"),
        x if x == f64::NEG_INFINITY => writeln!(out, "{end} -Inf"),
        x => writeln!(out, "{end} {x}"),
    };
}

/// A label's value: whatever a target calls itself, it remains one value on one line, and is shown unchanged.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c if hides(c) => {
                let _ = write!(out, "\\\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests;
