//! The version reported by an engine: the strings that `ggml_version` and `ggml_commit` return (since 2025-07),
//! read from their code without running it.

use crate::elf::ElfFile;
use crate::returned;

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

/// The string whose address a function returns.
fn returned_text(elf: &ElfFile, vaddr: u64) -> Option<String> {
    let at = returned::address(elf.machine, vaddr, &elf.bytes_at(vaddr, 64))?;
    let text = elf.text_at(at, 64)?;
    text.chars().all(|c| c.is_ascii_graphic()).then_some(text)
}
