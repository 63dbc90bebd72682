//! What the CPU computed in graphs with work on a device, and why.

use parquet::errors::Result;

use crate::column::{RUN, Table, int, long, text};
use crate::rows::Rows;
use crate::run::{Run, phase};

pub const TABLE: Table = Table {
    name: "fallbacks",
    about: "nodes of one op, types and reason that the CPU computed in graphs with work on a device",
    single: false,
    columns: &[
        RUN,
        int("pid", "process"),
        int("context", "number of the context in its process, from 1"),
        text("phase", "`prefill` or `decode`").or_null(),
        text("op", "operation"),
        text("type", "type of the first source").or_null(),
        text("types", "types of the result and of all sources"),
        text("name", "name of one of them, with `{L}` for the layer"),
        text(
            "reason",
            "`input-layer`, `host-weights`, `host-cache`, `types`, `neighbours`, `never-on-device` or `unknown`",
        ),
        long("nodes", "executions"),
        long("cpu_ns", "time of thread 0 in them").or_null(),
        long("to_cpu_bytes", "bytes copied to the CPU's memory for them").or_null(),
        long("from_cpu_bytes", "bytes of their results copied to a device").or_null(),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    for (pid, context, of) in run.phases() {
        for n in of.offload.iter().flat_map(|o| &o.on_cpu) {
            rows.row()
                .int(Some(pid))
                .int(Some(context))
                .text(phase(Some(of.phase)))
                .text(Some(&n.op))
                .text(Some(n.ty.as_str()).filter(|ty| !ty.is_empty()))
                .text(Some(&n.types))
                .text(Some(&n.name))
                .text(Some(n.reason.name()))
                .long(Some(n.nodes))
                .long(n.cpu_ns)
                .long(n.to_cpu_bytes)
                .long(n.from_cpu_bytes)
                .end()?;
        }
    }
    Ok(())
}
