//! The function of a device backend that enqueues one node of a graph, found by its name in the backend's symbols.

use crate::engine::discover::DiscoveredEngine;
use crate::engine::elf::ElfFile;
use crate::engine::ladder::{ProbePoint, Rung, RungMethod};
use crate::engine::prologue::{self, Need};

/// Such a function of one backend.
struct NodeFunction {
    /// Its name in the source.
    name: &'static str,
    /// Beginnings of its mangled name, up to the type of the third argument, the node's index. A compiler adds the types
    /// of the others and a tail (`.isra.0`).
    mangled: &'static [&'static str],
}

/// ggml-vulkan.cpp: `(ctx, cgraph, node_idx, ...)` since 2025-10, `(ctx, node, node_idx, ...)` since 2024-07. It is
/// called for each node but those fused into the one before.
const VULKAN: NodeFunction = NodeFunction {
    name: "ggml_vk_build_graph",
    mangled: &[
        "_Z19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_cgraphi",
        "_ZL19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_cgraphi",
        "_Z19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_tensori",
        "_Z19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_tensorS2_i",
        "_ZL19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_tensorS2_i",
        "_ZL19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_tensori",
    ],
};

/// Bytes of a function to decode.
const CODE: usize = 4096;

/// The rung with a point in each module that has such a function.
pub fn rung(engine: &DiscoveredEngine) -> Option<Rung> {
    let drives = engine.modules.iter().enumerate().filter(|(_, m)| m.roles.drives);
    let points = drives.filter_map(|(i, m)| point(&m.elf, i)).collect::<Vec<_>>();
    (!points.is_empty()).then_some(Rung { name: VULKAN.name, how: RungMethod::Symbols, points })
}

fn point(elf: &ElfFile, module: usize) -> Option<ProbePoint> {
    let names = elf.names_with(VULKAN.name);
    // A part that the compiler split off as unlikely is another function of almost the same name.
    let whole = |n: &&String| VULKAN.mangled.iter().any(|m| n.starts_with(m)) && !n.ends_with(".cold");
    let names: Vec<&str> = names.iter().filter(whole).map(String::as_str).collect();
    let mut found = vec![None; names.len()];
    elf.find_into(&names, &mut found);
    let symbol = found.into_iter().flatten().find(|s| s.function)?;
    let code = elf.bytes_at(symbol.vaddr, CODE);
    Some(ProbePoint {
        symbol: VULKAN.name,
        module,
        sym_file_offset: elf.file_offset(symbol.vaddr)?,
        entry: prologue::entry(elf.machine, &code, Need { args: 3, stack: false }),
        ret: None,
        marker: None,
        n_args: 3,
        batch: None,
    })
}
