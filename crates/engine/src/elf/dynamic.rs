//! The dynamic section: the libraries a file is linked with, and where its symbols and relocations are.

use object::LittleEndian as LE;
use object::elf::{
    DT_NEEDED, DT_NULL, DT_RELA, DT_RELASZ, DT_RELR, DT_RELRSZ, DT_RPATH, DT_RUNPATH, DT_SONAME, DT_STRSZ,
    DT_STRTAB, DT_SYMTAB, Dyn64,
};

use crate::symtab::entries;

use super::{ElfFile, MAX_DYNAMIC, SYM_SIZE, SymTab};

/// Maximum number of library search path entries kept.
const MAX_RUNPATH: usize = 128;
/// Maximum number of dependencies kept.
const MAX_NEEDED: usize = 512;
/// Longest symbol name or search path, in bytes.
const MAX_NAME: usize = 4096;

/// Contents of the dynamic section, addresses as linked.
#[derive(Default)]
pub(super) struct Dynamic {
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
    pub(super) fn read_dynamic(&self, offset: u64, size: u64) -> Dynamic {
        let mut d = Dynamic::default();
        let bytes = self.pages.take(offset, size.min(MAX_DYNAMIC) as usize);
        for entry in entries::<Dyn64<LE>>(&bytes) {
            let (tag, value) = (entry.d_tag.get(LE), entry.d_val.get(LE));
            match tag {
                DT_NULL => break,
                DT_NEEDED => d.needed.push(value),
                DT_STRTAB => d.strtab = value,
                DT_SYMTAB => d.symtab = value,
                DT_RELA => d.rela.0 = value,
                DT_RELASZ => d.rela.1 = value,
                DT_STRSZ => d.strsz = value,
                DT_SONAME => d.soname = Some(value),
                DT_RPATH => d.rpath = Some(value),
                DT_RUNPATH => d.runpath = Some(value),
                DT_RELRSZ => d.relr.1 = value,
                DT_RELR => d.relr.0 = value,
                _ => {}
            }
        }
        d
    }

    pub(super) fn take_dynamic(&mut self, d: &Dynamic) {
        let text = |at: u64| {
            d.strtab.checked_add(at).filter(|_| at < d.strsz).and_then(|v| self.text_at(v, MAX_NAME))
        };
        let needed = d.needed.iter().take(MAX_NEEDED).filter_map(|&n| text(n)).collect();
        let soname = d.soname.and_then(text);
        let path = d.runpath.or(d.rpath).and_then(text).unwrap_or_default();
        let runpath = path.split(':').filter(|p| !p.is_empty()).take(MAX_RUNPATH).map(str::to_owned);
        // Files without section headers still have the table that the loader uses; it ends where its strings start.
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
        self.runpath = runpath.collect();
    }
}
