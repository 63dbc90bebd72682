//! A jump at the entry of a function: which instructions it replaces, and where they go on. Pure functions over bytes.
//!
//! The jump is written before the function can run, and never while it runs. What it replaces is executed elsewhere, so
//! only instructions that do not know where they stand are moved, and none that a jump of the function may land on.

use engine::elf::ElfMachine;
use engine::prologue::{self, Insn, InsnEffect, x86};

/// Bytes of a function's slot in a code page: the call of the thunk, the moved instructions and the way back, the thunk's
/// address, and the number of the site. The thunks know where they are (crates/inside/lib).
pub const SLOT: usize = 64;
const THUNK_AT: usize = 48;
/// Bytes of x86-64's jump to a place within 2 GiB, and of arm64's within 128 MiB.
const JUMP_X86: usize = 5;
const JUMP_ARM64: usize = 4;
const NOP: [u8; 4] = [0x1f, 0x20, 3, 0xd5];

/// The instructions that make room for the jump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Bytes from the function's entry to the jump: a landing mark stays where it is.
    pub at: usize,
    /// The bytes that the jump replaces: the first of the moved instructions, or all and the padding behind them.
    pub old: Vec<u8>,
    moved: Vec<Moved>,
    /// Bytes from the entry to where the call goes on behind them.
    end: usize,
    /// The instruction before them that signs the return address: paciasp or pacibsp.
    signed: Option<[u8; 4]>,
    machine: ElfMachine,
}

/// An instruction that is moved.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Moved {
    bytes: Vec<u8>,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    AsItIs,
    /// It addresses memory, by 32 bits at this offset of it; and where it ends, from the function's entry.
    Rip {
        displacement: usize,
        end: usize,
    },
    /// A jump of x86-64 to this distance from the function's entry, by this opcode of a near one.
    Jump {
        to: i64,
        opcode: [u8; 2],
    },
    /// A branch of arm64 to this distance from the function's entry.
    Branch {
        to: i64,
        conditional: bool,
    },
    /// adrp, at this distance from the function's entry.
    Page {
        at: usize,
    },
}

/// Why a function cannot have a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    #[error("unknown instruction at +{0}")]
    Unknown(usize),
    #[error("{1} at +{0} cannot be moved")]
    Fixed(usize, &'static str),
    #[error("a jump of the function may lead into its first instructions")]
    Target,
}

/// Where a jump at the entry of this code has room. `code` is the function from its first byte, as much as is known.
///
/// # Errors
/// Its first instructions cannot be moved.
pub fn room(machine: ElfMachine, code: &[u8]) -> Result<Room, NoRoom> {
    let insn_at = |at: usize| {
        let rest = code.get(at..).unwrap_or_default();
        prologue::decode(machine, rest).ok_or(NoRoom::Unknown(at)).map(|insn| (insn, rest))
    };
    let mut at = 0;
    let mut signed = None;
    while let (insn, _) = insn_at(at)?
        && insn.what == InsnEffect::Landing
    {
        if insn.writes != 0 {
            signed = code.get(at..).and_then(|word| word.first_chunk::<4>()).copied();
        }
        at += insn.len;
    }
    let needed = if machine == ElfMachine::X86_64 { JUMP_X86 } else { JUMP_ARM64 };
    let mut moved = Vec::new();
    let mut end = at;
    while end < at + needed {
        let (insn, rest) = insn_at(end)?;
        let bytes = rest.get(..insn.len).unwrap_or_default();
        let how = how(machine, insn, bytes, end).ok_or(NoRoom::Fixed(end, insn.name))?;
        moved.push(Moved { bytes: bytes.to_vec(), how });
        end += insn.len;
        let last = matches!(insn.what, InsnEffect::Ret | InsnEffect::Jump { conditional: false, .. })
            || is_far(insn);
        if last && end < at + needed {
            // Behind the end of a function only padding may be replaced.
            let padding = code.get(end..at + needed).ok_or(NoRoom::Unknown(end))?;
            if !is_padding(padding, machine) {
                return Err(NoRoom::Fixed(end - insn.len, insn.name));
            }
            break;
        }
    }
    if moved.len() > 1 && lands(machine, code, at, end) {
        return Err(NoRoom::Target);
    }
    let old = code.get(at..at + needed).ok_or(NoRoom::Unknown(at))?.to_vec();
    Ok(Room { at, old, moved, end, signed, machine })
}

/// Whether it is a jump through memory or a register. A call there would leave a return address that no table for unwinding
/// knows.
fn is_far(insn: Insn) -> bool {
    insn.name == "jmp *"
}

/// How an instruction is moved that ends at `at` plus its length, from the function's entry. None: it cannot be.
fn how(machine: ElfMachine, insn: Insn, bytes: &[u8], at: usize) -> Option<How> {
    if machine == ElfMachine::X86_64
        && let Some(displacement) = x86::rip_displacement(bytes)
    {
        return (!insn.ends_block() || is_far(insn)).then_some(How::Rip { displacement, end: at + insn.len });
    }
    match insn.what {
        InsnEffect::Jump { distance, .. } if machine == ElfMachine::X86_64 => {
            let opcode = match *bytes {
                [short @ 0x70..=0x7f, _] => [0x0f, short + 0x10],
                [0x0f, near, ..] => [0x0f, near],
                [0xeb | 0xe9, ..] => [0xe9, 0],
                // jrcxz and loops have no near form.
                _ => return None,
            };
            Some(How::Jump { to: (at as i64).saturating_add(distance), opcode })
        }
        InsnEffect::Jump { distance, conditional } => {
            Some(How::Branch { to: (at as i64).saturating_add(distance), conditional })
        }
        InsnEffect::PcRelative => (insn.name == "adrp").then_some(How::Page { at }),
        _ if insn.ends_block() && !is_far(insn) && insn.what != InsnEffect::Ret => None,
        _ => Some(How::AsItIs),
    }
}

/// Whether bytes behind a function are filling: no-operations, or instructions that trap.
fn is_padding(bytes: &[u8], machine: ElfMachine) -> bool {
    let nop_words = |b: &[u8]| {
        prologue::decode(machine, b).is_some_and(|i| matches!(i.what, InsnEffect::Nop | InsnEffect::Nop5))
    };
    // A no-operation may be longer than the room: its first byte tells.
    bytes.iter().all(|b| *b == 0x90 || *b == 0xcc)
        || nop_words(bytes)
        || bytes.starts_with(&[0x66])
        || bytes.starts_with(&[0x0f, 0x1f])
}

/// Bytes that a short jump of x86-64 reaches backwards.
const SHORT: usize = 128;

/// Whether some jump behind the moved instructions may lead to one of them but the first. Up to the reach of a short
/// jump the code is read instruction by instruction; from there on, and behind an unknown one, each byte that could
/// start a jump is taken for one.
fn lands(machine: ElfMachine, code: &[u8], at: usize, end: usize) -> bool {
    let inside = |from: usize, distance: i64| {
        let target = (from as i64).saturating_add(distance);
        target > at as i64 && target < end as i64
    };
    let mut from = end;
    while from < end + SHORT
        && let Some(insn) = code.get(from..).and_then(|rest| prologue::decode(machine, rest))
    {
        if let InsnEffect::Jump { distance, .. } = insn.what
            && inside(from, distance)
        {
            return true;
        }
        from += insn.len;
    }
    (from..code.len()).any(|from| {
        let rest = code.get(from..).unwrap_or_default();
        x86::jump_distance(rest).is_some_and(|distance| inside(from, distance))
    })
}

impl Room {
    /// The slot of a function at `entry`, at the address `slot`, with this thunk and site. None: what the moved
    /// instructions need is too far away.
    pub fn slot(&self, entry: u64, slot: u64, thunk: u64, site: usize) -> Option<[u8; SLOT]> {
        let mut code = match self.machine {
            // call *THUNK_AT(%rip)
            ElfMachine::X86_64 => vec![0xff, 0x15, THUNK_AT as u8 - 6, 0, 0, 0],
            ElfMachine::Aarch64 => {
                // The thunk may put another return address in place of this one: it is authenticated before, by autiasp
                // or autibsp, and signed again behind. adr x17, slot; ldr x16, THUNK_AT; br x16
                let unsigned = self.signed.map(|[a, b, c, d]| [a | 0x80, b, c, d]).unwrap_or(NOP);
                let words: [u32; 3] =
                    [0x10ff_fff1, 0x5800_0010 | ((THUNK_AT as u32 - 8) / 4) << 5, 0xd61f_0200];
                let words = words.into_iter().flat_map(u32::to_le_bytes);
                unsigned.into_iter().chain(words).chain(self.signed.unwrap_or(NOP)).collect()
            }
        };
        for moved in &self.moved {
            code.extend(moved.at(entry, slot.wrapping_add(code.len() as u64))?);
        }
        code.extend(far_jump(self.machine, entry.wrapping_add(self.end as u64)));
        if code.len() > THUNK_AT {
            return None;
        }
        code.resize(THUNK_AT, 0);
        code.extend(thunk.to_le_bytes());
        code.extend((site as u64).to_le_bytes());
        code.try_into().ok()
    }

    /// The jump from the function to its slot. None: it is too far away.
    pub fn jump(&self, entry: u64, slot: u64) -> Option<Vec<u8>> {
        let from = entry.wrapping_add(self.at as u64);
        let distance = slot.wrapping_sub(from).cast_signed();
        match self.machine {
            ElfMachine::X86_64 => {
                let near = i32::try_from(distance - JUMP_X86 as i64).ok()?;
                Some([&[0xe9][..], &near.to_le_bytes()].concat())
            }
            ElfMachine::Aarch64 => branch(from, slot).map(|word| word.to_vec()),
        }
    }
}

impl Moved {
    /// The instruction, at this address, of a function at `entry`.
    fn at(&self, entry: u64, from: u64) -> Option<Vec<u8>> {
        let distance = |to: u64, end: u64| i32::try_from(to.wrapping_sub(end).cast_signed()).ok();
        match self.how {
            How::AsItIs => Some(self.bytes.clone()),
            How::Rip { displacement, end } => {
                let mut bytes = self.bytes.clone();
                let place = bytes.get_mut(displacement..)?.first_chunk_mut::<4>()?;
                let to =
                    entry.wrapping_add(end as u64).wrapping_add_signed(i32::from_le_bytes(*place).into());
                *place = distance(to, from.wrapping_add(self.bytes.len() as u64))?.to_le_bytes();
                Some(bytes)
            }
            How::Jump { to, opcode } => {
                let opcode = if opcode[0] == 0xe9 { &opcode[..1] } else { &opcode[..] };
                let end = from.wrapping_add(opcode.len() as u64 + 4);
                let distance = distance(entry.wrapping_add_signed(to), end)?;
                Some([opcode, &distance.to_le_bytes()].concat())
            }
            How::Branch { to, conditional } => {
                let to = entry.wrapping_add_signed(to);
                if !conditional {
                    return Some(branch(from, to)?.to_vec());
                }
                // The condition leads over a branch to what follows, to a branch to the target.
                let word = u32::from_le_bytes(*self.bytes.first_chunk()?);
                let two = if word & 0x7e00_0000 == 0x3600_0000 {
                    word & !(0x3fff << 5)
                } else {
                    word & !(0x7_ffff << 5)
                };
                Some(
                    [(two | 2 << 5).to_le_bytes(), branch(0, 8)?, branch(from.wrapping_add(8), to)?].concat(),
                )
            }
            How::Page { at } => {
                let word = u32::from_le_bytes(*self.bytes.first_chunk()?);
                // Arm ARM, ADRP: a number of pages of 4 KiB, its low two bits apart.
                let pages = ((word >> 5 & 0x7_ffff) << 2 | word >> 29 & 3) << 11;
                let page = (entry.wrapping_add(at as u64) >> 12)
                    .wrapping_add_signed(i64::from(pages.cast_signed() >> 11));
                let pages = page.wrapping_sub(from >> 12).cast_signed();
                let fits = (-(1 << 20)..1 << 20).contains(&pages).then_some(pages as u32)?;
                let word = word & 0x9f00_001f | (fits & 3) << 29 | (fits >> 2 & 0x7_ffff) << 5;
                Some(word.to_le_bytes().to_vec())
            }
        }
    }
}

/// Maximum distance between a function and its slot, with room for the page and the file.
pub fn reach(machine: ElfMachine) -> u64 {
    match machine {
        ElfMachine::X86_64 => (1 << 31) - (1 << 20),
        ElfMachine::Aarch64 => (1 << 27) - (1 << 20),
    }
}

/// A branch of arm64 to an address within 128 MiB.
fn branch(from: u64, to: u64) -> Option<[u8; 4]> {
    let distance = to.wrapping_sub(from).cast_signed();
    let near = (-(1 << 27)..1 << 27).contains(&distance).then_some(distance)?;
    Some((0x1400_0000 | (near >> 2) as u32 & 0x03ff_ffff).to_le_bytes())
}

/// A jump to anywhere: `jmp *(%rip)`, or `ldr x16, .+8; br x16`, with the address behind it.
fn far_jump(machine: ElfMachine, address: u64) -> impl Iterator<Item = u8> {
    let opcode: &[u8] = match machine {
        ElfMachine::X86_64 => &[0xff, 0x25, 0, 0, 0, 0],
        ElfMachine::Aarch64 => &[0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6],
    };
    opcode.iter().copied().chain(address.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: ElfMachine = ElfMachine::X86_64;

    #[test]
    fn a_landing_mark_stays_and_whole_instructions_move() {
        // endbr64; push %rbp; mov %rsp,%rbp; push %r15; ret
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0xc3];
        let room = room(X86, &code).expect("room");
        assert_eq!((room.at, room.end, &room.old[..]), (4, 10, &code[4..9]));
        let jump = room.jump(0x1000, 0x2000).expect("near");
        assert_eq!(jump, [0xe9, 0xf7, 0x0f, 0, 0]);
        assert_eq!(room.jump(0x1000, 1 << 40), None);
        let slot = room.slot(0x1000, 0x2000, 0x7000_0000_0010, 3).expect("near");
        assert_eq!((&slot[..6], &slot[6..12]), (&[0xff, 0x15, 42, 0, 0, 0][..], &code[4..10]));
        assert_eq!(slot[18..26], 0x100a_u64.to_le_bytes());
        assert_eq!((&slot[48..56], slot[56]), (&0x7000_0000_0010_u64.to_le_bytes()[..], 3));
    }

    #[test]
    fn what_knows_its_place_is_told_the_new_one() {
        // mov 0x10(%rip),%rax: of address 0x1017
        let load = room(X86, &[0x48, 0x8b, 5, 0x10, 0, 0, 0, 0xc3]).expect("room");
        let slot = load.slot(0x1000, 0x2000, 0, 0).expect("near");
        assert_eq!(slot[6..13], [0x48, 0x8b, 5, 0x0a, 0xf0, 0xff, 0xff]);
        assert_eq!(load.slot(0x1000, 1 << 40, 0, 0), None);
        // cmp $0,%edi; je +0x20: to 0x1025
        let jump = room(X86, &[0x83, 0xff, 0, 0x74, 0x20, 0xc3]).expect("room");
        let slot = jump.slot(0x1000, 0x2000, 0, 0).expect("near");
        assert_eq!(slot[6..15], [0x83, 0xff, 0, 0x0f, 0x84, 0x16, 0xf0, 0xff, 0xff]);
    }

    #[test]
    fn a_call_is_not_moved_and_a_jump_is() {
        // endbr64; jmp *0x88(%rdi)
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0xa7, 0x88, 0, 0, 0];
        assert_eq!(room(X86, &code).map(|room| (room.at, room.end)), Ok((4, 10)));
        assert!(matches!(room(X86, &[0xe8, 0, 0, 0, 0, 0xc3]), Err(NoRoom::Fixed(0, _))));
        // call *0x10(%rip)
        assert!(matches!(room(X86, &[0xff, 0x15, 0x10, 0, 0, 0, 0xc3]), Err(NoRoom::Fixed(0, _))));
    }

    #[test]
    fn a_loop_into_the_moved_instructions_is_seen() {
        // xor %eax,%eax; inc %eax; cmp %edi,%eax; jne inc; ret
        let code = [0x31, 0xc0, 0xff, 0xc0, 0x39, 0xf8, 0x75, 0xfa, 0xc3];
        assert_eq!(room(X86, &code), Err(NoRoom::Target));
    }

    #[test]
    fn an_empty_function_has_the_room_of_its_padding() {
        // ret, and a no-operation up to the next function
        let code = [0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
        assert_eq!(room(X86, &code).map(|room| room.end), Ok(1));
        assert!(room(X86, &[0xc3, 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3]).is_err());
    }

    #[test]
    fn one_instruction_of_arm64_moves() {
        let arm = ElfMachine::Aarch64;
        // bti c; stp x29, x30, [sp, #-16]!
        let code = [0x5f, 0x24, 3, 0xd5, 0xfd, 0x7b, 0xbf, 0xa9];
        let plain = room(arm, &code).expect("room");
        assert_eq!((plain.at, plain.end), (4, 8));
        assert_eq!(plain.jump(0x1000, 0x2000).expect("near"), 0x1400_03ff_u32.to_le_bytes());
        // paciasp instead: its signature is taken back before the thunk, and made again behind it.
        let code = [0x3f, 0x23, 3, 0xd5, 0xfd, 0x7b, 0xbf, 0xa9];
        let slot = room(arm, &code).expect("room").slot(0x1000, 0x2000, 7, 0).expect("near");
        assert_eq!((&slot[..4], &slot[16..24]), (&[0xbf, 0x23, 3, 0xd5][..], &code[..]));
    }

    #[test]
    fn arm64s_addresses_and_branches_are_told_the_new_place() {
        let arm = ElfMachine::Aarch64;
        let moved = |word: u32| {
            let slot =
                room(arm, &word.to_le_bytes()).expect("room").slot(0x10_0000, 0x4_0000, 7, 0).expect("near");
            slot[20..32]
                .chunks(4)
                .map(|w| u32::from_le_bytes(w.try_into().expect("four")))
                .collect::<Vec<_>>()
        };
        // adrp x0, .+0x3000, of page 0x103: from page 0x40 it is 0xc3 pages away, and back.
        assert_eq!(moved(0xf000_0000)[0], 0xf000_0600);
        assert_eq!(moved(0xf0ff_ffe0)[0] & 0x1f, 0);
        // cbz x1, .+0x20: over a branch behind it, to one to 0x100020
        assert_eq!(
            moved(0xb400_0101),
            [0xb400_0041, 0x1400_0002, 0x1400_0000 | ((0x10_0020 - 0x4_001c) / 4)]
        );
        // tbnz w2, #3, .+8
        assert_eq!(moved(0x3718_0042)[0], 0x3718_0042);
        // adr x0, .
        assert!(matches!(room(arm, &[0, 0, 0, 0x10]), Err(NoRoom::Fixed(0, _))));
    }
}
