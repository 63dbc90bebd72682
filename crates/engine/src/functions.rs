//! Where functions start in a file: from its symbols, and from the exception handling table, which stripping keeps.

use object::LittleEndian;
use object::elf::{PT_GNU_EH_FRAME, ProgramHeader64};

use crate::elf::ElfFile;

/// Bytes of a program header.
const PROGRAM_HEADER: u64 = size_of::<ProgramHeader64<LittleEndian>>() as u64;
/// Maximum number of program headers read.
const MOST: u64 = 64;
/// Maximum number of functions read. The largest backends have some ten thousand.
const MOST_FUNCTIONS: u32 = 1 << 20;
/// The form in which all linkers write the table of `.eh_frame_hdr`: pairs of 32-bit distances from its own start
/// (DW_EH_PE_datarel | DW_EH_PE_sdata4), after a 32-bit pointer and a 32-bit count (Linux Standard Base, 10.6.2).
const ENCODINGS: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// True if a function of the file starts at this address (as linked).
pub fn begins(elf: &ElfFile, vaddr: u64) -> bool {
    elf.has_function_at(vaddr) || has_frame_at(elf, vaddr).unwrap_or(false)
}

/// Addresses of the functions in the exception handling table, in order; None if the file has no such table in a known
/// form. Almost all functions are there, also those that a compiler split off from others.
pub fn starts(elf: &ElfFile) -> Option<Vec<u64>> {
    let table = table(elf)?;
    let count = u32_at(elf, table.checked_add(8)?).filter(|n| *n <= MOST_FUNCTIONS)?;
    let entries = elf.bytes_at(table.checked_add(12)?, count as usize * 8);
    let distances =
        entries.as_chunks::<8>().0.iter().map(|[a, b, c, d, ..]| i32::from_le_bytes([*a, *b, *c, *d]));
    let all: Vec<u64> = distances.map_while(|d| table.checked_add_signed(d.into())).collect();
    (all.len() == count as usize && all.is_sorted()).then_some(all)
}

fn u16_at(elf: &ElfFile, at: u64) -> Option<u16> {
    Some(u16::from_le_bytes(*elf.bytes_at(at, 2).first_chunk()?))
}

fn u32_at(elf: &ElfFile, at: u64) -> Option<u32> {
    Some(u32::from_le_bytes(*elf.bytes_at(at, 4).first_chunk()?))
}

/// Whether a frame description starts there. None: the file has no such table in a known form.
fn has_frame_at(elf: &ElfFile, vaddr: u64) -> Option<bool> {
    let table = table(elf)?;
    let (first, count) = (table.checked_add(12)?, u64::from(u32_at(elf, table.checked_add(8)?)?));
    let start_of = |i: u64| {
        let distance = u32_at(elf, first.checked_add(i.checked_mul(8)?)?)? as i32;
        table.checked_add_signed(distance.into())
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        match start_of(middle)? {
            start if start == vaddr => return Some(true),
            start if start < vaddr => low = middle + 1,
            _ => high = middle,
        }
    }
    Some(false)
}

/// Address of the table, from a program header. The headers are in the first loaded segment.
fn table(elf: &ElfFile) -> Option<u64> {
    let head = elf.vaddr_of(0)?;
    let headers = u64::from_le_bytes(*elf.bytes_at(head.checked_add(32)?, 8).first_chunk()?);
    let count = u64::from(u16_at(elf, head.checked_add(56)?)?).min(MOST);
    let header = (0..count)
        .filter_map(|i| head.checked_add(headers)?.checked_add(i * PROGRAM_HEADER))
        .find(|&at| u32_at(elf, at) == Some(PT_GNU_EH_FRAME.0))?;
    let table = u64::from_le_bytes(*elf.bytes_at(header.checked_add(16)?, 8).first_chunk()?);
    (elf.bytes_at(table, 4).first_chunk() == Some(&ENCODINGS)).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Two functions, one of them static, with and without symbols.
    fn library(dir: &std::path::Path) -> std::path::PathBuf {
        let (source, out) = (dir.join("f.c"), dir.join("f.so"));
        let text = "static __attribute__((noinline)) int inner(int a) { return a * 77 + 5; }\n\
                    int outer(int a) { return inner(a) ^ inner(a + 1); }\n";
        std::fs::write(&source, text).expect("written");
        let made = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&out).arg(&source).status();
        assert!(made.expect("cc").success());
        out
    }

    #[test]
    fn functions_begin_where_they_do_and_nowhere_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = library(dir.path());
        let begin = |path: &std::path::Path| {
            let elf = ElfFile::open(path).expect("an ELF file");
            let [outer] = elf.find(["outer"]).map(|s| s.expect("exported").vaddr);
            (outer - 64..outer + 64)
                .filter(|&at| begins(&elf, at))
                .map(|at| at.abs_diff(outer))
                .collect::<Vec<_>>()
        };
        let whole = begin(&path);
        let stripped = dir.path().join("s.so");
        assert!(Command::new("strip").arg("-o").arg(&stripped).arg(&path).status().expect("strip").success());
        // Stripping keeps the frames, which also show the static function.
        let left = begin(&stripped);
        assert!(left.contains(&0) && left.len() == 2, "{left:?}");
        assert!(left.iter().all(|at| whole.contains(at)) && whole.len() < 8, "{whole:?}");
        let elf = ElfFile::open(&stripped).expect("an ELF file");
        let [outer] = elf.find(["outer"]).map(|s| s.expect("exported").vaddr);
        let starts = starts(&elf).expect("a table");
        assert!(starts.contains(&outer) && starts.iter().all(|&at| begins(&elf, at)), "{starts:x?}");
        assert!(!begins(&elf, 0) && !begins(&elf, u64::MAX));
    }

    #[test]
    fn no_table_harms() {
        // A table with a count larger than its contents.
        let dir = tempfile::tempdir().expect("a directory");
        let bytes = std::fs::read(library(dir.path())).expect("read");
        let table = bytes.windows(4).position(|w| w == ENCODINGS).expect("a table");
        for count in [0u32, 1, 3, u32::MAX] {
            let mut damaged = bytes.clone();
            damaged[table + 8..table + 12].copy_from_slice(&count.to_le_bytes());
            let elf = ElfFile::from_bytes(damaged, "damaged").expect("an ELF file");
            assert!(starts(&elf).is_none_or(|all| all.len() <= 3));
            assert!((0..8192).filter(|&at| has_frame_at(&elf, at) == Some(true)).count() < 8);
        }
    }
}
