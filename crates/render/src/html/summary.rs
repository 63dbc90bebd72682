//! Summarises a run in a few sentences and figures.

use std::io::{self, Write};

use super::markup::{self, text};
use crate::units::{count, pct, time};
use crate::{quality, runs};
use analysis::questions::report::PhaseReport;
use analysis::recorded::calls::Phase;
use analysis::streams::overview::Overview;
use analysis::sums::attribution::verdict::Bound;
use analysis::sums::offload::{BackendWork, Offload};
use analysis::sums::tables::{GAPS_ROW, OpRow, WAIT_ROW};

/// Waits are mentioned from this share of the graphs' time on.
const WORTH: f64 = 0.05;

/// The phase that the rest of the page is about.
pub fn main_phase(o: &Overview) -> Option<&PhaseReport> {
    o.report.phases.iter().find(|p| p.phase == o.phase)
}

/// What takes the time and why, and the quality of the recording: what the verdict does not contain.
pub fn details(o: &Overview) -> String {
    let mut said = match main_phase(o).filter(|p| p.calls > 0) {
        Some(p) => of_phase(o, p),
        None => vec!["The recording has no engine calls".to_owned()],
    };
    let quality = &o.report.quality;
    said.push(match quality.complete {
        true => "The recording is complete".into(),
        false => format!("The recording is {}", quality::verdict(quality)),
    });
    let said: Vec<String> = said.into_iter().map(|s| s + ".").collect();
    said.join(" ")
}

fn of_phase(o: &Overview, p: &PhaseReport) -> Vec<String> {
    let mut said = Vec::new();
    if p.latency.is_none() {
        let name = p.phase.name();
        said.push(format!(
            "All {name} calls were still running when recording stopped, so their speed is unknown"
        ));
    }
    let given: Vec<String> = p.offload.iter().flat_map(on_devices).collect();
    if !given.is_empty() {
        // The ops of the CPU are a part of the time only, and which part depends on the devices.
        said.extend(given);
        return said;
    }
    let top = p.by_op.iter().flatten().find(|r| is_op(r));
    let waits = p.wait_ns.filter(|_| p.graph_ns > 0).map(|wait| wait as f64 / p.graph_ns as f64);
    let waits = waits.filter(|share| *share >= WORTH);
    let waiting =
        waits.map(|share| format!("Thread 0 waits at barriers for {} % of the graphs' time", pct(share)));
    let most = waits.is_some_and(|share| top.is_none_or(|r| share > r.share));
    said.extend(waiting.clone().filter(|_| most));
    match p.by_name.iter().flatten().find(|r| is_op(r)) {
        Some(row) => {
            said.extend(heaviest(top, row));
        }
        None => said.push(
            "No ops were recorded (use `profinfer record --level op`), so it is unknown what takes the time"
                .into(),
        ),
    }
    said.extend(waiting.filter(|_| !most));
    let growth = o.stat.as_ref().ok().and_then(|s| s.tokens.as_ref()?.as_ref());
    let grows: Vec<&str> = growth
        .into_iter()
        .flat_map(|g| &g.ops)
        .filter(|t| t.grows)
        .take(2)
        .map(|t| t.name.as_str())
        .collect();
    if !grows.is_empty() {
        let gets = if grows.len() == 1 { "gets" } else { "get" };
        said.push(format!("{} {gets} slower as the context grows", grows.join(" and ")));
    }
    said
}

/// What each backend other than the CPU's computes, and how long that takes if it is known.
fn on_devices(work: &Offload) -> Vec<String> {
    let nodes: u64 = work.backends.iter().map(|b| b.work.nodes).sum();
    let devices = work.backends.iter().filter(|b| !b.is_host());
    let of = |b: &BackendWork| {
        let part = match b.unknown_splits {
            0 => format!(
                "{} computes {} % of the nodes",
                b.backend,
                pct(b.work.nodes as f64 / nodes.max(1) as f64)
            ),
            n => format!("{} computes a part that is not known ({n} of {} splits)", b.backend, b.splits),
        };
        match &b.device {
            Some(d) => {
                let most = d.ops.first().map(|r| {
                    let all: u64 = d.ops.iter().map(|r| r.sum.device_ns).sum();
                    format!(", {} the most with {} %", r.ops, pct(r.sum.device_ns as f64 / all.max(1) as f64))
                });
                let busy = time(d.busy_ns as f64 / work.graphs.max(1) as f64);
                format!("{part}; it is busy for {busy} a graph{}", most.unwrap_or_default())
            }
            None => format!("{part}; how long its ops take is unknown (record with --gpu kernel)"),
        }
    };
    devices.map(of).collect()
}

/// False for the rows that make shares add up.
fn is_op(row: &OpRow) -> bool {
    row.name != WAIT_ROW && row.name != GAPS_ROW
}

/// The op that takes the most time, and what limits it if that is known.
fn heaviest(ops: Option<&OpRow>, row: &OpRow) -> Vec<String> {
    let kind = ops.map(|r| format!("{} takes {} % of the graphs' time; ", r.name, pct(r.share)));
    let kind = kind.unwrap_or_default();
    let mut said = vec![format!("{kind}the heaviest op by name is {} with {} %", row.name, pct(row.share))];
    let verdict = row.verdict.as_ref().or(ops.and_then(|r| r.verdict.as_ref()));
    said.extend(verdict.map(|v| format!("It is limited by {}: {}", limit(v.bound), v.evidence)));
    said
}

/// What limits an op, as a noun.
fn limit(bound: Bound) -> &'static str {
    match bound {
        Bound::Memory => "memory bandwidth",
        Bound::Compute => "compute",
        Bound::Overhead => "the overhead of a call",
        Bound::Waiting => "waiting for other threads",
        Bound::Preempted => "CPU contention",
        Bound::Faulting => "page faults and I/O",
    }
}

/// A few key figures, in large type.
pub fn tiles(out: &mut dyn Write, o: &Overview) -> io::Result<()> {
    let of = |phase: Phase| o.report.phases.iter().find(|p| p.phase == phase);
    let speed = |phase: Phase| {
        let p = of(phase)?;
        Some((format!("{:.1}", p.tokens_per_s?), format!("tok/s, {}", phase.name())))
    };
    let runs =
        o.report.phases.iter().filter_map(|p| Some((format!("{:.1}", p.runs_per_s?), "runs/s".to_owned())));
    let speeds = [Phase::Decode, Phase::Prefill].into_iter().filter_map(speed);
    let mut all: Vec<(String, String)> = runs.chain(speeds).collect();
    if let Some(l) = o.report.ttft {
        all.push((time(l.p50_ns as f64), format!("to first token (TTFT), p50 of {}", count(l.n, "request"))));
    }
    if let Some(l) = of(Phase::Decode).and_then(|p| p.latency) {
        all.push((time(l.p95_ns as f64), "p95 per token".into()));
    }
    let quality = &o.report.quality;
    let complete = if quality.complete { "complete" } else { "NOT complete" };
    all.push((complete.into(), "recording".into()));
    writeln!(out, "<ul class=\"tiles\">")?;
    for (figure, what) in all {
        let bad = if figure == "NOT complete" { " class=\"bad\"" } else { "" };
        writeln!(out, "<li{bad}><b>{}</b> {}</li>", text(&figure), text(&what))?;
    }
    writeln!(out, "</ul>")
}

/// Which part of the recording is shown, if it is not complete.
pub fn part(out: &mut dyn Write, o: &Overview) -> io::Result<()> {
    if let (Some(pid), false) = (o.part.pid, o.part.others.is_empty()) {
        let others: Vec<String> = o.part.others.iter().take(16).map(u32::to_string).collect();
        let more = if o.part.others.len() > others.len() { " and more" } else { "" };
        let others = others.join(", ");
        markup::say(
            out,
            &format!(
                "Several processes were recorded; this page shows process {pid}. --pid selects another: {others}{more}."
            ),
        )?;
    }
    if let (Some(pid), Some(n)) = (o.part.pid, o.part.context) {
        let all = o.part.runs.iter().filter(|r| r.pid == pid).count();
        markup::say(
            out,
            &format!(
                "Process {pid} has {all} contexts; this page shows context {n}. --pid selects another: {pid}:1 to {pid}:{all}."
            ),
        )?;
    }
    markup::lines(out, &runs::lines(&o.part.runs))?;
    if let Some((first, last)) = o.part.calls {
        markup::say(
            out,
            &format!(
                "Only calls {first} to {last} are included (--tokens); the recording quality is that of the complete recording."
            ),
        )?;
    }
    Ok(())
}
