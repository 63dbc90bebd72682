//! The answer to "why is it slow, and what shall I do?": speed against the machine's ceiling, where the time goes,
//! what limits it, and the advice.

pub mod bar;
pub mod ceiling;
pub mod data;
pub mod facts;
pub mod graphs;
pub mod input;
pub mod limit;
pub mod machine;
pub mod storage;

pub use self::data::{PhaseVerdict, RunVerdict};
use crate::questions::advice::{
    self,
    none::why_none,
    settle::{removes, settle},
};
use crate::questions::report::data::Report;
use crate::sums::attribution::verdict::Peak;
use ceiling::{NoCeiling, SpeedCeiling, ceiling, of_machine};
use facts::{FactInput, PhaseFacts, VerdictFacts};
use limit::limit;
use pfi::record::SourceKind;

/// Derives the verdict from a report and what it was made from. `peaks` are those of the machine, given or measured.
pub fn verdict(input: FactInput<'_, '_>, report: &Report, peaks: &[Peak]) -> RunVerdict {
    let facts = VerdictFacts::new(input, report);
    let of = |p: &PhaseFacts| {
        let figures = report.phases.iter().find(|f| f.phase == p.phase);
        let top = ceiling(p, report.ceiling.as_ref());
        let run = report.ceiling.as_ref().filter(|c| c.source != "trace");
        let usable = facts.cpus.usable();
        let machine =
            top.as_ref().ok().zip(run).and_then(|(top, run)| of_machine(p, top, run, (peaks, usable)));
        let (tokens_per_s, tokens_per_s_wall) =
            (figures.and_then(|f| f.tokens_per_s), figures.and_then(|f| f.tokens_per_s_wall));
        let between_calls = figures.and_then(|f| f.between_calls);
        let phase = PhaseVerdict {
            phase: p.phase,
            runs_per_s: figures.and_then(|f| f.runs_per_s),
            tokens_per_s,
            tokens_per_s_wall,
            between_calls,
            first_call: figures.and_then(|f| f.first_call),
            latency: figures.and_then(|f| f.latency),
            ceiling: top.as_ref().ok().cloned(),
            machine,
            bar: p.bar,
            bar_wall: p.bar.map(|bar| bar.with_between(between_calls)),
            storage: p.reads.clone(),
            batched: report.sequences.as_ref().is_some_and(|s| s.batching.most > 1),
        };
        (phase, top.err())
    };
    let (phases, no_ceiling): (Vec<_>, Vec<_>) = facts.phases.iter().map(of).unzip();
    let main = phases.first();
    let between = main.and_then(|p| p.between_calls).unwrap_or(0.0);
    let limit = facts.main().and_then(|p| limit(&facts, p, main.and_then(|m| m.ceiling.as_ref()), between));
    let mut advice = advice::advice(&facts, &phases, limit.as_ref());
    let limit = limit.map(|limit| settle(limit, &mut advice));
    let removed =
        limit.as_ref().is_some_and(|limit| advice.first().is_some_and(|a| removes(a.rule, limit.kind)));
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
        first_removes_limit: removed,
        no_advice: limit.as_ref().filter(|_| !removed).and_then(|l| why_none(&facts, &phases, l, &advice)),
        advice,
        limit,
        phases,
    }
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
        return vec![format!("{why}: record a longer run")];
    };
    if main.bar.is_none() {
        let none = main.ops.iter().all(|row| row.calls == 0);
        out.push(if none {
            "no ops were recorded: use record --level op".into()
        } else {
            "where the time goes is not known: the ops take longer than their graphs, see report --by op"
                .into()
        });
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
            "the weights were read faster than the machine's peak allows: from a cache, or the peak is too low (run profinfer doctor --peaks again on an idle machine)".into(),
        ),
        (None, Some(top)) if top.source != "trace" => {}
        _ => out.push("the machine's peaks are not known: run profinfer doctor --peaks once, or pass --peak".into()),
    }
    out
}
