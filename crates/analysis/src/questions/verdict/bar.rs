//! Where the time of a phase's calls goes, in shares that add up to one.

use serde::Serialize;

use crate::questions::report::data::{OpTime, PhaseReport};
use crate::sums::attribution::parts::TimeParts;
use crate::sums::tables::ThreadRow;

/// Shares of the time in calls, 0 to 1; those that are not null add up to 1. Within CPU graphs they are of the
/// time of all threads if the scheduler was recorded, else of thread 0's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TimeBar {
    /// In ops. If `barrier` is null, this includes the wait at barriers.
    pub computing: f64,
    /// At barriers, waiting for other threads; null if the barrier was not probed.
    pub barrier: Option<f64>,
    /// Runnable, without a CPU; this and the next two are null if the scheduler was not recorded.
    pub waiting_for_cpu: Option<f64>,
    /// Off-CPU in page faults and for I/O.
    pub faults: Option<f64>,
    /// Off-CPU for another reason.
    pub blocked: Option<f64>,
    /// On other backends than the CPU's, or waiting for them.
    pub device: f64,
    /// In calls, but in no op, no wait and on no device.
    pub gaps: f64,
    /// Of threads whose state is not known.
    pub unknown: f64,
    /// After a call, before the next one: then all shares are of the time from a call's start to the next one's. Omitted:
    /// they are of the time in calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between_calls: Option<f64>,
}

/// What a bar is made of: sums of a phase's calls, graphs and threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BarInput {
    /// Null if no op was recorded.
    pub op_time: Option<OpTime>,
    /// Duration of the calls, and their time on devices, ns.
    pub in_call_ns: u64,
    pub device_ns: u64,
    /// CPU graphs with ops, and without.
    pub cpu_graphs: u64,
    pub graphs_below_ops: u64,
    /// Of the graphs with ops, ns: their duration, and thread 0's time in ops, at barriers and in neither.
    pub graph_ns: u64,
    pub op_ns: u64,
    pub wait_ns: Option<u64>,
    pub gaps_ns: u64,
    /// Only thread 0 computed.
    pub alone: bool,
    /// What all threads did; null if the scheduler was not recorded.
    pub causes: Option<TimeParts>,
}

impl BarInput {
    /// Of a phase of a report.
    pub fn of_report(p: &PhaseReport, threads: &[ThreadRow]) -> BarInput {
        let causes = threads.iter().filter_map(|t| t.causes).reduce(|mut sum, parts| {
            sum.merge(&parts);
            sum
        });
        BarInput {
            op_time: p.op_time,
            in_call_ns: p.in_call_ns,
            device_ns: p.on_devices_ns(),
            cpu_graphs: p.cpu_graphs,
            graphs_below_ops: p.graphs_below_ops,
            graph_ns: p.graph_ns,
            op_ns: p.op_ns,
            wait_ns: p.wait_ns,
            gaps_ns: p.gaps_ns,
            alone: threads.len() == 1,
            causes,
        }
    }
}

impl TimeBar {
    /// The shares of a phase. `None` if no op was recorded, or if ops and waits take longer than their graphs.
    pub fn new(p: &BarInput) -> Option<TimeBar> {
        if p.op_time.is_none() || p.graph_ns == 0 || p.in_call_ns == 0 {
            return None;
        }
        if p.op_ns.saturating_add(p.wait_ns.unwrap_or(0)) > p.graph_ns {
            return None;
        }
        // Graphs that were recorded below level op have no shares of their own: they count like the others.
        let scale = (p.cpu_graphs + p.graphs_below_ops) as f64 / p.cpu_graphs.max(1) as f64;
        let calls = p.in_call_ns as f64;
        let graphs = (p.graph_ns as f64 * scale).min(calls) / calls;
        let device = (p.device_ns as f64 / calls).min(1.0 - graphs);
        let covered = 1.0 - p.gaps_ns as f64 / p.graph_ns as f64;
        let mut bar = TimeBar { device, ..TimeBar::default() };
        // Where the scheduler says nothing about most of the time, it is as if it had not been recorded.
        match p.causes.filter(|sum| sum.unknown_ns.saturating_mul(2) < sum.whole()) {
            Some(parts) => bar.lay(&parts, covered * graphs, p.op_time == Some(OpTime::Wall)),
            None => {
                let all = p.graph_ns as f64;
                bar.computing = p.op_ns as f64 / all * graphs;
                bar.barrier = p.wait_ns.map(|ns| ns as f64 / all * graphs);
            }
        }
        if p.alone {
            // A single thread waits for no other.
            bar.barrier = bar.barrier.or(Some(0.0));
        }
        bar.gaps = (1.0 - bar.all().iter().map(|(_, share)| share).sum::<f64>()).max(0.0);
        Some(bar)
    }

    fn lay(&mut self, parts: &TimeParts, part_of_calls: f64, interval: bool) {
        let all = parts.whole().max(1) as f64;
        let share = |ns: u64| ns as f64 / all * part_of_calls;
        // A thread that sleeps in a graph waits for others too.
        let waiting = share(parts.barrier_ns.saturating_add(parts.idle_ns));
        self.computing = share(parts.computing_ns);
        self.barrier = (!interval || waiting > 0.0).then_some(waiting);
        self.waiting_for_cpu = Some(share(parts.preempted_ns));
        self.faults = Some(share(parts.faulting_ns.saturating_add(parts.io_ns)));
        self.blocked = Some(share(parts.blocked_ns));
        self.unknown = share(parts.unknown_ns);
    }

    /// All shares that are known, with their names, in the order of the bar.
    pub fn all(&self) -> Vec<(&'static str, f64)> {
        let known = [
            ("computing", Some(self.computing)),
            ("at barriers", self.barrier),
            ("waiting for a CPU", self.waiting_for_cpu),
            ("page faults and I/O", self.faults),
            ("blocked", self.blocked),
            ("device", Some(self.device)),
            ("gaps", Some(self.gaps)),
            ("unknown", Some(self.unknown)),
            ("between calls", self.between_calls),
        ];
        known.into_iter().filter_map(|(name, share)| Some((name, share?))).collect()
    }

    /// The shares with the time between calls, which takes `between` of a token's time; as they are if that is not known.
    pub fn with_between(&self, between: Option<f64>) -> TimeBar {
        let Some(between) = between else { return *self };
        let within = 1.0 - between;
        let known = |share: Option<f64>| share.map(|share| share * within);
        TimeBar {
            computing: self.computing * within,
            barrier: known(self.barrier),
            waiting_for_cpu: known(self.waiting_for_cpu),
            faults: known(self.faults),
            blocked: known(self.blocked),
            device: self.device * within,
            gaps: self.gaps * within,
            unknown: self.unknown * within,
            between_calls: Some(between),
        }
    }

    /// [`Self::all`] in whole percent that add up to 100: the largest remainders are rounded up.
    pub fn percent(&self) -> Vec<(&'static str, u32)> {
        let all = self.all();
        let mut out: Vec<(&'static str, u32)> = all.iter().map(|(n, s)| (*n, (s * 100.0) as u32)).collect();
        let mut rest: Vec<usize> = (0..all.len()).collect();
        let remainder = |i: usize| all.get(i).map_or(0.0, |(_, s)| (s * 100.0).fract());
        common::order::by_key(&mut rest, |i| (!common::order::fraction(remainder(*i)), 0));
        let missing = 100u32.saturating_sub(out.iter().map(|(_, n)| n).sum());
        for i in rest.into_iter().take(missing as usize) {
            if let Some((_, n)) = out.get_mut(i) {
                *n += 1;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_add_up_to_a_hundred() {
        for (computing, barrier) in [(0.334, 0.333), (0.005, 0.99), (0.0, 0.0), (0.1249, 0.4999)] {
            let gaps = 1.0 - computing - barrier;
            let bar = TimeBar { computing, barrier: Some(barrier), gaps, ..TimeBar::default() };
            for between in [0.0, 0.117, 1.0] {
                let wall = bar.with_between(Some(between));
                assert_eq!(wall.percent().iter().map(|(_, n)| n).sum::<u32>(), 100, "{computing} {barrier}");
                assert_eq!(wall.all().last(), Some(&("between calls", between)));
            }
        }
    }

    #[test]
    fn what_was_not_recorded_is_not_zero() {
        let bar = TimeBar { computing: 1.0, ..TimeBar::default() };
        assert!(bar.all().iter().all(|(name, _)| *name != "at barriers" && *name != "page faults and I/O"));
    }
}
