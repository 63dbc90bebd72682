//! The answer to "why is it slow, and what shall I do?": speed against the machine's ceiling, where the time goes,
//! what limits it, and the advice.

pub mod bar;
pub mod ceiling;
pub mod data;
pub mod facts;
pub mod limit;
pub mod machine;

pub use self::data::{PhaseVerdict, RunVerdict};
use crate::advice;
use crate::attribution::verdict::{Ceiling, Peak};
use crate::report::data::Report;
use ceiling::{NoCeiling, SpeedCeiling, ceiling};
use facts::{FactInput, PhaseFacts, VerdictFacts};
use limit::limit;
use pfi::record::SourceKind;

/// Derives the verdict from a report and what it was made from. `peaks` are those of the machine, given or measured.
pub fn verdict(input: FactInput<'_, '_>, report: &Report, peaks: &[Peak]) -> RunVerdict {
    let facts = VerdictFacts::new(input, report);
    let machine = machine_peak(report, peaks);
    let of = |p: &PhaseFacts| {
        let figures = report.phases.iter().find(|f| f.phase == p.phase);
        let top = ceiling(p, machine.as_ref());
        let phase = PhaseVerdict {
            phase: p.phase,
            tokens_per_s: figures.and_then(|f| f.tokens_per_s),
            latency: figures.and_then(|f| f.latency),
            ceiling: top.as_ref().ok().cloned(),
            bar: p.bar,
        };
        (phase, top.err())
    };
    let (phases, no_ceiling): (Vec<_>, Vec<_>) = facts.phases.iter().map(of).unzip();
    let main = phases.first();
    let limit = facts.main().and_then(|p| limit(&facts, p, main.and_then(|m| m.ceiling.as_ref())));
    RunVerdict {
        model: model_name(report),
        quantisation: report.model.weights.first().map_or_else(String::new, |w| w.name.clone()),
        threads: facts.phases.iter().map(|p| p.threads).max().unwrap_or(0),
        backends: backends(report),
        missing: missing(
            &facts,
            no_ceiling.first().copied().flatten(),
            main.and_then(|m| m.ceiling.as_ref()),
        ),
        advice: advice::advice(&facts, &phases, limit.as_ref()),
        limit,
        phases,
    }
}

/// The best of all thread counts: what the machine can do, not what the run's threads can.
fn machine_peak(report: &Report, peaks: &[Peak]) -> Option<Ceiling> {
    let first = report.ceiling.as_ref()?;
    let mut best = first.clone();
    for p in peaks.iter().filter(|_| first.source != "trace") {
        let most = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        best.peak.gb_per_s = best.peak.gb_per_s.max(p.gb_per_s);
        best.peak.gflop_per_s = most(best.peak.gflop_per_s, p.gflop_per_s);
        best.peak.int8_gop_per_s = most(best.peak.int8_gop_per_s, p.int8_gop_per_s);
    }
    best.peak.threads = None;
    Some(best)
}

/// The file name given on the target's command line, else its size.
fn model_name(report: &Report) -> String {
    let words = report.run.processes.iter().flat_map(|p| p.cmdline.split_whitespace());
    let words: Vec<&str> = words.collect();
    let file = words.iter().enumerate().find_map(|(i, word)| match *word {
        "-m" | "--model" => words.get(i + 1).copied(),
        _ => word.strip_prefix("--model=").or_else(|| word.strip_prefix("-m=")),
    });
    let file = file.or_else(|| words.iter().copied().find(|w| w.ends_with(".gguf")));
    let name = file.map(|f| f.rsplit('/').next().unwrap_or(f).to_owned());
    let layers = || report.model.layers.map(|n| format!("model of {n} layers"));
    name.filter(|n| !n.is_empty()).or_else(layers).unwrap_or_else(|| "unknown model".into())
}

fn backends(report: &Report) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for split in report.phases.iter().flat_map(|p| &p.splits) {
        if !all.contains(&split.backend) {
            all.push(split.backend.clone());
        }
    }
    common::order::by_key(&mut all, |name| (u64::from(!ggml::backend_guid::is_host(name)), 0));
    all
}

/// What is missing, most important first.
fn missing(facts: &VerdictFacts<'_>, no: Option<NoCeiling>, top: Option<&SpeedCeiling>) -> Vec<String> {
    let mut out = Vec::new();
    let Some(main) = facts.main() else {
        let why = match facts.report.phases.is_empty() {
            true => "no engine call was recorded",
            false => "no engine call ended during the recording",
        };
        return vec![format!("{why}: record a run that decodes some tokens")];
    };
    if main.bar.is_none() {
        out.push("no ops were recorded: use record --level op".into());
    } else if facts.interference.is_none() {
        let inside = facts.report.run.source.as_deref() == Some(SourceKind::Inside.name());
        out.push(match inside {
            true => {
                "preemption and page faults: not known from inside a process; as root, record with --sched"
                    .into()
            }
            false => {
                "the scheduler was not recorded: use record --sched to see preemption and page faults".into()
            }
        });
    }
    match (no, top) {
        (Some(NoCeiling::Cached), _) => out.push(
            "the weights were read faster than the memory peak allows (from a cache): no ceiling to compare with".into(),
        ),
        (None, Some(top)) if top.source != "trace" => {}
        _ => out.push("the machine's peaks are not known: run profinfer doctor --peaks once, or pass --peak".into()),
    }
    out
}
