//! Processes and their contexts: the table of runs in `report`.

use analysis::recorded::model::ModelFacts;
use analysis::streams::stacks::model_name;
use parquet::errors::Result;

use crate::column::{RUN, Table, int, long, real, text};
use crate::rows::Rows;
use crate::run::{Run, context};

pub const TABLE: Table = Table {
    name: "contexts",
    about: "a process with calls, or one of its contexts if it has several",
    single: true,
    columns: &[
        RUN,
        int("pid", "process"),
        int("context", "number of the context in its process, from 1"),
        text("command", "command line of the process, without secrets").or_null(),
        text("model", "file name of the model on the command line, if it is the only one").or_null(),
        text("quantisation", "type of most of the weights' bytes").or_null(),
        long("weight_bytes", "bytes of the weights that the recorded ops read").or_null(),
        int("layers", "layers").or_null(),
        int("embedding", "width of the residual stream").or_null(),
        int("feed_forward", "width of a feed-forward layer, of one expert if there are experts").or_null(),
        int("vocabulary", "size of the vocabulary").or_null(),
        int("heads", "heads of attention").or_null(),
        int("kv_heads", "heads of keys and values").or_null(),
        int("experts", "experts of a layer").or_null(),
        int("experts_used", "of those, used for a token").or_null(),
        long("calls", "calls"),
        long("tokens", "tokens of the calls that ended").or_null(),
        long("in_call_ns", "time in calls"),
        real("prefill_tokens_per_s", "tokens over the time in prefill calls").or_null(),
        real("decode_tokens_per_s", "tokens over the time in decode calls").or_null(),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    for row in &run.runs.list {
        let m = &row.model;
        rows.row()
            .int(Some(row.pid))
            .int(Some(context(row)))
            .text(Some(row.command.as_str()).filter(|c| !c.is_empty()))
            .text(model(&row.command).as_deref())
            .text(quantisation(m))
            .long(weight_bytes(m))
            .int(m.layers)
            .int(m.embedding)
            .int(m.feed_forward)
            .int(m.vocabulary)
            .int(m.heads)
            .int(m.kv_heads)
            .int(m.experts)
            .int(m.experts_used)
            .long(Some(row.calls))
            .long(row.tokens)
            .long(Some(row.in_call_ns))
            .real(row.prefill_tokens_per_s)
            .real(row.decode_tokens_per_s)
            .end()?;
    }
    Ok(())
}

/// The model's file on a command line.
pub fn model(command: &str) -> Option<String> {
    Some(model_name(command)).filter(|name| name.to_ascii_lowercase().ends_with(".gguf"))
}

/// The type of most of the weights' bytes.
pub fn quantisation(model: &ModelFacts) -> Option<&str> {
    model.weights.first().filter(|w| w.bytes.is_some()).map(|w| w.name.as_str())
}

pub fn weight_bytes(model: &ModelFacts) -> Option<u64> {
    Some(model.weight_bytes).filter(|bytes| *bytes > 0)
}
