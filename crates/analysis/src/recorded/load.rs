//! Loads a trace in one read over all its blocks: definitions and calls into tables, slice runs in place. Damage
//! is kept as text and skipped.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::recorded::cause_records::Causes;
use common::aside;
use pfi::reader::{self, Block, DamageKind, Trace};
use pfi::record::*;

/// Work done so far and in total, in bytes of the trace; a front end may watch it from another thread.
#[derive(Debug, Default)]
pub struct LoadProgress {
    pub done: AtomicU64,
    pub total: AtomicU64,
}

/// One hit of a plan: the tensor computed, and the second one if two were fused.
pub type HitTensors = (u32, Option<u32>);

/// The ops of a CPU graph in thread 0's order.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInfo {
    pub n_nodes: u32,
    pub hits: Box<[HitTensors]>,
}

/// Everything in a trace except the contents of the slices.
#[derive(Default)]
pub struct Loaded<'a> {
    pub header: Option<Header<'a>>,
    pub footer: Option<Footer<'a>>,
    pub processes: Vec<Process<'a>>,
    pub engines: Vec<Engine<'a>>,
    pub modules: Vec<Module<'a>>,
    pub probes: Vec<ProbeRecord<'a>>,
    pub rungs: Vec<RungRecord<'a>>,
    pub notices: Vec<Notice<'a>>,
    pub ops: HashMap<u16, OpDef<'a>>,
    pub types: HashMap<u16, TypeDef<'a>>,
    pub backends: HashMap<u32, Backend<'a>>,
    pub tensors: HashMap<u32, Tensor>,
    pub plans: HashMap<u32, PlanInfo>,
    pub tokens: Vec<Token>,
    pub graphs: Vec<Graph>,
    pub splits: Vec<Split>,
    pub enqueued: Vec<Enqueued<'a>>,
    pub dispatches: Vec<Dispatches<'a>>,
    pub batches: Vec<Batches>,
    pub kernels: Vec<DeviceKernels<'a>>,
    pub kernel_names: HashMap<u32, &'a str>,
    pub submissions: Vec<Submissions<'a>>,
    pub device_rings: HashMap<u32, DeviceRing<'a>>,
    pub peaks: Vec<Peaks<'a>>,
    /// By process and time; they are repeated in later blocks.
    pub states: BTreeMap<(u32, u64), TargetState<'a>>,
    pub cpu_graphs: Vec<CpuGraph>,
    pub runs: Vec<Slices<'a>>,
    pub causes: Causes<'a>,
    /// Descriptions of what could not be read.
    pub damage: Vec<String>,
    /// Calls of the process's other contexts, if only one was kept.
    pub aside: Vec<Token>,
    /// Only one of several contexts of a process was kept.
    pub one_context: bool,
    pub blocks: u64,
    /// Indices in `processes`.
    pub(crate) process_at: HashMap<u32, usize>,
    /// Number of records of rare kinds that did not fit.
    pub(crate) left_out: u64,
}

/// Below this many bytes a single thread is faster.
const PARALLEL_FROM: u64 = 4 << 20;

/// Threads worth starting for `bytes` of work.
pub fn workers(bytes: u64) -> usize {
    if bytes < PARALLEL_FROM {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(16)
}

/// Reads every block of `trace`.
pub fn load<'a>(trace: &'a Trace, progress: &LoadProgress) -> Loaded<'a> {
    let n = trace.blocks().len();
    let per = n.div_ceil(workers(trace.size())).max(1);
    let mut parts: Vec<Loaded<'a>> = Vec::new();
    if per >= n {
        parts.push(load_blocks(trace, 0..n, progress));
    } else {
        let one = |from| load_blocks(trace, from..n.min(from + per), progress);
        parts = aside::each((0..n).step_by(per), one);
    }
    let mut all = Loaded::default();
    // A missing footer is not damage: the recording quality reports it separately.
    let damage = trace.damage();
    let damage = damage.iter().filter(|d| d.kind != DamageKind::NoFooter);
    all.damage.extend(damage.map(ToString::to_string));
    for part in parts {
        all.merge(part);
    }
    if all.left_out > 0 {
        let n = all.left_out;
        all.damage.push(format!(
            "{n} records dropped: more than {PROCESSES} processes, or {RARE_MAX} of a rare kind"
        ));
    }
    all
}

fn load_blocks<'a>(trace: &'a Trace, range: std::ops::Range<usize>, progress: &LoadProgress) -> Loaded<'a> {
    let mut out = Loaded::default();
    for i in range {
        let size = trace.blocks().get(i).map_or(0, |b| u64::from(b.len));
        match trace.block(i) {
            Ok(block) => {
                progress.done.fetch_add(size, Ordering::Relaxed);
                out.blocks += 1;
                out.read_block(&block);
            }
            Err(damage) => out.damage.push(damage.to_string()),
        }
    }
    out
}

/// Maximum entries of each rare kind of record. A real trace has a few; a hostile one must not cost quadratic
/// time.
const RARE_MAX: usize = 1024;

/// Maximum number of processes kept.
const PROCESSES: usize = 65_536;

/// Replaces the entry with the same key, else appends: definitions are repeated from block to block. Counts those
/// that do not fit.
pub(crate) fn upsert<T, K: PartialEq>(list: &mut Vec<T>, item: T, key: impl Fn(&T) -> K, left_out: &mut u64) {
    let wanted = key(&item);
    if let Some(old) = list.iter_mut().find(|old| key(old) == wanted) {
        *old = item;
    } else if list.len() < RARE_MAX {
        list.push(item);
    } else {
        *left_out += 1;
    }
}

impl<'a> Loaded<'a> {
    fn read_block(&mut self, block: &Block<'a>) {
        for record in block.records() {
            match record {
                Ok(Record::Slices(run)) => self.runs.push(run),
                Ok(Record::Tensor(t)) => self.tensor(t),
                Ok(Record::Plan(p)) => self.plan(&p),
                Ok(record) => self.other(record),
                Err(damage) => self.damage.push(damage.to_string()),
            }
        }
    }

    /// Takes what a block defines; returns any other record.
    pub(crate) fn define(&mut self, record: Record<'a>) -> Option<Record<'a>> {
        match record {
            Record::Tensor(t) => self.tensor(t),
            Record::Plan(p) => self.plan(&p),
            Record::OpDef(_) | Record::TypeDef(_) => self.other(record),
            record => return Some(record),
        }
        None
    }

    fn tensor(&mut self, t: TensorRecord) {
        self.tensors.entry(t.id).or_insert(t.tensor);
    }

    fn plan(&mut self, p: &Plan<'_>) {
        self.plans.entry(p.id).or_insert_with(|| PlanInfo {
            n_nodes: p.n_nodes,
            hits: reader::plan_hits(p).map(|h| (h.tensor, h.fused)).collect(),
        });
    }

    fn process(&mut self, process: Process<'a>) {
        let next = self.processes.len();
        match self.process_at.get(&process.pid).and_then(|&at| self.processes.get_mut(at)) {
            Some(old) => *old = process,
            None if next < PROCESSES => {
                self.process_at.insert(process.pid, next);
                self.processes.push(process);
            }
            None => self.left_out += 1,
        }
    }

    fn other(&mut self, record: Record<'a>) {
        let left_out = &mut self.left_out;
        match record {
            Record::Header(h) => self.header = Some(h),
            Record::Footer(f) => self.footer = Some(f),
            Record::Process(p) => self.process(p),
            Record::Engine(e) => upsert(&mut self.engines, e, |e| e.id, left_out),
            Record::Module(m) => upsert(&mut self.modules, m, |m| (m.engine, m.path), left_out),
            Record::Probe(p) => {
                upsert(&mut self.probes, p, |p| (p.engine, p.symbol, p.module, p.ret, p.offset), left_out)
            }
            Record::Rung(r) => upsert(&mut self.rungs, r, |r| (r.engine, r.role, r.name), left_out),
            Record::Notice(n) => upsert(&mut self.notices, n, |n| (n.t, n.text), left_out),
            Record::OpDef(o) => drop(self.ops.insert(o.id, o)),
            Record::TypeDef(t) => drop(self.types.insert(t.id, t)),
            Record::Backend(b) => drop(self.backends.insert(b.id, b)),
            Record::Token(t) => self.tokens.push(t),
            Record::Graph(g) => self.graphs.push(g),
            Record::Split(s) => self.splits.push(s),
            Record::Enqueued(e) => self.enqueued.push(e),
            Record::Dispatches(d) => self.dispatches.push(d),
            Record::Batches(b) => self.batches.push(b),
            Record::DeviceKernels(k) => self.kernels.extend(k.are_single().then_some(k)),
            Record::Submissions(s) => self.submissions.push(s),
            Record::DeviceRing(r) => drop(self.device_rings.insert(r.id, r)),
            Record::KernelName(k) => drop(self.kernel_names.insert(k.id, k.name)),
            Record::Peaks(p) => upsert(&mut self.peaks, p, |p| (p.cluster, p.threads), left_out),
            Record::TargetState(s) => drop(self.states.insert((s.pid, s.mono_ns), s)),
            Record::CpuGraph(g) => self.cpu_graphs.push(g),
            Record::Tensor(_) | Record::Plan(_) | Record::Slices(_) => {}
            record => self.causes.read(record, left_out),
        }
    }

    fn merge(&mut self, part: Loaded<'a>) {
        self.header = part.header.or(self.header.take());
        self.footer = part.footer.or(self.footer.take());
        self.left_out += part.left_out;
        for p in part.processes {
            self.other(Record::Process(p));
        }
        for e in part.engines {
            self.other(Record::Engine(e));
        }
        for m in part.modules {
            self.other(Record::Module(m));
        }
        for p in part.probes {
            self.other(Record::Probe(p));
        }
        for r in part.rungs {
            self.other(Record::Rung(r));
        }
        for p in part.peaks {
            self.other(Record::Peaks(p));
        }
        for n in part.notices {
            self.other(Record::Notice(n));
        }
        self.ops.extend(part.ops);
        self.types.extend(part.types);
        self.backends.extend(part.backends);
        self.tensors.extend(part.tensors);
        self.plans.extend(part.plans);
        self.tokens.extend(part.tokens);
        self.graphs.extend(part.graphs);
        self.splits.extend(part.splits);
        self.enqueued.extend(part.enqueued);
        self.dispatches.extend(part.dispatches);
        self.batches.extend(part.batches);
        self.kernels.extend(part.kernels);
        self.kernel_names.extend(part.kernel_names);
        self.submissions.extend(part.submissions);
        self.device_rings.extend(part.device_rings);
        self.states.extend(part.states);
        self.cpu_graphs.extend(part.cpu_graphs);
        self.runs.extend(part.runs);
        self.causes.merge(part.causes, &mut self.left_out);
        self.damage.extend(part.damage);
        self.blocks += part.blocks;
    }
}
