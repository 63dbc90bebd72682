//! Operators of low-rank adapters: an adapter adds two products, a scale and a sum to a product (build_lora_mm() in
//! src/llama-graph.cpp, b11669).

use std::collections::HashSet;

use super::PhaseGraphs;
use crate::recorded::describe::{op_name, weight};

/// The mean of a graph.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterWork {
    /// Operators of adapters, and all operators.
    pub ops: f64,
    pub all_ops: f64,
    /// Thread 0's time in those of adapters, with the waits after them, ns.
    pub ns: f64,
}

pub fn work(graphs: &PhaseGraphs<'_, '_, '_>) -> Option<AdapterWork> {
    let loaded = graphs.input.loaded;
    let mut sum = AdapterWork { ops: 0.0, all_ops: 0.0, ns: 0.0 };
    for (plan, n) in &graphs.plans {
        let n = *n as f64;
        // Results of an adapter's products and scales, which a sum may add to the model's own.
        let mut parts: HashSet<u32> = HashSet::new();
        for ((result, fused), t, ns) in graphs.hits(*plan) {
            sum.all_ops += n;
            let of_parts = t.src.iter().flatten().any(|id| parts.contains(id));
            let low_rank = |name: &str| name.ends_with(".lora_a") || name.ends_with(".lora_b");
            let added = match op_name(loaded, t.op) {
                "MUL_MAT" | "MUL_MAT_ID" => {
                    weight(loaded, t).is_some_and(|w| low_rank(&w.name)) && parts.insert(result)
                }
                "SCALE" => of_parts && parts.insert(result),
                "ADD" => of_parts,
                _ => false,
            };
            if added {
                parts.extend(fused);
                (sum.ops, sum.ns) = (sum.ops + n, sum.ns + ns * n);
            }
        }
    }
    let graphs = graphs.plans.values().sum::<u64>() as f64;
    (sum.ops > 0.0).then(|| AdapterWork {
        ops: sum.ops / graphs,
        all_ops: sum.all_ops / graphs,
        ns: sum.ns / graphs,
    })
}
