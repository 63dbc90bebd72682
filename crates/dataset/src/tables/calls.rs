//! Calls of the engine.

use analysis::recorded::calls::CallSource;
use analysis::recorded::sequences::CallKind;
use parquet::errors::Result;
use pfi::record::Entry;

use crate::column::{RUN, Table, boolean, int, long, text};
use crate::rows::Rows;
use crate::run::{Run, context, phase};

pub const TABLE: Table = Table {
    name: "calls",
    about: "a call of the engine; where none were recorded, a graph that takes its place",
    single: false,
    columns: &[
        RUN,
        long("call", "number of the call, as in `report --by token`").delta(),
        int("pid", "process"),
        int("context", "number of the context in its process, from 1").or_null(),
        int("tid", "thread that made it"),
        text("function", "`llama_decode`, `llama_encode` or `llama_process`; null for a graph").or_null(),
        text("phase", "`prefill` or `decode`").or_null(),
        text(
            "work",
            "`prefill`, `decode`, `verify` (drafts), `mixed` or `encode`; null if the batch is not known",
        )
        .or_null(),
        int("sequences", "sequences that it computes").or_null(),
        long("tokens", "tokens in the batch; of a draft, the accepted ones and the one after them").or_null(),
        int("graphs", "graphs that it computed"),
        long("start_ns", "start, since the run's start").delta(),
        long("dur_ns", "duration, including the wait for a device after its return").delta(),
        long("device_ns", "that wait"),
        boolean("cut", "its end was not seen: leave it out of sums of times"),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let functions = run.line.source == CallSource::Token;
    let work = |at: usize| run.line.sequences.as_ref()?.works.get(at)?.as_ref();
    for (at, call) in run.line.calls.iter().enumerate() {
        rows.row()
            .long(Some(call.seq))
            .int(Some(call.pid))
            .int(run.of_call(at).map(context))
            .int(Some(call.tid))
            .text(call.entry.filter(|_| functions).map(function))
            .text(phase(Some(call.phase)))
            .text(work(at).and_then(|w| w.kind()).map(CallKind::name))
            .int(work(at).map(|w| w.sequences()))
            .long(call.tokens)
            .int(Some(call.graphs))
            .long(Some(run.since(call.start)))
            .long(Some(call.dur))
            .long(Some(call.device))
            .bool(Some(call.cut))
            .end()?;
    }
    Ok(())
}

/// The function of llama.h that a call entered.
fn function(entry: Entry) -> &'static str {
    match entry {
        Entry::Process => "llama_process",
        Entry::Decode => "llama_decode",
        Entry::Encode => "llama_encode",
    }
}
