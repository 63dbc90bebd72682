//! Kernels that devices executed, with their times.

use analysis::sums::device_kernels::{rows, source_name};
use parquet::errors::Result;

use crate::column::{RUN, Table, int, long, text};
use crate::rows::Rows;
use crate::run::{Run, phase};

pub const TABLE: Table = Table {
    name: "kernels",
    about: "a kernel that a device executed",
    single: false,
    columns: &[
        RUN,
        int("pid", "process"),
        int("tid", "thread that gave it to the device"),
        int("context", "number of the context in its process, from 1").or_null(),
        text("phase", "`prefill` or `decode`").or_null(),
        long("call", "number of the call, as in `calls`").or_null().delta(),
        long("split", "number of the split, as in `splits`").delta(),
        text("backend", "name of the backend"),
        text("source", "where the times come from"),
        text("name", "name of the kernel"),
        text("ops", "operations that it computes, joined by `+`, or why they are not known"),
        long("host_ns", "when the host began to enqueue it, since the run's start").delta(),
        long("queued_ns", "when it was queued, by the device's clock, as the next").or_null().delta(),
        long("submitted_ns", "when it was submitted").or_null().delta(),
        long("start_ns", "start").delta(),
        long("end_ns", "end").delta(),
        long("idle_before_ns", "without a kernel on the device before it; null for the first of a graph")
            .or_null(),
        long("error_ns", "by which the device's times may be off, all by the same"),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, out: &mut Rows<'_>) -> Result<()> {
    for r in rows(&run.loaded, &run.idents) {
        let (k, since) = (&r.kernel, |t: u64| run.since(t.cast_signed()));
        let owner = run.graph(k.split.graph);
        let (queued, submitted) = k.queued_submitted().unzip();
        out.row()
            .int(Some(k.of.pid))
            .int(Some(k.of.tid))
            .int(owner.context)
            .text(phase(owner.phase))
            .long(owner.call)
            .long(Some(k.split.seq))
            .text(Some(&r.backend))
            .text(Some(source_name(k.of.source)))
            .text(Some(r.name))
            .text(Some(&r.ops))
            .long(Some(since(k.times.host)))
            .long(queued.map(since))
            .long(submitted.map(since))
            .long(Some(since(k.times.started)))
            .long(Some(since(k.times.ended)))
            .long(r.idle_before_ns)
            .long(Some(k.of.error_ns))
            .end()?;
    }
    Ok(())
}
