//! What is probed: the roles of an engine's functions, the programs that run there, and the functions that start a
//! phase or wait for a device.

pub const ROLES: usize = 15;

/// What a rung observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Token,
    Graph,
    Split,
    CpuGraph,
    Op,
    OpEnd,
    /// A device backend enqueues a node.
    Node,
    /// A layer hands over times of kernels.
    Kernel,
    /// The program gives a kernel to a graphics runtime.
    Dispatch,
    /// The program writes a batch for an NPU, or reads a response.
    Batch,
    Phase,
    /// The program waits for a device.
    Wait,
    /// A part of a batch is computed.
    Ubatch,
    /// The program changes a context's memory.
    Memory,
    /// A server takes in a request, or has a result of one.
    Task,
}

impl Role {
    /// In the order of attachment: inner functions first, so that a token that is seen is seen completely.
    pub const ALL: [Role; ROLES] = [
        Role::OpEnd,
        Role::Op,
        Role::Kernel,
        Role::Dispatch,
        Role::Batch,
        Role::Node,
        Role::CpuGraph,
        Role::Split,
        Role::Graph,
        Role::Ubatch,
        Role::Memory,
        Role::Task,
        Role::Wait,
        Role::Token,
        Role::Phase,
    ];

    /// Name in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Role::Token => "token",
            Role::Graph => "graph",
            Role::Split => "split",
            Role::CpuGraph => "cpu-graph",
            Role::Op => "op",
            Role::OpEnd => "op-end",
            Role::Node => "node",
            Role::Kernel => "kernel",
            Role::Dispatch => "dispatch",
            Role::Batch => "batch",
            Role::Phase => "phase",
            Role::Wait => "wait",
            Role::Ubatch => "ubatch",
            Role::Memory => "memory",
            Role::Task => "task",
        }
    }
}

/// Where in a function the probes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// On the cheapest valid instruction.
    Cheapest,
    /// On the first instruction, for comparison.
    First,
    /// On the first instruction, with a return probe on each op: the published method, for comparison.
    FirstAndReturn,
}

/// What a probe observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prog {
    TokenProcess,
    TokenDecode,
    TokenEncode,
    TokenExit,
    SchedEnter,
    SchedExit,
    SplitEnter,
    SplitExit,
    /// The node's index is the third argument.
    NodeEnter,
    /// The node is the first argument, and so on.
    NodeTensor1,
    NodeTensor2,
    NodeTensor3,
    NodeTensor4,
    NodeExit,
    /// A layer hands over times of kernels.
    Kernels,
    DispatchKernel,
    /// A graph of kernels is launched as a whole.
    DispatchGraph,
    BatchWrite,
    BatchWritten,
    BatchRead,
    BatchAnswered,
    GraphEnter,
    GraphExit,
    Op,
    Fused,
    OpExit,
    Barrier,
    Tokenize,
    Detokenize,
    Sampling,
    SamplerApply,
    SamplerAccept,
    Load,
    PhaseExit,
    WaitBackend,
    WaitSched,
    WaitContext,
    WaitRead,
    WaitExit,
    /// The ubatch is the second argument.
    UbatchEnter,
    MemoryClear,
    MemoryRemove,
    MemoryCopy,
    MemoryKeep,
    MemoryShift,
    MemoryDivide,
    StateSave,
    StateLoad,
    StateSeqSave,
    StateSeqLoad,
    StateFileSave,
    StateFileLoad,
    TaskPost,
    TaskPostAll,
    TaskResult,
}

impl Prog {
    pub const ALL: [Prog; 55] = [
        Prog::TokenProcess,
        Prog::TokenDecode,
        Prog::TokenEncode,
        Prog::TokenExit,
        Prog::SchedEnter,
        Prog::SchedExit,
        Prog::SplitEnter,
        Prog::SplitExit,
        Prog::NodeEnter,
        Prog::NodeTensor1,
        Prog::NodeTensor2,
        Prog::NodeTensor3,
        Prog::NodeTensor4,
        Prog::NodeExit,
        Prog::Kernels,
        Prog::DispatchKernel,
        Prog::DispatchGraph,
        Prog::BatchWrite,
        Prog::BatchWritten,
        Prog::BatchRead,
        Prog::BatchAnswered,
        Prog::GraphEnter,
        Prog::GraphExit,
        Prog::Op,
        Prog::Fused,
        Prog::OpExit,
        Prog::Barrier,
        Prog::Tokenize,
        Prog::Detokenize,
        Prog::Sampling,
        Prog::SamplerApply,
        Prog::SamplerAccept,
        Prog::Load,
        Prog::PhaseExit,
        Prog::WaitBackend,
        Prog::WaitSched,
        Prog::WaitContext,
        Prog::WaitRead,
        Prog::WaitExit,
        Prog::UbatchEnter,
        Prog::MemoryClear,
        Prog::MemoryRemove,
        Prog::MemoryCopy,
        Prog::MemoryKeep,
        Prog::MemoryShift,
        Prog::MemoryDivide,
        Prog::StateSave,
        Prog::StateLoad,
        Prog::StateSeqSave,
        Prog::StateSeqLoad,
        Prog::StateFileSave,
        Prog::StateFileLoad,
        Prog::TaskPost,
        Prog::TaskPostAll,
        Prog::TaskResult,
    ];

    /// Return probes run when the function returns.
    pub fn is_return(self) -> bool {
        matches!(
            self,
            Prog::TokenExit
                | Prog::SchedExit
                | Prog::SplitExit
                | Prog::NodeExit
                | Prog::BatchWritten
                | Prog::BatchAnswered
                | Prog::GraphExit
                | Prog::OpExit
                | Prog::PhaseExit
                | Prog::WaitExit
        )
    }
}

/// A phase: its name in the trace, the program at its entries, its functions (llama.h; a release has some of them).
pub struct PhaseDef {
    pub name: &'static str,
    pub prog: Prog,
    pub functions: &'static [&'static str],
}

const fn phase(name: &'static str, prog: Prog, functions: &'static [&'static str]) -> PhaseDef {
    PhaseDef { name, prog, functions }
}

/// Functions of which the first argument is a sampler: `apply` changes the candidates, `accept` takes the chosen token.
pub const SAMPLER_FUNCTIONS: [&str; 2] = ["llama_sampler_apply", "llama_sampler_accept"];

/// All phases, in the order of `enum ev_what`.
pub const PHASES: [PhaseDef; 4] = [
    phase("tokenize", Prog::Tokenize, &["llama_tokenize"]),
    phase("detokenize", Prog::Detokenize, &["llama_token_to_piece", "llama_detokenize"]),
    phase(
        "sampling",
        Prog::Sampling,
        // Each sampler in a chain is applied, and informed of the choice, through the same functions.
        &["llama_sampler_sample", SAMPLER_FUNCTIONS[0], SAMPLER_FUNCTIONS[1]],
    ),
    phase(
        "load",
        Prog::Load,
        // `llama_load_model_from_file` has been a wrapper since 2025-01.
        &["llama_model_load_from_file", "llama_load_model_from_file", "llama_model_load_from_splits"],
    ),
];

/// The phase, as an index into [`PHASES`], of which the program is at the entries.
pub fn phase_of(prog: Prog) -> Option<usize> {
    let prog = match prog {
        Prog::SamplerApply | Prog::SamplerAccept => Prog::Sampling,
        prog => prog,
    };
    PHASES.iter().position(|p| p.prog == prog)
}

/// The program at the entries of a phase's function.
pub fn of_phase(function: &str) -> Prog {
    if let Some(i) = SAMPLER_FUNCTIONS.iter().position(|f| *f == function) {
        return if i == 0 { Prog::SamplerApply } else { Prog::SamplerAccept };
    }
    let found = PHASES.iter().find(|p| p.functions.contains(&function));
    found.map_or(Prog::Load, |p| p.prog)
}

/// Functions that give one kernel to a device, of which a backend uses one for each: OpenCL (cl.h), Vulkan
/// (vulkan_core.h), the CUDA runtime (cuda_runtime_api.h; the compiler's stubs call the second since CUDA 13).
pub const DISPATCHES: [&str; 8] = [
    "clEnqueueNDRangeKernel",
    "vkCmdDispatch",
    "cudaLaunchKernel",
    "__cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaLaunchCooperativeKernel",
    "cudaLaunchKernel_ptsz",
    "cudaLaunchKernelExC_ptsz",
];

/// Functions that launch a graph of kernels.
pub const GRAPH_LAUNCHES: [&str; 2] = ["cudaGraphLaunch", "cudaGraphLaunch_ptsz"];

/// Functions of libcdsprpc (dspqueue.h) by which ggml-hexagon writes batches and reads their responses.
pub const BATCHES: [&str; 2] = ["dspqueue_write", "dspqueue_read"];

/// A function that waits (ggml-backend.h, llama.h), and the program at its entries.
pub struct WaitFunction {
    pub function: &'static str,
    pub prog: Prog,
}

/// All waiting functions, in the order of `enum ev_waits`.
pub const WAITS: [WaitFunction; 4] = [
    WaitFunction { function: "ggml_backend_synchronize", prog: Prog::WaitBackend },
    WaitFunction { function: "ggml_backend_sched_synchronize", prog: Prog::WaitSched },
    WaitFunction { function: "llama_synchronize", prog: Prog::WaitContext },
    WaitFunction { function: "ggml_backend_tensor_get", prog: Prog::WaitRead },
];

/// The program at the entries of a waiting function.
pub fn of_wait(function: &str) -> Prog {
    WAITS.iter().find(|w| w.function == function).map_or(Prog::WaitRead, |w| w.prog)
}

/// A function that changes, saves or loads a context's memory (llama.h), and the program at its entries.
pub struct MemoryFunction {
    pub function: &'static str,
    pub prog: Prog,
}

const fn memory(function: &'static str, prog: Prog) -> MemoryFunction {
    MemoryFunction { function, prog }
}

/// All such functions; a release has some of them. Since 2025-06 they take the memory, before that the context.
pub const MEMORY: [MemoryFunction; 30] = [
    memory("llama_memory_clear", Prog::MemoryClear),
    memory("llama_kv_self_clear", Prog::MemoryClear),
    memory("llama_kv_cache_clear", Prog::MemoryClear),
    memory("llama_memory_seq_rm", Prog::MemoryRemove),
    memory("llama_kv_self_seq_rm", Prog::MemoryRemove),
    memory("llama_kv_cache_seq_rm", Prog::MemoryRemove),
    memory("llama_memory_seq_cp", Prog::MemoryCopy),
    memory("llama_kv_self_seq_cp", Prog::MemoryCopy),
    memory("llama_kv_cache_seq_cp", Prog::MemoryCopy),
    memory("llama_memory_seq_keep", Prog::MemoryKeep),
    memory("llama_kv_self_seq_keep", Prog::MemoryKeep),
    memory("llama_kv_cache_seq_keep", Prog::MemoryKeep),
    memory("llama_memory_seq_add", Prog::MemoryShift),
    memory("llama_kv_self_seq_add", Prog::MemoryShift),
    memory("llama_kv_cache_seq_add", Prog::MemoryShift),
    memory("llama_memory_seq_div", Prog::MemoryDivide),
    memory("llama_kv_self_seq_div", Prog::MemoryDivide),
    memory("llama_kv_cache_seq_div", Prog::MemoryDivide),
    memory("llama_state_get_data", Prog::StateSave),
    memory("llama_state_save_file", Prog::StateSave),
    memory("llama_state_set_data", Prog::StateLoad),
    memory("llama_state_load_file", Prog::StateLoad),
    memory("llama_state_seq_get_data", Prog::StateSeqSave),
    memory("llama_state_seq_get_data_ext", Prog::StateSeqSave),
    memory("llama_state_seq_set_data", Prog::StateSeqLoad),
    memory("llama_state_seq_set_data_ext", Prog::StateSeqLoad),
    memory("llama_state_seq_save_file", Prog::StateFileSave),
    memory("llama_state_seq_load_file", Prog::StateFileLoad),
    memory("llama_copy_state_data", Prog::StateSave),
    memory("llama_set_state_data", Prog::StateLoad),
];

/// The program at the entries of a function that changes a context's memory.
pub fn of_memory(function: &str) -> Prog {
    MEMORY.iter().find(|m| m.function == function).map_or(Prog::MemoryClear, |m| m.prog)
}

/// Functions of llama-server (tools/server/server-queue.h): it takes in one request, several, or has a result of one.
pub const TASKS: [&str; 3] = [
    "_ZN12server_queue4postEO11server_taskb",
    "_ZN12server_queue4postEOSt6vectorI11server_taskSaIS1_EEb",
    "_ZN15server_response4sendEOSt10unique_ptrI18server_task_resultSt14default_deleteIS1_EE",
];

/// The program at the entries of a server's function.
pub fn of_task(function: &str) -> Prog {
    match TASKS.iter().position(|f| *f == function) {
        Some(0) => Prog::TaskPost,
        Some(1) => Prog::TaskPostAll,
        _ => Prog::TaskResult,
    }
}
