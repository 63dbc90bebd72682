//! Decoding allocates nothing from one token to the next, on any of its threads, and every address that a tracer
//! stores stays valid, even when the graph is rebuilt.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test program"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runner::engine::{EngineSettings, RunnerEngine, greedy};
use runner::kernels::Isa;
use runner::model::{Model, Placement};
use runner::optimise::Steps;

struct Counting;

/// Allocations of all threads: this file has only one test, so that nothing else runs at the same time.
static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The addresses that a tracer stores: of the graph, its list, and its nodes and their data.
fn addresses(engine: &RunnerEngine) -> Vec<usize> {
    let graph = engine.graph().expect("a graph");
    // SAFETY: the engine's graph, between two batches.
    let nodes = unsafe { graph.nodes() };
    let own = [&raw const *graph as usize, graph.nodes as usize];
    own.into_iter().chain(nodes.iter().flat_map(|n| [&raw const **n as usize, n.data as usize])).collect()
}

fn engine(preset: &str, graph: &str, threads: usize) -> RunnerEngine {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.gguf");
    let mut synth = Command::new(env!("CARGO_BIN_EXE_ggml-runner"));
    let out = synth
        .args(["synth", preset, "--type", "q8_0", "--graph", graph])
        .arg(&path)
        .output()
        .expect("ggml-runner runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let model = Model::load(&path, Isa::best(), Placement::Packed, |_, _| {}).expect("a model");
    let settings = EngineSettings {
        context: 512,
        threads,
        decode_threads: threads,
        pin: false,
        two_backends: false,
        steps: Steps::ALL,
        truth: None,
    };
    RunnerEngine::new(Arc::new(model), settings).expect("an engine")
}

/// Decodes this many tokens greedily.
fn decode(engine: &mut RunnerEngine, count: usize) {
    let mut token = 7;
    for _ in 0..count {
        token = greedy(engine.decode(&[token]).expect("logits")).expect("finite");
    }
}

#[test]
fn tokens_allocate_nothing_and_move_nothing() {
    let models = [("tiny", "llama", 1), ("moe", "llama", 2), ("gemma2", "llama", 2), ("moe", "exported", 2)];
    for (preset, graph, threads) in models {
        let mut engine = engine(preset, graph, threads);
        let prompt: Vec<i32> = (0..200).map(|i| 3 + i % 250).collect();
        engine.decode(&prompt).expect("logits");
        decode(&mut engine, 2);
        let (seen, uid) = (addresses(&engine), engine.graph().map(|g| g.uid));
        let before = COUNT.load(Ordering::Relaxed);
        decode(&mut engine, 50);
        assert_eq!(COUNT.load(Ordering::Relaxed), before, "{preset} allocates");
        assert_eq!(engine.graph().map(|g| g.uid), uid, "{preset}: the graph is used again");
        // Beyond the first chunk of the cache: a different graph at the same address.
        decode(&mut engine, 10);
        assert_ne!(engine.graph().map(|g| g.uid), uid, "{preset}");
        assert_eq!(addresses(&engine), seen, "{preset}");
        let before = COUNT.load(Ordering::Relaxed);
        decode(&mut engine, 20);
        assert_eq!(COUNT.load(Ordering::Relaxed), before, "{preset} allocates");
    }
}
