//! CPU interference: which threads had the CPU while a thread of a target was runnable.
//!
//! The rule: when a thread is preempted, its wait is charged to the thread that took its CPU. When a thread is
//! woken, its wait is charged to the thread that last ran on the CPU it came back on. Threads that ran in between
//! are not recorded. A kernel thread runs for microseconds: if it took the CPU and another program ran last, the wait is
//! that program's. What is left of the kernel's threads is one row, which nobody can stop.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use super::pass::PassResult;
use super::sched::runnable;
use crate::recorded::idents::{Idents, OpKey};
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::SourceKind;

/// One interfering program, or a placeholder such as the idle task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InterferenceRow {
    /// Name of its threads.
    pub name: String,
    /// Its threads, by id.
    pub tids: Vec<u32>,
    /// They are threads of the target itself.
    pub own: bool,
    pub cpus: Vec<u16>,
    /// How often it kept one of our threads off a CPU: by preempting it, and in total.
    pub preemptions: u64,
    pub times: u64,
    /// Time our threads were runnable, ns; and the part of it inside ops, each of which took that much longer on
    /// a thread.
    pub runnable_ns: u64,
    pub in_ops_ns: u64,
    /// First and last such moment, ns after the first call.
    pub first_ns: i64,
    pub last_ns: i64,
    /// Delayed ops, most delayed first.
    pub ops: Vec<OpHit>,
}

/// A delayed op.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpHit {
    pub name: String,
    pub ns: u64,
}

/// The idle task took a preempted thread's CPU.
pub const THROTTLED: &str = "(CPU idle, e.g. CPU quota)";
/// A woken thread's CPU had been idle.
pub const WAKING: &str = "(wake-up latency)";

/// The source cannot see other programs.
pub const UNKNOWN: &str = "(not known)";

/// Kernel threads.
pub const KERNEL: &str = "(kernel)";

/// How the names of kernel threads begin (kthread_create and alloc_workqueue in kernel/, mm/, block/ of Linux 5.10 to 7.2).
const KERNEL_THREADS: [&str; 24] = [
    "kworker/",
    "ksoftirqd/",
    "migration/",
    "rcu_",
    "rcuc/",
    "rcub/",
    "rcuop/",
    "rcuog/",
    "rcuos/",
    "cpuhp/",
    "irq/",
    "idle_inject/",
    "kswapd",
    "kcompactd",
    "khugepaged",
    "kthreadd",
    "ksmd",
    "kdamond",
    "oom_reaper",
    "watchdog/",
    "watchdogd",
    "jbd2/",
    "kblockd",
    "kauditd",
];

fn is_kernel_thread(name: &str) -> bool {
    KERNEL_THREADS.iter().any(|begin| name.starts_with(begin))
}

/// Ops reported for each program.
const OPS: usize = 5;

/// All interfering programs.
pub struct Culprits {
    /// By OffCpu record: the program, and its thread.
    of_record: Vec<(usize, u32)>,
    /// Name, and whether it belongs to the target itself.
    names: Vec<(String, bool)>,
}

impl Culprits {
    pub fn new(loaded: &Loaded<'_>) -> Culprits {
        let ours: HashSet<u32> =
            loaded.causes.off_cpu.iter().map(|r| r.tid).chain(loaded.runs.iter().map(|r| r.tid)).collect();
        let mut names: Vec<(String, bool)> = Vec::new();
        let mut index: HashMap<(String, bool), usize> = HashMap::new();
        let mut comms: HashMap<u32, &str> = HashMap::new();
        let mut tasks = loaded.causes.tasks.iter().peekable();
        let blind = is_blind(loaded);
        let mut of_record = Vec::with_capacity(loaded.causes.off_cpu.len());
        for (i, r) in loaded.causes.off_cpu.iter().enumerate() {
            while let Some((_, task)) = tasks.next_if(|(at, _)| *at <= i) {
                comms.insert(task.tid, task.comm);
            }
            let named = |tid: u32| match comms.get(&tid) {
                Some(name) if is_kernel_thread(name) => KERNEL.to_string(),
                Some(name) => (*name).to_string(),
                None => format!("thread {tid}"),
            };
            let (name, tid) = match culprit(r) {
                (_, 0) if blind => (UNKNOWN.to_string(), 0),
                (true, 0) => (THROTTLED.to_string(), 0),
                (false, 0) => (WAKING.to_string(), 0),
                (true, by) if named(by) == KERNEL && r.from != 0 => (named(r.from), r.from),
                (_, tid) => (named(tid), tid),
            };
            let key = (name, ours.contains(&tid));
            let place = *index.entry(key).or_insert_with_key(|key| {
                names.push(key.clone());
                names.len() - 1
            });
            of_record.push((place, tid));
        }
        Culprits { of_record, names }
    }

    /// Name of the program that a record's wait is charged to.
    pub fn name(&self, record: usize) -> &str {
        self.names.get(self.of_record(record)).map_or("", |(name, _)| name)
    }

    /// Index of the program that a record's wait is charged to.
    pub fn of_record(&self, record: usize) -> usize {
        self.of_record.get(record).map_or(usize::MAX, |(place, _)| *place)
    }
}

/// Whether the recording cannot tell what had the CPU: from inside a process, without privilege, the kernel names no other
/// thread. Otherwise 0 is the idle task.
fn is_blind(loaded: &Loaded<'_>) -> bool {
    loaded.header.as_ref().is_some_and(|h| h.source == SourceKind::Inside)
        && loaded.causes.off_cpu.iter().all(|r| r.by == 0 && r.from == 0)
}

/// Whether it took the CPU from a running thread, and its tid.
fn culprit(r: &pfi::record::OffCpu) -> (bool, u32) {
    if r.state == 0 { (true, r.by) } else { (false, r.from) }
}

#[derive(Default)]
struct InterferenceCounts {
    tids: BTreeSet<u32>,
    cpus: BTreeSet<u16>,
    preemptions: u64,
    times: u64,
    runnable_ns: u64,
    first: i64,
    last: i64,
}

/// The table, ordered by time taken. `origin` is the first call's start.
pub fn rows(
    loaded: &Loaded<'_>,
    culprits: &Culprits,
    sum: &PassResult,
    idents: &Idents,
    origin: i64,
) -> Vec<InterferenceRow> {
    let mut all: BTreeMap<usize, InterferenceCounts> = BTreeMap::new();
    for (r, (place, tid)) in loaded.causes.off_cpu.iter().zip(&culprits.of_record) {
        let ns = runnable(r);
        if ns == 0 {
            continue;
        }
        let taken = culprit(r).0;
        let to = r.t.saturating_add_unsigned(r.dur);
        let from = to.saturating_sub_unsigned(ns);
        let g = all.entry(*place).or_insert_with(|| InterferenceCounts {
            first: from,
            last: to,
            ..InterferenceCounts::default()
        });
        g.tids.insert(*tid);
        g.cpus.insert(if taken { r.cpu } else { r.to_cpu });
        g.preemptions += u64::from(taken);
        g.times += 1;
        g.runnable_ns = g.runnable_ns.saturating_add(ns);
        g.first = g.first.min(from);
        g.last = g.last.max(to);
    }
    let mut hits: BTreeMap<(usize, String), u64> = BTreeMap::new();
    for ((place, ident), ns) in &sum.hit {
        let total = hits.entry((*place, idents.label(*ident, OpKey::Name))).or_default();
        *total = total.saturating_add(*ns);
    }
    let row = |(place, g): (usize, InterferenceCounts)| {
        let of_place = hits.iter().filter(|((p, _), _)| *p == place);
        let mut ops: Vec<_> = of_place.map(|((_, name), ns)| OpHit { name: name.clone(), ns: *ns }).collect();
        order::by_key(&mut ops, |op| (!op.ns, 0));
        let in_ops_ns = ops.iter().fold(0, |sum: u64, op| sum.saturating_add(op.ns));
        ops.truncate(OPS);
        let (name, own) = culprits.names.get(place).cloned().unwrap_or_default();
        InterferenceRow {
            name,
            own,
            tids: g.tids.into_iter().filter(|tid| *tid != 0).collect(),
            cpus: g.cpus.into_iter().collect(),
            preemptions: g.preemptions,
            times: g.times,
            runnable_ns: g.runnable_ns,
            in_ops_ns,
            first_ns: g.first.saturating_sub(origin),
            last_ns: g.last.saturating_sub(origin),
            ops,
        }
    };
    let mut rows: Vec<InterferenceRow> = all.into_iter().map(row).collect();
    order::by_key(&mut rows, |r| (!r.runnable_ns, !r.times));
    rows
}
