//! What a file contributes to an engine, by the functions that it defines.

use crate::elf::ElfFile;
use crate::probes::{BATCHES, DISPATCHES, TASKS};

/// What a file contributes to the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roles {
    /// Has an entry function for tokens.
    pub llama: bool,
    /// Has GGML's base code: names, layouts, scheduler.
    pub base: bool,
    /// Computes graphs on the CPU.
    pub cpu: bool,
    /// Computes graphs on a device, and has no other role.
    pub device: bool,
    /// Has code for a device, whatever its other roles.
    pub drives: bool,
    /// Hands over times of kernels on a device.
    pub layer: bool,
    /// Takes in the requests of a server.
    pub serves: bool,
    /// Is, or contains, a runtime to which a backend gives kernels or batches.
    pub dispatches: bool,
}

/// Functions of GGML's base code.
pub const BASE: [&str; 2] = ["ggml_op_name", "ggml_get_name"];

/// Each device library has one of these functions (include/ggml-*.h; the first is in libraries loaded at run time).
const DEVICES: [&str; 17] = [
    "ggml_backend_init",
    "ggml_backend_blas_reg",
    "ggml_backend_cann_reg",
    "ggml_backend_cuda_reg",
    "ggml_backend_hexagon_reg",
    "ggml_backend_metal_reg",
    "ggml_backend_opencl_reg",
    "ggml_backend_rknn_reg",
    "ggml_backend_rpc_reg",
    "ggml_backend_sycl_reg",
    "ggml_backend_vk_reg",
    "ggml_backend_webgpu_reg",
    "ggml_backend_zdnn_reg",
    "ggml_backend_kompute_reg",
    "ggml_backend_virtgpu_reg",
    "ggml_backend_cuda_init",
    "ggml_backend_vk_init",
];

/// Functions that identify a renamed GGML: at least two of them must have the same prefix.
const ANCHORS: [&str; 6] = [
    BASE[0],
    BASE[1],
    "ggml_tensor_overhead",
    "ggml_graph_compute",
    "ggml_barrier",
    "ggml_cpu_extra_compute_forward",
];

/// The prefix of GGML's function names in the file (`lm_`, `wsp_`), which allows two engines in one program. If
/// there are several, the most frequent one.
pub(crate) fn prefix(elf: &ElfFile) -> Option<String> {
    let mut found = elf.prefixes(&ANCHORS);
    found.sort_unstable();
    found.dedup();
    let groups = found.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1);
    let most = groups.max_by_key(|group| (group.len(), std::cmp::Reverse(group.first())))?;
    most.first().map(|(prefix, _)| prefix.clone())
}

impl Roles {
    #[expect(clippy::indexing_slicing, reason = "lengths and indices are constants")]
    pub(crate) fn of(elf: &ElfFile) -> Roles {
        const NAMES: [&str; 7] = [
            "llama_process",
            "llama_decode",
            "llama_encode",
            BASE[0],
            "ggml_graph_compute",
            "profinfer_gpu_kernels",
            TASKS[2],
        ];
        let mut names = [""; NAMES.len() + DEVICES.len()];
        names[..NAMES.len()].copy_from_slice(&NAMES);
        names[NAMES.len()..].copy_from_slice(&DEVICES);
        let given = elf.find(DISPATCHES).into_iter().chain(elf.find(BATCHES)).flatten();
        let dispatches = given.into_iter().any(|s| s.function);
        let found = elf.find(names).map(|s| s.is_some_and(|s| s.function));
        let [process, decode, encode, op_name, graph_compute, layer, serves, devices @ ..] = found;
        let roles = Roles {
            llama: process || decode || encode,
            base: op_name,
            cpu: graph_compute,
            device: false,
            // The first two also exist in the CPU's variants and in host libraries.
            drives: devices.iter().skip(2).any(|d| *d),
            layer,
            serves,
            dispatches: false,
        };
        let device = !roles.has_names() && devices.contains(&true);
        Roles { device, drives: roles.drives || device, dispatches, ..roles }
    }

    /// Whether it has functions that are looked up by name.
    pub fn has_names(self) -> bool {
        self.llama || self.base || self.cpu || self.layer || self.serves || self.dispatches
    }

    pub(crate) fn any(self) -> bool {
        self.has_names() || self.device
    }

    /// Whether it is a device's runtime only, which also programs without an engine load.
    pub(crate) fn is_runtime(self) -> bool {
        self == Roles { dispatches: true, ..Roles::default() }
    }
}
