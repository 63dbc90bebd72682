//! Offsets of the fields of GGML's structs in this build, read from the code of tiny exported accessors and checked
//! against the layouts that GGML has had.
//!
//! The accessors (`ggml_get_name`, `ggml_get_data`, ...) have two or three instructions each, and the offset is in
//! one of them. A tensor's name and data offsets and its size identify one era; the era gives the rest. Where a linker
//! has left out some of these functions, the others are enough if only one era agrees with all that is there.

use std::fmt;

use crate::elf::{ElfFile, ElfMachine};
use crate::prologue::{self, InsnEffect, arm64, x86};

/// Offsets in bytes from the start of each struct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    // struct ggml_tensor
    pub tensor_size: u32,
    pub type_off: u32,
    pub ne_off: u32,
    pub nb_off: u32,
    pub op_off: u32,
    pub op_params_off: u32,
    /// `None` in builds without the field (before 2024-02).
    pub flags_off: Option<u32>,
    pub src_off: u32,
    pub n_src: u32,
    pub view_src_off: u32,
    pub data_off: u32,
    pub name_off: u32,
    pub name_len: u32,
    // struct ggml_compute_params
    pub ith_off: u32,
    pub nth_off: u32,
    /// Pointer to the thread pool, since 2024-08.
    pub pool_off: Option<u32>,
    // struct ggml_cgraph
    pub n_nodes_off: u32,
    pub nodes_off: u32,
    /// Number that changes when the graph is rebuilt, since 2026-04.
    pub uid_off: Option<u32>,
    // struct ggml_cplan
    pub n_threads_off: u32,
    // struct ggml_backend
    /// Pointer to the backend's 16-byte id, since 2024-02.
    pub guid_off: Option<u32>,
    /// `iface.graph_compute`.
    pub graph_compute_off: Option<u32>,
    // struct llama_batch
    pub batch_n_tokens_off: u32,
    pub batch_token_off: u32,
}

/// Which check of the layout failed.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error(
        "{path}: the layout of its tensors is not known: none of {symbols} shows it (unused functions are left out, and \
         small ones inlined, when a program is linked); use a build of GGML as shared libraries, or one linked without \
         --gc-sections and -flto (Rust: RUSTFLAGS=\"-C link-dead-code\")"
    )]
    NoAccessor { path: String, symbols: String },
    #[error(
        "{path}: no known GGML layout has {found}; it is from before October 2023, or a fork with other structs"
    )]
    UnknownEra { path: String, found: Accessors },
    #[error("{path}: check of {field} failed: the code of {symbol} says {got}, this layout has {want}")]
    Contradiction { path: String, field: &'static str, symbol: &'static str, got: i64, want: u32 },
}

/// What the accessors say of a tensor, bytes; None: the accessor was left out, or its code is not recognized.
#[derive(Debug, Clone, Copy)]
pub struct Accessors {
    name: Option<u32>,
    data: Option<u32>,
    size: Option<u32>,
}

impl Accessors {
    fn read(code: &CodeReader) -> Accessors {
        let size = code.offset("ggml_tensor_overhead", immediate);
        Accessors {
            name: code.offset("ggml_get_name", lea),
            data: code.offset("ggml_get_data", load),
            size: size.map(|size| size.saturating_sub(OBJECT_SIZE)),
        }
    }

    fn fit(&self, e: &Era) -> bool {
        self.name.is_none_or(|name| name == e.name)
            && self.data.is_none_or(|data| data == e.data)
            && self.size.is_none_or(|size| e.name_room(size).is_some())
    }
}

impl fmt::Display for Accessors {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let known = [("name at", self.name), ("data at", self.data), ("a tensor of", self.size)];
        let known = known.iter().filter_map(|(what, bytes)| Some(format!("{what} {}", (*bytes)?)));
        write!(f, "{} (bytes)", known.collect::<Vec<_>>().join(", "))
    }
}

/// One layout of `ggml_tensor` with 64-byte names, from the debug information of 371 commits of GGML.
struct Era {
    size: u32,
    ne: u32,
    op: u32,
    flags: Option<u32>,
    src: u32,
    n_src: u32,
    view_src: u32,
    data: u32,
    name: u32,
    /// `ith` within compute params.
    ith: u32,
    /// `n_nodes` and `nodes` within the graph.
    graph: (u32, u32),
}

const fn era(
    size: u32,
    ne: u32,
    src: (u32, u32),
    view_src: u32,
    data: u32,
    ith: u32,
    flags: Option<u32>,
) -> Era {
    let (op, name, graph) = (ne + 64, data + 8, (4, 16));
    Era { size, ne, op, flags, src: src.0, n_src: src.1, view_src, data, name, ith, graph }
}

impl Era {
    /// Bytes of a name, including padding up to the next field, in a tensor of this size. The fields after the name
    /// have the same length, whatever the name's length; None: there is no room for a name.
    fn name_room(&self, size: u32) -> Option<u32> {
        let behind = self.size - self.name - NAME_LEN;
        size.checked_sub(self.name)?.checked_sub(behind).filter(|room| *room > 0 && room % 8 == 0)
    }
}

/// Oldest first: 2023-10-06 (graph as of 2023-10-30), 2023-11-03, 2023-12-13, 2023-12-22, 2024-06-24, 2024-11-16.
static ERAS: [Era; 6] = [
    era(320, 24, (136, 6), 208, 224, 4, None),
    era(352, 24, (168, 6), 240, 256, 4, None),
    era(384, 24, (168, 10), 272, 288, 4, None),
    era(368, 16, (160, 10), 264, 280, 4, Some(148)),
    era(336, 16, (160, 10), 240, 256, 0, Some(148)),
    era(336, 16, (152, 10), 232, 248, 0, Some(148)),
];

/// The newest, and a function that no other has (since 2024-12-07).
const NEWEST: &Era = {
    let [.., newest] = &ERAS;
    newest
};
const OF_NEWEST: &str = "ggml_cpu_extra_compute_forward";

/// Length of a name upstream. Some builds use another one (llama.node 80, koboldcpp 128, stable-diffusion.cpp 160),
/// which shows in the size of a tensor.
const NAME_LEN: u32 = 64;
/// `ggml_tensor_overhead()` is the tensor and its 32-byte `ggml_object`.
const OBJECT_SIZE: u32 = 32;
/// `iface.graph_compute` in the known releases.
const GRAPH_COMPUTE: [u32; 3] = [88, 96, 104];

/// Functions whose code or presence shows the layout.
pub const NAMES: [&str; 13] = [
    "ggml_get_name",
    "ggml_get_data",
    "ggml_tensor_overhead",
    "ggml_nelements",
    "ggml_get_unary_op",
    "ggml_get_glu_op",
    "ggml_is_view",
    "ggml_graph_n_nodes",
    "ggml_graph_nodes",
    "ggml_backend_guid",
    "ggml_backend_graph_compute_async",
    "ggml_threadpool_new",
    "ggml_graph_next_uid",
];

/// Bytes of a tensor struct that an event carries (src/bpf/event.h).
pub const TENSOR_RAW: usize = 448;

impl Layout {
    /// Bytes of a tensor struct up to and including its name.
    pub fn tensor_bytes(&self) -> u32 {
        self.name_off.saturating_add(self.name_len).min(TENSOR_RAW as u32)
    }

    /// Reads the layout from the file with GGML's base code. `exports` says whether any module of the engine has a
    /// function of this name: some fields were added together with functions.
    pub fn read(base: &ElfFile, exports: &dyn Fn(&str) -> bool) -> Result<Layout, LayoutError> {
        let code = CodeReader { elf: base };
        let found = Accessors::read(&code);
        let usual = |e: &&Era| found.size.is_none_or(|size| size == e.size);
        let fits = |e: &&Era| found.fit(e);
        // Two eras have the name at the same offset, and if names may have any length, the tensor's size does not
        // distinguish them; the other fields do. If the code shows none of these, names are more likely as long as
        // upstream's.
        let eras =
            ERAS.iter().filter(|e| fits(e) && usual(e)).chain(ERAS.iter().filter(|e| fits(e) && !usual(e)));
        let (mut refused, mut known) = (None, Vec::new());
        for era in eras {
            match code.agrees(era, exports) {
                Ok(()) => known.push(era),
                Err(why) => drop(refused.get_or_insert(why)),
            }
        }
        let path = || base.path().to_owned();
        let Some(&era) = known.first() else {
            return Err(refused.unwrap_or(LayoutError::UnknownEra { path: path(), found }));
        };
        // The size of a tensor alone, or the offset of its name, may be that of two.
        let shown = [found.size, found.name.or(found.data)].iter().flatten().count();
        let another = known.iter().any(|other| usual(other) && !std::ptr::eq(*other, era));
        if shown == 0 || shown == 1 && another {
            let symbols = NAMES.iter().take(3).map(|name| base.name_of(name)).collect::<Vec<_>>().join(", ");
            return Err(LayoutError::NoAccessor { path: path(), symbols });
        }
        let size = found.size.unwrap_or(era.size);
        let newest = era.data == NEWEST.data;
        let has_guid = newest || code.read("ggml_backend_guid", load) == Some(0);
        let dispatch = code.read("ggml_backend_graph_compute_async", indirect);
        let dispatch = dispatch.and_then(|v| u32::try_from(v).ok()).filter(|v| GRAPH_COMPUTE.contains(v));
        let later = LaterFields {
            // The pool was added to the params together with its constructor, before the newest era.
            pool: (newest || era.ith == 0 && exports("ggml_threadpool_new")).then_some(24),
            // The field was added to the graph together with the function that numbers graphs.
            uid: (era.data == 248 && exports("ggml_graph_next_uid")).then_some(88),
            guid: has_guid.then_some(0),
            graph_compute: dispatch,
        };
        Ok(Layout::of(era, size, later))
    }

    /// For an engine of which only calls and graphs are observed: what these have in common since the function that takes
    /// a graph for the scheduler (2024-03).
    pub fn of_graphs() -> Layout {
        let later = LaterFields { pool: None, uid: None, guid: Some(0), graph_compute: None };
        Layout::of(NEWEST, NEWEST.size, later)
    }

    /// The layout of the newest known release, for trials without a target.
    pub fn latest() -> Layout {
        let [.., graph_compute] = GRAPH_COMPUTE;
        let later =
            LaterFields { pool: Some(24), uid: Some(88), guid: Some(0), graph_compute: Some(graph_compute) };
        Layout::of(NEWEST, NEWEST.size, later)
    }

    fn of(era: &Era, size: u32, later: LaterFields) -> Layout {
        Layout {
            tensor_size: size,
            type_off: 0,
            ne_off: era.ne,
            nb_off: era.ne + 32,
            op_off: era.op,
            op_params_off: era.op + 4,
            flags_off: era.flags,
            src_off: era.src,
            n_src: era.n_src,
            view_src_off: era.view_src,
            data_off: era.data,
            name_off: era.name,
            name_len: era.name_room(size).unwrap_or(NAME_LEN),
            ith_off: era.ith,
            nth_off: era.ith + 4,
            pool_off: later.pool,
            n_nodes_off: era.graph.0,
            nodes_off: era.graph.1,
            uid_off: later.uid,
            n_threads_off: 16,
            guid_off: later.guid,
            graph_compute_off: later.graph_compute,
            batch_n_tokens_off: 0,
            batch_token_off: 8,
        }
    }
}

/// Fields added between eras.
struct LaterFields {
    pool: Option<u32>,
    uid: Option<u32>,
    guid: Option<u32>,
    graph_compute: Option<u32>,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let t = self;
        write!(f, "tensor size={} type@{} ne@{} nb@{}", t.tensor_size, t.type_off, t.ne_off, t.nb_off)?;
        write!(f, " op@{} op_params@{}", t.op_off, t.op_params_off)?;
        let optional = |f: &mut fmt::Formatter, name: &str, off: Option<u32>| match off {
            Some(off) => write!(f, " {name}@{off}"),
            None => Ok(()),
        };
        optional(f, "flags", t.flags_off)?;
        write!(f, " src@{}x{} view_src@{} data@{}", t.src_off, t.n_src, t.view_src_off, t.data_off)?;
        write!(f, " name@{}x{}; params ith@{} nth@{}", t.name_off, t.name_len, t.ith_off, t.nth_off)?;
        optional(f, "pool", t.pool_off)?;
        write!(f, "; cgraph n_nodes@{} nodes@{}", t.n_nodes_off, t.nodes_off)?;
        optional(f, "uid", t.uid_off)?;
        write!(f, "; cplan n_threads@{}; backend", t.n_threads_off)?;
        optional(f, "guid", t.guid_off)?;
        optional(f, "graph_compute", t.graph_compute_off)?;
        write!(f, "; batch n_tokens@{} token@{}", t.batch_n_tokens_off, t.batch_token_off)
    }
}

/// What a tiny accessor does with its first argument, in program order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Computes the address of a field.
    Address(i64),
    Load(i64),
    Compare(i64),
    /// Compares a loaded value with a constant.
    Against(i64),
    /// Jumps or calls through a pointer in the struct.
    Through(i64),
    /// Puts a constant into the result register.
    Result(i64),
}

type AccessPicker = fn(&[Access]) -> Option<i64>;

fn lea(a: &[Access]) -> Option<i64> {
    a.iter().rev().find_map(|a| if let Access::Address(d) = a { Some(*d) } else { None })
}

fn load(a: &[Access]) -> Option<i64> {
    a.iter().find_map(|a| if let Access::Load(d) = a { Some(*d) } else { None })
}

/// First of several adjacent fields, which compilers load in any order.
fn least_load(a: &[Access]) -> Option<i64> {
    a.iter().filter_map(|a| if let Access::Load(d) = a { Some(*d) } else { None }).min()
}

fn immediate(a: &[Access]) -> Option<i64> {
    a.iter().rev().find_map(|a| if let Access::Result(d) = a { Some(*d) } else { None })
}

fn indirect(a: &[Access]) -> Option<i64> {
    a.iter().find_map(|a| if let Access::Through(d) = a { Some(*d) } else { None })
}

/// First field accessed, whether loaded or compared in place.
fn compare(a: &[Access]) -> Option<i64> {
    a.iter().find_map(|a| if let Access::Compare(d) | Access::Load(d) = a { Some(*d) } else { None })
}

fn second_load(a: &[Access]) -> Option<i64> {
    a.iter().filter_map(|a| if let Access::Compare(d) | Access::Load(d) = a { Some(*d) } else { None }).nth(1)
}

fn against(a: &[Access]) -> Option<i64> {
    a.iter().find_map(|a| if let Access::Against(d) = a { Some(*d) } else { None })
}

/// Numbers of the ops UNARY and GLU that the code compares with, if readable: a check of the name tables.
pub fn op_numbers(base: &ElfFile) -> [(&'static str, Option<i64>); 2] {
    let code = CodeReader { elf: base };
    [("UNARY", code.read("ggml_get_unary_op", against)), ("GLU", code.read("ggml_get_glu_op", against))]
}

/// Offset of the member that a function of an object returns.
pub fn member_returned(elf: &ElfFile, symbol: &'static str) -> Option<u32> {
    let offset = CodeReader { elf }.read(symbol, load)?;
    u32::try_from(offset).ok().filter(|v| *v < 65536)
}

struct CodeReader<'a> {
    elf: &'a ElfFile,
}

impl CodeReader<'_> {
    /// A plausible offset in an accessor.
    fn offset(&self, symbol: &'static str, pick: AccessPicker) -> Option<u32> {
        self.read(symbol, pick).and_then(|v| u32::try_from(v).ok()).filter(|v| *v < 4096)
    }

    fn read(&self, symbol: &'static str, pick: AccessPicker) -> Option<i64> {
        self.accesses(symbol).and_then(|a| pick(&a))
    }

    /// Whether the fields in other accessors have the offsets of this era, and functions that came with a later one are
    /// missing.
    fn agrees(&self, era: &Era, exports: &dyn Fn(&str) -> bool) -> Result<(), LayoutError> {
        if exports(OF_NEWEST) {
            self.expect("data", OF_NEWEST, Some(NEWEST.data.into()), era.data)?;
        }
        self.check("ne", "ggml_nelements", least_load, era.ne)?;
        self.check("op", "ggml_get_unary_op", compare, era.op)?;
        self.check("op_params", "ggml_get_unary_op", second_load, era.op + 4)?;
        self.check("view_src", "ggml_is_view", compare, era.view_src)?;
        self.check("n_nodes", "ggml_graph_n_nodes", load, era.graph.0)?;
        self.check("nodes", "ggml_graph_nodes", load, era.graph.1)
    }

    /// Compares with the offset in an accessor. An accessor that is absent or has an unknown form is no evidence.
    fn check(
        &self,
        field: &'static str,
        symbol: &'static str,
        pick: AccessPicker,
        want: u32,
    ) -> Result<(), LayoutError> {
        self.expect(field, symbol, self.read(symbol, pick), want)
    }

    fn expect(
        &self,
        field: &'static str,
        symbol: &'static str,
        got: Option<i64>,
        want: u32,
    ) -> Result<(), LayoutError> {
        match got {
            Some(got) if got != i64::from(want) => {
                let path = self.elf.path().to_owned();
                Err(LayoutError::Contradiction { path, field, symbol, got, want })
            }
            _ => Ok(()),
        }
    }

    /// Follows the straight line from the entry (jumps not taken) for a few instructions.
    fn accesses(&self, symbol: &'static str) -> Option<Vec<Access>> {
        let [found] = self.elf.find([symbol]);
        let sym = found.filter(|s| s.function)?;
        let len = if sym.size == 0 { 96 } else { sym.size.min(96) } as usize;
        let code = self.elf.bytes_at(sym.vaddr, len);
        Some(ArgumentWalk::new(self.elf.machine).run(&code))
    }
}

/// Which registers and stack slots hold the first argument, while stepping through an accessor.
struct ArgumentWalk {
    machine: ElfMachine,
    /// One bit per register that holds the argument.
    holds: u32,
    /// Register loaded from the struct, and the offset, for jumps through it.
    loaded: Option<(u8, i64)>,
    /// Stack slot that holds the argument, in unoptimised code.
    slot: Option<(u8, i64)>,
    out: Vec<Access>,
}

const MAX_STEPS: usize = 16;

impl ArgumentWalk {
    fn new(machine: ElfMachine) -> ArgumentWalk {
        ArgumentWalk {
            machine,
            holds: prologue::arg_registers(machine, 1),
            loaded: None,
            slot: None,
            out: Vec::new(),
        }
    }

    fn run(mut self, code: &[u8]) -> Vec<Access> {
        let mut at = 0;
        for _ in 0..MAX_STEPS {
            let Some(insn) = code.get(at..).and_then(|rest| prologue::decode(self.machine, rest)) else {
                break;
            };
            self.step(insn.what, insn.writes);
            at += insn.len;
            let goes_on = matches!(insn.what, InsnEffect::Jump { conditional: true, .. });
            if insn.ends_block() && !goes_on {
                break;
            }
        }
        self.out
    }

    fn step(&mut self, what: InsnEffect, writes: u32) {
        let result = 1u32 << if self.machine == ElfMachine::X86_64 { x86::RAX } else { 0 };
        let stack = |base: u8| match self.machine {
            ElfMachine::X86_64 => base == x86::RBP || base == x86::RSP,
            ElfMachine::Aarch64 => base == arm64::SP || base == 29,
        };
        let holds = |r: u8| self.holds >> r & 1 == 1;
        // Registers that hold the argument after this instruction, in addition to those it does not write.
        let mut gains = 0u32;
        let mut loaded = None;
        match what {
            InsnEffect::Lea { dst, base: Some(base), disp } if holds(base) => {
                self.out.push(Access::Address(disp));
                gains |= if disp == 0 { 1 << dst } else { 0 };
            }
            InsnEffect::Load { base: Some(base), disp, dst, .. } if holds(base) => {
                self.out.push(Access::Load(disp));
                loaded = Some((dst, disp));
            }
            InsnEffect::Load { base: Some(base), disp, dst, width: 8 } if self.slot == Some((base, disp)) => {
                gains |= 1 << dst
            }
            InsnEffect::Store { src, base: Some(base), disp } if holds(src) && stack(base) => {
                self.slot = Some((base, disp))
            }
            InsnEffect::CmpMem { base: Some(base), disp, imm } if holds(base) => {
                self.out.extend([Access::Compare(disp), Access::Against(imm)]);
            }
            InsnEffect::CmpImm { reg, imm } if self.loaded.is_some_and(|l| l.0 == reg) => {
                self.out.push(Access::Against(imm));
            }
            InsnEffect::JumpMem { base: Some(base), disp } if holds(base) => {
                self.out.push(Access::Through(disp))
            }
            InsnEffect::JumpReg { reg } => {
                if let Some((_, disp)) = self.loaded.filter(|l| l.0 == reg) {
                    self.out.push(Access::Through(disp));
                }
            }
            InsnEffect::MovImm { dst, imm } if result == 1 << dst => self.out.push(Access::Result(imm)),
            InsnEffect::Copy { dst, src } if holds(src) => gains |= 1 << dst,
            InsnEffect::Copy { dst, src } => loaded = self.loaded.filter(|l| l.0 == src).map(|l| (dst, l.1)),
            _ => {}
        }
        self.holds = (self.holds & !writes) | gains;
        self.loaded = loaded.or(self.loaded.filter(|l| writes >> l.0 & 1 == 0));
    }
}
