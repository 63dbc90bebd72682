//! A trace as tests see it: graph by graph, thread by thread, through the crate's reader.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use analysis::recorded::load::{self, HitTensors, LoadProgress, Loaded};
use pfi::Trace;
use pfi::record::Tensor;
use pfi::record::{CpuGraph, Footer, KindCount, RungRecord};

/// A trace, read completely.
pub struct Seen {
    pub all: Loaded<'static>,
}

impl Seen {
    /// Reads a trace that must be undamaged.
    pub fn read(path: &Path) -> Seen {
        let seen = Seen::damaged(path);
        assert!(seen.all.damage.is_empty(), "{:?}", seen.all.damage);
        seen
    }

    /// Reads as much as is available.
    pub fn damaged(path: &Path) -> Seen {
        let trace = Trace::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        // Tests are short, and their traces small.
        let trace: &'static Trace = Box::leak(Box::new(trace));
        Seen { all: load::load(trace, &LoadProgress::default()) }
    }

    /// What an undamaged trace has of one process and of its engine; the footer is of all.
    pub fn of(path: &Path, pid: u32) -> Seen {
        let mut seen = Seen::read(path);
        let all = &mut seen.all;
        all.processes.retain(|p| p.pid == pid);
        let engine =
            all.processes.first().unwrap_or_else(|| panic!("process {pid} is not in the trace")).engine;
        all.engines.retain(|e| e.id == engine);
        all.modules.retain(|m| m.engine == engine);
        all.probes.retain(|p| p.engine == engine);
        all.rungs.retain(|r| r.engine == engine);
        all.tokens.retain(|t| t.pid == pid);
        all.graphs.retain(|g| g.pid == pid);
        all.splits.retain(|s| s.pid == pid);
        all.cpu_graphs.retain(|g| g.pid == pid);
        let graphs: BTreeSet<u64> = all.cpu_graphs.iter().map(|g| g.seq).collect();
        all.runs.retain(|r| graphs.contains(&r.graph));
        seen
    }

    pub fn footer(&self) -> &Footer<'static> {
        self.all.footer.as_ref().expect("a footer")
    }

    pub fn kind(&self, name: &str) -> &KindCount<'static> {
        let found = self.footer().kinds.iter().find(|k| k.kind == name);
        found.unwrap_or_else(|| panic!("no events named {name}"))
    }

    /// For every kind: recorded + lost = seen.
    pub fn books_close(&self) {
        for k in &self.footer().kinds {
            assert_eq!(k.recorded + k.lost, k.seen, "books of {}", k.kind);
        }
        let lost: u64 = self.footer().kinds.iter().map(|k| k.lost).sum();
        assert_eq!(self.footer().lost_cpu.iter().sum::<u64>(), lost, "loss by CPU");
    }

    /// Counts agree, nothing lost, no orphans.
    pub fn complete(&self) {
        self.books_close();
        for k in &self.footer().kinds {
            assert_eq!(k.lost, 0, "lost events of {}", k.kind);
        }
        assert_eq!(self.footer().orphans, 0, "op hits outside any graph");
    }

    /// CPU graphs of a process in execution order.
    pub fn graphs(&self, pid: u32) -> Vec<&CpuGraph> {
        let mut all: Vec<&CpuGraph> = self.all.cpu_graphs.iter().filter(|g| g.pid == pid).collect();
        all.sort_by_key(|g| g.seq);
        all
    }

    /// Op hits of a graph by ith, each thread's in time order.
    pub fn hits(&self, graph: &CpuGraph) -> BTreeMap<u16, Vec<HitTensors>> {
        let mut by_thread: BTreeMap<u16, Vec<HitTensors>> = BTreeMap::new();
        for run in self.all.runs.iter().filter(|r| r.graph == graph.seq) {
            let plan = &self.all.plans[&run.plan];
            let (from, n) = (run.first as usize, run.n as usize);
            by_thread.entry(run.ith).or_default().extend_from_slice(&plan.hits[from..from + n]);
        }
        by_thread
    }

    pub fn tensor(&self, id: u32) -> &Tensor {
        self.all.tensors.get(&id).unwrap_or_else(|| panic!("tensor {id} is not defined"))
    }

    pub fn rungs(&self, role: &str) -> Vec<&RungRecord<'static>> {
        self.all.rungs.iter().filter(|r| r.role == role).collect()
    }

    /// The rung in use for a role.
    pub fn used(&self, role: &str) -> Option<&RungRecord<'static>> {
        self.all.rungs.iter().find(|r| r.role == role && r.used)
    }

    /// Names of the abandoned rungs, with the reason.
    pub fn left(&self, role: &str) -> Vec<(&str, &str)> {
        self.rungs(role).iter().filter(|r| !r.used).map(|r| (r.name, r.why)).collect()
    }

    /// Op hits in the file, all graphs and threads.
    pub fn slices(&self) -> u64 {
        self.all.runs.iter().map(|r| u64::from(r.n)).sum()
    }
}
