//! The experts that layers chose.

use ggml::names::fold;
use parquet::errors::Result;
use pfi::expert_ids;
use pfi::record::Experts;

use crate::column::{RUN, Table, int, long, text};
use crate::rows::Rows;
use crate::run::{Run, phase};

pub const TABLE: Table = Table {
    name: "experts",
    about: "an expert that a layer chose for a token; ids that belong to no expert are left out",
    single: false,
    columns: &[
        RUN,
        int("pid", "process").or_null(),
        text("phase", "`prefill` or `decode`").or_null(),
        long("call", "number of the call, as in `calls`").or_null().delta(),
        long("graph", "number of the CPU graph").delta(),
        int("layer", "layer, if the name of the tensor has one").or_null(),
        int("ids", "tensor of the choices, as in `tensors`"),
        int("token", "token within the graph, from 0").delta(),
        int("slot", "choice of the token, from 0"),
        int("expert", "the expert"),
        int("experts", "number of the layer's experts").or_null(),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    for r in run.loaded.causes.experts.iter().filter(|r| r.why.is_empty() && r.used > 0) {
        let owner = run.cpu_graph(r.graph).map(|(_, owner)| owner);
        let phase = owner.and_then(|o| phase(o.phase)).map(|p| rows.word(p));
        let (layer, most) = (layer(run, r), most(run, r));
        for (i, expert) in (0u64..).zip(expert_ids(r)) {
            let Some(expert) = u64::try_from(expert).ok().filter(|e| most.is_none_or(|most| *e < most))
            else {
                continue;
            };
            let (row, slot) = (i / u64::from(r.used), i % u64::from(r.used));
            rows.row()
                .int(owner.and_then(|o| o.pid))
                .word(phase)
                .long(owner.and_then(|o| o.call))
                .long(Some(r.graph))
                .int(layer)
                .int(Some(r.ids))
                .int(Some(u64::from(r.first).saturating_add(row)))
                .int(Some(slot))
                .int(Some(expert))
                .int(most)
                .end()?;
        }
    }
    Ok(())
}

/// By the name of the choices, else of the weights.
fn layer(run: &Run<'_, '_>, r: &Experts<'_>) -> Option<u32> {
    let of = |id: &u32| fold(&run.loaded.tensors.get(id)?.name).layer;
    of(&r.ids).or_else(|| of(&r.weights))
}

fn most(run: &Run<'_, '_>, r: &Experts<'_>) -> Option<u64> {
    run.loaded.tensors.get(&r.weights).filter(|t| t.known).map(|t| t.ne[2])
}
