//! What limits a phase of a recording in progress, as far as its last seconds show.

use super::{LiveOp, PhaseSpan};
use crate::sums::attribution::parts::TimeParts;

/// From this share of the time in calls on, what CPU graphs do limits the phase.
const MOST: f64 = 0.5;
/// From this share of the threads' time on, waits at barriers are put down to what keeps a thread from arriving:
/// the same as in the verdict of `report`.
const BEHIND: f64 = 0.15;

/// A sentence without a full stop. None: the scheduler was not recorded for most of the time, or most of the time
/// is outside CPU graphs.
pub fn limit(phase: &PhaseSpan) -> Option<String> {
    limit_of(phase.graphs_share, phase.causes, phase.ops.first())
}

/// The same, from the share of CPU graphs in the time of calls, what the threads did, and the longest op if it is known.
pub fn limit_of(graphs: Option<f64>, causes: Option<TimeParts>, longest: Option<&LiveOp>) -> Option<String> {
    graphs.filter(|share| *share >= MOST)?;
    let parts = causes.filter(|p| p.unknown_ns.saturating_mul(2) < p.whole())?;
    let all = parts.whole().max(1) as f64;
    let share = |ns: u64| ns as f64 / all;
    // A thread that sleeps in a graph waits for others too.
    let barrier = share(parts.barrier_ns.saturating_add(parts.idle_ns));
    let (computing, waiting) = (share(parts.computing_ns), share(parts.preempted_ns));
    let faults = share(parts.faulting_ns.saturating_add(parts.io_ns).saturating_add(parts.blocked_ns));
    let most = computing.max(barrier).max(waiting).max(faults);
    let at_barriers = most == barrier;
    let percent = |share: f64| format!("{:.0} % of the threads' time", share * 100.0);
    Some(if most == waiting || at_barriers && waiting > BEHIND {
        format!("CPU contention: threads waited for a CPU for {}", percent(waiting))
    } else if most == faults || at_barriers && faults > BEHIND {
        format!("page faults and I/O: {}", percent(faults))
    } else if at_barriers {
        format!("waiting at barriers for other threads: {}", percent(barrier))
    } else {
        let op = longest.map_or_else(String::new, |op| {
            format!(
                "; {} takes {:.0} %",
                op.name.split_whitespace().collect::<Vec<_>>().join(" "),
                op.share * 100.0
            )
        });
        format!("computing: {}{op}", percent(computing))
    })
}
