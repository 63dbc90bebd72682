//! What a process computed, by phase, as plain sums: they can be passed to another process, added and subtracted. What
//! follows from them is computed here, for each span of time alike.

use serde::{Deserialize, Serialize};

use super::sums::LiveSums;
use crate::questions::report::{OpTime, op_time};
use crate::questions::verdict::bar::{BarInput, TimeBar};
use crate::recorded::calls::{Phase, Steps};
use crate::sums::attribution::parts::TimeParts;
use crate::sums::ops::PhaseSum;
use crate::sums::tables::gaps;

/// By [`Phase`].
pub type Work = [PhaseWork; 3];

/// Calls, graphs and threads of a phase. Times are ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseWork {
    pub calls: u64,
    /// The part of them still running when the recording ended, or whose end on a device was not seen; excluded from
    /// all other figures.
    pub cut_calls: u64,
    pub unseen_calls: u64,
    pub tokens: u64,
    /// Calls whose number of tokens is not known.
    pub uncounted_calls: u64,
    pub in_call_ns: u64,
    /// Time in splits on devices, and of waiting for a device after a call's return.
    pub device_ns: u64,
    pub device_wait_ns: u64,
    pub steps: Steps,
    /// CPU graphs with ops; of them, those whose barriers are probed and not, and those that several threads computed.
    pub cpu_graphs: u64,
    pub barrier_graphs: u64,
    pub interval_graphs: u64,
    pub team_graphs: u64,
    pub graphs_below_ops: u64,
    pub graph_ns: u64,
    /// Thread 0's.
    pub op_ns: u64,
    pub wait_ns: u64,
    /// Tokens of the graphs whose ops were recorded.
    pub op_tokens: u64,
    /// What all threads did.
    pub causes: TimeParts,
}

/// All numbers of a [`PhaseWork`] by name, so that none is forgotten: the compiler asks for each.
macro_rules! combined {
    ($a:expr, $b:expr, $f:expr, $($field:ident)*) => {
        PhaseWork {
            $($field: $f($a.$field, $b.$field),)*
            steps: $a.steps.combined(&$b.steps, $f),
            causes: $a.causes.combined(&$b.causes, $f),
        }
    };
}

impl PhaseWork {
    /// Of a phase's sums; `source`: which calls are counted, an index of [`crate::recorded::calls::CallSource`].
    pub(super) fn of(s: &LiveSums, source: usize) -> PhaseWork {
        let (c, g) = (s.calls.get(source).copied().unwrap_or_default(), &s.graphs);
        PhaseWork {
            calls: c.calls,
            cut_calls: c.cut,
            unseen_calls: c.unseen,
            tokens: c.tokens,
            uncounted_calls: c.unknown,
            in_call_ns: c.ns,
            device_ns: s.device_ns,
            device_wait_ns: c.device,
            steps: c.steps,
            cpu_graphs: g.graphs,
            barrier_graphs: g.barrier,
            interval_graphs: g.interval,
            team_graphs: s.team,
            graphs_below_ops: g.below,
            graph_ns: g.graph_ns,
            op_ns: g.op_ns,
            wait_ns: g.wait_ns,
            op_tokens: s.op_tokens,
            causes: s.causes,
        }
    }

    /// Each number combined with the corresponding number of `o`.
    #[rustfmt::skip]
    pub fn combined(&self, o: &PhaseWork, f: fn(u64, u64) -> u64) -> PhaseWork {
        combined!(self, o, f,
            calls cut_calls unseen_calls tokens uncounted_calls in_call_ns device_ns device_wait_ns
            cpu_graphs barrier_graphs interval_graphs team_graphs graphs_below_ops graph_ns op_ns wait_ns op_tokens)
    }

    /// The tokens of all calls.
    pub fn tokens(&self) -> Option<u64> {
        (self.uncounted_calls == 0).then_some(self.tokens)
    }

    pub fn tokens_per_s(&self) -> Option<f64> {
        self.tokens().filter(|_| self.in_call_ns > 0).map(|t| t as f64 * 1e9 / self.in_call_ns as f64)
    }

    fn graphs(&self) -> PhaseSum {
        PhaseSum {
            graphs: self.cpu_graphs,
            barrier: self.barrier_graphs,
            interval: self.interval_graphs,
            graph_ns: self.graph_ns,
            op_ns: self.op_ns,
            wait_ns: self.wait_ns,
            below: self.graphs_below_ops,
            ..PhaseSum::default()
        }
    }

    fn op_time(&self) -> Option<OpTime> {
        op_time(&self.graphs())
    }

    /// What the threads did; none if the scheduler was not recorded.
    pub fn causes(&self) -> Option<TimeParts> {
        Some(self.causes).filter(TimeParts::known)
    }

    /// Where the time of the calls went, as in `report`.
    pub fn bar(&self) -> Option<TimeBar> {
        TimeBar::new(&BarInput {
            op_time: self.op_time(),
            in_call_ns: self.in_call_ns,
            device_ns: self.on_devices_ns(),
            cpu_graphs: self.cpu_graphs,
            graphs_below_ops: self.graphs_below_ops,
            graph_ns: self.graph_ns,
            op_ns: self.op_ns,
            wait_ns: (self.barrier_graphs > 0).then_some(self.wait_ns),
            gaps_ns: gaps(&self.graphs()),
            alone: self.team_graphs == 0,
            causes: self.causes(),
        })
    }

    /// A split lasts until the device has finished, also past the call's return.
    fn on_devices_ns(&self) -> u64 {
        self.device_ns.max(self.device_wait_ns)
    }

    /// The same with the time between calls, as far as it is known.
    pub fn bar_wall(&self) -> Option<TimeBar> {
        Some(self.bar()?.with_between(self.steps.between_share(self.on_devices_ns())))
    }

    /// Why there is no bar, or not all of it; none: all of it is known.
    pub fn unknown(&self) -> Option<&'static str> {
        match self.bar() {
            None if self.in_call_ns == 0 => Some("no call of this phase has ended"),
            None if self.op_time().is_none() => {
                Some("no graph was recorded with its ops: the level is below op")
            }
            None => Some(
                "ops and calls do not agree: the ops of a call in progress are counted when its graphs end",
            ),
            Some(bar) if bar.waiting_for_cpu.is_none() => Some(
                "the scheduler was not recorded: who waits for a CPU or a page counts as computing or at barriers",
            ),
            Some(bar) if bar.barrier.is_none() => {
                Some("barriers are not probed: waiting there counts as computing")
            }
            Some(_) => None,
        }
    }

    /// Share of the time in calls that CPU graphs take, per token, over graphs whose ops were recorded.
    pub fn graphs_share(&self) -> Option<f64> {
        let per = |number: u64, of: u64| (of > 0).then(|| number as f64 / of as f64);
        let call = self.tokens().and_then(|tokens| per(self.in_call_ns, tokens));
        let both = per(self.graph_ns, self.op_tokens).zip(call).filter(|(_, call)| *call > 0.0);
        both.map(|(graph, call)| (graph / call).min(1.0))
    }
}

/// All of it combined with the corresponding numbers of `b`.
pub fn combined(a: &Work, b: &Work, f: fn(u64, u64) -> u64) -> Work {
    let mut out = *a;
    out.iter_mut().zip(b).for_each(|(a, b)| *a = a.combined(b, f));
    out
}

/// The phases that have a call or a graph.
pub fn phases(work: &Work) -> impl Iterator<Item = (Phase, &PhaseWork)> {
    Phase::ALL.into_iter().zip(work).filter(|(_, w)| w.calls > 0 || w.cpu_graphs > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten calls of 1 ms with a graph of 0.9 ms on two threads, a third of it at barriers.
    fn work() -> PhaseWork {
        let causes = TimeParts { computing_ns: 12_000, barrier_ns: 6_000, ..TimeParts::default() };
        PhaseWork {
            calls: 10,
            tokens: 20,
            in_call_ns: 10_000,
            cpu_graphs: 10,
            barrier_graphs: 10,
            team_graphs: 10,
            graph_ns: 9_000,
            op_ns: 6_000,
            wait_ns: 3_000,
            op_tokens: 20,
            causes,
            ..PhaseWork::default()
        }
    }

    #[test]
    fn shares_are_of_the_time_in_calls() {
        let bar = work().bar().expect("ops and calls");
        let near = |share: f64, of: f64| (share - of).abs() < 1e-9;
        assert!(near(bar.computing, 0.6) && near(bar.gaps, 0.1), "{bar:?}");
        assert!(near(bar.barrier.expect("probed"), 0.3) && bar.waiting_for_cpu == Some(0.0), "{bar:?}");
        assert_eq!((work().tokens_per_s(), work().unknown()), (Some(2e6), None));
        assert!(near(work().graphs_share().expect("known"), 0.9));
    }

    #[test]
    fn what_was_not_recorded_is_no_zero_and_has_a_reason() {
        let no_scheduler = PhaseWork { causes: TimeParts::default(), ..work() };
        let bar = no_scheduler.bar().expect("ops and calls");
        assert_eq!(
            (bar.waiting_for_cpu, bar.faults, bar.barrier.map(|b| b > 0.29)),
            (None, None, Some(true))
        );
        assert!(no_scheduler.unknown().is_some_and(|why| why.contains("scheduler")));
        let no_ops = PhaseWork { barrier_graphs: 0, op_ns: 0, wait_ns: 0, ..no_scheduler };
        assert_eq!(no_ops.bar(), None);
        assert!(no_ops.unknown().is_some_and(|why| why.contains("below op")));
        let no_calls = PhaseWork { calls: 0, in_call_ns: 0, ..work() };
        assert!(no_calls.bar().is_none() && no_calls.unknown().is_some_and(|why| why.contains("no call")));
        let uncounted = PhaseWork { uncounted_calls: 1, ..work() };
        assert_eq!(
            (uncounted.tokens(), uncounted.tokens_per_s(), uncounted.graphs_share()),
            (None, None, None)
        );
    }

    #[test]
    fn sums_are_added_and_subtracted() {
        let twice = work().combined(&work(), u64::saturating_add);
        assert_eq!((twice.calls, twice.causes.barrier_ns, twice.bar()), (20, 12_000, work().bar()));
        assert_eq!(twice.combined(&work(), u64::saturating_sub), work());
        let all = combined(
            &Work::default(),
            &[PhaseWork::default(), work(), PhaseWork::default()],
            u64::saturating_add,
        );
        assert_eq!(phases(&all).count(), 1);
    }
}
