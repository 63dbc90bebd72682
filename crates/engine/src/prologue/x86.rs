//! x86-64 instructions that compilers use in prologues and tiny functions.
//!
//! Encodings: Intel SDM volume 2. What the kernel emulates: arch/x86/kernel/uprobes.c (push of a register without a
//! prefix other than REX.B, nop, direct jmp/jcc/call without prefix).

use super::{Insn, InsnEffect, Reg};

pub const RAX: u8 = 0;
pub const RDX: u8 = 2;
pub const RSP: u8 = 4;
pub const RBP: u8 = 5;
/// Integer arguments in order: rdi, rsi, rdx, rcx, r8, r9.
pub const ARGS: [u8; 6] = [7, 6, 2, 1, 8, 9];

const fn bit(reg: u8) -> u32 {
    1 << reg
}

/// Bytes of one instruction, read front to back.
struct InsnBytes<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the displacement of an operand is that is relative to the program counter.
    rip: Option<usize>,
}

impl InsnBytes<'_> {
    fn u8(&mut self) -> Option<u8> {
        let b = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(b)
    }

    fn i8(&mut self) -> Option<i64> {
        self.u8().map(|b| i64::from(b as i8))
    }

    fn i32(&mut self) -> Option<i64> {
        let b = self.bytes.get(self.at..)?.first_chunk::<4>()?;
        self.at += 4;
        Some(i64::from(i32::from_le_bytes(*b)))
    }

    fn i64(&mut self) -> Option<i64> {
        let b = self.bytes.get(self.at..)?.first_chunk::<8>()?;
        self.at += 8;
        Some(i64::from_le_bytes(*b))
    }

    /// Immediate of an instruction with a 32-bit operand, 16 bits with the 66 prefix.
    fn imm(&mut self, short: bool) -> Option<i64> {
        if short { Some(i64::from(i16::from_le_bytes([self.u8()?, self.u8()?]))) } else { self.i32() }
    }
}

#[derive(Default, Clone, Copy)]
struct Prefix {
    rex: u8,
    short: bool,
    rep: u8,
    segment: bool,
    lock: bool,
    pad: bool,
}

impl Prefix {
    fn none(self) -> bool {
        self.rex == 0 && !self.short && self.rep == 0 && !self.segment && !self.lock && !self.pad
    }

    /// Whether immediates have 16 bits; a wide operand overrides the prefix.
    fn imm16(self) -> bool {
        self.short && self.rex & 8 == 0
    }

    /// Width in bytes of a general operand.
    fn width(self) -> u8 {
        match (self.rex & 8 != 0, self.short) {
            (true, _) => 8,
            (false, true) => 2,
            (false, false) => 4,
        }
    }
}

/// The ModRM byte and what follows it.
#[derive(Clone, Copy)]
struct ModRm {
    reg: u8,
    /// Register operand, if the operand is not in memory.
    rm: Option<u8>,
    base: Reg,
    disp: i64,
    /// The three bits that extend the opcode.
    ext: u8,
}

impl ModRm {
    /// Bits of the registers that a write to the r/m operand touches.
    fn rm_bits(self, byte: bool) -> u32 {
        self.rm.map_or(0, |r| reg_bits(r, byte))
    }
}

/// Bits that a write to a register touches; byte registers 4-7 may be ah, ch, dh, bh.
fn reg_bits(reg: u8, byte: bool) -> u32 {
    if byte && (4..8).contains(&reg) { bit(reg) | bit(reg & 3) } else { bit(reg) }
}

fn modrm(c: &mut InsnBytes, p: Prefix) -> Option<ModRm> {
    let m = c.u8()?;
    let reg = (m >> 3 & 7) | (p.rex & 4) << 1;
    let high = (p.rex & 1) << 3;
    let mut out = ModRm { reg, rm: None, base: None, disp: 0, ext: m >> 3 & 7 };
    if m >> 6 == 3 {
        out.rm = Some((m & 7) | high);
        return Some(out);
    }
    let mut base = Some((m & 7) | high);
    let mut absolute = false;
    if m & 7 == 4 {
        let sib = c.u8()?;
        let index = (sib >> 3 & 7) | (p.rex & 2) << 2;
        base = Some((sib & 7) | high);
        absolute = sib & 7 == 5 && m >> 6 == 0;
        if index != 4 {
            base = None;
        }
    } else if m & 7 == 5 && m >> 6 == 0 {
        absolute = true;
        c.rip = Some(c.at);
    }
    out.disp = match m >> 6 {
        1 => c.i8()?,
        2 => c.i32()?,
        _ if absolute => c.i32()?,
        _ => 0,
    };
    out.base = if absolute || p.segment { None } else { base };
    Some(out)
}

/// Decodes one instruction; `None` for unknown forms.
pub fn decode(bytes: &[u8]) -> Option<Insn> {
    decode_from(&mut InsnBytes { bytes, at: 0, rip: None })
}

/// Where the instruction at the start of these bytes has the 32 bits of an address that is relative to its end.
pub fn rip_displacement(bytes: &[u8]) -> Option<usize> {
    let mut c = InsnBytes { bytes, at: 0, rip: None };
    decode_from(&mut c).and(c.rip)
}

fn decode_from(c: &mut InsnBytes) -> Option<Insn> {
    let mut p = Prefix::default();
    let op = loop {
        let b = c.u8()?;
        if c.at > 6 {
            return None;
        }
        match b {
            0x66 => p.short = true,
            0xf2 | 0xf3 => p.rep = b,
            0xf0 => p.lock = true,
            0x64 | 0x65 => p.segment = true,
            // No meaning in 64-bit mode, used as padding.
            0x2e | 0x3e => p.pad = true,
            0x40..=0x4f => {
                // REX counts only immediately before the opcode.
                p.rex = b;
                break c.u8()?;
            }
            _ => break b,
        }
    };
    let (what, writes, name) = match op {
        0x0f => two_byte(c, p)?,
        0xc4 | 0xc5 if c.at == 1 => return vex(c, op),
        _ => one_byte(c, p, op)?,
    };
    if c.at > 15 || matches!(op, 0x40..=0x4f) {
        return None;
    }
    // The forms that the kernel emulates have no prefix; with padding an instruction is not cheap, and jumps may
    // change meaning.
    let plain = p.none();
    let what = match what {
        InsnEffect::Jump { .. } | InsnEffect::Call if !plain => return None,
        InsnEffect::Push if !(plain || (p.rex == 0x41 && c.at == 2)) => InsnEffect::Other,
        InsnEffect::Jump { distance, conditional } => {
            InsnEffect::Jump { distance: distance.saturating_add(c.at as i64), conditional }
        }
        w => w,
    };
    Some(Insn { len: c.at, what, writes, name })
}

type DecodedX86 = (InsnEffect, u32, &'static str);

fn one_byte(c: &mut InsnBytes, p: Prefix, op: u8) -> Option<DecodedX86> {
    let low = (op & 7) | (p.rex & 1) << 3;
    Some(match op {
        0x00..=0x3f if op & 7 < 6 => return alu(c, p, op),
        0x50..=0x57 => (InsnEffect::Push, bit(RSP), "push"),
        0x58..=0x5f => (InsnEffect::Other, bit(RSP) | bit(low), "pop"),
        0x63 => {
            let m = modrm(c, p)?;
            (InsnEffect::Other, bit(m.reg), "movslq")
        }
        0x68 if !p.short => {
            c.i32()?;
            (InsnEffect::Other, bit(RSP), "push imm")
        }
        0x6a => {
            c.u8()?;
            (InsnEffect::Other, bit(RSP), "push imm")
        }
        0x69 | 0x6b => {
            let m = modrm(c, p)?;
            if op == 0x69 {
                c.imm(p.imm16())?
            } else {
                c.i8()?
            };
            (InsnEffect::Other, bit(m.reg), "imul")
        }
        0x70..=0x7f => (InsnEffect::Jump { distance: c.i8()?, conditional: true }, 0, jcc_name(op)),
        0x80 | 0x81 | 0x83 => return group1(c, p, op),
        0x84 | 0x85 => {
            modrm(c, p)?;
            (InsnEffect::Other, 0, "test")
        }
        0x88 | 0x89 => {
            let m = modrm(c, p)?;
            match m.rm {
                Some(dst) if op == 0x89 && p.width() == 8 => {
                    (InsnEffect::Copy { dst, src: m.reg }, bit(dst), "mov")
                }
                Some(dst) => (InsnEffect::Other, reg_bits(dst, op == 0x88), "mov"),
                None if op == 0x89 && p.width() == 8 => {
                    (InsnEffect::Store { src: m.reg, base: m.base, disp: m.disp }, 0, "mov")
                }
                None => (InsnEffect::Other, 0, "mov"),
            }
        }
        0x8a | 0x8b => {
            let m = modrm(c, p)?;
            let width = if op == 0x8a { 1 } else { p.width() };
            let what = match m.rm {
                Some(src) if width == 8 => InsnEffect::Copy { dst: m.reg, src },
                Some(_) => InsnEffect::Other,
                None => InsnEffect::Load { dst: m.reg, base: m.base, disp: m.disp, width },
            };
            (what, reg_bits(m.reg, op == 0x8a), "mov")
        }
        0x8d => {
            let m = modrm(c, p)?;
            if m.rm.is_some() {
                return None;
            }
            (InsnEffect::Lea { dst: m.reg, base: m.base, disp: m.disp }, bit(m.reg), "lea")
        }
        0x90 if p.none() => (InsnEffect::Nop, 0, "nop"),
        0x90 if p.short && p.rex == 0 && p.rep == 0 => (InsnEffect::Other, 0, "xchg %ax,%ax"),
        0xa8 => {
            c.u8()?;
            (InsnEffect::Other, 0, "test")
        }
        0xa9 => {
            c.imm(p.imm16())?;
            (InsnEffect::Other, 0, "test")
        }
        0xb0..=0xb7 => {
            c.u8()?;
            (InsnEffect::Other, reg_bits(low, true), "mov")
        }
        0xb8..=0xbf => {
            let imm = if p.rex & 8 != 0 { c.i64()? } else { c.imm(p.imm16())? & 0xffff_ffff };
            (InsnEffect::MovImm { dst: low, imm }, bit(low), "mov")
        }
        0xc0 | 0xc1 | 0xd0..=0xd3 => {
            let m = modrm(c, p)?;
            if op < 0xd0 {
                c.u8()?;
            }
            (InsnEffect::Other, m.rm_bits(op & 1 == 0), "shift")
        }
        0xc3 => (InsnEffect::Ret, bit(RSP), "ret"),
        0xc6 | 0xc7 => {
            let m = modrm(c, p)?;
            if m.ext != 0 {
                return None;
            }
            let imm = if op == 0xc6 { c.i8()? } else { c.imm(p.imm16())? };
            match m.rm {
                Some(dst) if op == 0xc7 && p.rex & 8 != 0 => {
                    (InsnEffect::MovImm { dst, imm }, bit(dst), "mov")
                }
                _ => (InsnEffect::Other, m.rm_bits(op == 0xc6), "mov"),
            }
        }
        0xc9 => (InsnEffect::Other, bit(RSP) | bit(RBP), "leave"),
        0xe8 => {
            c.i32()?;
            (InsnEffect::Call, 0, "call")
        }
        0xe9 => (InsnEffect::Jump { distance: c.i32()?, conditional: false }, 0, "jmp"),
        0xeb => (InsnEffect::Jump { distance: c.i8()?, conditional: false }, 0, "jmp"),
        0xf6 | 0xf7 => {
            let m = modrm(c, p)?;
            if m.ext < 2 {
                if op == 0xf6 {
                    c.i8()?
                } else {
                    c.imm(p.imm16())?
                };
                return Some((InsnEffect::Other, 0, "test"));
            }
            let wide = if m.ext >= 4 { bit(RAX) | bit(RDX) } else { m.rm_bits(op == 0xf6) };
            (InsnEffect::Other, wide, "group 3")
        }
        0xfe | 0xff => return group5(c, p, op),
        _ => return None,
    })
}

/// add, or, adc, sbb, and, sub, xor, cmp between registers and memory.
#[expect(clippy::indexing_slicing, reason = "an index of three bits")]
fn alu(c: &mut InsnBytes, p: Prefix, op: u8) -> Option<DecodedX86> {
    const NAMES: [&str; 8] = ["add", "or", "adc", "sbb", "and", "sub", "xor", "cmp"];
    let name = NAMES[usize::from(op >> 3 & 7)];
    let byte = op & 1 == 0;
    let written = match op & 7 {
        0 | 1 => modrm(c, p)?.rm_bits(byte),
        2 | 3 => reg_bits(modrm(c, p)?.reg, byte),
        4 => {
            c.u8()?;
            bit(RAX)
        }
        _ => {
            let imm = c.imm(p.imm16())?;
            if name == "cmp" {
                return Some((InsnEffect::CmpImm { reg: RAX, imm }, 0, name));
            }
            if name == "add" && p.rex & 8 != 0 {
                return Some((InsnEffect::Lea { dst: RAX, base: Some(RAX), disp: imm }, bit(RAX), name));
            }
            bit(RAX)
        }
    };
    Some((InsnEffect::Other, if name == "cmp" { 0 } else { written }, name))
}

/// The same operations with a constant.
fn group1(c: &mut InsnBytes, p: Prefix, op: u8) -> Option<DecodedX86> {
    let m = modrm(c, p)?;
    let imm = if op == 0x81 { c.imm(p.imm16())? } else { c.i8()? };
    Some(match (m.ext, m.rm) {
        (7, Some(reg)) if op != 0x80 => (InsnEffect::CmpImm { reg, imm }, 0, "cmp"),
        (7, None) if op != 0x80 => (InsnEffect::CmpMem { base: m.base, disp: m.disp, imm }, 0, "cmp"),
        (7, _) => (InsnEffect::Other, 0, "cmp"),
        (0, Some(dst)) if p.rex & 8 != 0 => {
            (InsnEffect::Lea { dst, base: Some(dst), disp: imm }, bit(dst), "add")
        }
        (4, Some(dst)) => (InsnEffect::Other, reg_bits(dst, op == 0x80), "and"),
        (5, Some(dst)) => (InsnEffect::Other, reg_bits(dst, op == 0x80), "sub"),
        _ => (InsnEffect::Other, m.rm_bits(op == 0x80), "group 1"),
    })
}

/// inc, dec, and call, jmp, push through memory or a register.
fn group5(c: &mut InsnBytes, p: Prefix, op: u8) -> Option<DecodedX86> {
    let m = modrm(c, p)?;
    let through = |m: ModRm| match m.rm {
        Some(reg) => InsnEffect::JumpReg { reg },
        None => InsnEffect::JumpMem { base: m.base, disp: m.disp },
    };
    Some(match (op, m.ext) {
        (_, 0 | 1) => (InsnEffect::Other, m.rm_bits(op == 0xfe), "inc"),
        (0xff, 2) => (through(m), 0, "call *"),
        (0xff, 4) => (through(m), 0, "jmp *"),
        (0xff, 6) => (InsnEffect::Other, bit(RSP), "push mem"),
        _ => return None,
    })
}

fn two_byte(c: &mut InsnBytes, p: Prefix) -> Option<DecodedX86> {
    let op = c.u8()?;
    Some(match op {
        0x1e if p.rep == 0xf3 && p.rex == 0 => {
            if c.u8()? != 0xfa {
                return None;
            }
            (InsnEffect::Landing, 0, "endbr64")
        }
        0x1f => {
            let m = modrm(c, p)?;
            if m.ext != 0 {
                return None;
            }
            match (c.at, p.none()) {
                (5, true) => (InsnEffect::Nop5, 0, "nopl"),
                _ => (InsnEffect::Nop, 0, "nopl"),
            }
        }
        // Moves and logic on vector registers and memory: no general register is written.
        0x10 | 0x11 | 0x12 | 0x13 | 0x14 | 0x16 | 0x17 | 0x28 | 0x29 | 0x54 | 0x57 | 0x6c | 0x6e | 0x6f
        | 0x7f | 0xd6 | 0xef => {
            modrm(c, p)?;
            (InsnEffect::Other, 0, "vector move")
        }
        0x7e if p.rep == 0xf3 => {
            modrm(c, p)?;
            (InsnEffect::Other, 0, "movq")
        }
        0x40..=0x4f => {
            let m = modrm(c, p)?;
            (InsnEffect::Other, bit(m.reg), "cmov")
        }
        0x80..=0x8f => (InsnEffect::Jump { distance: c.i32()?, conditional: true }, 0, jcc_name(op)),
        0x90..=0x9f => {
            let m = modrm(c, p)?;
            (InsnEffect::Other, m.rm_bits(true), "set")
        }
        0xaf => {
            let m = modrm(c, p)?;
            // A multiplication can also read a field of a struct.
            let load = InsnEffect::Load { dst: m.reg, base: m.base, disp: m.disp, width: p.width() };
            (if m.rm.is_some() { InsnEffect::Other } else { load }, bit(m.reg), "imul")
        }
        0xb6 | 0xb7 | 0xbe | 0xbf => {
            let m = modrm(c, p)?;
            (InsnEffect::Other, bit(m.reg), "movx")
        }
        0xc0 | 0xc1 => {
            let m = modrm(c, p)?;
            (InsnEffect::Other, reg_bits(m.reg, op == 0xc0) | m.rm_bits(op == 0xc0), "xadd")
        }
        _ => return None,
    })
}

/// The few VEX forms seen in prologues: moves from general registers, memory and vector registers to vector registers.
fn vex(c: &mut InsnBytes, first: u8) -> Option<Insn> {
    let (map, pp, rex) = if first == 0xc4 {
        let (a, b) = (c.u8()?, c.u8()?);
        (a & 31, b & 3, (!a >> 7 & 1) << 2 | (!a >> 6 & 1) << 1 | (!a >> 5 & 1))
    } else {
        let a = c.u8()?;
        (1, a & 3, (!a >> 7 & 1) << 2)
    };
    let op = c.u8()?;
    let p = Prefix { rex, ..Prefix::default() };
    match (map, pp, op) {
        (1, 1, 0x6e | 0xef)
        | (1, _, 0x10 | 0x11)
        | (1, 0 | 1, 0x28 | 0x29 | 0x57)
        | (1, 1 | 2, 0x6f | 0x7f) => {
            modrm(c, p)?;
        }
        (3, 1, 0x22) => {
            modrm(c, p)?;
            c.u8()?;
        }
        _ => return None,
    }
    Some(Insn { len: c.at, what: InsnEffect::Other, writes: 0, name: "vector move" })
}

#[expect(clippy::indexing_slicing, reason = "an index of four bits")]
fn jcc_name(op: u8) -> &'static str {
    const NAMES: [&str; 16] = [
        "jo", "jno", "jb", "jae", "je", "jne", "jbe", "ja", "js", "jns", "jp", "jnp", "jl", "jge", "jle",
        "jg",
    ];
    NAMES[usize::from(op & 15)]
}

/// Distance of the direct jump that these bytes would be, from their start.
pub fn jump_distance(bytes: &[u8]) -> Option<i64> {
    let mut c = InsnBytes { bytes, at: 0, rip: None };
    let distance = match c.u8()? {
        0x70..=0x7f | 0xe0..=0xe3 | 0xeb => c.i8()?,
        0xe9 => c.i32()?,
        0x0f if (0x80..=0x8f).contains(&c.u8()?) => c.i32()?,
        _ => return None,
    };
    Some(distance + c.at as i64)
}
