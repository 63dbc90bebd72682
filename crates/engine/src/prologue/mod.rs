//! Chooses the instruction of a function on which to place a probe. Pure functions over bytes; uses only
//! `elf::Machine`.
//!
//! The kernel emulates a few instructions and single-steps all others at up to twenty times the cost. The decoders
//! in this directory know the few forms that compilers use at the start of functions; an unknown form ends the
//! search, so that a gap in the decoders costs speed and never correctness.

pub mod arm64;
pub mod x86;

use crate::elf::ElfMachine;

/// Maximum distance of a probe from the start of a function, in bytes.
const REACH_X86: usize = 32;
const REACH_ARM64: usize = 48;

/// What an instruction does, as far as probes and layouts need it. Register numbers are the machine's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsnEffect {
    /// endbr64, bti, paciasp: marks the entry.
    Landing,
    /// Push of a register that the kernel emulates.
    Push,
    /// No-operation that the kernel emulates.
    Nop,
    /// The 5-byte no-operation, which recent kernels replace with a call.
    Nop5,
    /// Direct jump, conditional or not; distance counts from the start of the instruction.
    Jump {
        distance: i64,
        conditional: bool,
    },
    /// Direct call.
    Call,
    /// Jump or call through memory at base + disp.
    JumpMem {
        base: Reg,
        disp: i64,
    },
    /// Jump or call through a register.
    JumpReg {
        reg: u8,
    },
    Ret,
    /// Load of `width` bytes.
    Load {
        dst: u8,
        base: Reg,
        disp: i64,
        width: u8,
    },
    /// Store of a full register.
    Store {
        src: u8,
        base: Reg,
        disp: i64,
    },
    /// Address computation, or addition of a constant.
    Lea {
        dst: u8,
        base: Reg,
        disp: i64,
    },
    Copy {
        dst: u8,
        src: u8,
    },
    MovImm {
        dst: u8,
        imm: i64,
    },
    /// Comparison of memory with a constant.
    CmpMem {
        base: Reg,
        disp: i64,
        imm: i64,
    },
    CmpImm {
        reg: u8,
        imm: i64,
    },
    /// Computes an address from the program counter (adr, adrp).
    PcRelative,
    Other,
}

/// Base register of a memory operand, `None` for forms with an index, a segment or the program counter.
pub type Reg = Option<u8>;

/// One decoded instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insn {
    /// Length in bytes, 1 to 15.
    pub len: usize,
    pub what: InsnEffect,
    /// Bit per general register that the instruction may write; the stack pointer is bit 4 (x86-64) or 31 (arm64).
    pub writes: u32,
    pub name: &'static str,
}

impl Insn {
    /// Whether execution may continue anywhere other than at the next instruction.
    pub fn ends_block(&self) -> bool {
        use InsnEffect::*;
        matches!(self.what, Jump { .. } | Call | JumpMem { .. } | JumpReg { .. } | Ret)
    }
}

/// Decodes the instruction at the start of `bytes`, `None` for unknown forms.
pub fn decode(machine: ElfMachine, bytes: &[u8]) -> Option<Insn> {
    match machine {
        ElfMachine::X86_64 => x86::decode(bytes),
        ElfMachine::Aarch64 => arm64::decode(bytes),
    }
}

/// What a probe needs to be intact when it fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Leading integer arguments that must still be in their registers.
    pub args: u8,
    /// Arguments are also read from the caller's stack, so the stack pointer must be the same as at the entry.
    pub stack: bool,
}

/// What the kernel does with the instruction under a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InsnHandling {
    /// 5-byte no-operation: cheapest on kernels that optimise it, single-stepped on older ones.
    Nop5,
    Emulated,
    SingleStepped,
}

/// A position for a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOffset {
    /// Bytes from the entry of the function.
    pub offset: u32,
    /// Mnemonic of the instruction there.
    pub insn: String,
    pub cost: InsnHandling,
    pub why: String,
}

/// Registers of the first `args` integer arguments, as bits of [`Insn::writes`].
pub fn arg_registers(machine: ElfMachine, args: u8) -> u32 {
    match machine {
        ElfMachine::X86_64 => x86::ARGS.iter().take(args.into()).fold(0, |m, &r| m | 1 << r),
        ElfMachine::Aarch64 => (1u32 << args.min(8)) - 1,
    }
}

fn stack_pointer(machine: ElfMachine) -> u32 {
    match machine {
        ElfMachine::X86_64 => 1 << x86::RSP,
        ElfMachine::Aarch64 => 1 << arm64::SP,
    }
}

fn cost(machine: ElfMachine, insn: &Insn) -> InsnHandling {
    match (machine, insn.what) {
        (_, InsnEffect::Nop5) => InsnHandling::Nop5,
        (_, InsnEffect::Push | InsnEffect::Jump { .. } | InsnEffect::Call) => InsnHandling::Emulated,
        (ElfMachine::X86_64, InsnEffect::Nop) => InsnHandling::Emulated,
        // arm64's nop is simulated only since 6.13; on older kernels it costs as much as the entry itself.
        (ElfMachine::Aarch64, InsnEffect::PcRelative | InsnEffect::JumpReg { .. } | InsnEffect::Ret) => {
            InsnHandling::Emulated
        }
        _ => InsnHandling::SingleStepped,
    }
}

fn at_entry(machine: ElfMachine, code: &[u8], why: String) -> ProbeOffset {
    let (insn, cost) = match decode(machine, code) {
        Some(i) => (i.name.to_owned(), cost(machine, &i)),
        None => ("?".to_owned(), InsnHandling::SingleStepped),
    };
    ProbeOffset { offset: 0, insn, cost, why }
}

/// The cheapest valid position for an entry probe. `code` is the function from its first byte, as much of it as is
/// known; with all of it, loops back into the prologue are noticed.
pub fn entry(machine: ElfMachine, code: &[u8], need: Need) -> ProbeOffset {
    let reach = match machine {
        ElfMachine::X86_64 => REACH_X86,
        ElfMachine::Aarch64 => REACH_ARM64,
    };
    let mut keep = arg_registers(machine, need.args);
    if need.stack {
        keep |= stack_pointer(machine);
    }
    let mut at = 0;
    while at < reach {
        let Some(insn) = code.get(at..).and_then(|rest| decode(machine, rest)) else {
            return at_entry(machine, code, format!("unknown instruction at +{at}"));
        };
        let cost = cost(machine, &insn);
        if cost != InsnHandling::SingleStepped {
            if at > 0 && runs_again(machine, code, at, insn) {
                return at_entry(
                    machine,
                    code,
                    format!("{} at +{at} may run more than once per call", insn.name),
                );
            }
            let why = match at {
                0 => "cheap at the entry".to_owned(),
                _ if need.args == 1 => "first cheap instruction, the argument still in place".to_owned(),
                _ => format!("first cheap instruction, {} arguments still in place", need.args),
            };
            return ProbeOffset { offset: at as u32, insn: insn.name.to_owned(), cost, why };
        }
        if insn.ends_block() {
            return at_entry(machine, code, format!("control flow leaves at +{at}"));
        }
        if insn.writes & keep != 0 {
            return at_entry(
                machine,
                code,
                format!("{} at +{at} overwrites what the probe reads", insn.name),
            );
        }
        at += insn.len;
    }
    at_entry(machine, code, format!("no cheap instruction in the first {reach} bytes"))
}

/// The first cheap instruction that runs once per call and is at none of the offsets in `probed`, else the first one
/// that is not cheap.
pub fn other(machine: ElfMachine, code: &[u8], probed: &[u32]) -> Option<u32> {
    let (mut at, mut stepped) = (0, None);
    while let Some(insn) = code.get(at..).and_then(|rest| decode(machine, rest)) {
        let Ok(offset) = u32::try_from(at) else { break };
        if !probed.contains(&offset) && (at == 0 || !runs_again(machine, code, at, insn)) {
            if cost(machine, &insn) != InsnHandling::SingleStepped {
                return Some(offset);
            }
            stepped = stepped.or(Some(offset));
        }
        // Behind a jump, taken or not, it is not known what runs.
        if insn.ends_block() {
            break;
        }
        at += insn.len;
    }
    stepped
}

/// Whether some jump of the function may land between the entry (exclusive) and the instruction at `at`
/// (inclusive), so that a probe there would count loops. x86 code cannot be read backwards, so each byte that could
/// start a jump is treated as one: at worst this is too cautious.
fn runs_again(machine: ElfMachine, code: &[u8], at: usize, insn: Insn) -> bool {
    let lands = |from: usize, distance: i64| {
        let target = (from as i64).saturating_add(distance);
        target > 0 && target <= at as i64
    };
    // A push on the straight line from the entry belongs to the prologue; no loop starts before it.
    if insn.what == InsnEffect::Push {
        return false;
    }
    if let InsnEffect::Jump { distance, .. } = insn.what
        && lands(at, distance)
    {
        return true;
    }
    let start = at + insn.len;
    match machine {
        ElfMachine::Aarch64 => code.get(start..).unwrap_or(&[]).chunks_exact(4).enumerate().any(
            |(i, word)| match arm64::decode(word).map(|i| i.what) {
                Some(InsnEffect::Jump { distance, .. }) => lands(start + i * 4, distance),
                _ => false,
            },
        ),
        ElfMachine::X86_64 => (start..code.len()).any(|from| {
            let rest = code.get(from..).unwrap_or(&[]);
            x86::jump_distance(rest).is_some_and(|distance| lands(from, distance))
        }),
    }
}

/// The position for a return probe: the first cheap instruction before which nothing has changed the stack pointer,
/// so that the return address is still on top. After a push, the kernel would overwrite the saved register instead.
/// On arm64 it is always the entry, which keeps pointer authentication intact.
pub fn ret(machine: ElfMachine, code: &[u8]) -> ProbeOffset {
    if machine == ElfMachine::Aarch64 {
        // The first instruction may sign the return address: it can be replaced only before that.
        return at_entry(machine, code, "return probes need the entry".to_owned());
    }
    let choice = entry(machine, code, Need { args: 0, stack: true });
    match choice.offset {
        0 => choice,
        _ => ProbeOffset {
            why: "cheap, and the return address still on top of the stack".to_owned(),
            ..choice
        },
    }
}
