//! The headers of an ELF file: its kind, its loaded segments, where its symbols are.

use super::{ElfError, HEADER, MAX_DYNAMIC, Machine, Segment};
use crate::engine::symtab::SymTab;
use crate::host::pages::Pages;

/// Maximum number of loadable segments; linkers create about ten.
const MAX_SEGMENTS: usize = 64;
/// Bytes of a program header and of a section header.
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;

/// Checks class, byte order and machine, before anything else so that the error message is accurate.
pub fn check(head: &[u8], path: &str) -> Result<Machine, ElfError> {
    let path = || path.to_owned();
    let (true, Some(machine), Some(&class), Some(&order)) =
        (head.len() == HEADER && head.starts_with(b"\x7fELF"), u16_at(head, 18), head.get(4), head.get(5))
    else {
        return Err(ElfError::NotElf { path: path() });
    };
    match (class, order == 2, machine) {
        (1, _, _) => Err(ElfError::Class32 { path: path() }),
        (2, false, 62) => Ok(Machine::X86_64),
        (2, false, 183) => Ok(Machine::Aarch64),
        (2, true, m) => Err(ElfError::OtherMachine { path: path(), machine: m.swap_bytes() }),
        (2, false, m) => Err(ElfError::OtherMachine { path: path(), machine: m }),
        _ => Err(ElfError::Malformed { path: path(), what: "the ELF class" }),
    }
}

/// Contents of the program headers.
pub struct Parts {
    pub segments: Vec<Segment>,
    /// Offset and length in the file.
    pub dynamic: Option<(u64, u64)>,
    /// GNU build id, empty if there is none.
    pub build_id: Vec<u8>,
}

impl Parts {
    pub fn read(pages: &Pages, head: &[u8; HEADER]) -> Result<Parts, &'static str> {
        const BAD: &str = "the program headers";
        let (Some(at), Some(size), Some(count)) = (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56))
        else {
            return Err(BAD);
        };
        let bytes = usize::from(count) * PROGRAM_HEADER;
        let headers = pages.take(at, bytes);
        if (count > 0 && usize::from(size) != PROGRAM_HEADER) || headers.len() < bytes {
            return Err(BAD);
        }
        let mut parts = Parts { segments: Vec::new(), dynamic: None, build_id: Vec::new() };
        for p in headers.chunks_exact(PROGRAM_HEADER) {
            let (Some(kind), Some(offset), Some(vaddr), Some(filesz)) =
                (u32_at(p, 0), u64_at(p, 8), u64_at(p, 16), u64_at(p, 32))
            else {
                return Err(BAD);
            };
            match kind {
                1 if parts.segments.len() == MAX_SEGMENTS => return Err("it has too many loadable segments"),
                1 => parts.segments.push(Segment { vaddr, offset, filesz }),
                2 => parts.dynamic = Some((offset, filesz)),
                4 if parts.build_id.is_empty() => {
                    parts.build_id = note_build_id(&pages.take(offset, filesz.min(MAX_DYNAMIC) as usize));
                }
                _ => {}
            }
        }
        if parts.segments.is_empty() {
            return Err("it has no loadable segment");
        }
        if parts.segments.iter().any(|s| s.offset.saturating_add(s.filesz) > pages.size()) {
            return Err("it is truncated: its header lists parts beyond its end");
        }
        Ok(parts)
    }
}

/// (`.symtab`, `.dynsym`) as described by the section headers; a file may have neither.
pub fn section_symbols(pages: &Pages, head: &[u8; HEADER]) -> (Option<SymTab>, Option<SymTab>) {
    const KINDS: [u32; 2] = [2, 11];
    const NO_BITS: u32 = 8;
    let (Some(at), Some(64), Some(count)) = (u64_at(head, 40), u16_at(head, 58), u16_at(head, 60)) else {
        return (None, None);
    };
    // Location of the first table of each kind, and the section that has its strings.
    let mut found: [Option<((u64, u64), u32)>; 2] = [None; KINDS.len()];
    let range = |s: &[u8]| Some((u64_at(s, 24)?, u64_at(s, 32)?));
    pages.pieces((at, u64::from(count) * SECTION_HEADER as u64), SECTION_HEADER, 0, &mut |_, bytes| {
        for s in bytes.chunks_exact(SECTION_HEADER) {
            let slot =
                KINDS.iter().position(|kind| u32_at(s, 4) == Some(*kind)).and_then(|k| found.get_mut(k));
            if let (Some(slot @ None), Some(range), Some(link)) = (slot, range(s), u32_at(s, 40)) {
                *slot = Some((range, link));
            }
        }
        found.contains(&None)
    });
    let table = |found: Option<((u64, u64), u32)>| {
        let (syms, link) = found.filter(|f| f.1 < u32::from(count))?;
        let s = pages.take(at.checked_add(u64::from(link) * SECTION_HEADER as u64)?, SECTION_HEADER);
        let strs = range(&s).filter(|_| u32_at(&s, 4) != Some(NO_BITS))?;
        Some(SymTab { syms, strs })
    };
    let [symtab, dynsym] = found;
    (table(symtab), table(dynsym))
}

/// The GNU build id in a note segment, empty if it has none.
fn note_build_id(mut notes: &[u8]) -> Vec<u8> {
    const BUILD_ID: u32 = 3;
    let pad = |n: u32| (n as usize).next_multiple_of(4);
    while let Some(head) = notes.first_chunk::<12>() {
        let &[namesz, descsz, kind] = head.as_chunks::<4>().0 else { break };
        let [namesz, descsz, kind] = [namesz, descsz, kind].map(u32::from_le_bytes);
        if namesz > 4096 || descsz > 4096 {
            break;
        }
        let Some(rest) = notes.get(12..) else { break };
        let name = rest.get(..namesz as usize);
        let desc = rest.get(pad(namesz)..).and_then(|d| d.get(..descsz as usize));
        if let (true, Some(b"GNU\0"), Some(desc)) = (kind == BUILD_ID, name, desc) {
            return desc.get(..descsz.min(64) as usize).unwrap_or(desc).to_vec();
        }
        notes = rest.get(pad(namesz) + pad(descsz)..).unwrap_or(&[]);
    }
    Vec::new()
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_le_bytes(*b))
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}
