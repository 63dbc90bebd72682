//! Tensors: what ops compute and read.

use std::collections::{BTreeMap, HashMap};

use analysis::recorded::describe::{Ident, form, is_leaf, op_desc, tensor_bytes};
use analysis::recorded::load::HitTensors;
use common::order;
use ggml::names::fold;
use parquet::errors::Result;

use crate::column::{RUN, Table, boolean, int, ints, long, text};
use crate::rows::Rows;
use crate::run::Run;

pub const TABLE: Table = Table {
    name: "tensors",
    about: "a tensor as it was when an op ran; one whose type, dimensions or sources change gets a new number",
    single: false,
    columns: &[
        RUN,
        int("tensor", "number of the tensor in its run").delta(),
        int("pid", "process"),
        text("name", "name as the engine gave it").or_null(),
        int("layer", "layer, if the name has one").or_null(),
        text("op", "operation that computes it; null if it is not known").or_null(),
        text("type", "type of its elements").or_null(),
        long("ne0", "dimensions").or_null(),
        long("ne1", "").or_null(),
        long("ne2", "").or_null(),
        long("ne3", "").or_null(),
        ints("sources", "numbers of the tensors that it is computed from").or_null(),
        boolean("leaf", "no op computes it: weights, inputs, caches"),
        long("bytes", "bytes of its elements").or_null(),
        int("fused", "second tensor that the same op computes").or_null(),
        text("form", "types and dimensions of the op's result and sources").or_null(),
        long("op_bytes", "bytes that the op reads and writes, by the cost model").or_null(),
        long("op_flops", "floating-point operations of the op, by the cost model").or_null(),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let l = &run.loaded;
    let hits = hits(run);
    let mut ids: Vec<u32> = l.tensors.keys().copied().collect();
    order::by_key(&mut ids, |id| ((*id).into(), 0));
    for id in ids {
        let Some(t) = l.tensors.get(&id) else { continue };
        let hit = hits.get(&id);
        let known = t.known.then_some(t);
        let name = known.map(|t| &*t.name).filter(|name| !name.is_empty());
        let ne = |at: usize| known.and_then(|t| t.ne.get(at)).copied();
        let leaf = is_leaf(l, t);
        let form = hit.map(|(hit, _)| form(l, Some(*hit))).filter(|form| !form.is_empty());
        let work = hit.and_then(|(_, ident)| ident.work);
        rows.row()
            .int(Some(id))
            .int(Some(t.pid))
            .text(name)
            .int(name.and_then(|name| fold(name).layer))
            .text(known.filter(|_| !leaf).map(|t| op_desc(l, t.op)).as_deref())
            .text(known.and_then(|t| l.types.get(&t.ty)).map(|ty| ty.name))
            .long(ne(0))
            .long(ne(1))
            .long(ne(2))
            .long(ne(3))
            .ints(known.map(|t| t.src.iter().flatten().map(|id| i32::try_from(*id).unwrap_or(i32::MAX))))
            .bool(Some(leaf))
            .long(known.and_then(|t| tensor_bytes(l, t)))
            .int(hit.and_then(|(hit, _)| hit.1))
            .text(form.as_deref())
            .long(work.map(|w| w.read.saturating_add(w.written)))
            .long(work.map(|w| w.flops))
            .end()?;
    }
    Ok(())
}

/// The op that computes each tensor; of several, that of the plan with the lowest number.
fn hits<'r>(run: &'r Run<'_, '_>) -> HashMap<u32, (HitTensors, &'r Ident)> {
    let mut hits = HashMap::new();
    let plans: BTreeMap<_, _> = run.loaded.plans.iter().collect();
    for (plan, info) in plans {
        for (hit, ident) in info.hits.iter().zip(run.idents.of_plan(*plan)) {
            if let Some(ident) = run.idents.list().get(*ident).filter(|i| i.known) {
                hits.entry(hit.0).or_insert((*hit, ident));
            }
        }
    }
    hits
}
