//! Recordings of each kind whose views are compared: synthetic traces, with times known to the nanosecond.

use pfi::Trace;
use pfi::record::{
    CONTENT_BLOCK, Chunk, Content, Detail, Device, Entry, Graph, Level, LevelChange, MemoryCall,
    MemoryChange, ServerTask, StateAt, TargetState, Token, Ubatch,
};
use pfi::{Encoder, EncoderConfig};

use crate::python_traces::traces;
use crate::synth_trace::causes::{FIRST_OP, preempted, slept};
use crate::synth_trace::*;

type Made = Synth<Vec<u8>>;

fn even(p: usize, t: u16) -> u64 {
    1000 + 977 * p as u64 + 13 * u64::from(t)
}

fn finished(s: Made) -> Vec<u8> {
    s.enc.finish(&footer("target exited")).expect("a trace")
}

/// A prompt, and tokens.
fn dense(spec: Spec) -> Made {
    computed(Synth::new(Vec::new(), spec))
}

fn computed(mut s: Made) -> Made {
    s.call(7, even);
    (0..6).for_each(|_| s.call(1, even));
    s
}

/// Both threads are alone on a CPU of their own.
fn pinned() -> Made {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.cpu = |_, _, ith| Some(ith);
    s.call(7, even);
    (0..6).for_each(|_| s.call(1, even));
    let state = TargetState {
        pid: PID,
        affinity: "0-1",
        threads: "4243:0;4244:1",
        online: "0-1",
        ..TargetState::default()
    };
    for (at, mono_ns) in [(StateAt::Start, ORIGIN), (StateAt::End, s.now)] {
        s.enc.target_state(&TargetState { at, mono_ns, ..state }).expect("written");
    }
    s
}

/// Two threads take turns on one CPU: each displaces the other.
fn oversubscribed() -> Made {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.enc.feature(&causes::feature("scheduler", pfi::record::Availability::Whole, "")).expect("written");
    s.enc.task(TID, "llama").expect("written");
    s.enc.task(TID + 1, "llama").expect("written");
    for i in 0..8u64 {
        let t = (FIRST_OP + 3000 * i) as i64;
        let (ith, other) = ((i % 2) as u32, TID + 1 - (i % 2) as u32);
        s.enc
            .off_cpu(&pfi::record::OffCpu {
                by: other,
                from: other,
                cpu: 0,
                to_cpu: 0,
                ..preempted(ith, t, 900)
            })
            .expect("written");
        s.enc.off_cpu(&slept(1 - ith, t + 1200, 400, 100)).expect("written");
    }
    // An interval is recorded when it ends, the ops around it later.
    let mut s = computed(s);
    let state = TargetState {
        pid: PID,
        affinity: "0",
        threads: "4243:0;4244:0",
        online: "0-1",
        ..TargetState::default()
    };
    s.enc.target_state(&TargetState { at: StateAt::Start, mono_ns: ORIGIN, ..state }).expect("written");
    s.enc.target_state(&TargetState { at: StateAt::End, mono_ns: s.now, ..state }).expect("written");
    s
}

/// Address of the server's context.
const CONTEXT: u64 = 0x7f00_0000_1000;

/// A call of the server for these chunks: sequence, position, tokens, outputs.
fn slots_call(s: &mut Made, chunks: &[(i64, i64, u64, u64)]) {
    let (seq, t) = (s.calls, s.now as i64 + 1);
    let tokens: u64 = chunks.iter().map(|c| c.2).sum();
    let batch = Ubatch {
        token: Some(seq),
        pid: PID,
        tid: TID,
        t,
        context: CONTEXT,
        tokens: tokens as u32,
        unread: 0,
        whole: false,
        data: &[],
    };
    let parts = chunks.iter().map(|&(seq, pos, tokens, outputs)| Chunk { seq, pos, tokens, outputs });
    s.enc.ubatch(&batch, parts).expect("written");
    for &(seq, pos, tokens, _) in chunks {
        let pos = pos as u64;
        let content = Content { token: s.calls, pid: PID, t, seq, pos, tokens, data: &[] };
        // Long prompts are all the same, and others are like no other.
        let of = |block| block + 1 + if tokens < 64 { 1000 * seq as u64 + 100 } else { 0 };
        let blocks = pos / CONTENT_BLOCK..=(pos + tokens - 1) / CONTENT_BLOCK;
        s.enc.content(&content, blocks.map(of)).expect("written");
    }
    s.call(tokens as u32, even);
}

/// A server with two slots: each has its prompt, then both decode together; one drafts.
fn server() -> Made {
    let mut s = Synth::new(Vec::new(), Spec::default());
    slots_call(&mut s, &[(0, 0, 9, 1)]);
    slots_call(&mut s, &[(0, 9, 1, 1), (1, 0, 5, 1)]);
    for i in 0..4 {
        slots_call(&mut s, &[(0, 10 + i, 1, 1), (1, 5 + i, 1, 1)]);
    }
    // Three tokens drafted after the one at 14; two of them are accepted.
    slots_call(&mut s, &[(0, 14, 4, 4)]);
    let (begin, end) = (ORIGIN as i64, s.now as i64);
    let removed = MemoryCall {
        pid: PID,
        tid: TID,
        t: end - 10,
        context: CONTEXT,
        what: MemoryChange::Remove,
        seq: 0,
        to: 0,
        from: 17,
        until: -1,
    };
    s.enc.memory(&removed).expect("written");
    for (task, seq) in [(0, 0), (1, 1)] {
        let taken = ServerTask { pid: PID, tid: TID + 9, t: begin - 5000 + task, task, seq: None };
        s.enc.server_task(&taken).expect("written");
        s.enc.server_task(&ServerTask { t: end - 50_000 + task, seq: Some(seq), ..taken }).expect("written");
    }
    s
}

/// A prompt that one slot has is computed by another, which had something else.
fn moved() -> Made {
    let mut s = Synth::new(Vec::new(), Spec::default());
    for (seq, tokens) in [(1, 64), (0, 40), (0, 64)] {
        slots_call(&mut s, &[(seq, 0, tokens, 1)]);
        slots_call(&mut s, &[(seq, tokens as i64, 1, 1)]);
    }
    s
}

/// Prompts of an encoder: each call is a run.
fn embeddings() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.entry = Entry::Encode;
    for width in [5, 9, 7, 3] {
        s.call(width, even);
    }
    finished(s)
}

/// Graphs without calls and without the names that llama.cpp gives to tensors, as of whisper.cpp.
fn whisper() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec { foreign: true, ..Spec::default() });
    let mut at = ORIGIN;
    for width in [30, 1, 1, 1, 30, 1] {
        at = s.graph(None, width, at, even) + PAUSE;
    }
    s.now = at;
    finished(s)
}

/// A part of the graph is computed by a device.
fn device() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.device = Some(40_000);
    s.call(7, even);
    (0..5).for_each(|_| s.call(1, even));
    finished(s)
}

/// The recorder was killed: the file ends in a block.
fn killed() -> Vec<u8> {
    let config = || EncoderConfig { block_bytes: 4096, seal_ns: 0, ..EncoderConfig::default() };
    let mut s = Synth::with(Vec::new(), Spec::default(), &Origin::default(), config());
    s.call(7, even);
    (0..40).for_each(|_| s.call(1, even));
    let mut bytes = finished(s);
    bytes.truncate(bytes.len() * 2 / 3);
    assert!(!Trace::from_bytes(bytes.clone()).expect("a trace").damage().is_empty());
    bytes
}

/// Calls and graphs, no ops.
fn level_graph() -> Vec<u8> {
    let header = pfi::record::Header { level: Level::Graph, structure: false, ..header(false) };
    let mut enc = Encoder::new(Vec::new(), EncoderConfig::default(), &header).expect("a trace");
    for seq in 0..5u64 {
        let (t, dur, width) =
            ((ORIGIN + 200_000 * seq) as i64, 90_000 + 100 * seq, if seq == 0 { 7 } else { 1 });
        let graph = Graph {
            seq,
            token: Some(seq),
            pid: PID,
            tid: TID,
            cgraph: 0x1234,
            n_nodes: 100,
            ubatch: width,
            t: t + 500,
            dur: dur - 1000,
            cut: false,
            device: Device::Idle,
        };
        enc.graph(&graph).expect("written");
        let (entry, n_tokens) = (Entry::Decode, Some(width));
        let token =
            Token { seq, pid: PID, tid: TID, entry, n_tokens, t, dur, cut: false, device: Device::Idle };
        enc.token(&token).expect("written");
    }
    enc.finish(&footer("target exited")).expect("a trace")
}

/// Ops of one token in two, as a budget leaves them; calls of all.
fn budget() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec::default());
    let to = LevelChange {
        t: ORIGIN as i64,
        to: Detail::Op,
        one_in: 2,
        predicted_ppm: Some(9000),
        measured_ppm: Some(8000),
        why: "the budget of 1 %",
    };
    s.enc.level_change(&to).expect("written");
    s.call(7, even);
    for i in 0..8 {
        s.ops = i % 2 == 0;
        s.call(1, even);
    }
    finished(s)
}

/// Every kind of recording: its name and its bytes.
pub fn recordings() -> Vec<(&'static str, Vec<u8>)> {
    let mut all: Vec<(&str, Vec<u8>)> = traces().into_iter().map(|(name, s)| (name, finished(s))).collect();
    all.extend([
        ("dense", finished(dense(Spec::default()))),
        ("pinned", finished(pinned())),
        ("oversubscribed", finished(oversubscribed())),
        ("server", finished(server())),
        ("moved", finished(moved())),
        ("embeddings", embeddings()),
        ("whisper", whisper()),
        ("device", device()),
        ("killed", killed()),
        ("level-graph", level_graph()),
        ("budget", budget()),
        ("stored", finished(causes::stored(6))),
    ]);
    all
}
