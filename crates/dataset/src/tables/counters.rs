//! Counter values of ops.

use parquet::errors::Result;
use pfi::counts;

use crate::column::{RUN, Table, int, long, text};
use crate::rows::{Rows, Word};
use crate::run::{Run, phase};

pub const TABLE: Table = Table {
    name: "counters",
    about: "the count of a counter in an op on a thread; ops whose count is not known have no row",
    single: false,
    columns: &[
        RUN,
        text("phase", "`prefill` or `decode`").or_null(),
        long("graph", "number of the CPU graph").delta(),
        int("thread", "index in GGML's pool"),
        int("node", "position in the graph, as in `ops`").delta(),
        text("op", "operation").or_null(),
        text("counter", "counter as requested: `cycles`"),
        text("unit", "`events`, `bytes` or `ns`"),
        long("value", "count, in this unit").delta(),
    ],
    fill,
};

struct Kind {
    name: Word,
    unit: Word,
    scale: u64,
}

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let l = &run.loaded;
    let mut kinds: Vec<Option<Kind>> = (0..32).map(|_| None).collect();
    for c in &l.causes.counters {
        let kind = Kind { name: rows.word(c.name), unit: rows.word(c.unit), scale: c.scale.max(1).into() };
        if let Some(place) = kinds.get_mut(c.id as usize) {
            *place = Some(kind);
        }
    }
    let ops: Vec<Option<Word>> =
        run.idents.list().iter().map(|i| i.known.then(|| rows.word(&i.op))).collect();
    for r in &l.causes.counts {
        let phase = run.cpu_graph(r.graph).and_then(|(_, o)| phase(o.phase)).map(|p| rows.word(p));
        let idents = run.idents.of_plan(r.plan);
        let ids: Vec<usize> = (0..32).filter(|id| r.counters >> id & 1 != 0).collect();
        for (i, value) in counts(r).enumerate() {
            let (Some(slot), Some(step)) = (i.checked_rem(ids.len()), i.checked_div(ids.len())) else {
                break;
            };
            let kind = ids.get(slot).and_then(|id| kinds.get(*id)?.as_ref());
            let (Some(kind), Some(value)) = (kind, value) else { continue };
            let node = (r.first as usize).saturating_add(step);
            rows.row()
                .word(phase)
                .long(Some(r.graph))
                .int(Some(r.ith))
                .int(Some(node))
                .word(idents.get(node).and_then(|ident| *ops.get(*ident)?))
                .word(Some(kind.name))
                .word(Some(kind.unit))
                .long(Some(value.saturating_mul(kind.scale)))
                .end()?;
        }
    }
    Ok(())
}
