//! The samplers of llama.cpp: what one is called, by the address of its table of functions.
//!
//! A sampler begins with a pointer to such a table, whose first function returns the sampler's name (`llama_sampler_i` of
//! llama.h, 2024-09 to date). That function is read from the file, not run. Since 2025-12 some of them build the name when
//! they are called; then it is that of the exported function that makes such samplers, `llama_sampler_init_NAME`.

use crate::elf::{ElfFile, Symbol};
use crate::returned;

/// Names of the functions that make samplers begin so.
const MAKERS: &str = "llama_sampler_init_";
/// Longest name, in bytes.
const MAX_NAME: usize = 40;
/// Bytes of a function that returns its name, and most of one that makes a sampler.
const NAMING: usize = 64;
const MAKING: u64 = 4096;
/// A sampler that its parameters turn off: all makers use its table.
pub const OFF: &str = "empty";

/// The functions of a file that make samplers: they are searched for once, and only if they are needed.
#[derive(Default)]
pub struct Makers(Option<Vec<(String, Symbol)>>);

/// The name of the samplers whose table of functions is at this address (as linked). None: the file does not tell. Reads the
/// file's pointers, which the caller frees ([`ElfFile::forget_pointers`]).
pub fn name(elf: &mut ElfFile, makers: &mut Makers, table: u64) -> Option<String> {
    elf.load_pointers();
    let elf = &*elf;
    let function = elf.pointer_at(table)?;
    let returned = returned::address(elf.machine, function, &elf.bytes_at(function, NAMING));
    let text = returned.and_then(|at| elf.text_at(at, MAX_NAME)).filter(|text| is_name(text));
    text.or_else(|| of_maker(elf, makers.0.get_or_insert_with(|| find_makers(elf)), table))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic())
}

fn find_makers(elf: &ElfFile) -> Vec<(String, Symbol)> {
    let mut names = elf.names_with(MAKERS);
    // A compiler may split a part off a function, and names it `FUNCTION.cold`.
    names.retain(|n| n.strip_prefix(MAKERS).is_some_and(|n| is_name(n) && !n.contains('.')));
    names.sort_unstable();
    names.dedup();
    let asked: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut symbols = vec![None; asked.len()];
    elf.find_into(&asked, &mut symbols);
    let found = asked.iter().zip(symbols);
    found.filter_map(|(n, s)| Some(((*n).to_owned(), s.filter(|s: &Symbol| s.function)?))).collect()
}

/// The name after the function that makes samplers with this table.
fn of_maker(elf: &ElfFile, makers: &[(String, Symbol)], table: u64) -> Option<String> {
    let uses = |s: &Symbol| {
        let code = elf.bytes_at(s.vaddr, s.size.min(MAKING) as usize);
        returned::computes(elf.machine, s.vaddr, &code, table)
    };
    let mut of_table = makers.iter().filter(|(_, s)| uses(s));
    let first = of_table.next()?.0.strip_prefix(MAKERS)?;
    match of_table.next() {
        None => Some(first.replace('_', "-")),
        Some(_) => Some(OFF.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    /// Four samplers: two whose function returns the name, of which one has a maker with another; one whose function
    /// builds it; and one that two makers use.
    const SOURCE: &str = r#"
        typedef struct { const char *(*name)(void *); void (*accept)(void *, int); void (*apply)(void *, void *); } table;
        static void apply(void *s, void *c) { *(void **)c = s; }
        static const char *chain_name(void *s) { (void)s; return "chain"; }
        static const char *mirostat_name(void *s) { (void)s; return "mirostat-v2"; }
        static const char *built_name(void *s) { return ((const char ***)s)[1][0]; }
        static table chain_i = { chain_name, 0, apply }, mirostat_i = { mirostat_name, 0, apply };
        static table top_k_i = { built_name, 0, apply }, empty_i = { built_name, 0, apply };
        void *TABLES(int i) { table *all[] = { &chain_i, &mirostat_i, &top_k_i, &empty_i }; return all[i]; }
        __attribute__((noipa)) void *made(table *t, int x) { (void)x; return t; }
        void *llama_sampler_init_mirostat_two(int x) { return made(&mirostat_i, x); }
        void *llama_sampler_init_top_k(int k) { return k > 0 ? made(&top_k_i, k) : made(&empty_i, 0); }
        void *llama_sampler_init_temp(int t) { return made(&empty_i, t); }
        table *const chain_at = &chain_i, *const mirostat_at = &mirostat_i, *const top_k_at = &top_k_i,
                     *const empty_at = &empty_i;
    "#;

    /// Names of the four, and of what is no table.
    fn names(path: &Path) -> Vec<Option<String>> {
        let mut elf = ElfFile::open(path).expect("an ELF file");
        let at = ["chain_at", "mirostat_at", "top_k_at", "empty_at"];
        elf.load_pointers();
        let tables: Vec<u64> = elf
            .find(at)
            .map(|s| elf.pointer_at(s.expect("exported").vaddr).expect("a pointer"))
            .into_iter()
            .collect();
        let mut makers = Makers::default();
        tables.into_iter().chain([8, u64::MAX]).map(|table| name(&mut elf, &mut makers, table)).collect()
    }

    #[test]
    fn names_come_from_the_function_or_from_the_maker() {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, out) = (dir.path().join("s.c"), dir.path().join("s.so"));
        std::fs::write(&source, SOURCE).expect("written");
        let told = ["chain", "mirostat-v2", "top-k", OFF].map(|n| Some(n.to_owned()));
        let want = [&told[..], &[None, None]].concat();
        for options in
            [&["-O2", "-fPIC", "-shared"][..], &["-O1", "-fPIC", "-shared", "-fno-omit-frame-pointer"]]
        {
            let made = Command::new("cc").args(options).arg("-o").arg(&out).arg(&source).status();
            assert!(made.expect("cc").success());
            assert_eq!(names(&out), want, "{options:?}");
            assert!(Command::new("strip").arg(&out).status().expect("strip").success());
            assert_eq!(names(&out), want, "{options:?}, stripped");
        }
    }
}
