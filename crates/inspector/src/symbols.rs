//! Whether a file defines functions of given names, by reading it in pieces.
//!
//! Anyone who may execute a file can cause it to be examined. So it is read, never mapped: if it is truncated
//! meanwhile, the result is a short read, not a crash. Only one piece is in memory at a time, and a file whose
//! strings lack any of the names, which is almost every file, is abandoned after its strings. The cost is linear in
//! the bytes of the file that are on disk, and bounded: holes are skipped, and tables are read up to a length far
//! above that of any engine.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use object::elf::{
    DT_NULL, DT_STRSZ, DT_STRTAB, DT_SYMTAB, Dyn64, ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_AARCH64, EM_X86_64,
    FileHeader64, Ident, PT_DYNAMIC, PT_LOAD, ProgramHeader64, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC,
    SectionHeader64, SectionType, Sym64,
};
use object::{LittleEndian as LE, pod};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use engine::elf::ElfMachine;
use engine::symtab::entries;

/// Bytes per read: a multiple of the sizes of entries (of symbols 24, of section headers 64).
const PIECE: usize = 24 << 10;
/// Maximum bytes of names examined in one table. An engine with all of its backends and debug symbols has about 10
/// MB.
const MAX_STRINGS: u64 = 64 << 20;
/// Maximum bytes of symbols examined in one table: four million.
const MAX_SYMBOLS: u64 = 96 << 20;
/// Maximum bytes read of one file.
pub const MAX_READ: u64 = 192 << 20;
/// Maximum occurrences of one name in a string table; linkers make one, others are ends of longer names.
const MAX_PLACES: usize = 64;
/// Maximum length, in bytes, of a prefix that an engine may give to all of its function names.
const MAX_PREFIX: usize = 32;
/// Maximum program headers, and maximum bytes of the dynamic section, examined.
const MAX_PROGRAM: usize = 64;
const MAX_DYNAMIC: u64 = 64 << 10;

/// A symbol table and its strings, each as offset and length in the file.
type SymbolTable = ((u64, u64), (u64, u64));

/// True if one symbol table, exported or not, has functions with all these names, or with all of them after the
/// same short prefix. False for a damaged file, and for anything but a 64-bit file of this machine. `read` grows by
/// the bytes that were read.
///
/// # Errors
/// The file cannot be read, or more than [`MAX_READ`] of it would have to be (`FileTooLarge`).
pub fn defines(file: &File, names: &[&str], read: &mut u64) -> io::Result<bool> {
    let elf = Elf { file, done: Cell::new(0) };
    let found = elf.defines(names);
    *read += elf.done.get();
    found
}

/// The header of a 64-bit, little-endian file for this machine.
fn ours(head: &[u8]) -> Option<&FileHeader64<LE>> {
    let machine = match ElfMachine::host()? {
        ElfMachine::X86_64 => EM_X86_64,
        ElfMachine::Aarch64 => EM_AARCH64,
    };
    let (header, _) = pod::from_bytes::<FileHeader64<LE>>(head).ok()?;
    let Ident { magic, class, data, .. } = header.e_ident;
    let fits = (magic, class, data, header.e_machine.get(LE)) == (ELFMAG, ELFCLASS64, ELFDATA2LSB, machine);
    fits.then_some(header)
}

struct Elf<'f> {
    file: &'f File,
    /// Bytes read so far.
    done: Cell<u64>,
}

impl Elf<'_> {
    fn defines(&self, names: &[&str]) -> io::Result<bool> {
        let mut head = [0; size_of::<FileHeader64<LE>>()];
        let got = self.read(0, &mut head)?;
        let Some(header) = ours(head.get(..got).unwrap_or_default()) else { return Ok(false) };
        let mut tables = self.by_sections(header)?;
        if tables.is_empty() {
            tables.extend(self.by_dynamic(header)?);
        }
        for table in tables {
            if self.table_defines(table, names)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads as much as there is, up to the buffer's length.
    fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.done.get() + buffer.len() as u64 > MAX_READ {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut done = 0;
        while done < buffer.len() {
            let Some(from) = at.checked_add(done as u64).filter(|&from| i64::try_from(from).is_ok()) else {
                break;
            };
            match self.file.read_at(&mut buffer[done..], from) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.done.set(self.done.get() + done as u64);
        Ok(done)
    }

    /// The position, from this one on, of the file's next bytes that are not in a hole; None: there are none. The
    /// same position if the file system does not know.
    fn data(&self, from: u64) -> Option<u64> {
        i64::try_from(from).ok()?;
        // Nothing relies on the file position.
        match seek(self.file, SeekFrom::Data(from)) {
            Err(Errno::NXIO) => None,
            data => Some(data.map_or(from, |data| data.max(from))),
        }
    }

    /// Passes on the bytes from `at` on, at most `len`, in pieces that share `overlap` bytes, each with its
    /// position relative to `at`. Stops when `take` returns false. Pieces that are all zeros may be left out: no
    /// name begins in them, and no entry counts.
    fn pieces(
        &self,
        (at, len): (u64, u64),
        overlap: usize,
        take: &mut dyn FnMut(u64, &[u8]) -> bool,
    ) -> io::Result<()> {
        let mut buffer = vec![0; PIECE + overlap];
        let mut from = 0;
        while from < len {
            let want = (len - from).min(buffer.len() as u64) as usize;
            let Some(place) = at.checked_add(from) else { break };
            let got = self.read(place, &mut buffer[..want])?;
            let empty = buffer[..got].iter().all(|&b| b == 0);
            if (!empty && !take(from, &buffer[..got])) || got < want {
                break;
            }
            from += PIECE as u64;
            if empty {
                // Only complete pieces, so that entries are not split.
                let Some(data) = at.checked_add(from).and_then(|place| self.data(place)) else { break };
                from += (data - at - from) / PIECE as u64 * PIECE as u64;
            }
        }
        Ok(())
    }

    /// Tables described by section headers.
    fn by_sections(&self, head: &FileHeader64<LE>) -> io::Result<Vec<SymbolTable>> {
        const KINDS: [SectionType; 2] = [SHT_SYMTAB, SHT_DYNSYM];
        const SIZE: usize = size_of::<SectionHeader64<LE>>();
        let (at, count) = (head.e_shoff.get(LE), head.e_shnum.get(LE));
        if usize::from(head.e_shentsize.get(LE)) != SIZE {
            return Ok(Vec::new());
        }
        // Position and string section of the first table of each kind.
        let mut found = [None; KINDS.len()];
        let range = |s: &SectionHeader64<LE>| (s.sh_offset.get(LE), s.sh_size.get(LE));
        self.pieces((at, u64::from(count) * SIZE as u64), 0, &mut |_, bytes| {
            for s in entries::<SectionHeader64<LE>>(bytes) {
                if let Some(kind) = KINDS.iter().position(|kind| s.sh_type.get(LE) == *kind) {
                    found[kind].get_or_insert((range(s), u64::from(s.sh_link.get(LE))));
                }
            }
            found.contains(&None)
        })?;
        let mut tables = Vec::new();
        for (symbols, link) in found.into_iter().flatten() {
            let mut bytes = [0; SIZE];
            let inside = link < count.into();
            if let (true, Some(at)) = (inside, at.checked_add(link * SIZE as u64))
                && self.read(at, &mut bytes)? == bytes.len()
            {
                tables.extend(entries::<SectionHeader64<LE>>(&bytes).iter().map(|s| (symbols, range(s))));
            }
        }
        Ok(tables)
    }

    /// The table that the loader uses, in a file without section headers. It ends where its strings begin.
    fn by_dynamic(&self, head: &FileHeader64<LE>) -> io::Result<Option<SymbolTable>> {
        const SIZE: usize = size_of::<ProgramHeader64<LE>>();
        if usize::from(head.e_phentsize.get(LE)) != SIZE {
            return Ok(None);
        }
        let mut loaded: Vec<[u64; 3]> = Vec::new();
        let mut dynamic = None;
        let mut headers = vec![0; SIZE * usize::from(head.e_phnum.get(LE)).min(MAX_PROGRAM)];
        let got = self.read(head.e_phoff.get(LE), &mut headers)?;
        for p in entries::<ProgramHeader64<LE>>(&headers[..got]) {
            let (offset, size) = (p.p_offset.get(LE), p.p_filesz.get(LE));
            match p.p_type.get(LE) {
                PT_LOAD => loaded.push([p.p_vaddr.get(LE), offset, size]),
                PT_DYNAMIC => dynamic = Some((offset, size.min(MAX_DYNAMIC))),
                _ => {}
            }
        }
        let (mut symbols, mut strings, mut size) = (0, 0, 0);
        self.pieces(dynamic.unwrap_or_default(), 0, &mut |_, bytes| {
            for entry in entries::<Dyn64<LE>>(bytes) {
                let value = entry.d_val.get(LE);
                match entry.d_tag.get(LE) {
                    DT_NULL => return false,
                    DT_STRTAB => strings = value,
                    DT_SYMTAB => symbols = value,
                    DT_STRSZ => size = value,
                    _ => {}
                }
            }
            true
        })?;
        let place = |vaddr: u64| {
            let [start, offset, _] = loaded.iter().find(|[v, _, n]| vaddr >= *v && vaddr - v < *n)?;
            offset.checked_add(vaddr - start)
        };
        let length = strings.checked_sub(symbols).filter(|_| symbols != 0);
        Ok((|| Some(((place(symbols)?, length?), (place(strings)?, size))))())
    }

    fn table_defines(&self, (symbols, strings): SymbolTable, names: &[&str]) -> io::Result<bool> {
        let mut places = Vec::new();
        for name in names {
            let here = self.places((strings.0, strings.1.min(MAX_STRINGS)), name)?;
            if here.is_empty() {
                return Ok(false);
            }
            places.push(here);
        }
        // The prefixes of each name, of the functions seen.
        let mut seen: Vec<HashSet<Vec<u8>>> = vec![HashSet::new(); names.len()];
        let all = |seen: &[HashSet<Vec<u8>>]| {
            let first = seen.first().into_iter().flatten();
            first.into_iter().any(|before| seen.iter().all(|of| of.contains(before)))
        };
        let mut done = false;
        self.pieces((symbols.0, symbols.1.min(MAX_SYMBOLS)), 0, &mut |_, bytes| {
            for s in entries::<Sym64<LE>>(bytes) {
                let name = s.st_name.get(LE);
                if s.st_type() == STT_FUNC && s.st_shndx.get(LE) != SHN_UNDEF {
                    for (here, seen) in places.iter().zip(&mut seen) {
                        let next = here.get(here.partition_point(|p| p.at < name.into()));
                        let before = next.and_then(|p| p.before(name.into()));
                        if let Some(text) = before.filter(|text| !seen.contains(*text)) {
                            seen.insert(text.to_vec());
                        }
                    }
                }
            }
            done = all(&seen);
            !done
        })?;
        Ok(done)
    }

    /// Where in a string table the name occurs; it may be the end of a longer one.
    fn places(&self, strings: (u64, u64), name: &str) -> io::Result<Vec<NameOccurrence>> {
        let needle = [name.as_bytes(), &[0]].concat();
        let mut places: Vec<NameOccurrence> = Vec::new();
        // Each name is in one piece together with its longest possible prefix.
        self.pieces(strings, needle.len() - 1 + MAX_PREFIX, &mut |at, bytes| {
            let mut rest = 0;
            while let (true, Some(hit)) = (places.len() < MAX_PLACES, find(&bytes[rest..], &needle)) {
                let place = rest + hit;
                rest = place + 1;
                if places.last().is_some_and(|last| last.at >= at + place as u64) {
                    continue;
                }
                let before = bytes[place.saturating_sub(MAX_PREFIX)..place].iter().rev();
                let mut before: Vec<u8> =
                    before.take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').copied().collect();
                before.reverse();
                places.push(NameOccurrence { at: at + place as u64, before });
            }
            places.len() < MAX_PLACES
        })?;
        // Found in ascending order.
        Ok(places)
    }
}

/// An occurrence of a name in a string table.
struct NameOccurrence {
    at: u64,
    /// The bytes before it, as many as a prefix may have.
    before: Vec<u8>,
}

impl NameOccurrence {
    /// The prefix of a symbol whose name begins there.
    fn before(&self, begins: u64) -> Option<&[u8]> {
        let len = usize::try_from(self.at.checked_sub(begins)?).ok()?;
        self.before.get(self.before.len().checked_sub(len)?..)
    }
}

/// Position of the needle.
fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    // SAFETY: both lengths are those of the slices; the result points into the first, or is null.
    let hit = unsafe {
        libc::memmem(bytes.as_ptr().cast(), bytes.len(), needle.as_ptr().cast(), needle.len()).cast::<u8>()
    };
    (!hit.is_null()).then(|| hit.addr() - bytes.as_ptr().addr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        file
    }

    /// A file with one symbol table: name, section, kind of each. `pad` bytes of other names come before.
    fn made(symbols: &[(&str, u16, u8)], pad: usize) -> Vec<u8> {
        let mut strings = vec![b'x'; pad];
        strings.push(0);
        let mut table = vec![0; 24];
        for (name, section, kind) in symbols {
            let mut s = [0; 24];
            s[..4].copy_from_slice(&(strings.len() as u32).to_le_bytes());
            s[4] = 16 | kind;
            s[6..8].copy_from_slice(&section.to_le_bytes());
            table.extend(s);
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        let mut out = vec![0; 64 * 3];
        out[..6].copy_from_slice(b"\x7fELF\x02\x01");
        out[18..20].copy_from_slice(&machine.to_le_bytes());
        out[40..48].copy_from_slice(&64u64.to_le_bytes());
        out[58..60].copy_from_slice(&64u16.to_le_bytes());
        out[60..62].copy_from_slice(&2u16.to_le_bytes());
        let places = [(11u32, 192, table.len(), 1u32), (3, 192 + table.len(), strings.len(), 0)];
        for (i, (kind, offset, size, link)) in places.into_iter().enumerate() {
            let s = &mut out[64 * (i + 1)..][..64];
            s[4..8].copy_from_slice(&kind.to_le_bytes());
            s[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            s[32..40].copy_from_slice(&(size as u64).to_le_bytes());
            s[40..44].copy_from_slice(&link.to_le_bytes());
        }
        out.extend(table);
        out.extend(strings);
        out
    }

    const NAMES: [&str; 2] = ["ggml_op_name", "ggml_get_name"];

    fn says(bytes: &[u8]) -> bool {
        defines(&file(bytes), &NAMES, &mut 0).expect("read")
    }

    #[test]
    fn both_functions_must_be_defined() {
        let both = [("ggml_op_name", 1, 2), ("my_ggml_get_name", 1, 2), ("ggml_get_name", 1, 2)];
        // A name may span two pieces.
        for pad in [0, PIECE - 20, PIECE - 14, PIECE - 5, PIECE, 3 * PIECE - 8] {
            assert!(says(&made(&both, pad)), "{pad}");
        }
        assert!(!says(&made(&both[..2], 0)));
        assert!(!says(&made(&[both[0], ("ggml_get_name", 0, 2)], 0)), "needed only");
        assert!(!says(&made(&[both[0], ("ggml_get_name", 1, 1)], 0)), "data");
        let many: Vec<_> = (0..3000).map(|_| ("f", 1, 2)).chain(both).collect();
        assert!(says(&made(&many, 0)));
    }

    #[test]
    fn all_may_begin_with_the_same_text() {
        let of = |first: &'static str, second: &'static str| [(first, 1, 2), (second, 1, 2)];
        for pad in (PIECE - 40..PIECE + 4).chain([0, 3 * PIECE - 8]) {
            assert!(says(&made(&of("lm_ggml_op_name", "lm_ggml_get_name"), pad)), "{pad}");
            assert!(!says(&made(&of("lm_ggml_op_name", "wsp_ggml_get_name"), pad)), "{pad}");
            assert!(!says(&made(&of("lm_ggml_op_name", "ggml_get_name"), pad)), "{pad}");
        }
        assert!(!says(&made(&of("a b ggml_op_name", "a b ggml_get_name"), 0)), "no name of C");
        let long = "x".repeat(MAX_PREFIX + 1);
        let long: &[(&str, u16, u8)] =
            &[(&format!("{long}ggml_op_name"), 1, 2), (&format!("{long}ggml_get_name"), 1, 2)];
        assert!(!says(&made(long, 0)), "too long");
    }

    #[test]
    fn other_files_define_nothing() {
        for bytes in [&b""[..], b"#!/bin/sh\n", &[0x7f; 200]] {
            assert!(!says(bytes));
        }
        let mut other = made(&[("ggml_op_name", 1, 2), ("ggml_get_name", 1, 2)], 0);
        other[18] = 40;
        assert!(!says(&other));
    }

    #[test]
    fn holes_cost_nothing_and_hide_nothing() {
        let both = [("ggml_op_name", 1, 2), ("ggml_get_name", 1, 2)];
        let whole = made(&both, 200 << 20);
        let (head, tail) = whole.split_at(64 << 10);
        assert!(tail.ends_with(b"x\0ggml_op_name\0ggml_get_name\0"));
        // The same with a hole in place of the other names; then with the names beyond what is examined.
        for (pad, found) in [(40u64 << 20, true), (200 << 20, false)] {
            let file = file(&head[..400]);
            let mut bytes = made(&both, 0);
            let strings = 192 + 72;
            bytes[128 + 32..][..8].copy_from_slice(&(pad + 40).to_le_bytes());
            for (i, at) in [(1, 1u32), (2, 14)] {
                bytes[192 + 24 * i..][..4].copy_from_slice(&(pad as u32 + at).to_le_bytes());
            }
            let names = bytes.split_off(strings);
            file.write_all_at(&bytes, 0).expect("written");
            file.set_len(strings as u64).expect("cut");
            file.write_all_at(&names, strings as u64 + pad).expect("written");
            let mut read = 0;
            assert_eq!(defines(&file, &NAMES, &mut read).expect("read"), found);
            assert!(read < 1 << 20, "{read}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read_to_its_end() {
        let mut bytes = made(&[("ggml_op_name", 1, 2), ("ggml_get_name", 1, 2)], 0);
        // Endless names that contain both, and symbols that never match.
        bytes[64 + 32..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        bytes[128 + 32..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        bytes[192..].fill(1);
        bytes.extend(b"\0ggml_op_name\0ggml_get_name\0");
        bytes.resize(100 << 20, 1);
        let (file, mut read) = (file(&bytes), 0);
        let error = defines(&file, &NAMES, &mut read).expect_err("too large");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(read <= MAX_READ && read > MAX_READ - (1 << 20), "{read}");
    }

    #[test]
    fn very_many_places_of_a_name_are_not_all_taken() {
        let names: Vec<_> = (0..200_000).map(|_| ("ggml_op_name", 1, 2)).collect();
        assert!(!says(&made(&names, 0)));
        // Within the limit, the ends of longer names do not hide one.
        let longer = (0..MAX_PLACES - 1).map(|_| ("my_ggml_op_name", 1, 1));
        let all: Vec<_> = longer.chain([("ggml_op_name", 1, 2), ("ggml_get_name", 1, 2)]).collect();
        assert!(says(&made(&all, 0)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damage_is_no_reason_to_stop(
            cut in 0usize..600,
            hits in proptest::collection::vec((0usize..400, any::<u8>()), 0..12),
        ) {
            let mut bytes = made(&[("ggml_op_name", 1, 2), ("ggml_get_name", 1, 2)], 0);
            for (at, value) in hits {
                let len = bytes.len();
                // Keep what names the file, so that the rest is read.
                bytes[20 + at % (len - 20)] = value;
            }
            bytes.truncate(cut.max(64));
            // Huge lengths end at the end of the file.
            let _ = says(&bytes);
        }
    }
}
