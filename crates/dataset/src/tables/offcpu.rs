//! Times at which threads were not on a CPU.

use std::collections::HashMap;

use analysis::sums::attribution::sched::runnable;
use parquet::errors::Result;
use pfi::record::{OffCpu, Tristate};

use crate::column::{RUN, Table, boolean, int, long, text};
use crate::rows::Rows;
use crate::run::Run;

pub const TABLE: Table = Table {
    name: "offcpu",
    about: "a time at which a thread of a recorded process was not on a CPU",
    single: false,
    columns: &[
        RUN,
        int("pid", "process"),
        int("tid", "thread"),
        int("thread", "its index in GGML's pool, if it always had the same").or_null(),
        long("start_ns", "when it left the CPU, since the run's start").delta(),
        long("dur_ns", "until it was back on a CPU").delta(),
        long("runnable_ns", "the last part of it, in which it waited for a CPU").or_null().delta(),
        text(
            "reason",
            "`preempted`, `idle`, `faulting`, `io`, `blocked`; `asleep` if which of these is not known; `new` before a \
             thread first ran",
        ),
        int("cpu", "CPU that it left"),
        int("to_cpu", "CPU that it came back on").or_null(),
        text("by", "thread that took over its CPU").or_null(),
        text("before", "thread that last ran on the CPU it came back on").or_null(),
        text("waker", "thread that woke it").or_null(),
        boolean("cut", "it was not back when the recording ended"),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let causes = &run.loaded.causes;
    let threads = threads(run);
    let mut names: HashMap<u32, &str> = HashMap::new();
    let mut tasks = causes.tasks.iter().peekable();
    for (at, r) in causes.off_cpu.iter().enumerate() {
        while let Some((_, task)) = tasks.next_if(|(from, _)| *from <= at) {
            names.insert(task.tid, task.comm);
        }
        // The idle task has no name, and 0 also means unknown.
        let name = |tid: u32| names.get(&tid).copied().filter(|_| tid > 0);
        rows.row()
            .int(Some(r.pid))
            .int(Some(r.tid))
            .int(threads.get(&r.tid).copied().flatten())
            .long(Some(run.since(r.t)))
            .long(Some(r.dur))
            .long(r.runnable.map(|_| runnable(r)))
            .text(Some(reason(r)))
            .int(Some(r.cpu))
            .int((!r.cut).then_some(r.to_cpu))
            .text(name(r.by))
            .text(name(r.from).filter(|_| !r.cut))
            .text(name(r.waker))
            .bool(Some(r.cut))
            .end()?;
    }
    Ok(())
}

fn reason(r: &OffCpu) -> &'static str {
    match (r.state, r.fault, r.io) {
        (0, ..) => "preempted",
        (255, ..) => "new",
        (_, Tristate::Yes, _) => "faulting",
        (_, _, Tristate::Yes) => "io",
        (1, ..) => "idle",
        (3, ..) => "asleep",
        _ => "blocked",
    }
}

/// The index of each kernel thread; none if it had several.
fn threads(run: &Run<'_, '_>) -> HashMap<u32, Option<u16>> {
    let mut of: HashMap<u32, Option<u16>> = HashMap::new();
    for r in &run.loaded.runs {
        let ith = of.entry(r.tid).or_insert(Some(r.ith));
        if *ith != Some(r.ith) {
            *ith = None;
        }
    }
    of
}
