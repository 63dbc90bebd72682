//! The functions that a function of a file calls directly: what is left of a static function's name after stripping.

use crate::elf::{ElfFile, ElfMachine};
use crate::functions;
use common::order;

/// Maximum bytes of a function to search for calls; the largest known to be of use has 24 KB.
const MOST_CODE: u64 = 1 << 18;

/// Addresses of the functions that the one at `vaddr` calls, the longest first. Empty if the file does not tell where
/// its functions start.
///
/// Bytes that look like a call but are not count only if they lead to the first byte of a function: almost never.
pub fn longest(elf: &ElfFile, vaddr: u64) -> Vec<u64> {
    let Some(starts) = functions::starts(elf) else { return Vec::new() };
    // Bytes up to the next function; the last one's end is not known.
    let bytes = |start: u64| {
        let i = starts.binary_search(&start).ok()?;
        Some(starts.get(i + 1).map_or(0, |next| next - start))
    };
    let Some(own) = bytes(vaddr) else { return Vec::new() };
    let code = elf.bytes_at(vaddr, own.min(MOST_CODE) as usize);
    let called = targets(elf.machine, vaddr, &code).filter(|&target| target != vaddr);
    let mut called: Vec<(u64, u64)> = called.filter_map(|target| Some((bytes(target)?, target))).collect();
    order::by(&mut called, |a, b| b.cmp(a));
    called.dedup();
    called.into_iter().map(|(_, target)| target).collect()
}

/// Where the direct calls in `code`, which stands at `vaddr`, lead.
fn targets(machine: ElfMachine, vaddr: u64, code: &[u8]) -> Box<dyn Iterator<Item = u64> + '_> {
    let at = move |i: usize| vaddr.checked_add(i as u64);
    match machine {
        // CALL rel32 (Intel SDM, volume 2): E8 and the distance from the next instruction.
        ElfMachine::X86_64 => Box::new(code.windows(5).enumerate().filter_map(move |(i, w)| match w {
            [0xe8, distance @ ..] => {
                let distance = i32::from_le_bytes(*distance.first_chunk()?);
                at(i + 5)?.checked_add_signed(distance.into())
            }
            _ => None,
        })),
        // BL (Arm ARM, C6.2.35): 100101 and the distance in words, 26 bits.
        ElfMachine::Aarch64 => {
            Box::new(code.as_chunks::<4>().0.iter().enumerate().filter_map(move |(i, word)| {
                let word = u32::from_le_bytes(*word);
                let distance = i64::from((word << 6).cast_signed() >> 4);
                (word >> 26 == 0b10_0101).then_some(())?;
                at(4 * i)?.checked_add_signed(distance)
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn calls_are_found_and_the_longest_function_is_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, out) = (dir.path().join("f.c"), dir.path().join("f.so"));
        let text = "#define F static __attribute__((noinline))\n\
                    F int small(int a) { return a * 77 + 5; }\n\
                    F int large(volatile int *a) { for (int i = 0; i < 9; i++) a[i] = a[2 * i] / (a[i + 1] | 1) % 7;\n\
                    return *a; }\n\
                    F int other(volatile int *a) { return large(a) * a[5]; }\n\
                    int outer(volatile int *a) { return small(*a) + large(a) + small(a[3]); }\n\
                    int both(volatile int *a) { return other(a); }\n";
        std::fs::write(&source, text).expect("written");
        let made = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&out).arg(&source).status();
        assert!(made.expect("cc").success());
        let names = |path: &std::path::Path| {
            let elf = ElfFile::open(path).expect("an ELF file");
            let [outer, small, large] =
                elf.find(["outer", "small", "large"]).map(|s| s.map_or(0, |s| s.vaddr));
            (longest(&elf, outer), small, large, longest(&elf, outer + 1))
        };
        let (found, small, large, inside) = names(&out);
        assert_eq!((found, inside), (vec![large, small], Vec::new()));
        assert!(Command::new("strip").arg(&out).status().expect("strip").success());
        let (found, none, ..) = names(&out);
        assert_eq!((found, none), (vec![large, small], 0), "without symbols");
    }

    #[test]
    fn calls_of_both_machines_are_decoded() {
        let calls = |machine, code: &[u8]| targets(machine, 0x1000, code).collect::<Vec<_>>();
        assert_eq!(calls(ElfMachine::X86_64, &[0x90, 0xe8, 0xfa, 0xff, 0xff, 0xff, 0xe8, 0, 0]), [0x1000]);
        // bl .+8; b .+8; bl .-4
        let words = [0x9400_0002u32, 0x1400_0002, 0x97ff_ffff].map(u32::to_le_bytes);
        assert_eq!(calls(ElfMachine::Aarch64, words.as_flattened()), [0x1008, 0x1004]);
    }
}
