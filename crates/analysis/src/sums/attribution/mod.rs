//! Why an op took its time: what the attribution records say about ops, threads, phases and the complete run.
//! Computed only if a trace has such records.

pub mod counters;
pub mod energy;
pub mod expert_ops;
pub mod experts;
pub mod interference;
pub mod levels;
pub mod parts;
pub mod pass;
pub mod phases;
pub mod replay;
pub mod sampling;
pub mod sched;
pub mod verdict;

use counters::TraceCounters;
use interference::{Culprits, InterferenceRow};
use pass::{Cause, Misses, PassInput, PassResult};
use replay::CrowdedWork;
use sched::OffCpuTimes;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;

/// The slices combined with the scheduler's records and the counters.
pub struct Attribution {
    sum: PassResult,
    /// The scheduler was recorded.
    pub scheduler: bool,
    pub counters: TraceCounters,
    pub interference: Vec<InterferenceRow>,
}

/// Whether all threads compute at a position of a plan.
fn shared(plan: u32, idents: &Idents) -> impl Fn(usize) -> bool {
    let of = idents.of_plan(plan);
    move |at| of.get(at).is_some_and(|ident| replay::waits_inside(idents.op(*ident)))
}

impl Attribution {
    /// Needs the runs in the order in which `op_times` leaves them. `None` if the trace has no such records.
    pub fn new(loaded: &mut Loaded<'_>, line: &Timeline, idents: &Idents) -> Option<Attribution> {
        let counters = TraceCounters::new(loaded);
        let sched = OffCpuTimes::new(loaded);
        if !sched.any() && counters.is_empty() {
            return None;
        }
        pass::sort_counts(&mut loaded.causes.counts);
        let culprits = Culprits::new(loaded);
        let pass = PassInput { loaded, idents, sched: &sched, counters: &counters, culprits: &culprits };
        let sum = pass.run(line);
        let origin = line.calls.first().map_or(0, |c| c.start);
        let interference = interference::rows(loaded, &culprits, &sum, idents, origin);
        Some(Attribution { sum, scheduler: sched.any(), counters, interference })
    }

    /// Sums for each position of a plan in a phase.
    pub fn positions(&self, plan: u32, phase: Phase) -> &[Cause] {
        self.sum.plans.get(&(plan, phase)).map_or(&[], |p| &p.positions)
    }

    /// Sum of slices outside what the trace defines.
    pub fn beyond(&self, plan: u32, phase: Phase) -> Option<&Cause> {
        self.sum.plans.get(&(plan, phase)).map(|p| &p.beyond)
    }

    /// Time that a graph of a plan would take if its threads were always on a CPU and never waited for each other, ns.
    pub fn replay(&self, plan: u32, phase: Phase, idents: &Idents) -> Option<f64> {
        self.sum.plans.get(&(plan, phase))?.computing.replay(shared(plan, idents))
    }

    /// The work of a graph of a plan whose threads took the CPU from each other.
    pub fn crowded(&self, plan: u32, phase: Phase, idents: &Idents) -> Option<CrowdedWork> {
        self.sum.plans.get(&(plan, phase))?.computing.crowded(shared(plan, idents))
    }

    pub fn thread(&self, ith: u16, phase: Phase) -> Option<&Cause> {
        self.sum.threads.get(&(ith, phase))
    }

    /// Page faults in the experts' multiplications of a layer in decode (`None`: of all layers); `None` if not
    /// counted.
    pub fn misses(&self, idents: &Idents, layer: Option<u32>) -> Option<Misses> {
        let of =
            self.sum.misses.iter().filter(|(ident, _)| layer.is_none() || idents.layer(**ident) == layer);
        of.map(|(_, m)| *m).reduce(|mut sum, m| {
            sum.merge(&m);
            sum
        })
    }
}
