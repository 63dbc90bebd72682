//! A synthetic graph, walked by functions that look like compiled ones. Probes are tested and measured on it.

use std::arch::global_asm;

use engine::layout::Layout;
use machine::usage;

// Three functions with the prologue that compilers generate, and a loop that calls two of them as a node loop does:
// profinfer_walk(params, tensors, count, pool). A probe is placed on the first instruction of each or on a later
// one. The kernel emulates one of these and single-steps the other (arch/x86/kernel/uprobes.c,
// arch/arm64/kernel/probes/decode-insn.c).
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".macro profinfer_function name",
    ".globl \\name",
    ".type \\name, @function",
    "\\name: push rbp",
    "mov rbp, rsp",
    "pop rbp",
    "ret",
    ".endm",
    "profinfer_function profinfer_graph",
    "profinfer_function profinfer_op",
    "profinfer_function profinfer_barrier",
    ".globl profinfer_walk",
    ".type profinfer_walk, @function",
    "profinfer_walk: push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push rbp",
    "mov r13, rdi",
    "mov rbx, rsi",
    "mov r12, rdx",
    "mov r14, rcx",
    "2: mov rdi, r13",
    "mov rsi, [rbx]",
    "call profinfer_op",
    "mov rdi, r14",
    "call profinfer_barrier",
    "add rbx, 8",
    "dec r12",
    "jnz 2b",
    "pop rbp",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".macro profinfer_function name",
    ".globl \\name",
    ".type \\name, @function",
    "\\name: stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "b 3f",
    "3: ldp x29, x30, [sp], #16",
    "ret",
    ".endm",
    "profinfer_function profinfer_graph",
    "profinfer_function profinfer_op",
    "profinfer_function profinfer_barrier",
    ".globl profinfer_walk",
    ".type profinfer_walk, @function",
    "profinfer_walk: stp x29, x30, [sp, #-48]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "mov x21, x0",
    "mov x19, x1",
    "mov x20, x2",
    "mov x22, x3",
    "2: mov x0, x21",
    "ldr x1, [x19], #8",
    "bl profinfer_op",
    "mov x0, x22",
    "bl profinfer_barrier",
    "subs x20, x20, #1",
    "b.ne 2b",
    "ldp x21, x22, [sp, #32]",
    "ldp x19, x20, [sp, #16]",
    "ldp x29, x30, [sp], #48",
    "ret",
);

// SAFETY: the functions above; they take their arguments in the registers that the C ABI prescribes.
unsafe extern "C" {
    fn profinfer_graph(cgraph: *const u64, cplan: *const u64);
    fn profinfer_op(params: *const u64, tensor: *const u64);
    fn profinfer_barrier(pool: *const u64);
    fn profinfer_walk(params: *const u64, tensors: *const u64, count: u64, pool: *const u64);
}

/// One of these functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Graph,
    Op,
    Barrier,
}

/// The instruction of the function that is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// The function's first, required for return probes.
    First,
    /// An instruction that the kernel emulates.
    Emulated,
    /// An instruction that the kernel single-steps.
    Stepped,
}

impl Spot {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Spot::First => "first",
            Spot::Emulated => "emulated",
            Spot::Stepped => "single-stepped",
        }
    }
}

/// Bytes from the start to each kind of instruction.
#[cfg(target_arch = "x86_64")]
const EMULATED_STEPPED: [u64; 2] = [0, 1];
#[cfg(target_arch = "aarch64")]
const EMULATED_STEPPED: [u64; 2] = [8, 0];

/// Offset in our own executable at which to probe. None: not found in our own maps.
pub fn site(function: Function, spot: Spot) -> Option<u64> {
    let start = match function {
        Function::Graph => profinfer_graph as *const () as usize,
        Function::Op => profinfer_op as *const () as usize,
        Function::Barrier => profinfer_barrier as *const () as usize,
    };
    let offset = match spot {
        Spot::First => 0,
        Spot::Emulated => EMULATED_STEPPED[0],
        Spot::Stepped => EMULATED_STEPPED[1],
    };
    Some(file_offset(start as u64)? + offset)
}

/// Offset of one of our own code addresses within our executable.
fn file_offset(addr: u64) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        (start..end).contains(&addr).then(|| addr - start + offset)
    })
}

pub const NODES: usize = 64;
/// Words from one tensor to the next, at least the size of any tensor.
const TENSOR: usize = 64;
/// Words of each of the other structs.
const STRUCT: usize = 16;

/// Structs laid out as `Layout` says, as seen by thread 0 of a pool without other threads.
pub struct TargetGraph {
    cgraph: Vec<u64>,
    cplan: [u64; STRUCT],
    params: [u64; STRUCT],
    pool: [u64; STRUCT],
    /// The node list, with the tensors that it points to.
    nodes: Vec<u64>,
    tensors: Vec<u64>,
}

fn put(words: &mut [u64], offset: u32, value: u64) {
    let (at, shift) = (offset as usize / 8, offset % 8 * 8);
    if let Some(word) = words.get_mut(at) {
        *word |= value << shift;
    }
}

impl TargetGraph {
    /// A graph whose nodes each have the two preceding ones as sources.
    pub fn new(layout: &Layout) -> TargetGraph {
        let mut tensors = vec![0; NODES * TENSOR];
        let base = tensors.as_ptr() as u64;
        let address = |i: usize| base + (i * TENSOR * 8) as u64;
        for (i, tensor) in tensors.chunks_mut(TENSOR).enumerate() {
            for d in 0..4 {
                put(tensor, layout.ne_off + 8 * d, 1 + u64::from(d));
                put(tensor, layout.nb_off + 8 * d, 4 << d);
            }
            put(tensor, layout.op_off, 1);
            for source in 0..i.min(2) {
                put(tensor, layout.src_off + 8 * source as u32, address(i - 1 - source));
            }
        }
        let nodes: Vec<u64> = (0..NODES).map(address).collect();
        let mut g = TargetGraph {
            cgraph: vec![0; 2 * STRUCT],
            cplan: [0; STRUCT],
            params: [0; STRUCT],
            pool: [0; STRUCT],
            nodes,
            tensors,
        };
        put(&mut g.cgraph, layout.n_nodes_off, NODES as u64);
        put(&mut g.cgraph, layout.nodes_off, g.nodes.as_ptr() as u64);
        if let Some(uid) = layout.uid_off {
            put(&mut g.cgraph, uid, 1);
        }
        put(&mut g.cplan, layout.n_threads_off, 1);
        if let Some(pool) = layout.pool_off {
            put(&mut g.params, pool, g.pool.as_ptr() as u64);
        }
        g
    }

    /// Changes the dims of every tensor, so that all of them compare as new.
    pub fn reshape(&mut self, layout: &Layout) {
        for tensor in self.tensors.chunks_mut(TENSOR) {
            if let Some(ne) = tensor.get_mut(layout.ne_off as usize / 8) {
                *ne += 1;
            }
        }
    }

    pub fn enter(&self) {
        // SAFETY: the function returns immediately and touches neither argument.
        unsafe { profinfer_graph(self.cgraph.as_ptr(), self.cplan.as_ptr()) };
    }

    /// Walks the nodes, with an op and a barrier each. Returns the nanoseconds taken.
    pub fn walk(&self) -> u64 {
        let start = usage::now();
        // SAFETY: reads NODES pointers from `nodes`, which has that many; the functions it calls touch nothing.
        unsafe {
            let (params, pool) = (self.params.as_ptr(), self.pool.as_ptr());
            profinfer_walk(params, self.nodes.as_ptr(), NODES as u64, pool)
        };
        usage::now() - start
    }
}
