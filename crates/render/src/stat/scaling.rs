//! Formats recordings with different numbers of threads, as a table.

use crate::section::Section;
use crate::table::{Table, number, text};
use crate::units::*;
use analysis::questions::stat::scaling::{Scaling, TrafficSource, WaitSource};

/// All recordings, fewest threads first.
pub(crate) fn scaling(found: &Scaling, phase: &str) -> Section {
    let mut t = Table::new(vec![
        number("threads", 0),
        number("ms/call", 0),
        number("model GB/s", 0),
        number("counted GB/s", 2),
        number("stalled %", 2),
        number("barrier %", 1),
        text("file"),
    ]);
    for r in &found.runs {
        t.row(vec![
            r.threads.to_string(),
            ms(r.call_ns as u64),
            or_dash(r.model_gb_per_s, |v| format!("{v:.3}")),
            or_dash(r.counted_gb_per_s, |v| format!("{v:.3}")),
            or_dash(r.stalled_share, pct),
            or_dash(r.barrier_share, pct),
            r.file.clone(),
        ]);
    }
    Section { title: format!("By number of threads, {phase}"), table: Some(t), notes: notes(found) }
}

/// Where the figures come from, and what is missing.
pub(crate) fn notes(found: &Scaling) -> Vec<String> {
    let counter = found.runs.first().and_then(|r| r.counter.as_deref()).unwrap_or_default();
    let mut notes = vec![match found.traffic {
        TrafficSource::Counted => format!("memory traffic: counted by {counter}"),
        TrafficSource::CostModel => {
            "memory traffic: bytes of the cost model over the time of a call; caches are not seen \
             (record --pmc ll_cache_miss or cache-misses counts what reaches memory, where the CPU has that counter)"
                .into()
        }
        TrafficSource::None => {
            "memory traffic: unknown, because the cost model knows no op of one recording (record without --no-str)".into()
        }
    }];
    notes.push(match found.waiting {
        WaitSource::StalledCycles => "stalled: cycles in which the back end waited, mean of the threads".into(),
        WaitSource::Barriers => "barrier: share of the graphs' time that threads wait for one another, mean of the threads \
             (record --pmc cycles,stalled-cycles-backend counts stalled cycles, where the CPU has these counters)"
            .into(),
        WaitSource::None => "stalled cycles and time at barriers: not known for every recording \
             (record --op-end barrier, or --pmc cycles,stalled-cycles-backend)"
            .into(),
    });
    if found.other_models {
        notes.push(
            "the recordings do not show the same model, so their figures are not of the same work".into(),
        );
    }
    notes
}
