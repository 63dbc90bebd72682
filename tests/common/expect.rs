//! A trace against the target's own account.

use pfi::record::CpuGraph;
use pfi::record::Tensor;

use super::seen::Seen;
use super::truth::{Graph, Node, Op};

/// Every thread of `cpu` passed exactly `ops`, in this order, and the trace describes each of them as the target
/// does.
pub fn graph(seen: &Seen, cpu: &CpuGraph, truth: &Graph, ops: &[Op], threads: u32) {
    let place = format!("CPU graph {}", cpu.seq);
    let hits = seen.hits(cpu);
    let want = ops.len() as u32 * threads;
    assert_eq!(cpu.n_threads, threads, "{place}: threads");
    assert_eq!(cpu.seen, want, "{place}: hits seen");
    assert_eq!(cpu.expected, Some(want), "{place}: hits that the recorder expected");
    assert!(!cpu.cut, "{place}: cut");
    assert!(hits.keys().copied().eq(0..threads as u16), "{place}: threads {:?}", hits.keys());
    for (ith, hits) in &hits {
        let place = format!("{place}, thread {ith}");
        let got: Vec<_> =
            hits.iter().map(|h| (seen.tensor(h.0).addr, h.1.map(|f| seen.tensor(f).addr))).collect();
        let at = |i: usize| truth.nodes[i].addr;
        let want: Vec<_> = ops.iter().map(|o| (at(o.0), o.1.map(at))).collect();
        assert_eq!(got, want, "{place}: order of ops");
        for (hit, op) in hits.iter().zip(ops) {
            tensor(seen, seen.tensor(hit.0), &truth.nodes[op.0], &place);
            if let (Some(f), Some(i)) = (hit.1, op.1) {
                tensor(seen, seen.tensor(f), &truth.nodes[i], &place);
            }
        }
    }
}

fn tensor(seen: &Seen, got: &Tensor, want: &Node, place: &str) {
    described(seen, got, want, place);
    let place = format!("{place}, {}", want.name);
    let src: Vec<u64> = got.src.iter().map(|s| s.map_or(0, |id| seen.tensor(id).addr)).collect();
    // GGML's casts name themselves as their second source.
    let mut want_src: Vec<u64> = want.src.iter().map(|s| s.as_ref().map_or(0, |n| n.addr)).collect();
    while want_src.last() == Some(&0) {
        want_src.pop();
    }
    assert_eq!(src, want_src, "{place}: sources");
    for (id, want) in got.src.iter().zip(&want.src) {
        if let (Some(id), Some(want)) = (id, want) {
            described(seen, seen.tensor(*id), want, &format!("{place}, source"));
        }
    }
}

/// Name, op, type, dims, strides unless contiguous, and the tensor that it views.
fn described(seen: &Seen, got: &Tensor, want: &Node, place: &str) {
    let place = format!("{place}, {} {}", want.op, want.name);
    assert!(got.known, "{place}: only its address is known");
    assert_eq!(got.addr, want.addr, "{place}: address");
    assert_eq!(&*got.name, want.name, "{place}: name");
    let op = &seen.all.ops[&got.op];
    assert_eq!((op.name, op.desc), (&*want.op, &*want.desc), "{place}: op");
    let ty = &seen.all.types[&got.ty];
    assert_eq!(ty.name, want.ty, "{place}: type");
    assert_eq!(got.ne, want.ne, "{place}: dims");
    let contiguous = contiguous(want, ty.block.into(), ty.bytes.into());
    assert_eq!(got.nb, (!contiguous).then_some(want.nb), "{place}: strides");
    let view = got.view_src.map_or(0, |id| seen.tensor(id).addr);
    assert_eq!(view, want.view_src, "{place}: what it is a view of");
}

fn contiguous(n: &Node, block: u64, bytes: u64) -> bool {
    let row = bytes * (n.ne[0] / block);
    let dense = [bytes, row, row * n.ne[1], row * n.ne[1] * n.ne[2]];
    n.nb == dense
}

/// The error: one line on standard error apart from the ready line; exit code 1, no panic.
pub fn one_line_error(run: &super::run::Run, parts: &[&str]) {
    assert_eq!(run.status.code(), Some(1), "{}: {}", run.status, run.stderr);
    let lines: Vec<&str> = run.stderr.lines().filter(|l| !l.starts_with("profinfer: ready: ")).collect();
    assert_eq!(lines.len(), 1, "one line: {}", run.stderr);
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    for part in parts {
        assert!(run.stderr.contains(part), "'{part}' in: {}", run.stderr);
    }
    assert!(!run.trace.exists(), "no file is left behind");
}
