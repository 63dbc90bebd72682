//! Weights that products read in the layout of their file.

use std::collections::HashSet;

use super::PhaseGraphs;
use crate::recorded::describe::{op_name, tensor_bytes, weight};

/// Types whose matrices llama.cpp repacks on x86-64 and Arm (ggml_repack_get_optimal_repack_type() in
/// ggml/src/ggml-cpu/repack.cpp, b11669; Q4_0 since 2024).
const REPACKED: [&str; 3] = ["q4_0", "q4_K", "iq4_nl"];

/// See [`super::GraphFacts::plain`].
pub fn plain(graphs: &PhaseGraphs<'_, '_, '_>) -> Option<f64> {
    let loaded = graphs.input.loaded;
    // It leaves `data` at the file, and has its repacked matrix beside it.
    if loaded.engines.iter().any(|engine| engine.version.contains("ggml-runner")) {
        return None;
    }
    let stored: HashSet<u32> = loaded.causes.tensor_data.iter().map(|d| d.tensor).collect();
    let (mut seen, mut plain, mut all) = (HashSet::new(), 0.0, 0.0);
    for (_, t, _) in graphs.plans.keys().flat_map(|plan| graphs.hits(*plan)) {
        let of_product = op_name(loaded, t.op).starts_with("MUL_MAT");
        let Some(id) = t.src.first().copied().flatten().filter(|_| of_product) else { continue };
        let Some(w) = weight(loaded, t).filter(|_| seen.insert(id)) else { continue };
        let bytes = tensor_bytes(loaded, w).unwrap_or(0) as f64;
        all += bytes;
        let repacked = loaded.types.get(&w.ty).is_some_and(|ty| REPACKED.contains(&ty.name));
        if repacked && stored.contains(&id) {
            plain += bytes;
        }
    }
    (plain > 0.0).then_some(plain / all)
}
