//! Threads: where their time went in a phase.

use parquet::errors::Result;

use crate::column::{RUN, Table, int, long, text};
use crate::rows::Rows;
use crate::run::{Run, phase};

pub const TABLE: Table = Table {
    name: "threads",
    about: "a thread of the pool in a phase: `report --by thread`. The eight times from `computing_ns` on add up to its \
            time in ops and in the waits after them; null if the scheduler was not recorded",
    single: false,
    columns: &[
        RUN,
        int("pid", "process"),
        int("context", "number of the context in its process, from 1"),
        text("phase", "`prefill` or `decode`").or_null(),
        int("thread", "index in GGML's pool"),
        int("tids", "kernel threads that had this index"),
        long("slices", "ops"),
        long("op_ns", "time in ops"),
        long("wait_ns", "wait at barriers; null in interval mode").or_null(),
        long("graph_ns", "duration of the graphs of the phase"),
        long("migrations", "ops that started on another CPU than the one before").or_null(),
        long("computing_ns", "on a CPU in an op").or_null(),
        long("barrier_ns", "on a CPU at a barrier").or_null(),
        long("preempted_ns", "runnable while another thread ran").or_null(),
        long("idle_ns", "asleep").or_null(),
        long("faulting_ns", "in page faults").or_null(),
        long("io_ns", "waiting for I/O outside page faults").or_null(),
        long("blocked_ns", "off the CPU for another reason").or_null(),
        long("unknown_ns", "time without scheduler records").or_null(),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    for (pid, context, of) in run.phases() {
        for t in of.by_thread.iter().flatten() {
            let c = t.causes;
            rows.row()
                .int(Some(pid))
                .int(Some(context))
                .text(phase(Some(of.phase)))
                .int(Some(t.ith))
                .int(Some(t.tids))
                .long(Some(t.slices))
                .long(Some(t.op_ns))
                .long(t.wait_ns)
                .long(Some(of.graph_ns))
                .long(t.migrations)
                .long(c.map(|c| c.computing_ns))
                .long(c.map(|c| c.barrier_ns))
                .long(c.map(|c| c.preempted_ns))
                .long(c.map(|c| c.idle_ns))
                .long(c.map(|c| c.faulting_ns))
                .long(c.map(|c| c.io_ns))
                .long(c.map(|c| c.blocked_ns))
                .long(c.map(|c| c.unknown_ns))
                .end()?;
        }
    }
    Ok(())
}
