//! Tests the pool on handmade graphs, with ops that only keep count.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::graph::count_uses;
use super::*;
use crate::abi::accessors::ggml_graph_next_uid;
use crate::abi::{FLAG_COMPUTE, GgmlType, Op};

/// One call of an op: thread, number of threads, name, name of the fused second op.
type Seen = (i32, i32, String, String);

static CALLS: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
static SUM: AtomicU64 = AtomicU64::new(0);
/// Only one test at a time may use the statics above.
static TURN: Mutex<()> = Mutex::new(());

const CHUNKS: usize = 23;
const FUNCTIONS: Functions = Functions { forward, rms_norm_mul, work_size };

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn note(params: &ComputeParams, node: &GgmlTensor, second: &str) {
    lock(&CALLS).push((params.ith, params.nth, node.name().to_owned(), second.to_owned()));
}

fn forward(params: &ComputeParams, node: &GgmlTensor) {
    note(params, node, "");
    // Two halves, each handed out in chunks: the second half begins when the first is done.
    for half in [1, 1000] {
        while next_chunk(params) < CHUNKS {
            SUM.fetch_add(half, Ordering::Relaxed);
        }
        if half == 1 {
            barrier(params);
            assert!(SUM.load(Ordering::Relaxed) % 1000 >= CHUNKS as u64 % 1000);
        }
    }
}

fn rms_norm_mul(params: &ComputeParams, norm: &GgmlTensor, mul: &GgmlTensor) {
    note(params, norm, mul.name());
}

fn work_size(node: &GgmlTensor, threads: usize) -> usize {
    if node.op == Op::MUL_MAT { 1000 * threads } else { 0 }
}

/// A model of two layers in the shape of llama.cpp's, without data.
#[allow(clippy::vec_box, reason = "the tensors must stay where they are while the list grows")]
struct Fixture {
    _tensors: Vec<Box<GgmlTensor>>,
    _list: Vec<*mut GgmlTensor>,
    _counts: Vec<i32>,
    graph: GgmlGraph,
}

fn fixture() -> Fixture {
    #[allow(clippy::vec_box, reason = "see Fixture")]
    let mut tensors: Vec<Box<GgmlTensor>> = Vec::new();
    let mut add = |op, name: &str, flags, sources: &[*mut GgmlTensor]| {
        let mut t = Box::new(GgmlTensor::contiguous(GgmlType::F32, [8, 2, 1, 1]));
        (t.op, t.flags) = (op, flags);
        t.set_name(name);
        for (slot, s) in t.src.iter_mut().zip(sources) {
            *slot = *s;
        }
        tensors.push(t);
        tensors.last_mut().map_or(std::ptr::null_mut(), |t| &raw mut **t)
    };
    let weight = add(Op::NONE, "weight", 0, &[]);
    let mut list = vec![add(Op::GET_ROWS, "inp_embd", FLAG_COMPUTE, &[weight])];
    for layer in 0..2 {
        let last = list[list.len() - 1];
        let norm = add(Op::RMS_NORM, &format!("norm-{layer}"), FLAG_COMPUTE, &[last]);
        let mul = add(Op::MUL, &format!("attn_norm-{layer}"), FLAG_COMPUTE, &[norm, weight]);
        let q = add(Op::MUL_MAT, &format!("Qcur-{layer}"), FLAG_COMPUTE, &[weight, mul]);
        let view = add(Op::RESHAPE, &format!("Qcur-{layer} (reshaped)"), FLAG_COMPUTE, &[q]);
        let idle = add(Op::ADD, "not wanted", 0, &[q, q]);
        let experts = add(Op::MUL_MAT_ID, &format!("ffn_moe-{layer}"), FLAG_COMPUTE, &[weight, view]);
        let out = add(Op::ADD, &format!("l_out-{layer}"), FLAG_COMPUTE, &[experts, last]);
        list.extend([norm, mul, q, view, idle, experts, out]);
    }
    let end = list[list.len() - 1];
    list.push(add(Op::SCALE, "result_output", FLAG_COMPUTE, &[end]));
    let mut graph = GgmlGraph { uid: ggml_graph_next_uid(), ..GgmlGraph::EMPTY };
    let mut counts = vec![0; list.len()];
    graph.set_nodes(&mut list);
    // SAFETY: the tensors are in boxes that the fixture keeps.
    unsafe { count_uses(&mut graph, &mut counts) };
    Fixture { _tensors: tensors, _list: list, _counts: counts, graph }
}

const RUN: [(&str, &str); 10] = [
    ("inp_embd", ""),
    ("norm-0", "attn_norm-0"),
    ("Qcur-0", ""),
    ("ffn_moe-0", ""),
    ("l_out-0", ""),
    ("norm-1", "attn_norm-1"),
    ("Qcur-1", ""),
    ("ffn_moe-1", ""),
    ("l_out-1", ""),
    ("result_output", ""),
];

/// The calls of each thread, in order.
fn lanes(calls: &[Seen]) -> HashMap<i32, Vec<(&str, &str)>> {
    let mut lanes: HashMap<i32, Vec<(&str, &str)>> = HashMap::new();
    for (ith, _, name, second) in calls {
        lanes.entry(*ith).or_default().push((name, second));
    }
    lanes
}

#[test]
fn every_thread_passes_every_node_that_does_something() {
    let _turn = lock(&TURN);
    for (threads, two) in [(1, false), (2, false), (3, true), (9, true)] {
        let mut f = fixture();
        let pool = Threads::new(threads, threads == 2, FUNCTIONS).expect("threads");
        let mut sched = BackendSched::new(pool, two);
        for active in [threads, 1, threads] {
            lock(&CALLS).clear();
            SUM.store(0, Ordering::Relaxed);
            sched.set_threads(active);
            // SAFETY: the fixture's tensors are alive, and the functions above read none of their data.
            unsafe { sched.compute(&mut f.graph) }.expect("computed");
            let calls = lock(&CALLS);
            let lanes = lanes(&calls);
            assert_eq!(lanes.len(), active);
            assert!(lanes.values().all(|l| l.as_slice() == RUN), "{threads}: {lanes:?}");
            assert!(calls.iter().all(|c| c.1 == active as i32));
            // 8 ops that share their work, each chunk done once.
            assert_eq!(SUM.load(Ordering::Relaxed), 8 * 1001 * CHUNKS as u64);
        }
    }
}

#[test]
fn two_backends_take_the_layers_in_turn() {
    let _turn = lock(&TURN);
    let mut f = fixture();
    let mut sched = BackendSched::new(Threads::new(1, false, FUNCTIONS).expect("a thread"), true);
    // SAFETY: as above.
    unsafe { sched.compute(&mut f.graph) }.expect("computed");
    let parts: Vec<(usize, usize)> = sched.parts().collect();
    assert_eq!(parts, [(0, 8), (1, 7), (0, 1)]);
}

#[test]
fn the_threads_keep_account_of_each_op() {
    let _turn = lock(&TURN);
    let mut f = fixture();
    let threads = Threads::new(2, false, FUNCTIONS).expect("threads");
    let truth = Arc::new(Truth::new(2, 100, 100, 0).expect("a little memory"));
    threads.record(truth.clone());
    let mut sched = BackendSched::new(threads, false);
    for _ in 0..2 {
        // SAFETY: as above.
        unsafe { sched.compute(&mut f.graph) }.expect("computed");
    }
    let mut text = Vec::new();
    truth.write(&mut text).expect("memory takes it");
    let text = String::from_utf8(text).expect("text");
    let count = |kind: &str| text.lines().filter(|l| l.split('\t').next() == Some(kind)).count();
    assert_eq!(count("op"), 2 * 2 * RUN.len());
    assert_eq!(count("node"), 16);
    assert_eq!((count("graph"), count("cpu-graph"), count("call")), (2, 2, 0));
    assert!(text.contains("\tMUL_MAT_ID\tffn_moe-1\n"), "{text}");
}

#[test]
fn impossible_numbers_of_threads_are_refused() {
    assert!(matches!(Threads::new(0, false, FUNCTIONS), Err(PoolError::Count(0))));
    assert!(matches!(Threads::new(513, false, FUNCTIONS), Err(PoolError::Count(513))));
}

/// Run by the next test in a separate process.
#[test]
#[ignore = "ends the program"]
fn an_op_that_panics() {
    let panics = |params: &ComputeParams, _: &GgmlTensor| assert_eq!(params.ith, 0, "on the other thread");
    let mut f = fixture();
    let threads = Threads::new(2, false, Functions { forward: panics, ..FUNCTIONS }).expect("threads");
    // SAFETY: as above.
    let _ = unsafe { BackendSched::new(threads, false).compute(&mut f.graph) };
}

#[test]
fn a_panic_on_a_thread_ends_the_program_instead_of_leaving_the_others_waiting() {
    let me = std::env::current_exe().expect("a test program");
    let mut child = std::process::Command::new(me);
    child.args(["--nocapture", "--ignored", "--exact", "pool::tests::an_op_that_panics"]);
    let out = child.output().expect("it runs");
    assert!(!out.status.success());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("on the other thread"), "{said}");
}
