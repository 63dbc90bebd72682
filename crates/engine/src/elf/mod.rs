//! An ELF file of the target: symbols by name, pointers in data, dependencies, build id.
//!
//! The bytes are untrusted, and the file may change or shrink while it is read: every read returns only what is
//! there, and every table has a limit, so that a damaged or hostile file causes an error, not a panic or unbounded
//! memory use. Files are read in pieces, never mapped and never held completely.

mod dynamic;
mod header;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::symtab::Symbol;
use crate::symtab::{self, SYM_SIZE, SymTab};
use common::order;
use header::{FileHeader, ProgramHeaders};
use machine::budget::Budget;
use machine::open;
use machine::pages::Pages;
use object::LittleEndian as LE;
use object::elf::{ET_EXEC, R_AARCH64_RELATIVE, R_X86_64_RELATIVE, Rela64, RelocationType};

/// Largest file read, in bytes (GPU libraries reach 2 GiB).
pub const MAX_FILE: u64 = 8 << 30;
/// Maximum number of bytes read of the dynamic section, and of one note segment.
const MAX_DYNAMIC: u64 = 64 << 10;
/// Maximum number of relocations kept.
const MAX_RELOCS: usize = 4 << 20;
/// Maximum number of addresses of pointers to strings kept; an engine has a few of each.
const MAX_PLACES: usize = 1 << 16;
/// Prefix of all GGML functions, unless they were renamed.
const GGML: &str = "ggml_";
/// Bytes of the file's header.
const HEADER: usize = size_of::<FileHeader>();

/// Instruction set of a file or process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElfMachine {
    X86_64,
    Aarch64,
}

impl ElfMachine {
    /// The machine this program was built for, if it can be profiled.
    pub const fn host() -> Option<ElfMachine> {
        if cfg!(target_arch = "x86_64") {
            Some(ElfMachine::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(ElfMachine::Aarch64)
        } else {
            None
        }
    }

    /// Name as `uname -m` writes it.
    pub const fn name(self) -> &'static str {
        match self {
            ElfMachine::X86_64 => "x86_64",
            ElfMachine::Aarch64 => "aarch64",
        }
    }

    /// Relocation type of a base-relative pointer (ELF psABI of each machine).
    const fn relative(self) -> RelocationType {
        match self {
            ElfMachine::X86_64 => R_X86_64_RELATIVE,
            ElfMachine::Aarch64 => R_AARCH64_RELATIVE,
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
    #[error("{path} is {size} bytes, more than the limit of {MAX_FILE}")]
    TooBig { path: String, size: u64 },
    #[error("{path} is damaged: {what}; check that the file is complete")]
    Malformed { path: String, what: &'static str },
}

/// A segment of the file that is mapped into memory.
#[derive(Debug, Clone, Copy)]
struct Segment {
    vaddr: u64,
    offset: u64,
    filesz: u64,
}

/// A symbol, and whether its name has the prefix.
type PrefixedSymbol = (Symbol, bool);

pub struct ElfFile {
    pages: Pages,
    path: String,
    pub machine: ElfMachine,
    segments: Vec<Segment>,
    symtab: Option<SymTab>,
    dynsym: Option<SymTab>,
    /// Symbols looked up so far, including those not found: the tables are read only once.
    known: Mutex<HashMap<Box<str>, Option<PrefixedSymbol>>>,
    /// Some strings of the tables are longer than a name that was looked up, and end in it.
    longer: AtomicBool,
    /// Prefix of GGML's function names in this file.
    prefix: String,
    relocs: Vec<(u64, u64)>,
    rela: Option<(u64, u64)>,
    relr: Option<(u64, u64)>,
    /// GNU build id, empty if the file has none.
    pub build_id: Vec<u8>,
    /// Names of the libraries this file needs (`DT_NEEDED`).
    pub needed: Vec<String>,
    /// The name by which other files depend on this one (`DT_SONAME`).
    pub soname: Option<String>,
    /// Library search path, entries as written (`DT_RUNPATH`, otherwise `DT_RPATH`).
    pub runpath: Vec<String>,
    /// Has a dynamic section; without one the file is statically linked.
    pub is_dynamic: bool,
    /// A program, not a library: it names a loader, or has final addresses.
    pub is_program: bool,
    /// Addresses are final (`ET_EXEC`): pointers in the data need no relocations.
    pub fixed: bool,
}

impl ElfFile {
    /// Opens and checks the regular file at `path`.
    pub fn open(path: &Path) -> Result<ElfFile, ElfError> {
        let shown = path.display().to_string();
        let file = open::regular(path).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput => ElfError::NotElf { path: shown.clone() },
            _ => ElfError::Io { path: shown.clone(), source },
        })?;
        Self::of(Arc::new(file), shown, Arc::new(Budget::untimed()))
    }

    /// Checks an open file; `path` is only for messages.
    pub fn from_file(file: &File, path: String) -> Result<ElfFile, ElfError> {
        let file = file.try_clone().map_err(|source| ElfError::Io { path: path.clone(), source })?;
        Self::of(Arc::new(file), path, Arc::new(Budget::untimed()))
    }

    /// The same; reads are charged to `budget`.
    pub fn of(file: Arc<File>, path: String, budget: Arc<Budget>) -> Result<ElfFile, ElfError> {
        let meta = file.metadata().map_err(|source| ElfError::Io { path: path.clone(), source })?;
        if meta.len() > MAX_FILE {
            return Err(ElfError::TooBig { path, size: meta.len() });
        }
        // Devices and pipes have no length and may block; directories cannot be read.
        if !meta.is_file() {
            return Err(ElfError::NotElf { path });
        }
        Self::new(Pages::of_file(file, meta.len(), &path, budget), path)
    }

    /// Checks a file held in memory; `path` is only for messages.
    pub fn from_bytes(bytes: Vec<u8>, path: &str) -> Result<ElfFile, ElfError> {
        Self::new(Pages::of_bytes(bytes, path), path.to_owned())
    }

    fn new(pages: Pages, path: String) -> Result<ElfFile, ElfError> {
        let mut head = [0; HEADER];
        let got = pages.read(0, &mut head).map_err(|source| ElfError::Io { path: path.clone(), source })?;
        let (head, machine) = header::check(head.get(..got).unwrap_or_default(), &path)?;
        let malformed = |what| ElfError::Malformed { path: path.clone(), what };
        let parts = ProgramHeaders::read(&pages, head).map_err(malformed)?;
        let (symtab, dynsym) = header::section_symbols(&pages, head);
        let mut file = ElfFile {
            machine,
            segments: parts.segments,
            symtab,
            dynsym,
            known: Mutex::default(),
            longer: AtomicBool::new(false),
            prefix: String::new(),
            relocs: Vec::new(),
            rela: None,
            relr: None,
            build_id: parts.build_id,
            needed: Vec::new(),
            soname: None,
            runpath: Vec::new(),
            is_dynamic: parts.dynamic.is_some(),
            is_program: parts.interpreter || head.e_type.get(LE) == ET_EXEC,
            fixed: head.e_type.get(LE) == ET_EXEC,
            pages,
            path,
        };
        if let Some((offset, size)) = parts.dynamic {
            let dynamic = file.read_dynamic(offset, size);
            file.take_dynamic(&dynamic);
        }
        Ok(file)
    }

    /// Path as given, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the file has no `.symtab`, so that only exported names are known.
    pub fn is_stripped(&self) -> bool {
        self.symtab.is_none()
    }

    pub fn build_id_hex(&self) -> String {
        self.build_id.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// File offset of an address, `None` if it is not backed by the file.
    pub fn file_offset(&self, vaddr: u64) -> Option<u64> {
        self.segment(vaddr).and_then(|s| s.offset.checked_add(vaddr - s.vaddr))
    }

    /// Address as linked of a file offset, `None` if that part is not mapped.
    pub fn vaddr_of(&self, offset: u64) -> Option<u64> {
        let hit = self.segments.iter().find(|s| offset >= s.offset && offset - s.offset < s.filesz)?;
        hit.vaddr.checked_add(offset - hit.offset)
    }

    fn segment(&self, vaddr: u64) -> Option<&Segment> {
        self.segments.iter().find(|s| vaddr >= s.vaddr && vaddr - s.vaddr < s.filesz)
    }

    /// File offset of an address, and the number of bytes from there to the end of its segment.
    fn range(&self, vaddr: u64) -> Option<(u64, u64)> {
        let s = self.segment(vaddr)?;
        let skip = vaddr - s.vaddr;
        Some((s.offset.checked_add(skip)?, s.filesz - skip))
    }

    /// Up to `len` bytes at an address; fewer at the end of a segment, none outside.
    pub fn bytes_at(&self, vaddr: u64, len: usize) -> Vec<u8> {
        let Some((offset, there)) = self.range(vaddr) else { return Vec::new() };
        self.pages.take(offset, usize::try_from(there).unwrap_or(usize::MAX).min(len))
    }

    /// The first bytes at an address, `None` if there are fewer.
    fn chunk_at<const N: usize>(&self, vaddr: u64) -> Option<[u8; N]> {
        let (offset, there) = self.range(vaddr)?;
        let mut bytes = [0; N];
        (there >= N as u64 && self.pages.copy(offset, &mut bytes) == N).then_some(bytes)
    }

    /// The 8 bytes at an address as stored in the file, without relocations.
    pub fn u64_at(&self, vaddr: u64) -> Option<u64> {
        self.chunk_at(vaddr).map(u64::from_le_bytes)
    }

    /// The 4 bytes at an address as a signed number.
    pub fn i32_at(&self, vaddr: u64) -> Option<i32> {
        self.chunk_at(vaddr).map(i32::from_le_bytes)
    }

    /// A NUL-terminated string at an address, at most `max` bytes long, `None` if it is longer or not UTF-8.
    pub fn text_at(&self, vaddr: u64, max: usize) -> Option<String> {
        let mut bytes = self.bytes_at(vaddr, max.checked_add(1)?);
        let end = bytes.iter().position(|&b| b == 0)?;
        bytes.truncate(end);
        String::from_utf8(bytes).ok()
    }

    /// Finds functions and data objects by exact name: one pass over each table, results in the order of `names`.
    ///
    /// `.dynsym` takes precedence over `.symtab`, and a global symbol over a local one of the same name.
    pub fn find<const N: usize>(&self, names: [&str; N]) -> [Option<Symbol>; N] {
        let mut out = [None; N];
        self.find_into(&names, &mut out);
        out
    }

    /// Like [`ElfFile::find`] for a list of any length; `out` is as long as `names`. Names that were looked up
    /// before cost no further pass. Names must have at least two bytes.
    pub fn find_into(&self, names: &[&str], out: &mut [Option<Symbol>]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new: Vec<&str> = names.iter().copied().filter(|name| !known.contains_key(*name)).collect();
        new.sort_unstable();
        new.dedup();
        if !new.is_empty() {
            let found = self.look_up(&new);
            known.extend(new.into_iter().map(Box::from).zip(found));
        }
        for (name, slot) in names.iter().zip(out) {
            *slot = known.get(*name).copied().flatten().map(|found| found.0);
        }
    }

    /// Each of the names in this file, and whether it has the prefix. GGML's own functions all have it; functions
    /// built on GGML may keep their usual names.
    fn look_up(&self, names: &[&str]) -> Vec<Option<(Symbol, bool)>> {
        let with_prefix: Vec<String> = match self.prefix.is_empty() {
            true => Vec::new(),
            false => names.iter().map(|name| format!("{}{name}", self.prefix)).collect(),
        };
        let all: Vec<&str> = names.iter().copied().chain(with_prefix.iter().map(String::as_str)).collect();
        let mut found: Vec<Option<Symbol>> = vec![None; all.len()];
        for table in [self.dynsym, self.symtab].into_iter().flatten() {
            let longer = symtab::find(&self.pages, table, &all, &mut |name, symbol| {
                let slot = found.get_mut(name);
                let better = |old: &Option<Symbol>| old.is_none_or(|old| !old.global && symbol.global);
                slot.filter(|slot| better(slot)).into_iter().for_each(|slot| *slot = Some(symbol));
            });
            self.longer.fetch_or(longer, Ordering::Relaxed);
        }
        let (plain, with_prefix) = found.split_at(names.len());
        let one = |(i, name): (usize, &&str)| {
            let plain =
                plain.get(i).copied().flatten().filter(|_| with_prefix.is_empty() || !name.starts_with(GGML));
            let other = with_prefix.get(i).copied().flatten();
            plain.map(|symbol| (symbol, false)).or(other.map(|symbol| (symbol, true)))
        };
        names.iter().enumerate().map(one).collect()
    }

    /// Names of symbols that contain this text, at most a few hundred.
    pub fn names_with(&self, text: &str) -> Vec<String> {
        let tables = [self.dynsym, self.symtab].into_iter().flatten();
        tables.flat_map(|table| symtab::containing(&self.pages, table, text)).collect()
    }

    /// The prefixes that functions in this file have before these names, each with the index of the name. Costs
    /// nothing if earlier lookups have seen no string that ends in a name and is longer.
    pub fn prefixes(&self, names: &[&str]) -> Vec<(String, usize)> {
        let mut out = Vec::new();
        if self.longer.load(Ordering::Relaxed) {
            for table in [self.dynsym, self.symtab].into_iter().flatten() {
                symtab::prefixed(&self.pages, table, names, &mut |name, before| {
                    out.push((before.to_owned(), name));
                });
            }
        }
        out
    }

    /// Sets the prefix with which GGML's functions are looked up from now on.
    pub fn set_prefix(&mut self, prefix: &str) {
        self.prefix = prefix.to_owned();
        self.known.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Prefix of GGML's function names in this file; empty in almost all files.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of this function in the file.
    pub fn name_of<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let prefixed = match known.get(name) {
            Some(Some((_, prefixed))) => *prefixed,
            _ => name.starts_with(GGML),
        };
        match prefixed && !self.prefix.is_empty() {
            true => Cow::Owned(format!("{}{name}", self.prefix)),
            false => Cow::Borrowed(name),
        }
    }

    /// Whether one of its symbols is a function that starts at this address.
    pub fn has_function_at(&self, vaddr: u64) -> bool {
        let mut tables = [self.dynsym, self.symtab].into_iter().flatten();
        tables.any(|table| symtab::has_function(&self.pages, table, vaddr))
    }

    /// Reads the loaded segments in pieces and passes on the address and bytes of each. A piece starts at a multiple of
    /// `unit` in its segment and includes `overlap` bytes of the next one. Stops when `each` returns false.
    pub fn pieces(&self, unit: usize, overlap: usize, each: &mut dyn FnMut(u64, &[u8]) -> bool) {
        let mut goes_on = true;
        for s in &self.segments {
            self.pages.pieces((s.offset, s.filesz), unit, overlap, &mut |at, bytes| {
                goes_on = each(s.vaddr.wrapping_add(at), bytes);
                goes_on
            });
            if !goes_on {
                return;
            }
        }
    }

    /// Frees the cached bytes of the file. They are read again when needed.
    pub fn release(&self) {
        self.pages.release();
    }

    /// Target of the pointer stored at `vaddr`, with relocations applied (address as linked).
    pub fn pointer_at(&self, vaddr: u64) -> Option<u64> {
        if self.fixed {
            return self.u64_at(vaddr);
        }
        match self.relocs.binary_search_by_key(&vaddr, |r| r.0) {
            Ok(i) => self.relocs.get(i).map(|r| r.1),
            Err(_) => None,
        }
    }

    /// Reads the relative relocations, which [`ElfFile::pointer_at`] and [`ElfFile::pointers`] need. Done on
    /// demand, since most files are only searched for symbols. A file with final addresses has none.
    pub fn load_pointers(&mut self) {
        if self.fixed || !self.relocs.is_empty() {
            return;
        }
        self.relocs = self.relative_pointers();
        // Linkers sort them.
        if !self.relocs.is_sorted() {
            order::by_key(&mut self.relocs, |r| *r);
        }
        self.relocs.dedup_by_key(|r| r.0);
    }

    /// Frees what [`ElfFile::load_pointers`] read.
    pub fn forget_pointers(&mut self) {
        self.relocs = Vec::new();
    }

    /// All relocated pointers as (address, target), ascending by address; empty before [`ElfFile::load_pointers`].
    pub fn pointers(&self) -> &[(u64, u64)] {
        &self.relocs
    }

    /// Addresses of pointers to one of these strings, ascending, each with the index of the string. The strings
    /// have at most seven bytes, followed by a zero.
    pub fn pointers_to(&self, texts: &[&str]) -> Vec<(u64, usize)> {
        let which = |bytes: &[u8]| {
            texts.iter().position(|text| {
                bytes.strip_prefix(text.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
            })
        };
        let mut places = if self.fixed { self.fixed_places(texts) } else { self.reloc_places(&which) };
        order::by_key(&mut places, |&(at, text)| (at, text as u64));
        places.truncate(MAX_PLACES);
        places
    }

    /// From the relocations. Targets are visited in ascending order, so that each page is read once.
    fn reloc_places(&self, which: &dyn Fn(&[u8]) -> Option<usize>) -> Vec<(u64, usize)> {
        let mut targets: Vec<u64> = self.relocs.iter().map(|r| r.1).collect();
        targets.sort_unstable();
        targets.dedup();
        let mut texts: Vec<(u64, usize)> = Vec::new();
        for target in targets {
            let Some((offset, there)) = self.range(target) else { continue };
            let mut bytes = [0; 8];
            let most = usize::try_from(there).unwrap_or(usize::MAX).min(bytes.len());
            let got = bytes.get_mut(..most).map_or(0, |room| self.pages.copy(offset, room));
            texts.extend(bytes.get(..got).and_then(which).map(|text| (target, text)));
        }
        let text_at = |target| texts.binary_search_by_key(&target, |t| t.0).ok().and_then(|i| texts.get(i));
        let places = self.relocs.iter().filter_map(|&(at, target)| Some((at, text_at(target)?.1)));
        places.take(MAX_PLACES).collect()
    }

    /// A file with final addresses has no relocations: every aligned word that is an address counts. All segments
    /// are read, since compilers move tables that are never written to the constants.
    fn fixed_places(&self, texts: &[&str]) -> Vec<(u64, usize)> {
        let mut targets: Vec<(u64, usize)> = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let needle = [text.as_bytes(), &[0]].concat();
            targets.extend(self.addresses_of(&needle).into_iter().map(|target| (target, index)));
        }
        order::by_key(&mut targets, |&(at, text)| (at, text as u64));
        let mut places = Vec::new();
        for s in &self.segments {
            let Some(start) = s.vaddr.checked_next_multiple_of(8) else { continue };
            let Some(range) = self.range(start) else { continue };
            self.pages.pieces(range, 8, 0, &mut |at, bytes| {
                for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
                    let target = u64::from_le_bytes(*word);
                    let hit =
                        targets.binary_search_by_key(&target, |t| t.0).ok().and_then(|i| targets.get(i));
                    places.extend(hit.map(|hit| (start.wrapping_add(at + i as u64 * 8), hit.1)));
                }
                places.len() < MAX_PLACES
            });
        }
        places
    }

    /// Addresses of these bytes in the loaded segments, ascending within each segment; their number is limited.
    pub fn addresses_of(&self, needle: &[u8]) -> Vec<u64> {
        /// Enough for any engine, which has one or two.
        const MOST: usize = 4096;
        let mut found = Vec::new();
        let Some((&first, rest)) = needle.split_first() else { return found };
        self.pieces(1, rest.len(), &mut |at, bytes| {
            let mut from = 0;
            while let Some(tail) = bytes.get(from..)
                && let Some(hit) = tail.iter().position(|&b| b == first)
            {
                let place = from + hit;
                if bytes.get(place + 1..).is_some_and(|b| b.starts_with(rest)) {
                    found.push(at.wrapping_add(place as u64));
                }
                from = place + 1;
            }
            found.len() < MOST
        });
        found.truncate(MOST);
        found
    }

    fn relative_pointers(&self) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        // The part of a table that its segment contains.
        let range = |table: Option<(u64, u64)>| {
            let (vaddr, len) = table?;
            self.range(vaddr).map(|(offset, there)| (offset, there.min(len)))
        };
        if let Some(rela) = range(self.rela) {
            self.pages.pieces(rela, size_of::<Rela64<LE>>(), 0, &mut |_, bytes| {
                for r in symtab::entries::<Rela64<LE>>(bytes) {
                    if r.r_type(LE, false) == self.machine.relative() && out.len() < MAX_RELOCS {
                        out.push((r.r_offset.get(LE), r.r_addend.get(LE).cast_unsigned()));
                    }
                }
                out.len() < MAX_RELOCS
            });
        }
        if let Some(relr) = range(self.relr) {
            // Addresses ascend: none is reported twice, and there are no more than the file has words.
            let (mut next, mut last) = (0u64, 0u64);
            let mut push = |at: u64| {
                if at > last && out.len() < MAX_RELOCS {
                    last = at;
                    out.extend(self.u64_at(at).map(|target| (at, target)));
                }
            };
            self.pages.pieces(relr, 8, 0, &mut |_, bytes| {
                for word in bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)) {
                    if word & 1 == 0 {
                        push(word);
                        next = word.wrapping_add(8);
                        continue;
                    }
                    (0..63)
                        .filter(|bit| word >> (bit + 1) & 1 == 1)
                        .for_each(|bit| push(next.wrapping_add(bit * 8)));
                    next = next.wrapping_add(63 * 8);
                }
                true
            });
        }
        out
    }
}
