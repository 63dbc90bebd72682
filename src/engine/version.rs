//! The version reported by an engine: the strings that `ggml_version` and `ggml_commit` return (since 2025-07),
//! read from their code without running it.

use crate::engine::elf::{ElfFile, ElfMachine};

/// Functions that return a string.
pub const NAMES: [&str; 2] = ["ggml_version", "ggml_commit"];

/// `0.25.1 (d2e1ac9)`, or the part of it that is in the file; empty if there is none. A hint, not a basis for
/// decisions.
pub fn of(base: &ElfFile) -> String {
    let [version, commit] = base
        .find(NAMES)
        .map(|s| s.filter(|s| s.function).and_then(|s| returned_text(base, s.vaddr)).unwrap_or_default());
    match (version.is_empty(), commit.is_empty()) {
        (_, true) => version,
        (true, false) => format!("commit {commit}"),
        (false, false) => format!("{version} ({commit})"),
    }
}

/// The string whose address a function of two or three instructions returns.
fn returned_text(elf: &ElfFile, vaddr: u64) -> Option<String> {
    let code = elf.bytes_at(vaddr, 16);
    let at = match elf.machine {
        ElfMachine::X86_64 => {
            // endbr64; lea rax, [rip + distance]
            let landing = [0xf3, 0x0f, 0x1e, 0xfa];
            let skip = if code.starts_with(&landing) { 4 } else { 0 };
            let lea = code.get(skip..skip + 7)?.strip_prefix(&[0x48, 0x8d, 0x05])?;
            let distance = i32::from_le_bytes(lea.try_into().ok()?);
            vaddr.wrapping_add(skip as u64 + 7).wrapping_add_signed(distance.into())
        }
        ElfMachine::Aarch64 => {
            // bti c; adrp x0, page; add x0, x0, #offset
            let mut words =
                code.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).zip((vaddr..).step_by(4));
            let (adrp, pc) = words.find(|(w, _)| w & 0x9f00_001f == 0x9000_0000)?;
            let (add, _) = words.next().filter(|(w, _)| w & 0xffc0_03ff == 0x9100_0000)?;
            let pages = (adrp >> 3 & 0x1f_fffc) | (adrp >> 29 & 3);
            let distance = i64::from((pages << 11) as i32 >> 11) << 12;
            (pc & !0xfff).wrapping_add_signed(distance).wrapping_add(u64::from(add >> 10 & 0xfff))
        }
    };
    let text = elf.text_at(at, 64)?;
    text.chars().all(|c| c.is_ascii_graphic()).then_some(text)
}
