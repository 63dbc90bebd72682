//! Splits of graphs: which backend computed which part, and when.

use std::collections::HashMap;

use analysis::recorded::calls::on_device;
use analysis::sums::tables::backend_name;
use parquet::errors::Result;
use pfi::record::Device;

use crate::column::{RUN, Table, boolean, int, long, text};
use crate::rows::Rows;
use crate::run::{Run, phase};

pub const TABLE: Table = Table {
    name: "splits",
    about: "a part of a graph that the scheduler gave to one backend",
    single: false,
    columns: &[
        RUN,
        int("pid", "process"),
        int("context", "number of the context in its process, from 1").or_null(),
        text("phase", "`prefill` or `decode`").or_null(),
        long("call", "number of the call, as in `calls`").or_null().delta(),
        long("graph", "number of the scheduler's graph").or_null().delta(),
        long("split", "number of the split").delta(),
        text("backend", "name of the backend"),
        boolean("device", "the backend computes on a device other than the CPU"),
        long("cpu_graph", "number of its CPU graph, as `graph` in `ops`").or_null().delta(),
        int("nodes", "nodes of it"),
        long("start_ns", "start, since the run's start").delta(),
        long("dur_ns", "duration, including the wait for the device after its return").delta(),
        long("device_ns", "that wait; null if the completion was not seen").or_null(),
        boolean("cut", "the recording ended before it"),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let l = &run.loaded;
    let cpu: HashMap<u64, u64> = l.cpu_graphs.iter().filter_map(|g| Some((g.split?, g.seq))).collect();
    for s in &l.splits {
        let owner = run.graph(s.graph);
        rows.row()
            .int(Some(s.pid))
            .int(owner.context)
            .text(phase(owner.phase))
            .long(owner.call)
            .long(s.graph)
            .long(Some(s.seq))
            .text(Some(&backend_name(l, s.backend)))
            .bool(Some(on_device(l, s.backend)))
            .long(cpu.get(&s.seq).copied())
            .int(Some(s.n_nodes))
            .long(Some(run.since(s.t)))
            .long(Some(s.dur))
            .long((s.device != Device::Unseen).then_some(s.device.waited()))
            .bool(Some(s.cut))
            .end()?;
    }
    Ok(())
}
