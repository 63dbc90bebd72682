//! Computes the figures of the nodes from the slices of the selected graphs.

use super::pick::{DagSelection, Place};
use super::typical::OpSamples;
use super::{Dag, Figures, METRICS, Metric, Spread};
use crate::recorded::calls::{Phase, latency};
use crate::recorded::describe::describe;
use crate::recorded::load::Loaded;
use crate::sums::attribution::Attribution;
use crate::sums::attribution::counters::{CounterRow, TrafficCounter, traffic};
use crate::sums::attribution::pass::Cause;
use crate::sums::device_kernels::{self, GroupTimes};
use crate::sums::ops::{OpTimes, PosStat};

/// Totals of a node over all selected graphs.
#[derive(Default)]
struct NodeTotals {
    stat: PosStat,
    /// The times of single graphs.
    each: Vec<u64>,
    cause: Cause,
    /// Of the calls whose work is known: bytes, operations and number.
    bytes: f64,
    flops: f64,
    calls: f64,
    /// Bytes of those calls whose time is also known, and that time.
    moved: f64,
    work_ns: u64,
}

/// Fills in the figures. `times` and `why` must contain only the selected graphs.
pub fn measure(
    dag: &mut Dag,
    loaded: &Loaded<'_>,
    pick: &DagSelection,
    times: &OpTimes,
    why: Option<&Attribution>,
) {
    let (device, samples) = (device_kernels::of_groups(loaded), OpSamples::of(loaded));
    let mut fused = false;
    let arch = loaded.header.as_ref().map_or("", |h| h.arch);
    let counter = why.and_then(|w| traffic(w.counters.facts(), arch));
    let ran: Vec<usize> = (0..dag.nodes.len()).filter(|i| dag.nodes[*i].order.is_some()).collect();
    let mut nodes = ran.into_iter();
    for place in &pick.places {
        let len = place.plans.first().and_then(|p| loaded.plans.get(p)).map_or(0, |p| p.hits.len());
        for (position, node) in (0..len).zip(nodes.by_ref()) {
            let mut sum = NodeTotals::default();
            for plan in &place.plans {
                sum.add(loaded, *plan, position, times, why);
                sum.each.extend(samples.op(*plan, position));
                if place.offloaded {
                    sum.add_work(loaded, *plan, position);
                }
            }
            fused |= sum.add_device(loaded, place, position, &device);
            dag.nodes[node].figures = sum.figures(why, counter.as_ref());
        }
    }
    dag.counter = counter.map(|c| c.name).filter(|_| dag.has(Metric::Counted));
    if fused {
        dag.notes.push("nodes that a device backend fuses: the first of them has the time of all".into());
    }
}

impl NodeTotals {
    fn add(
        &mut self,
        loaded: &Loaded<'_>,
        plan: u32,
        position: usize,
        times: &OpTimes,
        why: Option<&Attribution>,
    ) {
        let hit = loaded.plans.get(&plan).and_then(|p| p.hits.get(position)).copied();
        let work = describe(loaded, position, hit).work;
        for phase in Phase::ALL {
            let stat = times.plans.get(&(plan, phase)).and_then(|p| p.positions.get(position));
            let Some(stat) = stat else { continue };
            self.stat.merge(stat);
            if let Some(work) = work {
                let (calls, bytes) = (stat.calls as f64, work.read as f64 + work.written as f64);
                self.bytes += bytes * calls;
                self.flops += work.flops as f64 * calls;
                self.calls += calls;
                self.moved += bytes * stat.timed as f64;
                self.work_ns = self.work_ns.saturating_add(stat.span);
            }
            if let Some(cause) = why.and_then(|w| w.positions(plan, phase).get(position)) {
                self.cause.merge(cause);
            }
        }
    }

    /// The work of an op that has no time: once per plan.
    fn add_work(&mut self, loaded: &Loaded<'_>, plan: u32, position: usize) {
        let hit = loaded.plans.get(&plan).and_then(|p| p.hits.get(position)).copied();
        if let Some(work) = describe(loaded, position, hit).work {
            self.bytes += work.read as f64 + work.written as f64;
            self.flops += work.flops as f64;
            self.calls += 1.0;
        }
    }

    /// The times of its kernels on the device, over all selected graphs. Returns whether they are also those of the
    /// nodes after it, with which it was fused.
    fn add_device(
        &mut self,
        loaded: &Loaded<'_>,
        place: &Place,
        position: usize,
        device: &GroupTimes<'_>,
    ) -> bool {
        let mut fused = false;
        for split in &place.splits {
            let Some(group) = device.get(&(*split, position as u32)) else { continue };
            self.stat.timed += 1;
            self.stat.total = self.stat.total.saturating_add(group.ns);
            self.each.push(group.ns);
            fused |= group.nodes > 1;
            let hit = loaded.plans.get(&group.plan).and_then(|p| p.hits.get(position)).copied();
            if let Some(work) = describe(loaded, position, hit).work.filter(|_| group.nodes == 1) {
                self.moved += work.read as f64 + work.written as f64;
                self.work_ns = self.work_ns.saturating_add(group.ns);
            }
        }
        fused
    }

    fn figures(&self, why: Option<&Attribution>, traffic: Option<&TrafficCounter>) -> Figures {
        let s = &self.stat;
        let counted = why.and_then(|w| w.counters.row(&self.cause.counts));
        let each = latency(self.each.clone());
        let per_call = |sum: f64| (self.calls > 0.0).then(|| sum / self.calls);
        let value = |metric: Metric| match metric {
            Metric::Median => each.as_ref().map(|l| l.p50_ns as f64),
            Metric::Spread => {
                each.as_ref().filter(|l| l.p50_ns > 0).map(|l| l.p95_ns as f64 / l.p50_ns as f64)
            }
            Metric::Time => (s.timed > 0).then(|| s.total as f64 / s.timed as f64),
            Metric::Gbps => (self.work_ns > 0 && self.moved > 0.0).then(|| self.moved / self.work_ns as f64),
            Metric::Bytes => per_call(self.bytes),
            Metric::Flops => per_call(self.flops),
            Metric::Stall => counted.as_ref().and_then(|c| c.stalled_share),
            Metric::Faults => counted.as_ref().and_then(|c| faults(c, s.calls)),
            Metric::Counted => {
                let bytes = counted.as_ref().zip(traffic).and_then(|(row, counter)| row.bytes(counter));
                bytes.filter(|_| s.calls > 0).map(|bytes| bytes / s.calls as f64)
            }
            Metric::Imbalance => (s.mean > 0.0).then(|| s.slowest as f64 / s.mean),
        };
        std::array::from_fn(|i| value(METRICS[i].metric).map(Spread::one))
    }
}

/// Page faults per call: those counted as such, else the sum of the two kinds.
fn faults(row: &CounterRow, calls: u64) -> Option<f64> {
    let of = |name: &str| {
        let counter = row.counters.iter().find(|c| c.name == name && c.share > 0.0)?;
        // If some slices have no count, extrapolate from those that have one.
        Some(counter.total? as f64 / counter.share)
    };
    let all = of("page-faults").or_else(|| Some(of("major-faults")? + of("minor-faults")?))?;
    (calls > 0).then(|| all / calls as f64)
}
