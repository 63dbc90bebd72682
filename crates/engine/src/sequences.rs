//! Functions that show which sequences an engine computes: the parts of a batch, and the calls that change a context's
//! memory.
//!
//! Where programs pass a `llama_batch` it is read at the call itself. `llama_process` takes an object whose layout is
//! internal; there the parts that it is cut into (`llama_ubatch`) are read.

use crate::discover::DiscoveredEngine;
use crate::ladder::{self, FunctionDecl, Rung, RungMethod, TOKEN};
use crate::layout;
use crate::probes::{MEMORY, Prog, TASKS};

/// Functions that take `(this, ubatch, ...)` once for each ubatch, best first.
const UBATCH: [&str; 2] = [
    "_ZN13llama_context14process_ubatchERK12llama_ubatch14llm_graph_typeP22llama_memory_context_iR11ggml_status",
    "_ZN16llm_graph_result10set_inputsEPK12llama_ubatch",
];
/// Returns a member of the llama_context: its memory.
const GET_MEMORY: &str = "_ZNK13llama_context10get_memoryEv";

/// All functions used here, so that a file's tables are read only once for all of them.
pub fn names() -> impl Iterator<Item = &'static str> {
    UBATCH.into_iter().chain([GET_MEMORY]).chain(MEMORY.iter().map(|m| m.function)).chain(TASKS)
}

/// Whether the batches of this engine are read where they are passed.
pub fn passes_batches(engine: &DiscoveredEngine) -> bool {
    !has(engine, TOKEN[0])
}

fn has(engine: &DiscoveredEngine, symbol: &'static str) -> bool {
    engine.modules.iter().any(|m| m.roles.has_names() && m.elf.find([symbol])[0].is_some())
}

/// Offset of `llama_context.memory`, if the function that returns it can be read.
pub fn memory_offset(engine: &DiscoveredEngine) -> Option<u32> {
    let named = engine.modules.iter().filter(|m| m.roles.has_names());
    named.filter_map(|m| layout::member_returned(&m.elf, GET_MEMORY)).next()
}

/// The rungs for the parts of a batch.
pub(super) fn ubatch(engine: &DiscoveredEngine) -> Vec<Rung> {
    let names = ["llama_context::process_ubatch", "llm_graph_result::set_inputs"];
    let rung = |(name, symbol)| {
        let points = ladder::points(engine, &[&ladder::function(symbol, 2, false, false)], &|_| true);
        (!points.is_empty()).then_some(Rung { name, how: RungMethod::Symbols, points })
    };
    match passes_batches(engine) {
        true => Vec::new(),
        false => names.into_iter().zip(UBATCH).filter_map(rung).collect(),
    }
}

/// The rungs for changes of a context's memory. A release has wrappers under the names of earlier ones, so only one
/// family is probed.
pub(super) fn memory(engine: &DiscoveredEngine) -> Vec<Rung> {
    let rung = |family: &'static str| {
        let of_family =
            MEMORY.iter().filter(|m| m.function.starts_with(family) || m.function.starts_with("llama_state"));
        let functions: Vec<FunctionDecl> =
            of_family.map(|m| ladder::function(m.function, arguments(m.prog), false, false)).collect();
        let points = ladder::points(engine, &functions.iter().collect::<Vec<_>>(), &|_| true);
        let has = points.iter().any(|p| p.symbol.starts_with(family));
        has.then_some(Rung { name: family, how: RungMethod::Symbols, points })
    };
    ["llama_memory", "llama_kv_self", "llama_kv_cache"].into_iter().filter_map(rung).collect()
}

/// The rungs for the requests of a server. Its results say which slot a request has.
pub(super) fn task(engine: &DiscoveredEngine) -> Vec<Rung> {
    let functions = TASKS.map(|symbol| ladder::function(symbol, 2, false, false));
    let points = ladder::points(engine, &functions.iter().collect::<Vec<_>>(), &|_| true);
    let (results, requests): (Vec<_>, Vec<_>) = points.iter().partition(|p| p.symbol == TASKS[2]);
    let both = !results.is_empty() && !requests.is_empty();
    both.then_some(Rung { name: "server_queue::post", how: RungMethod::Symbols, points })
        .into_iter()
        .collect()
}

/// Arguments that a program reads.
fn arguments(prog: Prog) -> u8 {
    match prog {
        Prog::MemoryCopy | Prog::MemoryShift | Prog::MemoryDivide => 5,
        Prog::MemoryRemove | Prog::StateSeqSave | Prog::StateSeqLoad => 4,
        Prog::StateFileSave | Prog::StateFileLoad => 3,
        Prog::MemoryKeep => 2,
        _ => 1,
    }
}
