//! The probe points of an engine, in the order in which to try them.
//!
//! These are only candidates: compilers inline exported functions, and then a probe attaches but never fires. The
//! code that attaches them compares hits with what the graph predicts, and takes the next rung if one is silent.

use crate::discover::{self, DiscoveredEngine, EngineModule};
use crate::elf::{ElfFile, ElfMachine, Symbol};
use crate::probes::{BATCHES, DISPATCHES, GRAPH_LAUNCHES, PHASES, Role, SAMPLER_FUNCTIONS, WAITS};
use crate::prologue::{self, Need, ProbeOffset};
use crate::{enqueue, sequences};

/// Functions that compute fused ops and so bypass the op probe; a fused op is `(params, first node, second node)`.
pub const FUSED: [&str; 1] = ["ggml_compute_forward_rms_norm_mul_fused"];
/// Entry functions of a token; a release has any subset of them.
pub const TOKEN: [&str; 3] = ["llama_process", "llama_decode", "llama_encode"];
/// Maximum number of bytes of a function to read.
const MAX_CODE: u64 = 1 << 16;

/// How a `llama_batch` is passed to its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchPassing {
    /// A copy on the caller's stack, this many bytes above the stack pointer at the entry.
    Stack(u32),
    /// A pointer to a copy in the argument register of this index.
    Pointer(u8),
}

/// One function to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbePoint {
    pub symbol: &'static str,
    /// Index into [`DiscoveredEngine::modules`].
    pub module: usize,
    /// File offset of the function's first byte; the probe is placed at this plus the choice's offset.
    pub sym_file_offset: u64,
    pub entry: ProbeOffset,
    /// Where a return probe may be placed, `None` if the return has no meaning.
    pub ret: Option<ProbeOffset>,
    /// Bytes from the function's first to another instruction that runs once per call.
    pub marker: Option<u32>,
    /// Integer arguments in registers at `entry`.
    pub n_args: u8,
    /// Where the batch is at `entry`, for functions that take one.
    pub batch: Option<BatchPassing>,
    /// Which argument is the node, for functions that enqueue one.
    pub node: Option<NodeArg>,
}

/// The argument by which a function of a device backend knows its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeArg {
    /// The third is the node's index in the graph.
    Index,
    /// The argument of this number, from 1, is the tensor.
    Tensor(u8),
}

impl ProbePoint {
    /// File offset for the entry probe.
    pub fn entry_offset(&self) -> u64 {
        self.sym_file_offset.saturating_add(self.entry.offset.into())
    }

    /// File offset for the return probe.
    pub fn ret_offset(&self) -> Option<u64> {
        self.ret.as_ref().map(|r| self.sym_file_offset.saturating_add(r.offset.into()))
    }
}

/// How a rung gets its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RungMethod {
    /// Probes on `points`.
    Symbols,
    /// The pointer at `graph_compute_off` of a live `ggml_backend`, translated to file and offset through the maps.
    Vtable,
    /// Probes on `points`, of which one is a function without a name, called by the `graph_compute` of a live backend:
    /// its arguments must prove it.
    Callee,
    /// No separate probe: the next op of the thread, or the end of the graph, ends an op.
    Interval,
}

/// One way to observe a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rung {
    /// Name for the trace header and messages.
    pub name: &'static str,
    pub how: RungMethod,
    pub points: Vec<ProbePoint>,
}

/// Candidate rungs for each role, best first. An empty list means it cannot be observed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ladder {
    pub token: Vec<Rung>,
    /// One graph passed to the scheduler.
    pub graph: Vec<Rung>,
    /// The part of a graph that one backend computes.
    pub split: Vec<Rung>,
    /// The part of a graph that the CPU computes.
    pub cpu_graph: Vec<Rung>,
    pub op: Vec<Rung>,
    pub op_end: Vec<Rung>,
    /// A node that a device backend enqueues.
    pub node: Vec<Rung>,
    /// Times of kernels, from a layer.
    pub kernel: Vec<Rung>,
    /// A kernel or a graph of kernels given to a graphics runtime.
    pub dispatch: Vec<Rung>,
    /// A batch written for an NPU, and its response.
    pub batch: Vec<Rung>,
    /// Calls that form a phase.
    pub phase: Vec<Rung>,
    /// Calls that wait for a device. Empty if the engine has no device: nothing waits then.
    pub wait: Vec<Rung>,
    /// A part of a batch. Empty where the batch is read at the call.
    pub ubatch: Vec<Rung>,
    /// Calls that change a context's memory.
    pub memory: Vec<Rung>,
    /// Requests that a server takes in, and their results.
    pub task: Vec<Rung>,
}

/// What a function's declaration says about it.
pub(super) struct FunctionDecl {
    symbol: &'static str,
    args: u8,
    takes_batch: bool,
    /// Whether its return is worth a probe.
    returns: bool,
    /// Whether the stack pointer at its entry is needed.
    by_stack: bool,
}

pub(super) const fn function(
    symbol: &'static str,
    args: u8,
    takes_batch: bool,
    returns: bool,
) -> FunctionDecl {
    FunctionDecl { symbol, args, takes_batch, returns, by_stack: args == 0 }
}

/// Its first argument is the object it is about.
const fn of_object(symbol: &'static str) -> FunctionDecl {
    FunctionDecl { by_stack: true, ..function(symbol, 1, false, true) }
}

const TOKEN_FUNCTIONS: [FunctionDecl; 3] = [
    // The third argument is an object whose layout varies, so it is not read.
    function(TOKEN[0], 2, false, true),
    function(TOKEN[1], 1, true, true),
    function(TOKEN[2], 1, true, true),
];
const GRAPH: FunctionDecl = function("ggml_backend_sched_graph_compute_async", 2, false, true);
const SPLIT: FunctionDecl = function("ggml_backend_graph_compute_async", 2, false, true);
const CPU_GRAPH: FunctionDecl = function("ggml_graph_compute", 2, false, true);
const OP: FunctionDecl = function("ggml_compute_forward", 2, false, true);
/// Returns before the op has run unless a special kernel handled it, so its return has no meaning.
const OP_EXTRA: FunctionDecl = function("ggml_cpu_extra_compute_forward", 2, false, false);
const OP_FUSED: FunctionDecl = function(FUSED[0], 3, false, true);
const BATCH_WRITE: FunctionDecl = function(BATCHES[0], 6, false, true);
/// On x86-64, the address of the response is on the stack.
const BATCH_READ: FunctionDecl = FunctionDecl { by_stack: true, ..function(BATCHES[1], 8, false, true) };
/// The function that layers call (crates/layers/handover).
const KERNELS: FunctionDecl = function("profinfer_gpu_kernels", 4, false, false);
const BARRIER: FunctionDecl = function("ggml_barrier", 1, false, false);

/// All functions that a rung may use, so that a file's tables are read only once for all of them.
pub fn names() -> impl Iterator<Item = &'static str> {
    let phases = PHASES.iter().flat_map(|p| p.functions).copied();
    let others = [
        &GRAPH,
        &SPLIT,
        &CPU_GRAPH,
        &OP,
        &OP_EXTRA,
        &OP_FUSED,
        &BARRIER,
        &KERNELS,
        &BATCH_WRITE,
        &BATCH_READ,
    ];
    let waits = WAITS.iter().map(|w| w.function);
    let dispatches = DISPATCHES.into_iter().chain(GRAPH_LAUNCHES);
    TOKEN_FUNCTIONS
        .iter()
        .chain(others)
        .map(|f| f.symbol)
        .chain(phases)
        .chain(waits)
        .chain(dispatches)
        .chain(sequences::names())
}

impl Ladder {
    /// The rungs of a role, best first.
    pub fn rungs(&self, role: Role) -> &[Rung] {
        match role {
            Role::Token => &self.token,
            Role::Graph => &self.graph,
            Role::Split => &self.split,
            Role::CpuGraph => &self.cpu_graph,
            Role::Op => &self.op,
            Role::OpEnd => &self.op_end,
            Role::Node => &self.node,
            Role::Kernel => &self.kernel,
            Role::Dispatch => &self.dispatch,
            Role::Batch => &self.batch,
            Role::Phase => &self.phase,
            Role::Wait => &self.wait,
            Role::Ubatch => &self.ubatch,
            Role::Memory => &self.memory,
            Role::Task => &self.task,
        }
    }

    /// The candidates found in the engine's files.
    pub fn of(engine: &DiscoveredEngine) -> Ladder {
        let all = |_: &EngineModule| true;
        let cpu = |m: &EngineModule| m.roles.cpu;
        let rung = |name, functions: &[&FunctionDecl], pick: &dyn Fn(&EngineModule) -> bool| {
            let points = points(engine, functions, pick);
            (!points.is_empty()).then_some(Rung { name, how: RungMethod::Symbols, points })
        };
        // A rung without its main function is not a rung, even if the fused ones exist.
        let op = |name, main: &FunctionDecl| {
            points(engine, &[main], &cpu).first()?;
            rung(name, &[main, &OP_FUSED], &cpu)
        };
        let tokens: Vec<&FunctionDecl> = TOKEN_FUNCTIONS.iter().collect();
        let vtable = Rung { name: "backend vtable", how: RungMethod::Vtable, points: Vec::new() };
        let interval = Rung { name: "interval", how: RungMethod::Interval, points: Vec::new() };
        let has_vtable = engine.layout.graph_compute_off.is_some();
        let ops: Vec<Rung> =
            [op("ggml_compute_forward", &OP), op("ggml_cpu_extra_compute_forward", &OP_EXTRA)]
                .into_iter()
                .flatten()
                .collect();
        // The stack pointer identifies the call. Of a sampler's, the sampler is read.
        let of_phase = |f: &'static str| match SAMPLER_FUNCTIONS.contains(&f) {
            true => of_object(f),
            false => function(f, 0, false, true),
        };
        let phases: Vec<FunctionDecl> =
            PHASES.iter().flat_map(|p| p.functions).map(|f| of_phase(f)).collect();
        // The object waited for, and the stack pointer to identify the call.
        let waits: Vec<FunctionDecl> = WAITS.iter().map(|w| of_object(w.function)).collect();
        let devices = engine.modules.iter().any(|m| m.roles.drives);
        let wait = rung("ggml_backend_synchronize", &waits.iter().collect::<Vec<_>>(), &all);
        let barrier = rung("ggml_barrier", &[&BARRIER], &cpu);
        let ladder = Ladder {
            token: rung("llama_process/llama_decode/llama_encode", &tokens, &all).into_iter().collect(),
            graph: rung("ggml_backend_sched_graph_compute_async", &[&GRAPH], &all).into_iter().collect(),
            split: rung("ggml_backend_graph_compute_async", &[&SPLIT], &all)
                .into_iter()
                .chain(has_vtable.then_some(vtable))
                .collect(),
            cpu_graph: rung("ggml_graph_compute", &[&CPU_GRAPH], &cpu).into_iter().collect(),
            kernel: rung(KERNELS.symbol, &[&KERNELS], &|m| m.roles.layer).into_iter().collect(),
            dispatch: dispatch(engine).filter(|_| devices).into_iter().collect(),
            batch: rung("libcdsprpc", &[&BATCH_WRITE, &BATCH_READ], &|m| m.roles.dispatches)
                .into_iter()
                .collect(),
            node: enqueue::rung(engine).into_iter().collect(),
            wait: wait.filter(|_| devices).into_iter().collect(),
            ubatch: sequences::ubatch(engine),
            memory: sequences::memory(engine),
            task: sequences::task(engine),
            phase: rung("llama.h", &phases.iter().collect::<Vec<_>>(), &all).into_iter().collect(),
            op_end: if ops.is_empty() { Vec::new() } else { barrier.into_iter().chain([interval]).collect() },
            op: ops,
        };
        if engine.unread.is_some() { ladder.of_calls() } else { ladder }
    }

    /// Without what reads tensors. Graphs are as in [`Layout::of_graphs`] if they are given to a scheduler as since then.
    fn of_calls(self) -> Ladder {
        let calls = Ladder { op: Vec::new(), op_end: Vec::new(), node: Vec::new(), ..self };
        match calls.graph.is_empty() {
            true => Ladder { split: Vec::new(), cpu_graph: Vec::new(), ..calls },
            false => calls,
        }
    }
}

/// The functions that give kernels to a device.
fn dispatch(engine: &DiscoveredEngine) -> Option<Rung> {
    let functions: Vec<FunctionDecl> =
        DISPATCHES.into_iter().chain(GRAPH_LAUNCHES).map(|f| function(f, 0, false, false)).collect();
    of_runtime(engine, "graphics runtime", &functions.iter().collect::<Vec<_>>())
}

/// Functions of a graphics runtime. Several files may have them: the loader that a backend is linked with, and the driver
/// that the loader calls. Only the first is probed: otherwise a call is counted twice.
fn of_runtime(engine: &DiscoveredEngine, name: &'static str, functions: &[&FunctionDecl]) -> Option<Rung> {
    let mut found = points(engine, functions, &|m| m.roles.dispatches);
    let linked = |p: &ProbePoint| {
        let Some(module) = engine.modules.get(p.module) else { return false };
        let mut drivers = engine.modules.iter().filter(|m| m.roles.drives);
        module.roles.drives || drivers.any(|m| discover::needs(m, module))
    };
    let preferred: Vec<&'static str> = found.iter().filter(|p| linked(p)).map(|p| p.symbol).collect();
    found.retain(|p| linked(p) || !preferred.contains(&p.symbol));
    (!found.is_empty()).then_some(Rung { name, how: RungMethod::Symbols, points: found })
}

/// One point for each of the functions in each module that has it.
pub(super) fn points(
    engine: &DiscoveredEngine,
    functions: &[&FunctionDecl],
    pick: &dyn Fn(&EngineModule) -> bool,
) -> Vec<ProbePoint> {
    let names: Vec<&str> = functions.iter().map(|f| f.symbol).collect();
    let mut out = Vec::new();
    let named = |m: &EngineModule| m.roles.has_names() && pick(m);
    for (index, module) in engine.modules.iter().enumerate().filter(|(_, m)| named(m)) {
        let mut found = vec![None; names.len()];
        module.elf.find_into(&names, &mut found);
        for (f, sym) in functions.iter().zip(found) {
            out.extend(sym.and_then(|s| point(&module.elf, index, f, s)));
        }
    }
    out
}

/// Where the batch is at the entry of a function that takes `(ctx, batch)`: its 56 to 72 bytes are passed in
/// memory, on x86-64 above the return address, on arm64 by a pointer in the second register.
const fn batch_passing(machine: ElfMachine) -> BatchPassing {
    match machine {
        ElfMachine::X86_64 => BatchPassing::Stack(8),
        ElfMachine::Aarch64 => BatchPassing::Pointer(1),
    }
}

fn point(elf: &ElfFile, module: usize, f: &FunctionDecl, sym: Symbol) -> Option<ProbePoint> {
    if !sym.function {
        return None;
    }
    let sym_file_offset = elf.file_offset(sym.vaddr)?;
    // Without a size, the functions after it are scanned too, which at worst finds a jump of another function.
    let len = if sym.size == 0 { 4096 } else { sym.size.min(MAX_CODE) };
    let code = elf.bytes_at(sym.vaddr, len as usize);
    let batch = f.takes_batch.then_some(batch_passing(elf.machine));
    let n_args = match batch {
        Some(BatchPassing::Pointer(arg)) => f.args.max(arg + 1),
        _ => f.args,
    };
    let need = Need { args: n_args, stack: f.by_stack || matches!(batch, Some(BatchPassing::Stack(_))) };
    let entry = prologue::entry(elf.machine, &code, need);
    let ret = f.returns.then(|| prologue::ret(elf.machine, &code));
    let probed = [entry.offset, ret.as_ref().map_or(0, |ret| ret.offset)];
    Some(ProbePoint {
        symbol: f.symbol,
        module,
        sym_file_offset,
        marker: prologue::other(elf.machine, &code, &probed),
        entry,
        ret,
        n_args,
        batch,
        node: None,
    })
}
