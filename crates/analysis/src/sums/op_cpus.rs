//! On which CPUs ops started: the changes of each thread, and sums by CPU, cluster and thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use crate::recorded::calls::Phase;
use crate::recorded::clusters::{Cluster, clusters};
use crate::recorded::labels::share;
use crate::recorded::load::Loaded;
use crate::sums::ops::OpTimes;
use common::order;
use pfi::cpu_changes;
use pfi::record::OpCpus;

/// When, and the CPU from then on; None: not known.
type Change = (i64, Option<u16>);

/// The changes of every thread, by time.
#[derive(Debug, Default)]
pub struct CpuChanges(HashMap<u32, Vec<Change>>);

impl CpuChanges {
    /// From records in file order.
    pub fn new(records: &[OpCpus<'_>]) -> CpuChanges {
        let mut all: HashMap<u32, Vec<Change>> = HashMap::new();
        for r in records {
            all.entry(r.tid).or_default().extend(cpu_changes(r));
        }
        for list in all.values_mut().filter(|list| !list.is_sorted_by_key(|c| c.0)) {
            order::by_key(list, |c| (order::time(c.0), 0));
        }
        CpuChanges(all)
    }

    /// To look up slices of a thread, in order, the first of which starts at `from`.
    pub fn cursor(&self, tid: u32, from: i64) -> CpuCursor<'_> {
        let list = self.0.get(&tid).map_or(&[][..], Vec::as_slice);
        let (before, rest) = list.split_at(list.partition_point(|c| c.0 < from));
        CpuCursor { cpu: before.last().and_then(|c| c.1), rest }
    }
}

/// A thread's CPU as its slices go by.
#[derive(Debug)]
pub struct CpuCursor<'c> {
    cpu: Option<u16>,
    rest: &'c [Change],
}

impl CpuCursor<'_> {
    /// The CPU of a slice; the next one must not start earlier. None: not known.
    #[inline]
    pub fn at(&mut self, start: i64) -> Option<u16> {
        self.pass(start);
        self.cpu
    }

    /// Moves on to `t`. Some: the CPU has changed or become known or unknown, with whether the thread is known to have
    /// migrated.
    #[inline]
    fn pass(&mut self, t: i64) -> Option<bool> {
        let mut changed = None;
        while let Some(((_, cpu), rest)) = self.rest.split_first().filter(|(c, _)| c.0 <= t) {
            let moved = self.cpu.zip(*cpu).is_some_and(|(from, to)| from != to);
            changed = Some(moved || changed == Some(true));
            (self.cpu, self.rest) = (*cpu, rest);
        }
        changed
    }
}

/// Ops that started on a CPU.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CpuSum {
    pub ops: u64,
    /// Their time, ns.
    pub ns: u64,
}

impl CpuSum {
    fn add(&mut self, o: CpuSum) {
        self.ops += o.ops;
        self.ns = self.ns.saturating_add(o.ns);
    }
}

/// Where a thread's ops started; None: not known.
#[derive(Debug, Default, Clone)]
pub struct ThreadCpus {
    pub by_cpu: BTreeMap<Option<u16>, CpuSum>,
    /// Times at which an op started on another CPU than the thread's op before.
    pub migrations: u64,
}

impl ThreadCpus {
    pub fn merge(&mut self, o: ThreadCpus) {
        self.migrations += o.migrations;
        for (cpu, sum) in o.by_cpu {
            self.by_cpu.entry(cpu).or_default().add(sum);
        }
    }

    /// Whether any CPU is known.
    pub fn known(&self) -> bool {
        self.by_cpu.keys().any(Option::is_some)
    }

    fn add(&mut self, cpu: Option<u16>, sum: CpuSum) {
        if sum.ops > 0 {
            self.by_cpu.entry(cpu).or_default().add(sum);
        }
    }
}

/// Sums the slices of a run.
pub struct RunCpus<'c> {
    cursor: CpuCursor<'c>,
    sum: CpuSum,
    to: ThreadCpus,
}

impl<'c> RunCpus<'c> {
    pub fn new(cursor: CpuCursor<'c>) -> RunCpus<'c> {
        RunCpus { cursor, sum: CpuSum::default(), to: ThreadCpus::default() }
    }

    /// The next slice.
    #[inline]
    pub fn slice(&mut self, start: i64, ns: u64) {
        let before = self.cursor.cpu;
        if let Some(moved) = self.cursor.pass(start) {
            self.to.migrations += u64::from(moved);
            self.to.add(before, std::mem::take(&mut self.sum));
        }
        self.sum.add(CpuSum { ops: 1, ns });
    }

    pub fn finish(mut self) -> ThreadCpus {
        self.to.add(self.cursor.cpu, self.sum);
        self.to
    }
}

/// A CPU's part of the ops of a thread. `cpu` is null for the ops of which the CPU is not known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuShare {
    pub cpu: Option<u16>,
    pub ops: u64,
    pub op_ns: u64,
    /// Of the thread's op time.
    pub share: f64,
}

/// The CPUs of a thread, the ones with the most time first.
pub fn shares(cpus: &ThreadCpus) -> Vec<CpuShare> {
    let all = cpus.by_cpu.values().fold(0u64, |a, s| a.saturating_add(s.ns));
    let one = |(cpu, s): (&Option<u16>, &CpuSum)| CpuShare {
        cpu: *cpu,
        ops: s.ops,
        op_ns: s.ns,
        share: share(s.ns, all),
    };
    let mut rows: Vec<CpuShare> = cpus.by_cpu.iter().map(one).collect();
    order::by_key(&mut rows, |r| (!r.op_ns, r.cpu.map_or(u64::MAX, u64::from)));
    rows
}

/// Where the ops of a phase started. Not present if no CPU is known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuTable {
    /// By number; the ops of which the CPU is not known come last.
    pub cpus: Vec<CpuRow>,
    /// By cluster, largest cores first; omitted if all CPUs are alike, or the trace does not say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterRow>,
    pub threads: Vec<CpuThread>,
}

/// The ops that started on one CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuRow {
    /// Null: not known.
    pub cpu: Option<u16>,
    /// Index of its cluster in `run.clusters`; null if it is not known.
    pub cluster: Option<usize>,
    pub ops: u64,
    pub op_ns: u64,
    /// Of the op time of all threads.
    pub share: f64,
    /// Threads of the pool that ran ops there.
    pub threads: Vec<u16>,
}

/// The ops that started on the CPUs of one cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterRow {
    pub cluster: Cluster,
    pub ops: u64,
    pub op_ns: u64,
    pub share: f64,
    pub threads: Vec<u16>,
}

/// Where a thread of the pool ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuThread {
    pub ith: u16,
    pub cpus: Vec<CpuShare>,
    /// Times at which an op started on another CPU than the thread's op before; moves within an op and back are not
    /// seen.
    pub migrations: u64,
    /// Per second of the phase's CPU graphs.
    pub migrations_per_s: Option<f64>,
}

#[derive(Default)]
struct Group {
    sum: CpuSum,
    threads: BTreeSet<u16>,
}

/// The table of a phase. None: no CPU is known.
pub fn cpu_table(loaded: &Loaded<'_>, times: &OpTimes, phase: Phase) -> Option<CpuTable> {
    let mut of: Vec<(u16, &ThreadCpus)> =
        times.threads.iter().filter(|((_, p), _)| *p == phase).map(|((ith, _), t)| (*ith, &t.cpus)).collect();
    if !of.iter().any(|(_, cpus)| cpus.known()) {
        return None;
    }
    order::by_key(&mut of, |(ith, _)| ((*ith).into(), 0));
    let known = loaded.header.as_ref().map(|h| clusters(h.topology)).unwrap_or_default();
    let cluster =
        |cpu: Option<u16>| known.iter().position(|c| cpu.is_some_and(|n| c.cpus.contains(&n.into())));
    let (mut by_cpu, mut by_cluster) = (BTreeMap::<_, Group>::new(), BTreeMap::<_, Group>::new());
    for (ith, cpus) in &of {
        for (cpu, sum) in &cpus.by_cpu {
            // Unknown comes last.
            for group in [
                by_cpu.entry((cpu.is_none(), *cpu)).or_default(),
                by_cluster.entry(cluster(*cpu)).or_default(),
            ] {
                group.sum.add(*sum);
                group.threads.insert(*ith);
            }
        }
    }
    let all = by_cpu.values().fold(0u64, |a, g| a.saturating_add(g.sum.ns));
    let several = known.len() > 1;
    let of_cluster = |(at, c): (usize, &Cluster)| {
        let g = by_cluster.remove(&Some(at)).unwrap_or_default();
        let threads = g.threads.into_iter().collect();
        let (ops, op_ns) = (g.sum.ops, g.sum.ns);
        ClusterRow { cluster: c.clone(), ops, op_ns, share: share(op_ns, all), threads }
    };
    let clusters = known.iter().enumerate().filter(|_| several).map(of_cluster).collect();
    let cpus = by_cpu.into_iter().map(|((_, cpu), g)| CpuRow {
        cpu,
        cluster: cluster(cpu).filter(|_| several),
        ops: g.sum.ops,
        op_ns: g.sum.ns,
        share: share(g.sum.ns, all),
        threads: g.threads.into_iter().collect(),
    });
    let graph_ns = times.phases.get(&phase).map_or(0, |p| p.graph_ns);
    let threads = of.into_iter().map(|(ith, cpus)| CpuThread {
        ith,
        cpus: shares(cpus),
        migrations: cpus.migrations,
        migrations_per_s: (graph_ns > 0).then(|| cpus.migrations as f64 * 1e9 / graph_ns as f64),
    });
    Some(CpuTable { cpus: cpus.collect(), clusters, threads: threads.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(changes: &[Change], slices: &[i64]) -> (Vec<(Option<u16>, u64)>, u64) {
        let all = CpuChanges(HashMap::from([(7, changes.to_vec())]));
        let mut run = RunCpus::new(all.cursor(7, slices[0]));
        slices.iter().for_each(|&t| run.slice(t, 10));
        let cpus = run.finish();
        (cpus.by_cpu.into_iter().map(|(cpu, s)| (cpu, s.ops)).collect(), cpus.migrations)
    }

    #[test]
    fn slices_before_the_first_change_are_on_no_known_cpu() {
        assert_eq!(sums(&[(20, Some(1))], &[10, 20, 30]), (vec![(None, 1), (Some(1), 2)], 0));
        assert_eq!(sums(&[], &[10]), (vec![(None, 1)], 0));
    }

    #[test]
    fn a_migration_counts_where_both_cpus_are_known() {
        let moves = [(10, Some(1)), (20, Some(2)), (30, None), (40, Some(1)), (50, Some(1))];
        assert_eq!(sums(&moves, &[10, 20, 30, 40, 50]), (vec![(None, 1), (Some(1), 3), (Some(2), 1)], 1));
        // The change came with the run's first slice, the CPU before from another run.
        assert_eq!(sums(&moves, &[20]), (vec![(Some(2), 1)], 1));
        assert_eq!(sums(&moves, &[25]), (vec![(Some(2), 1)], 0));
    }
}
