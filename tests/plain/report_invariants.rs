//! Invariants that `report` checks in every trace: calls have graphs, graphs have work, splits on the CPU have ops,
//! everything lies within its parent. docs/TRUST.md.

use crate::synth_trace;

use analysis::questions::quality::RecordingQuality;
use analysis::questions::report::{ReportOptions, report};
use analysis::recorded::load::LoadProgress;
use pfi::Trace;
use pfi::record::{Chunk, Device, Entry, Graph, RungRecord, Split, Token, Ubatch};
use synth_trace::*;

const SEQ: u64 = 1000;

/// A prompt and a token, plus the records added by `more`.
fn quality(more: impl FnOnce(&mut Synth<Vec<u8>>)) -> RecordingQuality {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(8, |_, _| 1000);
    s.call(1, |_, _| 1000);
    more(&mut s);
    let trace = Trace::from_bytes(s.enc.finish(&footer("target exited")).unwrap()).unwrap();
    report(&trace, &ReportOptions::default(), &LoadProgress::default()).quality
}

fn token(t: u64, cut: bool) -> Token {
    let (entry, n_tokens) = (Entry::Decode, Some(1));
    Token { seq: SEQ, pid: PID, tid: TID, entry, n_tokens, t: t as i64, dur: 9000, cut, device: Device::Idle }
}

fn graph(t: u64, dur: u64, token: Option<u64>) -> Graph {
    let (cgraph, n_nodes, ubatch) = (0x1234, 100, 1);
    Graph {
        seq: SEQ,
        token,
        pid: PID,
        tid: TID,
        cgraph,
        n_nodes,
        ubatch,
        t: t as i64,
        dur,
        cut: false,
        device: Device::Idle,
    }
}

fn split(s: &mut Synth<Vec<u8>>, graph: Option<u64>, backend: &'static str, t: u64) -> Split {
    let backend = s.enc.backend([backend.len() as u8; 16], backend);
    Split {
        seq: SEQ,
        graph,
        backend,
        pid: PID,
        tid: TID,
        n_nodes: 100,
        t: t as i64,
        dur: 100,
        cut: false,
        device: Device::Idle,
        plan: None,
    }
}

#[test]
fn a_sound_run_is_complete() {
    let b = quality(|_| {});
    assert!(b.complete, "{}", b.verdict);
    let i = b.invariants;
    assert_eq!((i.calls, i.graphs, i.cpu_splits), (2, 2, 2));
    assert_eq!((i.calls_without_graphs, i.graphs_without_work), (0, 0));
    assert_eq!((i.cpu_splits_without_ops, i.misplaced, i.unchecked), (0, 0, None));
}

#[test]
fn a_call_without_a_graph_is_told() {
    let b = quality(|s| s.enc.token(&token(s.now, false)).unwrap());
    assert!(!b.complete);
    assert_eq!(b.verdict, "1 of 3 calls without a graph");
    // A call still running at the end may have started no graph yet.
    assert!(quality(|s| s.enc.token(&token(s.now, true)).unwrap()).complete);
}

#[test]
fn the_reason_is_told_where_the_probes_know_it() {
    let b = quality(|s| {
        s.enc.token(&token(s.now, false)).unwrap();
        let why = "no such function in the file";
        let (role, name) = ("graph", "ggml_backend_sched_graph_compute_async");
        s.enc.rung(&RungRecord { engine: 0, role, name, used: false, expected: None, seen: 0, why }).unwrap();
    });
    assert_eq!(b.verdict, "1 of 3 calls without a graph (graph: no such function in the file)");
}

#[test]
fn a_graph_in_which_nothing_ran_is_told() {
    let b = quality(|s| s.enc.graph(&graph(s.now, 5000, None)).unwrap());
    assert_eq!(b.verdict, "1 of 3 scheduler graphs without a split or a CPU graph");
    // A graph on a device has its split.
    let b = quality(|s| {
        let of_device = split(s, Some(SEQ), "Vulkan", s.now);
        s.enc.split(&of_device).unwrap();
        s.enc.graph(&graph(s.now, 5000, None)).unwrap();
    });
    assert!(b.complete, "{}", b.verdict);
}

#[test]
fn a_split_on_the_cpu_without_ops_is_told() {
    let b = quality(|s| {
        let lonely = split(s, None, "CPU", s.now);
        s.enc.split(&lonely).unwrap();
    });
    assert_eq!(b.verdict, "1 of 3 splits on the CPU without its ops");
}

#[test]
fn what_lies_outside_of_its_call_is_told() {
    // A call of 9 us that contains a graph of 9.001 us with a split.
    let beyond = |dur| {
        quality(|s| {
            let of_device = Split { device: Device::Busy(10), ..split(s, Some(SEQ), "Vulkan", s.now) };
            s.enc.split(&of_device).unwrap();
            s.enc.graph(&graph(s.now, dur, Some(SEQ))).unwrap();
            s.enc.token(&token(s.now, false)).unwrap();
        })
    };
    assert_eq!(beyond(9000).verdict, "complete");
    let wrong = beyond(9001).verdict;
    assert_eq!(wrong, "times of 1 graph are inconsistent: not within the enclosing call or graph");
}

#[test]
fn a_call_whose_device_works_on_unseen_is_told() {
    let unseen = |s: &mut Synth<Vec<u8>>| {
        let of_device = split(s, Some(SEQ), "Vulkan", s.now);
        s.enc.split(&Split { device: Device::Unseen, ..of_device }).unwrap();
        s.enc.graph(&Graph { device: Device::Unseen, ..graph(s.now, 9000, Some(SEQ)) }).unwrap();
        s.enc.token(&Token { device: Device::Unseen, ..token(s.now, false) }).unwrap();
    };
    assert_eq!(quality(unseen).verdict, "the completion of 1 call on a device was not seen");
}

/// The parts of the first call may be in the previous file.
#[test]
fn a_file_that_goes_on_with_a_recording_may_begin_in_a_call() {
    let lonely = |t| quality(|s| s.enc.token(&token(t, false)).unwrap());
    assert!(lonely(ORIGIN - 10_000).complete);
    assert!(!lonely(ORIGIN + 10).complete);
}

/// A batch of `n` tokens for the call with this number.
fn batch(s: &mut Synth<Vec<u8>>, call: u64, t: u64, n: u64) {
    let part = Ubatch {
        token: Some(call),
        pid: PID,
        tid: TID,
        t: t as i64,
        context: 0x7000,
        tokens: n as u32,
        unread: 0,
        whole: false,
        data: &[],
    };
    s.enc.ubatch(&part, std::iter::once(Chunk { seq: 0, pos: 0, tokens: n, outputs: 1 })).unwrap();
}

#[test]
fn batches_that_disagree_with_their_graphs_are_told() {
    let told = |second: u64| {
        quality(|s| {
            batch(s, 0, 1, 8);
            batch(s, 1, s.now, second);
        })
    };
    let fits = told(1);
    assert!(fits.complete, "{}", fits.verdict);
    assert_eq!((fits.invariants.batches, fits.invariants.batches_apart), (2, 0));
    let apart = told(3);
    assert!(
        !apart.complete && apart.verdict.contains("the batches of 1 of 2 calls have other numbers"),
        "{}",
        apart.verdict
    );
}
