//! The functions of device backends that enqueue one node of a graph, found by their names in the backends' symbols, or
//! without symbols as candidates: what the backend's `graph_compute` calls.

use crate::callees;
use crate::discover::DiscoveredEngine;
use crate::elf::ElfFile;
use crate::ladder::{NodeArg, ProbePoint, Rung, RungMethod};
use crate::prologue::{self, Need};

/// A function named by the user, of a backend that is not known here. Its argument of this number, from 1 to
/// [`ARGUMENTS`], is the node. It lives as long as the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpProbe {
    pub symbol: &'static str,
    pub argument: u8,
}

impl OpProbe {
    fn function(self) -> NodeFunction {
        let node = NodeArg::Tensor(self.argument);
        NodeFunction { name: self.symbol, mangled: &[], node, returns: true, called_by: None }
    }
}

/// The arguments that the BPF programs can read.
pub const ARGUMENTS: u8 = 4;

/// Such a function of one backend.
struct NodeFunction {
    /// Its name in the source.
    name: &'static str,
    /// Its mangled name without `_Z` or `_ZL`, up to the argument that is the node. A compiler adds the types of the
    /// others and a tail (`.isra.0`). Empty: any function of this name, also in C.
    mangled: &'static [&'static str],
    node: NodeArg,
    /// Whether fused nodes are enqueued outside it, so that its return must be seen.
    returns: bool,
    /// The backend whose `graph_compute` calls it directly, if it can be told from other functions by its arguments.
    called_by: Option<&'static str>,
}

/// Of functions of the same module, the first is taken.
const FUNCTIONS: [NodeFunction; 7] = [
    // ggml-vulkan.cpp: `(ctx, cgraph, node_idx, ...)` since 2025-10, `(ctx, node, node_idx, ...)` since 2024-07. It is
    // called for each node but those fused into the one before.
    NodeFunction {
        name: "ggml_vk_build_graph",
        mangled: &[
            "19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_cgraphi",
            "19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_tensori",
            "19ggml_vk_build_graphP23ggml_backend_vk_contextP11ggml_tensorS2_i",
        ],
        node: NodeArg::Index,
        returns: false,
        called_by: Some("Vulkan"),
    },
    // ggml-opencl.cpp: `(backend, tensor)` since 2024-12.
    NodeFunction {
        name: "ggml_cl_compute_forward",
        mangled: &["23ggml_cl_compute_forwardP12ggml_backendP11ggml_tensor"],
        node: NodeArg::Tensor(2),
        returns: true,
        called_by: None,
    },
    // ggml-rknn.cpp of forks for Rockchip NPUs: `(backend, tensor)`, exported; ProfInfer's probe of an NPU (table 2).
    NodeFunction {
        name: "ggml_rk_compute_forward",
        mangled: &["23ggml_rk_compute_forwardP12ggml_backendP11ggml_tensor"],
        node: NodeArg::Tensor(2),
        returns: true,
        called_by: None,
    },
    // ggml-cuda.cu, also HIP and MUSA: `(ctx, cgraph, i)` since 2026-04, before each node that is computed.
    NodeFunction {
        name: "ggml_cuda_try_fuse",
        mangled: &["18ggml_cuda_try_fuseP25ggml_backend_cuda_contextP11ggml_cgraphi"],
        node: NodeArg::Index,
        returns: false,
        called_by: None,
    },
    // Before that: `(ctx, dst)` since 2023-11; compilers often inline it.
    NodeFunction {
        name: "ggml_cuda_compute_forward",
        mangled: &["25ggml_cuda_compute_forwardR25ggml_backend_cuda_contextP11ggml_tensor"],
        node: NodeArg::Tensor(2),
        returns: true,
        called_by: None,
    },
    // ggml-sycl.cpp, ggml-cann.cpp: `(ctx, dst)`.
    NodeFunction {
        name: "ggml_sycl_compute_forward",
        mangled: &["25ggml_sycl_compute_forwardR25ggml_backend_sycl_contextP11ggml_tensor"],
        node: NodeArg::Tensor(2),
        returns: true,
        called_by: None,
    },
    NodeFunction {
        name: "ggml_cann_compute_forward",
        mangled: &["25ggml_cann_compute_forwardR25ggml_backend_cann_contextP11ggml_tensor"],
        node: NodeArg::Tensor(2),
        returns: true,
        called_by: None,
    },
];

/// Bytes of a function to decode.
const CODE: usize = 4096;

/// The rung with a point in each module that has such a function.
pub fn rung(engine: &DiscoveredEngine) -> Option<Rung> {
    let drives = engine.modules.iter().enumerate().filter(|(_, m)| m.roles.drives);
    let points: Vec<ProbePoint> = drives.filter_map(|(i, m)| points(&m.elf, i).next()).collect();
    let name = points.first()?.symbol;
    Some(Rung { name, how: RungMethod::Symbols, points })
}

/// The same with the user's function, in whichever modules have it, by the name in the source or in the file.
pub fn own_rung(engine: &DiscoveredEngine, own: OpProbe) -> Option<Rung> {
    let f = own.function();
    let modules = engine.modules.iter().enumerate();
    let points: Vec<ProbePoint> = modules.filter_map(|(i, m)| point(&m.elf, i, &f)).collect();
    (!points.is_empty()).then_some(Rung { name: own.symbol, how: RungMethod::Symbols, points })
}

fn points(elf: &ElfFile, module: usize) -> impl Iterator<Item = ProbePoint> + '_ {
    FUNCTIONS.iter().filter_map(move |f| point(elf, module, f))
}

fn point(elf: &ElfFile, module: usize, f: &NodeFunction) -> Option<ProbePoint> {
    let names = elf.names_with(f.name);
    // A part that the compiler split off as unlikely is another function of almost the same name.
    let names: Vec<&str> =
        names.iter().map(String::as_str).filter(|n| is(n, f) && !n.ends_with(".cold")).collect();
    let mut found = vec![None; names.len()];
    elf.find_into(&names, &mut found);
    let symbol = found.into_iter().flatten().find(|s| s.function)?;
    point_at(elf, module, f, symbol.vaddr)
}

fn point_at(elf: &ElfFile, module: usize, f: &NodeFunction, vaddr: u64) -> Option<ProbePoint> {
    let code = elf.bytes_at(vaddr, CODE);
    let n_args = match f.node {
        NodeArg::Index => 3,
        NodeArg::Tensor(n) => n,
    };
    Some(ProbePoint {
        symbol: f.name,
        module,
        sym_file_offset: elf.file_offset(vaddr)?,
        entry: prologue::entry(elf.machine, &code, Need { args: n_args, stack: false }),
        ret: f.returns.then(|| prologue::ret(elf.machine, &code)),
        marker: None,
        n_args,
        batch: None,
        node: Some(f.node),
    })
}

/// Candidates to try for a backend's function without a name.
const CANDIDATES: usize = 4;

/// Whether the function of the backend with this name can be found without symbols.
pub fn needs_no_name(backend: &str) -> bool {
    FUNCTIONS.iter().any(|f| f.called_by == Some(backend))
}

/// The functions that may be the backend's, the most likely first: it is one of the longest that `graph_compute` (at an
/// address of the file) calls; in b5640, b8390 and v0.5.0 the first or second. Only those are returned that begin with
/// a known instruction.
pub fn candidates(elf: &ElfFile, module: usize, graph_compute: u64, backend: &str) -> Vec<ProbePoint> {
    let Some(f) = FUNCTIONS.iter().find(|f| f.called_by == Some(backend)) else { return Vec::new() };
    let known = |vaddr: &u64| prologue::decode(elf.machine, &elf.bytes_at(*vaddr, CODE)).is_some();
    let called = callees::longest(elf, graph_compute).into_iter().filter(known);
    called.filter_map(|vaddr| point_at(elf, module, f, vaddr)).take(CANDIDATES).collect()
}

/// Whether a symbol's name is the function's.
fn is(name: &str, f: &NodeFunction) -> bool {
    let any_types = f.mangled.is_empty();
    if any_types && name == f.name {
        return true;
    }
    let Some(mangled) = name.strip_prefix("_Z") else { return false };
    let mangled = mangled.strip_prefix('L').unwrap_or(mangled);
    if any_types {
        return mangled.strip_prefix(&f.name.len().to_string()).is_some_and(|m| m.starts_with(f.name));
    }
    f.mangled.iter().any(|m| mangled.starts_with(m))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_s_function_is_found_by_either_name() {
        let is = |name: &str, symbol| super::is(name, &OpProbe { symbol, argument: 2 }.function());
        let mangled = "_Z18ggml_rk_compute_opR7contextP11ggml_tensor";
        assert!(is("ggml_rk_compute_op", "ggml_rk_compute_op"), "C");
        assert!(is(mangled, "ggml_rk_compute_op"));
        assert!(is("_ZL18ggml_rk_compute_opP11ggml_tensor", "ggml_rk_compute_op"), "static");
        assert!(is(mangled, mangled), "as nm shows it");
        assert!(!is("_Z20ggml_rk_compute_op_2P11ggml_tensor", "ggml_rk_compute_op"), "a longer name");
        assert!(!is("ggml_rk_compute_op_2", "ggml_rk_compute_op"));
        assert!(!is("_Z3runv", ""));
    }
}
