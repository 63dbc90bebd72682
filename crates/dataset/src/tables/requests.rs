//! Requests, as the batches of the calls show them.

use std::collections::HashMap;

use analysis::recorded::sequences::request_rows;
use parquet::errors::Result;

use crate::column::{RUN, Table, boolean, int, long};
use crate::rows::Rows;
use crate::run::{Run, context};

pub const TABLE: Table = Table {
    name: "requests",
    about: "a request of one sequence (a server's slot); none where batches were not recorded",
    single: false,
    columns: &[
        RUN,
        int("pid", "process"),
        int("context", "number of the context in its process, from 1").or_null(),
        int("seq", "the sequence: of a server, its slot"),
        long("start_ns", "start of its first call, since the run's start").delta(),
        long("queued_ns", "from when the server took it in to its first call").or_null(),
        long("dur_ns", "from the start of its first call to the end of its last"),
        long("prompt_tokens", "tokens of the prompt that were computed"),
        long("cached_tokens", "tokens of the prompt that were in the memory already").or_null(),
        int("prefill_calls", "calls with a part of the prompt"),
        long("prefill_ns", "time in them"),
        long(
            "ttft_ns",
            "from when the server took it in, or its first call where that is not known, to the end of the call that \
             gave the first token",
        )
        .or_null(),
        long("tokens", "tokens that it brought"),
        long("decode_ns", "from the first token to the last").or_null(),
        long("tpot_p50_ns", "time per token after the first: median").or_null(),
        long("tpot_p95_ns", "the same: 95th percentile").or_null(),
        long("tpot_p99_ns", "the same: 99th percentile").or_null(),
        long("stalled_ns", "by how much prompts of other sequences prolonged `decode_ns`"),
        long("drafts", "drafts that were verified"),
        long("drafted", "their tokens"),
        long("accepted", "of these, those accepted"),
        boolean("late", "it began before the recording"),
        boolean("at_least", "the result of its last draft was not seen: it brought at least `tokens`"),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let Some(known) = run.line.sequences.as_ref() else { return Ok(()) };
    // The first call of each request, by which its context is known.
    let mut first: HashMap<usize, usize> = HashMap::new();
    for (call, work) in known.works.iter().enumerate() {
        for (_, _, request) in work.iter().flat_map(|w| &w.chunks) {
            first.entry(*request).or_insert(call);
        }
    }
    for (at, r) in request_rows(&run.line.calls, known) {
        let tpot = r.tpot.as_ref();
        rows.row()
            .int(Some(r.pid))
            .int(first.get(&at).and_then(|call| run.of_call(*call)).map(context))
            .int(Some(r.seq))
            .long(Some(run.since(r.start_ns)))
            .long(r.queued_ns)
            .long(Some(r.duration_ns))
            .long(Some(r.prompt_tokens))
            .long(r.cached_tokens)
            .int(Some(r.prefill_calls))
            .long(Some(r.prefill_ns))
            .long(r.ttft_ns)
            .long(Some(r.tokens))
            .long(r.decode_ns)
            .long(tpot.map(|l| l.p50_ns))
            .long(tpot.map(|l| l.p95_ns))
            .long(tpot.map(|l| l.p99_ns))
            .long(Some(r.stalled_ns))
            .long(Some(r.drafts))
            .long(Some(r.drafted))
            .long(Some(r.accepted))
            .bool(Some(r.late))
            .bool(Some(r.at_least))
            .end()?;
    }
    Ok(())
}
