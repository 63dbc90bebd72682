//! Ops: one row per op slice, with the times of timelines and of the report.

use analysis::streams::lanes::process_of;
use analysis::sums::op_cpus::CpuChanges;
use analysis::sums::ops::Edges;
use parquet::errors::Result;
use pfi::slice_iter;

use crate::column::{RUN, Table, int, long, text};
use crate::rows::{Rows, Word};
use crate::run::{Owner, Run, phase};

pub const TABLE: Table = Table {
    name: "ops",
    about: "an op on a thread, in the order of graphs, threads and nodes",
    single: false,
    columns: &[
        RUN,
        int("pid", "process").or_null(),
        int("context", "number of the context in its process, from 1").or_null(),
        text("phase", "`prefill` or `decode`").or_null(),
        long("call", "number of the call, as in `calls`").or_null().delta(),
        long("graph", "number of the CPU graph").delta(),
        int("node", "position in the graph, in the order of execution").delta(),
        int("tensor", "number of the result, as in `tensors`").or_null().delta(),
        int("layer", "layer, if its name has one").or_null(),
        text("op", "operation: `MUL_MAT`, `RMS_NORM+MUL`").or_null(),
        text("name", "name of the tensor, with `{L}` for the layer: `ffn_up-{L}`").or_null(),
        int("thread", "index in GGML's pool; 0 is the thread that computes the graph"),
        int("tid", "kernel thread"),
        int("cpu", "CPU that it started on").or_null(),
        long("start_ns", "start, since the run's start").delta(),
        long("dur_ns", "time: with `wait_ns` to the entry of the barrier, else to the next op")
            .or_null()
            .delta(),
        long("wait_ns", "wait at the barrier after it; null in interval mode").or_null().delta(),
    ],
    fill,
};

/// What all slices of an op have in common.
struct Names {
    op: Word,
    name: Word,
    layer: Option<u32>,
}

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let l = &run.loaded;
    let names: Vec<Option<Names>> = run
        .idents
        .list()
        .iter()
        .map(|i| i.known.then(|| Names { op: rows.word(&i.op), name: rows.word(&i.name), layer: i.layer }))
        .collect();
    let cpus = CpuChanges::new(&l.causes.cpus);
    for (i, slices) in l.runs.iter().enumerate() {
        let found = run.cpu_graph(slices.graph);
        let owner =
            found.map_or_else(|| Owner { pid: process_of(l, slices), ..Owner::default() }, |(_, o)| o);
        let phase = phase(owner.phase).map(|p| rows.word(p));
        let next = l.runs.get(i + 1).filter(|n| (n.graph, n.plan) == (slices.graph, slices.plan));
        let edges = Edges::new(slices, next, found.map(|(g, _)| g));
        let idents = run.idents.of_plan(slices.plan);
        let hits = l.plans.get(&slices.plan).map_or(&[][..], |p| &p.hits);
        let mut cpu = cpus.cursor(slices.tid, slices.t);
        for (node, slice) in (slices.first..).zip(slice_iter(slices)) {
            let at = node as usize;
            let known = idents.get(at).and_then(|ident| names.get(*ident)?.as_ref());
            let (time, wait) = edges.times(&slice);
            rows.row()
                .int(owner.pid)
                .int(owner.context)
                .word(phase)
                .long(owner.call)
                .long(Some(slices.graph))
                .int(Some(node))
                .int(hits.get(at).map(|hit| hit.0))
                .int(known.and_then(|n| n.layer))
                .word(known.map(|n| n.op))
                .word(known.map(|n| n.name))
                .int(Some(slices.ith))
                .int(Some(slices.tid))
                .int(cpu.at(slice.start))
                .long(Some(run.since(slice.start)))
                .long(time)
                .long(wait)
                .end()?;
        }
        run.done(slices.data.len());
    }
    Ok(())
}
