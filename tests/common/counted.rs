//! The counter values of each op in a trace.

use std::collections::BTreeMap;

use pfi::{self, record::Counter};

use super::seen::Seen;

/// One op of one thread.
#[derive(Debug, Clone)]
pub struct OpCount {
    pub graph: u64,
    pub ith: u16,
    /// Its position in the plan, and its tensor.
    pub place: u32,
    pub tensor: u32,
    /// By counter id.
    pub counts: Vec<Option<u64>>,
}

/// All ops with any counts.
pub fn ops(seen: &Seen) -> Vec<OpCount> {
    let mut out = Vec::new();
    for r in &seen.all.causes.counts {
        let n = r.counters.count_ones() as usize;
        assert_eq!(r.counters, (1 << n) - 1, "counters without gaps");
        let values: Vec<Option<u64>> = pfi::counts(r).collect();
        assert_eq!(values.len(), n * r.n as usize);
        let plan = &seen.all.plans[&r.plan];
        for (i, counts) in values.chunks(n).enumerate() {
            let place = r.first + i as u32;
            let tensor = plan.hits[place as usize].0;
            out.push(OpCount { graph: r.graph, ith: r.ith, place, tensor, counts: counts.to_vec() });
        }
    }
    out
}

pub fn counter<'a>(seen: &'a Seen, name: &str) -> &'a Counter<'static> {
    let found = seen.all.causes.counters.iter().find(|c| c.name == name);
    found.unwrap_or_else(|| panic!("no counter {name}: {:?}", seen.all.causes.counters))
}

/// Sum of a counter over all ops, and the number of ops in which it is unknown.
pub fn sum(seen: &Seen, name: &str) -> (u64, usize) {
    let id = counter(seen, name).id as usize;
    let all = ops(seen);
    let known: Vec<u64> = all.iter().filter_map(|o| o.counts[id]).collect();
    (known.iter().sum(), all.len() - known.len())
}

/// Counts of the same op in each graph, by thread and position in the plan, oldest graph first.
pub fn series(seen: &Seen, name: &str) -> BTreeMap<(u16, u32, u32), Vec<Option<u64>>> {
    let id = counter(seen, name).id as usize;
    let mut out: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for o in ops(seen) {
        out.entry((o.ith, o.place, o.tensor)).or_default().push(o.counts[id]);
    }
    out
}
