//! What processes held and used, sample by sample.

use parquet::errors::Result;

use crate::column::{RUN, Table, int, long};
use crate::rows::Rows;
use crate::run::Run;

pub const TABLE: Table = Table {
    name: "usage",
    about: "what a process held and had used at a time, once a second",
    single: false,
    columns: &[
        RUN,
        int("pid", "process"),
        long("start_ns", "when it was read, since the run's start").delta(),
        long("cpu_ns", "CPU time of its threads since it began").or_null(),
        long("team_cpu_ns", "the same of those that compute graphs which another thread calls").or_null(),
        long("yields", "how often the threads that live gave up the CPU").or_null(),
        long("preemptions", "how often they lost it to others").or_null(),
        long("anonymous_bytes", "resident memory of its own").or_null(),
        long("files_bytes", "resident pages of mapped files").or_null(),
        long("shared_bytes", "resident shared memory").or_null(),
        long("swapped_bytes", "memory in swap").or_null(),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let ns = |us: Option<u64>| us.map(|us| us.saturating_mul(1000));
    for r in &run.loaded.causes.usage {
        rows.row()
            .int(Some(r.pid))
            .long(Some(run.since(r.t)))
            .long(ns(r.cpu_us))
            .long(ns(r.team_us))
            .long(r.yields)
            .long(r.preemptions)
            .long(r.anonymous)
            .long(r.files)
            .long(r.shared)
            .long(r.swapped)
            .end()?;
    }
    Ok(())
}
