//! The headers of an ELF file: its kind, its loaded segments, where its symbols are.

use object::elf::{
    ELF_NOTE_GNU, ELFCLASS32, ELFCLASS64, ELFDATA2MSB, ELFMAG, EM_AARCH64, EM_X86_64, FileHeader64,
    NT_GNU_BUILD_ID, PT_DYNAMIC, PT_INTERP, PT_LOAD, PT_NOTE, ProgramHeader64, SHT_DYNSYM, SHT_NOBITS,
    SHT_SYMTAB, SectionHeader64, SectionType,
};
use object::read::elf::NoteIterator;
use object::{LittleEndian as LE, pod};

use super::{ElfError, ElfMachine, MAX_DYNAMIC, Segment};
use crate::symtab::{SymTab, entries};
use machine::pages::Pages;

/// The file's header.
pub type FileHeader = FileHeader64<LE>;

/// Maximum number of loadable segments; linkers create about ten.
const MAX_SEGMENTS: usize = 64;
/// Bytes of a program header and of a section header.
const PROGRAM_HEADER: usize = size_of::<ProgramHeader64<LE>>();
const SECTION_HEADER: usize = size_of::<SectionHeader64<LE>>();
/// Longest build id kept, in bytes.
const MAX_BUILD_ID: usize = 64;

/// Checks class, byte order and machine, before anything else so that the error message is accurate.
pub fn check<'h>(head: &'h [u8], path: &str) -> Result<(&'h FileHeader, ElfMachine), ElfError> {
    let path = || path.to_owned();
    let header = pod::from_bytes::<FileHeader>(head).ok().map(|(header, _)| header);
    let Some(header) = header.filter(|h| h.e_ident.magic == ELFMAG) else {
        return Err(ElfError::NotElf { path: path() });
    };
    let machine = header.e_machine.get(LE);
    match (header.e_ident.class, header.e_ident.data == ELFDATA2MSB, machine) {
        (ELFCLASS32, _, _) => Err(ElfError::Class32 { path: path() }),
        (ELFCLASS64, false, EM_X86_64) => Ok((header, ElfMachine::X86_64)),
        (ELFCLASS64, false, EM_AARCH64) => Ok((header, ElfMachine::Aarch64)),
        (ELFCLASS64, true, m) => Err(ElfError::OtherMachine { path: path(), machine: m.0.swap_bytes() }),
        (ELFCLASS64, false, m) => Err(ElfError::OtherMachine { path: path(), machine: m.0 }),
        _ => Err(ElfError::Malformed { path: path(), what: "the ELF class" }),
    }
}

/// Contents of the program headers.
pub struct ProgramHeaders {
    pub segments: Vec<Segment>,
    /// Offset and length in the file.
    pub dynamic: Option<(u64, u64)>,
    /// It names a loader, as programs do.
    pub interpreter: bool,
    /// GNU build id, empty if there is none.
    pub build_id: Vec<u8>,
}

impl ProgramHeaders {
    pub fn read(pages: &Pages, head: &FileHeader) -> Result<ProgramHeaders, &'static str> {
        const BAD: &str = "the program headers";
        let (at, size, count) =
            (head.e_phoff.get(LE), head.e_phentsize.get(LE), usize::from(head.e_phnum.get(LE)));
        let bytes = pages.take(at, count * PROGRAM_HEADER);
        if count > 0 && usize::from(size) != PROGRAM_HEADER {
            return Err(BAD);
        }
        let (headers, _) = pod::slice_from_bytes::<ProgramHeader64<LE>>(&bytes, count).map_err(|()| BAD)?;
        let mut parts =
            ProgramHeaders { segments: Vec::new(), dynamic: None, interpreter: false, build_id: Vec::new() };
        for p in headers {
            let (offset, vaddr, filesz) = (p.p_offset.get(LE), p.p_vaddr.get(LE), p.p_filesz.get(LE));
            match p.p_type.get(LE) {
                PT_LOAD if parts.segments.len() == MAX_SEGMENTS => {
                    return Err("it has too many loadable segments");
                }
                PT_LOAD => parts.segments.push(Segment { vaddr, offset, filesz }),
                PT_INTERP => parts.interpreter = true,
                PT_DYNAMIC => parts.dynamic = Some((offset, filesz)),
                PT_NOTE if parts.build_id.is_empty() => {
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
pub fn section_symbols(pages: &Pages, head: &FileHeader) -> (Option<SymTab>, Option<SymTab>) {
    const KINDS: [SectionType; 2] = [SHT_SYMTAB, SHT_DYNSYM];
    let (at, count) = (head.e_shoff.get(LE), head.e_shnum.get(LE));
    if usize::from(head.e_shentsize.get(LE)) != SECTION_HEADER {
        return (None, None);
    }
    // Location of the first table of each kind, and the section that has its strings.
    let mut found: [Option<((u64, u64), u32)>; 2] = [None; KINDS.len()];
    let range = |s: &SectionHeader64<LE>| (s.sh_offset.get(LE), s.sh_size.get(LE));
    pages.pieces((at, u64::from(count) * SECTION_HEADER as u64), SECTION_HEADER, 0, &mut |_, bytes| {
        for s in entries::<SectionHeader64<LE>>(bytes) {
            let slot =
                KINDS.iter().position(|kind| s.sh_type.get(LE) == *kind).and_then(|k| found.get_mut(k));
            if let Some(slot @ None) = slot {
                *slot = Some((range(s), s.sh_link.get(LE)));
            }
        }
        found.contains(&None)
    });
    let table = |found: Option<((u64, u64), u32)>| {
        let (syms, link) = found.filter(|f| f.1 < u32::from(count))?;
        let bytes = pages.take(at.checked_add(u64::from(link) * SECTION_HEADER as u64)?, SECTION_HEADER);
        let (s, _) = pod::from_bytes::<SectionHeader64<LE>>(&bytes).ok()?;
        Some(SymTab { syms, strs: Some(range(s)).filter(|_| s.sh_type.get(LE) != SHT_NOBITS)? })
    };
    let [symtab, dynsym] = found;
    (table(symtab), table(dynsym))
}

/// The GNU build id in a note segment, empty if it has none.
fn note_build_id(notes: &[u8]) -> Vec<u8> {
    let Ok(mut notes) = NoteIterator::<FileHeader>::new(LE, 4, notes) else { return Vec::new() };
    while let Ok(Some(note)) = notes.next() {
        if note.name() == ELF_NOTE_GNU && note.n_type(LE) == NT_GNU_BUILD_ID {
            return note.desc().iter().copied().take(MAX_BUILD_ID).collect();
        }
    }
    Vec::new()
}
