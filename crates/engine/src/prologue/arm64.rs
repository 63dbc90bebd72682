//! A64 instructions that compilers use in prologues and tiny functions.
//!
//! Encodings: Arm ARM, chapter C4. What the kernel simulates under a uprobe: arch/arm64/kernel/probes/decode-insn.c
//! (branches, cbz/tbz, adr/adrp). Literal loads are omitted on purpose: recent kernels reject them.

use super::{Insn, InsnEffect};

/// Number of the stack pointer in [`Insn::writes`].
pub const SP: u8 = 31;

/// Decodes one instruction; `None` for unknown forms.
pub fn decode(bytes: &[u8]) -> Option<Insn> {
    let word = u32::from_le_bytes(*bytes.first_chunk::<4>()?);
    let (what, writes, name) = hint(word)
        .or_else(|| branch(word))
        .or_else(|| immediate(word))
        .or_else(|| register(word))
        .or_else(|| memory(word))?;
    Some(Insn { len: 4, what, writes, name })
}

type DecodedArm64 = (InsnEffect, u32, &'static str);

fn rd(word: u32) -> u8 {
    (word & 31) as u8
}

fn rn(word: u32) -> u8 {
    (word >> 5 & 31) as u8
}

/// Bit of a destination where 31 is the stack pointer.
fn bit_sp(reg: u8) -> u32 {
    1 << reg
}

/// Bit of a destination where 31 is the zero register.
fn bit_zr(reg: u8) -> u32 {
    if reg == 31 { 0 } else { 1 << reg }
}

/// The field of `bits` bits at `low`, as a signed number.
fn signed(word: u32, low: u32, bits: u32) -> i64 {
    let up = 32 - low - bits;
    i64::from(((word << up) as i32) >> (32 - bits))
}

fn hint(word: u32) -> Option<DecodedArm64> {
    match word {
        0xd503_201f => Some((InsnEffect::Nop, 0, "nop")),
        0xd503_233f => Some((InsnEffect::Landing, 1 << 30, "paciasp")),
        0xd503_237f => Some((InsnEffect::Landing, 1 << 30, "pacibsp")),
        0xd503_241f | 0xd503_245f | 0xd503_249f | 0xd503_24df => Some((InsnEffect::Landing, 0, "bti")),
        _ => None,
    }
}

fn branch(word: u32) -> Option<DecodedArm64> {
    let jump =
        |low, bits, conditional| InsnEffect::Jump { distance: signed(word, low, bits) * 4, conditional };
    if word & 0xfc00_0000 == 0x1400_0000 {
        return Some((jump(0, 26, false), 0, "b"));
    }
    if word & 0xfc00_0000 == 0x9400_0000 {
        return Some((InsnEffect::Call, 1 << 30, "bl"));
    }
    if word & 0xff00_0010 == 0x5400_0000 {
        return Some((jump(5, 19, true), 0, "b.cond"));
    }
    if word & 0x7e00_0000 == 0x3400_0000 {
        return Some((jump(5, 19, true), 0, "cbz"));
    }
    if word & 0x7e00_0000 == 0x3600_0000 {
        return Some((jump(5, 14, true), 0, "tbz"));
    }
    match word & 0xffff_fc1f {
        0xd61f_0000 => Some((InsnEffect::JumpReg { reg: rn(word) }, 0, "br")),
        0xd63f_0000 => Some((InsnEffect::JumpReg { reg: rn(word) }, 1 << 30, "blr")),
        0xd65f_0000 => Some((InsnEffect::Ret, 0, "ret")),
        _ => None,
    }
}

/// Arithmetic with constants, and addresses relative to the program counter.
fn immediate(word: u32) -> Option<DecodedArm64> {
    let wide = word >> 31 != 0;
    if word & 0x1f00_0000 == 0x1000_0000 {
        return Some((InsnEffect::PcRelative, bit_zr(rd(word)), if wide { "adrp" } else { "adr" }));
    }
    if word & 0x1f80_0000 == 0x1100_0000 {
        let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
        let imm = i64::from(word >> 10 & 0xfff) << shift;
        let (sub, flags) = (word >> 30 & 1 == 1, word >> 29 & 1 == 1);
        let (dst, src) = (rd(word), rn(word));
        if flags {
            let what =
                if sub && dst == 31 { InsnEffect::CmpImm { reg: src, imm } } else { InsnEffect::Other };
            return Some((what, bit_zr(dst), if sub { "subs" } else { "adds" }));
        }
        let disp = if sub { -imm } else { imm };
        let what = if wide { InsnEffect::Lea { dst, base: Some(src), disp } } else { InsnEffect::Other };
        return Some((what, bit_sp(dst), if sub { "sub" } else { "add" }));
    }
    if word & 0x1f80_0000 == 0x1200_0000 {
        // and, orr, eor may write the stack pointer, ands the zero register.
        let writes = if word >> 29 & 3 == 3 { bit_zr(rd(word)) } else { bit_sp(rd(word)) };
        return Some((InsnEffect::Other, writes, "logic"));
    }
    if word & 0x1f80_0000 == 0x1280_0000 {
        let imm = i64::from(word >> 5 & 0xffff);
        return match (word >> 29 & 3, word >> 21 & 3) {
            (2, 0) => Some((InsnEffect::MovImm { dst: rd(word), imm }, bit_zr(rd(word)), "mov")),
            (0 | 2 | 3, _) => Some((InsnEffect::Other, bit_zr(rd(word)), "mov")),
            _ => None,
        };
    }
    if word & 0x1f00_0000 == 0x1300_0000 {
        return Some((InsnEffect::Other, bit_zr(rd(word)), "bitfield"));
    }
    None
}

/// Arithmetic between registers.
fn register(word: u32) -> Option<DecodedArm64> {
    let dst = rd(word);
    if word & 0xffe0_ffe0 == 0xaa00_03e0 {
        return Some((InsnEffect::Copy { dst, src: (word >> 16 & 31) as u8 }, bit_zr(dst), "mov"));
    }
    let plain = word & 0x1f00_0000 == 0x0a00_0000
        || word & 0x1f20_0000 == 0x0b00_0000
        || word & 0x1f00_0000 == 0x1b00_0000
        || word & 0x1fe0_0000 == 0x1ac0_0000
        || word & 0x1fe0_0000 == 0x1a80_0000;
    if plain {
        return Some((InsnEffect::Other, bit_zr(dst), "arithmetic"));
    }
    if word & 0x1fe0_0000 == 0x0b20_0000 {
        return Some((InsnEffect::Other, bit_sp(dst), "arithmetic"));
    }
    // ccmp and ccmn write flags only.
    (word & 0x1fe0_0000 == 0x1a40_0000).then_some((InsnEffect::Other, 0, "ccmp"))
}

/// Loads and stores.
fn memory(word: u32) -> Option<DecodedArm64> {
    let vector = word >> 26 & 1 == 1;
    let (rt, base) = (rd(word), rn(word));
    if word & 0x3a00_0000 == 0x2800_0000 {
        return Some(pair(word, vector));
    }
    let size = word >> 30;
    let opc = word >> 22 & 3;
    let (load, name) = if opc == 0 { (false, "str") } else { (true, "ldr") };
    let written = |load: bool| if load && !vector { bit_zr(rt) } else { 0 };
    // Vector forms use the upper bit of opc for 128-bit operands; prefetches write nothing but count as loads.
    let load = if vector { opc & 1 == 1 } else { load };
    if word & 0x3b00_0000 == 0x3900_0000 {
        let disp = i64::from(word >> 10 & 0xfff) << size;
        let what = match (vector, opc, size) {
            (false, 1, _) => InsnEffect::Load { dst: rt, base: Some(base), disp, width: 1 << size },
            (false, 0, 3) => InsnEffect::Store { src: rt, base: Some(base), disp },
            _ => InsnEffect::Other,
        };
        return Some((what, written(load), name));
    }
    if word & 0x3b20_0000 == 0x3800_0000 {
        let disp = signed(word, 12, 9);
        let indexed = word >> 10 & 1 == 1;
        let back = if indexed { bit_sp(base) } else { 0 };
        let what = match (vector, opc, size, indexed) {
            (false, 1, _, false) => InsnEffect::Load { dst: rt, base: Some(base), disp, width: 1 << size },
            (false, 0, 3, false) => InsnEffect::Store { src: rt, base: Some(base), disp },
            _ => InsnEffect::Other,
        };
        return Some((what, written(load) | back, name));
    }
    if word & 0x3b20_0c00 == 0x3820_0800 {
        return Some((InsnEffect::Other, written(load), name));
    }
    None
}

/// ldp and stp; a pair of loads reports the first of the two.
fn pair(word: u32, vector: bool) -> DecodedArm64 {
    let (rt, base, rt2) = (rd(word), rn(word), (word >> 10 & 31) as u8);
    let load = word >> 22 & 1 == 1;
    let mode = word >> 23 & 3;
    let back = if mode & 1 == 1 { bit_sp(base) } else { 0 };
    let wide = word >> 30 == 2;
    let disp = signed(word, 15, 7) * if wide { 8 } else { 4 };
    let writes = if load && !vector { bit_zr(rt) | bit_zr(rt2) } else { 0 };
    let what = match (load && !vector && mode == 2, wide) {
        (true, true) => InsnEffect::Load { dst: rt, base: Some(base), disp, width: 8 },
        _ => InsnEffect::Other,
    };
    (what, writes | back, if load { "ldp" } else { "stp" })
}
