//! An ELF file of the target as we need it: symbols by name, pointers in data, dependencies, build id. Uses only
//! the `object` and `memmap2` crates.
//!
//! The bytes are untrusted: every read is bounds-checked and every table has a limit, so that a damaged or hostile
//! file costs an error, not a panic or endless memory. Files are mapped, never read whole.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use crate::order;

use memmap2::Mmap;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

/// Largest file looked at, in bytes (GPU libraries reach 2 GiB).
pub const MAX_FILE: u64 = 8 << 30;
/// Most symbols looked at in one table.
const MAX_SYMBOLS: usize = 8 << 20;
/// Most relocations kept.
const MAX_RELOCS: usize = 8 << 20;
/// Longest symbol name compared, in bytes.
const MAX_NAME: usize = 4096;
/// Most entries looked at in the dynamic section.
const MAX_DYNAMIC: usize = 4096;
/// Most loadable parts; linkers make about ten.
const MAX_SEGMENTS: usize = 64;
/// Most dependencies kept.
const MAX_NEEDED: usize = 512;
const SYM_SIZE: usize = 24;

/// Instruction set of a file or process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// The machine this program was built for, if it is one that can be profiled.
    pub const fn host() -> Option<Machine> {
        if cfg!(target_arch = "x86_64") {
            Some(Machine::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Machine::Aarch64)
        } else {
            None
        }
    }

    /// Name as `uname -m` writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Machine::X86_64 => "x86_64",
            Machine::Aarch64 => "aarch64",
        }
    }

    /// Relocation type of a base-relative pointer (ELF psABI of each machine).
    const fn relative(self) -> u32 {
        match self {
            Machine::X86_64 => 8,
            Machine::Aarch64 => 1027,
        }
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    #[error("cannot read {path}: {source}; check the path and that you may read it")]
    Io { path: String, source: std::io::Error },
    #[error("{path} is not an ELF file; give the program itself, not a script or model")]
    NotElf { path: String },
    #[error("{path} is a 32-bit file; only 64-bit x86-64 and arm64 engines can be profiled")]
    Class32 { path: String },
    #[error(
        "{path} is for another machine (ELF machine {machine}); only x86-64 and arm64 engines can be profiled"
    )]
    OtherMachine { path: String, machine: u16 },
    #[error("{path} is {size} bytes, more than the {MAX_FILE} this program looks at")]
    TooBig { path: String, size: u64 },
    #[error("{path} is damaged: {what}; check that the file is complete")]
    Malformed { path: String, what: &'static str },
}

/// A defined symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Address as linked.
    pub vaddr: u64,
    /// Size in bytes, 0 when the linker gave none.
    pub size: u64,
    pub function: bool,
    /// Bound globally or weakly (not `static`).
    pub global: bool,
}

/// A part of the file that is mapped into memory.
#[derive(Debug, Clone, Copy)]
struct Segment {
    vaddr: u64,
    offset: u64,
    filesz: u64,
}

/// Symbols looked at before the pages behind them are let go.
const RELEASE_EVERY: usize = 1 << 12;

/// File offsets of a symbol table and its strings.
#[derive(Debug, Clone, Copy)]
struct SymTab {
    syms: (u64, u64),
    strs: (u64, u64),
}

enum Bytes {
    Map(Mmap),
    Owned(Vec<u8>),
}

/// An opened ELF file.
pub struct ElfFile {
    bytes: Bytes,
    path: String,
    pub machine: Machine,
    segments: Vec<Segment>,
    symtab: Option<SymTab>,
    dynsym: Option<SymTab>,
    relocs: Vec<(u64, u64)>,
    rela: Option<(u64, u64)>,
    relr: Option<(u64, u64)>,
    /// GNU build id, empty when the file has none.
    pub build_id: Vec<u8>,
    /// Names of the libraries this file needs (`DT_NEEDED`).
    pub needed: Vec<String>,
    /// The name other files need this one by (`DT_SONAME`).
    pub soname: Option<String>,
    /// Library search path, entries as written (`DT_RUNPATH`, else `DT_RPATH`).
    pub runpath: Vec<String>,
    /// Has a dynamic section; without one the file is statically linked.
    pub is_dynamic: bool,
    /// Addresses are final (`ET_EXEC`): pointers stand in the data without relocations.
    pub fixed: bool,
}

/// What the dynamic section says, addresses as linked.
#[derive(Default)]
struct Dynamic {
    strtab: u64,
    strsz: u64,
    symtab: u64,
    rela: (u64, u64),
    relr: (u64, u64),
    needed: Vec<u64>,
    soname: Option<u64>,
    runpath: Option<u64>,
    rpath: Option<u64>,
}

impl ElfFile {
    /// Maps and checks the file at `path`.
    pub fn open(path: &Path) -> Result<ElfFile, ElfError> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(|source| ElfError::Io { path: shown.clone(), source })?;
        Self::from_file(&file, shown)
    }

    /// Maps and checks an open file; `path` is only for messages.
    pub fn from_file(file: &File, path: String) -> Result<ElfFile, ElfError> {
        let meta = file.metadata().map_err(|source| ElfError::Io { path: path.clone(), source })?;
        if meta.len() > MAX_FILE {
            return Err(ElfError::TooBig { path, size: meta.len() });
        }
        // Devices and pipes have no length and may block; directories cannot be mapped.
        if !meta.is_file() || meta.len() < 64 {
            return Err(ElfError::NotElf { path });
        }
        // SAFETY: the map is private and read-only, and only read through checked slices. A file cut short by
        // somebody else while mapped raises SIGBUS, as it does in the target that executes it.
        let map = unsafe { Mmap::map(file) };
        let map = map.map_err(|source| ElfError::Io { path: path.clone(), source })?;
        Self::new(Bytes::Map(map), path)
    }

    /// Checks a file held in memory; `path` is only for messages.
    pub fn from_bytes(bytes: Vec<u8>, path: &str) -> Result<ElfFile, ElfError> {
        Self::new(Bytes::Owned(bytes), path.to_owned())
    }

    fn new(bytes: Bytes, path: String) -> Result<ElfFile, ElfError> {
        let data: &[u8] = match &bytes {
            Bytes::Map(m) => m,
            Bytes::Owned(v) => v,
        };
        let machine = check_header(data, &path)?;
        let malformed = |what| ElfError::Malformed { path: path.clone(), what };
        let header = elf::FileHeader64::<LE>::parse(data).map_err(|_| malformed("the ELF header"))?;
        let fixed = header.e_type(LE) == elf::ET_EXEC;
        let program = header.program_headers(LE, data).map_err(|_| malformed("the program headers"))?;
        let mut segments = Vec::new();
        let mut dynamic_at = None;
        let mut build_id = Vec::new();
        for p in program {
            let (offset, filesz) = p.file_range(LE);
            let vaddr: u64 = p.p_vaddr(LE);
            match p.p_type(LE) {
                elf::PT_LOAD if segments.len() == MAX_SEGMENTS => {
                    return Err(malformed("it has too many loadable parts"));
                }
                elf::PT_LOAD => {
                    segments.push(Segment { vaddr, offset, filesz });
                }
                elf::PT_DYNAMIC => dynamic_at = Some((offset, filesz)),
                elf::PT_NOTE if build_id.is_empty() => {
                    build_id = note_build_id(slice(data, offset, filesz).unwrap_or(&[]));
                }
                _ => {}
            }
        }
        if segments.is_empty() {
            return Err(malformed("it has no loadable part"));
        }
        if segments.iter().any(|s| s.offset.saturating_add(s.filesz) > data.len() as u64) {
            return Err(malformed("it is cut short: parts that its header lists lie beyond its end"));
        }
        let (symtab, dynsym) = section_symbols(header, data);
        let mut file = ElfFile {
            machine,
            segments,
            symtab,
            dynsym,
            relocs: Vec::new(),
            rela: None,
            relr: None,
            build_id,
            needed: Vec::new(),
            soname: None,
            runpath: Vec::new(),
            is_dynamic: dynamic_at.is_some(),
            fixed,
            bytes,
            path,
        };
        if let Some((offset, size)) = dynamic_at {
            let dynamic = file.read_dynamic(offset, size);
            file.take_dynamic(&dynamic);
        }
        Ok(file)
    }

    /// Path as given, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    fn data(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Map(m) => m,
            Bytes::Owned(v) => v,
        }
    }

    /// Whether the file has no `.symtab`, so that only exported names are known.
    pub fn is_stripped(&self) -> bool {
        self.symtab.is_none()
    }

    /// Build id in hexadecimal.
    pub fn build_id_hex(&self) -> String {
        self.build_id.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// File offset of an address, `None` when it is not backed by the file.
    pub fn file_offset(&self, vaddr: u64) -> Option<u64> {
        self.segment(vaddr).and_then(|s| s.offset.checked_add(vaddr - s.vaddr))
    }

    /// Address as linked of a file offset, `None` when that part is not mapped.
    pub fn vaddr_of(&self, offset: u64) -> Option<u64> {
        let hit = self.segments.iter().find(|s| offset >= s.offset && offset - s.offset < s.filesz)?;
        hit.vaddr.checked_add(offset - hit.offset)
    }

    fn segment(&self, vaddr: u64) -> Option<&Segment> {
        self.segments.iter().find(|s| vaddr >= s.vaddr && vaddr - s.vaddr < s.filesz)
    }

    /// Up to `len` bytes at an address; fewer at the end of the mapped part, none outside.
    pub fn bytes_at(&self, vaddr: u64, len: usize) -> &[u8] {
        let Some(s) = self.segment(vaddr) else { return &[] };
        let skip = vaddr - s.vaddr;
        let len = (s.filesz - skip).min(len as u64);
        s.offset.checked_add(skip).and_then(|at| slice(self.data(), at, len)).unwrap_or(&[])
    }

    /// The 8 bytes at an address as they stand in the file, relocations not applied.
    pub fn u64_at(&self, vaddr: u64) -> Option<u64> {
        self.bytes_at(vaddr, 8).try_into().ok().map(u64::from_le_bytes)
    }

    /// A NUL-terminated text at an address, at most `max` bytes long, `None` when it is longer or not UTF-8.
    pub fn text_at(&self, vaddr: u64, max: usize) -> Option<&str> {
        let bytes = self.bytes_at(vaddr, max.checked_add(1)?);
        let end = bytes.iter().position(|&b| b == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    }

    /// Finds functions and data objects by exact name: one pass over each table, answers in the order asked.
    ///
    /// `.dynsym` wins over `.symtab`, a global symbol over a local one of the same name.
    pub fn find<const N: usize>(&self, names: [&str; N]) -> [Option<Symbol>; N] {
        let mut out = [None; N];
        self.find_into(&names, &mut out);
        out
    }

    /// Like [`ElfFile::find`] for a list of any length; `out` is as long as `names`.
    pub fn find_into(&self, names: &[&str], out: &mut [Option<Symbol>]) {
        let want: HashMap<&[u8], usize> = names.iter().enumerate().map(|(i, n)| (n.as_bytes(), i)).collect();
        let longest = names.iter().map(|n| n.len()).max().unwrap_or(0).min(MAX_NAME);
        for table in [self.dynsym, self.symtab].into_iter().flatten() {
            for (i, (sym, tail)) in self.symbols(table).enumerate() {
                // A large engine's tables are tens of megabytes.
                if i % RELEASE_EVERY == RELEASE_EVERY - 1 {
                    self.release();
                }
                let name = &tail[..tail.len().min(longest + 1)];
                let Some(end) = name.iter().position(|&b| b == 0) else { continue };
                let Some(slot) = want.get(&name[..end]).and_then(|&i| out.get_mut(i)) else { continue };
                if slot.is_none_or(|old: Symbol| !old.global && sym.global) {
                    *slot = Some(sym);
                }
            }
        }
    }

    /// Defined functions and objects with the string table from their name on.
    fn symbols(&self, table: SymTab) -> impl Iterator<Item = (Symbol, &[u8])> {
        let syms = slice(self.data(), table.syms.0, table.syms.1).unwrap_or(&[]);
        let strs = slice(self.data(), table.strs.0, table.strs.1).unwrap_or(&[]);
        syms.chunks_exact(SYM_SIZE).take(MAX_SYMBOLS).filter_map(move |s| {
            let kind = s[4] & 15;
            let section = u16::from_le_bytes([s[6], s[7]]);
            if section == 0 || !(kind == 1 || kind == 2) {
                return None;
            }
            let name = u32::from_le_bytes([s[0], s[1], s[2], s[3]]) as usize;
            let vaddr = le64(s, 8)?;
            let size = le64(s, 16)?;
            let sym = Symbol { vaddr, size, function: kind == 2, global: s[4] >> 4 != 0 };
            Some((sym, strs.get(name..)?))
        })
    }

    /// Loaded segments: address and bytes in the file.
    pub fn segments(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.segments.iter().filter_map(|s| Some((s.vaddr, slice(self.data(), s.offset, s.filesz)?)))
    }

    /// Lets go of the pages read so far. They come back from the file when they are looked at again.
    pub fn release(&self) {
        if let Bytes::Map(map) = &self.bytes {
            // SAFETY: the mapping is private and never written, so dropping its pages changes no byte of it.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }

    /// Where the pointer stored at `vaddr` points, with relocations applied (address as linked).
    pub fn pointer_at(&self, vaddr: u64) -> Option<u64> {
        if self.fixed {
            return self.u64_at(vaddr);
        }
        match self.relocs.binary_search_by_key(&vaddr, |r| r.0) {
            Ok(i) => self.relocs.get(i).map(|r| r.1),
            Err(_) => None,
        }
    }

    /// Reads the relative relocations, which [`ElfFile::pointer_at`] and [`ElfFile::pointers`] need. Done on demand
    /// since most files are only asked for symbols. Answers how many there are.
    pub fn load_pointers(&mut self) -> usize {
        if !self.relocs.is_empty() {
            return self.relocs.len();
        }
        self.relocs = if self.fixed { self.fixed_pointers() } else { self.relative_pointers() };
        order::by_key(&mut self.relocs, |r| *r);
        self.relocs.dedup_by_key(|r| r.0);
        self.relocs.len()
    }

    /// Frees what [`ElfFile::load_pointers`] read.
    pub fn forget_pointers(&mut self) {
        self.relocs = Vec::new();
    }

    /// Goes through [`ElfFile::pointers`] with what stands at their targets in view, letting go of pages on the way.
    pub fn walk_pointers(&self) -> impl Iterator<Item = &[(u64, u64)]> {
        self.relocs.windows(2).enumerate().map(|(i, pair)| {
            if i % RELEASE_EVERY == RELEASE_EVERY - 1 {
                self.release();
            }
            pair
        })
    }

    /// All known pointers as (address, target), ascending by address; empty before [`ElfFile::load_pointers`].
    pub fn pointers(&self) -> &[(u64, u64)] {
        &self.relocs
    }

    /// A file with final addresses has no relocations: every aligned word that is an address counts. All
    /// parts are read, since compilers move tables that nobody writes to the constants.
    fn fixed_pointers(&self) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        for s in &self.segments {
            let Some(start) = s.vaddr.checked_next_multiple_of(8) else { continue };
            let words = (s.filesz.saturating_sub(start - s.vaddr) / 8).min(MAX_RELOCS as u64);
            let bytes = self.bytes_at(start, (words * 8) as usize);
            for (i, w) in bytes.chunks_exact(8).enumerate() {
                let target = le64(w, 0).unwrap_or(0);
                if target != 0 && self.segment(target).is_some() && out.len() < MAX_RELOCS {
                    out.push((start.wrapping_add(i as u64 * 8), target));
                }
            }
        }
        out
    }

    fn relative_pointers(&self) -> Vec<(u64, u64)> {
        let rela = self.relr_and_rela();
        let mut out = Vec::with_capacity((rela.0.len() / 24).min(MAX_RELOCS));
        for (i, r) in rela.0.chunks_exact(24).take(MAX_RELOCS).enumerate() {
            if i % RELEASE_EVERY == RELEASE_EVERY - 1 {
                self.release();
            }
            let (Some(at), Some(info), Some(addend)) = (le64(r, 0), le64(r, 8), le64(r, 16)) else {
                continue;
            };
            if info as u32 == self.machine.relative() {
                out.push((at, addend));
            }
        }
        let mut push = |at: u64| {
            if let Some(target) = self.u64_at(at).filter(|_| out.len() < MAX_RELOCS) {
                out.push((at, target));
            }
        };
        let mut next = 0u64;
        for word in rela.1.chunks_exact(8).take(MAX_RELOCS / 64).filter_map(|w| le64(w, 0)) {
            if word & 1 == 0 {
                push(word);
                next = word.wrapping_add(8);
                continue;
            }
            for bit in 0..63 {
                if word >> (bit + 1) & 1 == 1 {
                    push(next.wrapping_add(bit * 8));
                }
            }
            next = next.wrapping_add(63 * 8);
        }
        out
    }

    /// Bytes of the RELA and RELR tables.
    fn relr_and_rela(&self) -> (&[u8], &[u8]) {
        let at = |r: Option<(u64, u64)>| r.map_or(&[][..], |(v, n)| self.bytes_at(v, n as usize));
        (at(self.rela), at(self.relr))
    }

    fn read_dynamic(&self, offset: u64, size: u64) -> Dynamic {
        let mut d = Dynamic::default();
        let bytes = slice(self.data(), offset, size).unwrap_or(&[]);
        for entry in bytes.chunks_exact(16).take(MAX_DYNAMIC) {
            let (Some(tag), Some(value)) = (le64(entry, 0), le64(entry, 8)) else { break };
            match tag {
                0 => break,
                1 => d.needed.push(value),
                5 => d.strtab = value,
                6 => d.symtab = value,
                7 => d.rela.0 = value,
                8 => d.rela.1 = value,
                10 => d.strsz = value,
                14 => d.soname = Some(value),
                15 => d.rpath = Some(value),
                29 => d.runpath = Some(value),
                35 => d.relr.1 = value,
                36 => d.relr.0 = value,
                _ => {}
            }
        }
        d
    }

    fn take_dynamic(&mut self, d: &Dynamic) {
        let text = |at: u64| {
            let text =
                d.strtab.checked_add(at).filter(|_| at < d.strsz).and_then(|v| self.text_at(v, MAX_NAME));
            text.map(str::to_owned)
        };
        let needed = d.needed.iter().take(MAX_NEEDED).filter_map(|&n| text(n)).collect();
        let soname = d.soname.and_then(text);
        let path = d.runpath.or(d.rpath).and_then(text).unwrap_or_default();
        let runpath = path.split(':').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        // Files without section headers still have the table the loader uses; it ends where its strings begin.
        let dynsym = || {
            let size = d.strtab.checked_sub(d.symtab).filter(|&n| d.symtab != 0 && n > 0)?;
            let syms = (self.file_offset(d.symtab)?, size - size % SYM_SIZE as u64);
            Some(SymTab { syms, strs: (self.file_offset(d.strtab)?, d.strsz) })
        };
        let dynsym = self.dynsym.or_else(dynsym);
        let table = |t: (u64, u64)| (t.0 != 0 && t.1 != 0).then_some(t);
        self.rela = table(d.rela);
        self.relr = table(d.relr);
        self.dynsym = dynsym;
        self.needed = needed;
        self.soname = soname;
        self.runpath = runpath;
    }
}

/// Class, byte order and machine, checked before anything else so that the message fits.
fn check_header(data: &[u8], path: &str) -> Result<Machine, ElfError> {
    let path = || path.to_owned();
    if data.len() < 64 || !data.starts_with(b"\x7fELF") {
        return Err(ElfError::NotElf { path: path() });
    }
    let machine = u16::from_le_bytes([data[18], data[19]]);
    let big = data[5] == 2;
    match (data[4], big, machine) {
        (1, _, _) => Err(ElfError::Class32 { path: path() }),
        (2, false, 62) => Ok(Machine::X86_64),
        (2, false, 183) => Ok(Machine::Aarch64),
        (2, true, m) => Err(ElfError::OtherMachine { path: path(), machine: m.swap_bytes() }),
        (2, false, m) => Err(ElfError::OtherMachine { path: path(), machine: m }),
        _ => Err(ElfError::Malformed { path: path(), what: "the ELF class" }),
    }
}

/// (`.symtab`, `.dynsym`) as section headers describe them; a file may have neither.
fn section_symbols(header: &elf::FileHeader64<LE>, data: &[u8]) -> (Option<SymTab>, Option<SymTab>) {
    let Ok(sections) = header.section_headers(LE, data) else { return (None, None) };
    let find = |kind| {
        let table = sections.iter().find(|s| s.sh_type(LE) == kind)?;
        let strings = sections.get(table.sh_link(LE) as usize)?;
        Some(SymTab { syms: table.file_range(LE)?, strs: strings.file_range(LE)? })
    };
    (find(elf::SHT_SYMTAB), find(elf::SHT_DYNSYM))
}

/// The GNU build id in a note segment, empty when it is not there.
fn note_build_id(mut notes: &[u8]) -> Vec<u8> {
    const BUILD_ID: u32 = 3;
    let pad = |n: u32| (n as usize).next_multiple_of(4);
    while let Some(head) = notes.first_chunk::<12>() {
        let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let (namesz, descsz, kind) = (word(0), word(4), word(8));
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

fn slice(data: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let end = offset.checked_add(len)?;
    data.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
}

fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<8>().map(|b| u64::from_le_bytes(*b))
}
