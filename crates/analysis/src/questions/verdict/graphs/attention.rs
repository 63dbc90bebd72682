//! The operators of attention: their time, and the cells of the cache that they read.

use std::collections::HashMap;

use super::PhaseGraphs;
use crate::recorded::describe::{is_cache, op_name, source};
use crate::recorded::load::Loaded;
use pfi::record::Tensor;

/// The mean of a graph.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionWork {
    /// By the fused operator.
    pub fused: bool,
    /// Thread 0's time in them, with the waits after them, ns.
    pub ns: f64,
    /// Cells that they read of the cache of a layer; the most of any layer.
    pub cells: f64,
    /// Cells and positions, of the graphs that compute tokens of one sequence alone; `None` if there are none, or their batches
    /// were not recorded.
    pub alone: Option<(f64, f64)>,
}

#[derive(Default, Clone, Copy)]
struct OfPlan {
    fused: bool,
    ns: f64,
    cells: u64,
}

pub fn work(graphs: &PhaseGraphs<'_, '_, '_>) -> Option<AttentionWork> {
    let input = graphs.input;
    let of = |plan: &u32| {
        graphs.hits(*plan).fold(OfPlan::default(), |mut sum, (_, t, ns)| {
            if let Some(part) = part(input.loaded, t) {
                sum = OfPlan {
                    fused: sum.fused | part.fused,
                    ns: sum.ns + ns,
                    cells: sum.cells.max(part.cells),
                };
            }
            sum
        })
    };
    let plans: Vec<(u32, OfPlan)> = graphs.plans.keys().map(|plan| (*plan, of(plan))).collect();
    let of_plan = |plan: u32| plans.get(plans.binary_search_by_key(&plan, |p| p.0).ok()?).map(|p| p.1);
    let positions = positions(input.loaded);
    let (mut n, mut sum, mut fused, mut alone) = (0.0, [0.0; 2], false, [0.0; 3]);
    for (i, g) in graphs.whole() {
        let Some(plan) = g.plan.and_then(of_plan).filter(|plan| plan.cells > 0) else { continue };
        let cells = plan.cells as f64;
        (n, sum, fused) = (n + 1.0, [sum[0] + plan.ns, sum[1] + cells], fused | plan.fused);
        let call = input.line.cpu_call.get(i).copied().flatten().and_then(|at| input.line.calls.get(at));
        if let Some(Some((_, positions))) = call.and_then(|call| positions.get(&call.seq)) {
            alone = [alone[0] + 1.0, alone[1] + cells, alone[2] + *positions as f64];
        }
    }
    (n > 0.0).then(|| AttentionWork {
        fused,
        ns: sum[0] / n,
        cells: sum[1] / n,
        alone: (alone[0] > 0.0).then(|| (alone[1] / alone[0], alone[2] / alone[0])),
    })
}

/// By call: its sequence, and the positions of that after it; none if it computes several.
fn positions(loaded: &Loaded<'_>) -> HashMap<u64, Option<(i64, i64)>> {
    let mut by_call: HashMap<u64, Option<(i64, i64)>> = HashMap::new();
    for part in &loaded.causes.ubatches {
        let Some(call) = part.token else { continue };
        for chunk in pfi::chunks(part) {
            let end = chunk.pos.saturating_add_unsigned(chunk.tokens);
            let known = (chunk.pos >= 0).then_some((chunk.seq, end));
            let of = by_call.entry(call).or_insert(known);
            *of = of.zip(known).filter(|(a, b)| a.0 == b.0).map(|(a, b)| (a.0, a.1.max(b.1)));
        }
    }
    by_call
}

/// An operator of attention: the fused one, a product with the cache, or the softmax between them.
fn part(loaded: &Loaded<'_>, t: &Tensor) -> Option<OfPlan> {
    let cached = |slot: usize| source(loaded, t, slot).filter(|s| is_cache(loaded, s));
    let cells = |keys: &Tensor| keys.ne[1];
    let of = |fused, cells| Some(OfPlan { fused, ns: 0.0, cells });
    match op_name(loaded, t.op) {
        "FLASH_ATTN_EXT" => of(true, cached(1).map_or(0, cells)),
        // The values are transposed: their cells are in the first dimension.
        "MUL_MAT" => cached(0).and_then(|s| of(false, s.ne[1].max(s.ne[0]))),
        "SOFT_MAX" => of(false, 0),
        _ => None,
    }
}
