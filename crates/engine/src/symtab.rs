//! Finds symbols by name in a table, in two passes over the file: first the positions of the names in the strings,
//! then the symbols with these names.
//!
//! Almost no file has any of the names, and then its symbols are not read at all. Linkers store a string only once,
//! and the end of one may be the name of another symbol.

use std::ffi::CStr;

use object::elf::{SHN_UNDEF, STB_LOCAL, STT_FUNC, STT_OBJECT, Sym64};
use object::{LittleEndian as LE, pod};

use machine::pages::Pages;

/// Maximum number of symbols read from one table.
const MAX_SYMBOLS: u64 = 8 << 20;
/// Maximum number of bytes of strings read from one table; the names of large C++ libraries take some 200 MB.
const MAX_STRINGS: u64 = 1 << 30;
/// Maximum number of positions of names in one table of strings; linkers create one per name.
const MAX_PLACES: usize = 4096;
/// Longest name to look up, in bytes.
const MAX_NAME: usize = 4096;
/// Longest prefix of a name that is reported, in bytes, and maximum number of functions with a prefix.
pub const MAX_PREFIX: usize = 32;
const MAX_PREFIXED: usize = 256;
/// Longest name that is found by a part of it, in bytes.
const MAX_LONG: usize = 1024;
/// Bytes of a symbol.
pub const SYM_SIZE: usize = size_of::<Sym64<LE>>();

/// A defined symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Address as linked.
    pub vaddr: u64,
    /// Size in bytes, 0 if the linker gave none.
    pub size: u64,
    pub function: bool,
    /// Bound globally or weakly (not `static`).
    pub global: bool,
}

/// File offsets of a symbol table and its strings, each with its length.
#[derive(Debug, Clone, Copy)]
pub struct SymTab {
    pub syms: (u64, u64),
    pub strs: (u64, u64),
}

/// Passes on each defined function or object of the table that has one of the names, with the name's index. True if
/// some strings are longer and end in one of the names.
pub fn find(pages: &Pages, table: SymTab, names: &[&str], each: &mut dyn FnMut(usize, Symbol)) -> bool {
    let (places, longer) = places(pages, table.strs, names);
    if places.is_empty() {
        return longer;
    }
    let syms = (table.syms.0, table.syms.1.min(MAX_SYMBOLS * SYM_SIZE as u64));
    pages.pieces(syms, SYM_SIZE, 0, &mut |_, bytes| {
        for (at, symbol) in symbols(bytes) {
            if let Ok(place) = places.binary_search_by_key(&at, |p| p.0)
                && let Some(&(_, name)) = places.get(place)
            {
                each(name, symbol);
            }
        }
        true
    });
    longer
}

/// Passes on the defined functions of the table whose names end in one of these names and have letters, digits or
/// underscores before it: the name's index, and the text before it.
pub fn prefixed(pages: &Pages, table: SymTab, names: &[&str], each: &mut dyn FnMut(usize, &str)) {
    let (places, _) = places(pages, table.strs, names);
    let syms = (table.syms.0, table.syms.1.min(MAX_SYMBOLS * SYM_SIZE as u64));
    let mut left = if places.is_empty() { 0 } else { MAX_PREFIXED };
    pages.pieces(syms, SYM_SIZE, 0, &mut |_, bytes| {
        for (at, symbol) in symbols(bytes) {
            let next = places.get(places.partition_point(|p| p.0 <= at));
            let Some(&(place, name)) = next.filter(|p| symbol.function && (p.0 - at) as usize <= MAX_PREFIX)
            else {
                continue;
            };
            if left == 0 {
                return false;
            }
            left -= 1;
            let before = pages.take(table.strs.0.saturating_add(at.into()), (place - at) as usize);
            // A zero is the end of another string.
            let fit = before.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
            if let Some(text) = std::str::from_utf8(&before).ok().filter(|_| fit) {
                each(name, text);
            }
        }
        left > 0
    });
}

/// Names in the table's strings that contain this text: some hundreds at most, and none longer than a kilobyte.
pub fn containing(pages: &Pages, table: SymTab, text: &str) -> Vec<String> {
    let text = text.as_bytes();
    let strs = (table.strs.0, table.strs.1.min(MAX_STRINGS));
    let mut out: Vec<(u64, String)> = Vec::new();
    pages.pieces(strs, 1, 2 * MAX_LONG, &mut |at, bytes| {
        let mut from = 0;
        while let Some(found) =
            bytes.get(from..).and_then(|rest| rest.windows(text.len()).position(|w| w == text))
        {
            let here = from + found;
            let before = bytes.get(..here).and_then(|b| b.iter().rposition(|b| *b == 0)).map(|nul| nul + 1);
            // A name without its beginning is whole in the piece before.
            let start = before.or((at == 0).then_some(0)).unwrap_or(usize::MAX);
            let end = bytes.get(here..).and_then(|b| b.iter().position(|b| *b == 0)).map(|len| here + len);
            if let Some(name) =
                end.and_then(|end| bytes.get(start..end)).filter(|name| name.len() <= MAX_LONG)
                && let Ok(name) = std::str::from_utf8(name)
            {
                out.push((at.saturating_add(start as u64), name.to_owned()));
            }
            from = end.unwrap_or(here) + 1;
        }
        out.len() < MAX_PREFIXED
    });
    out.truncate(MAX_PREFIXED);
    // Names where two pieces overlap were seen twice.
    common::order::by_key(&mut out, |(at, _)| (*at, 0));
    out.dedup_by_key(|(at, _)| *at);
    out.into_iter().map(|(_, name)| name).collect()
}

/// Whether one of the table's symbols is a function that starts at this address.
pub fn has_function(pages: &Pages, table: SymTab, vaddr: u64) -> bool {
    let syms = (table.syms.0, table.syms.1.min(MAX_SYMBOLS * SYM_SIZE as u64));
    let mut found = false;
    pages.pieces(syms, SYM_SIZE, 0, &mut |_, bytes| {
        found = symbols(bytes).any(|(_, symbol)| symbol.function && symbol.vaddr == vaddr);
        !found
    });
    found
}

/// The complete entries of a table.
pub fn entries<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    pod::slice_from_bytes(bytes, bytes.len() / size_of::<T>().max(1)).map_or(&[], |(entries, _)| entries)
}

/// Functions and objects that the file defines, each with the offset of its name.
fn symbols(bytes: &[u8]) -> impl Iterator<Item = (u32, Symbol)> {
    entries::<Sym64<LE>>(bytes)
        .iter()
        .filter(|s| s.st_shndx.get(LE) != SHN_UNDEF && [STT_OBJECT, STT_FUNC].contains(&s.st_type()))
        .map(|s| {
            let symbol = Symbol {
                vaddr: s.st_value.get(LE),
                size: s.st_size.get(LE),
                function: s.st_type() == STT_FUNC,
                global: s.st_bind() != STB_LOCAL,
            };
            (s.st_name.get(LE), symbol)
        })
}

/// Names by their last two bytes, so that most strings are ruled out immediately.
struct Tails<'n> {
    /// For each pair of bytes, one more than the index of its list.
    by_pair: Vec<u8>,
    lists: Vec<Vec<(usize, &'n [u8])>>,
    longest: usize,
}

impl<'n> Tails<'n> {
    fn of(names: &[&'n str]) -> Tails<'n> {
        let mut tails = Tails { by_pair: vec![0; 1 << 16], lists: Vec::new(), longest: 0 };
        for (i, name) in names.iter().enumerate().filter(|(_, n)| n.len() <= MAX_NAME) {
            let Some(pair) = pair(name.as_bytes()) else { continue };
            let Some(place) = tails.by_pair.get_mut(pair) else { continue };
            if *place == 0 && tails.lists.len() < usize::from(u8::MAX) {
                tails.lists.push(Vec::new());
                *place = tails.lists.len() as u8;
            }
            if let Some(list) = tails.lists.get_mut(usize::from(*place).wrapping_sub(1)) {
                list.push((i, name.as_bytes()));
                tails.longest = tails.longest.max(name.len());
            }
        }
        tails
    }

    /// The names in which the text ends.
    fn of_text(&self, text: &[u8]) -> impl Iterator<Item = &(usize, &'n [u8])> {
        let place = pair(text).and_then(|pair| self.by_pair.get(pair)).copied().unwrap_or(0);
        let list = self.lists.get(usize::from(place).wrapping_sub(1)).map_or(&[][..], Vec::as_slice);
        list.iter().filter(move |(_, name)| text.ends_with(name))
    }
}

/// The last two bytes; a name has at least two.
fn pair(text: &[u8]) -> Option<usize> {
    text.last_chunk::<2>().map(|b| usize::from(u16::from_le_bytes(*b)))
}

/// What GCC puts behind the name of a function that link-time optimisation made local; a number follows. Other endings
/// (`.isra.0`, `.constprop.0`, `.part.0`, `.cold`) are functions with other arguments, or parts of one.
const PRIVATE: &[u8] = b".lto_priv.";
/// Most digits of that number.
const MAX_DIGITS: usize = 6;

/// The name without that ending.
fn without_private(text: &[u8]) -> &[u8] {
    let digits = text.iter().rev().take(MAX_DIGITS).take_while(|b| b.is_ascii_digit()).count();
    let name = text.get(..text.len() - digits).and_then(|name| name.strip_suffix(PRIVATE));
    name.filter(|_| digits > 0).unwrap_or(text)
}

/// Positions of the names in a table of strings, ascending, each with the name's index. And whether some of them
/// are the end of a longer string.
fn places(pages: &Pages, strs: (u64, u64), names: &[&str]) -> (Vec<(u32, usize)>, bool) {
    let tails = Tails::of(names);
    let (mut places, mut longer) = (Vec::<(u32, usize)>::new(), false);
    let strs = (strs.0, strs.1.min(MAX_STRINGS));
    pages.pieces(strs, 1, tails.longest + PRIVATE.len() + MAX_DIGITS + 1, &mut |at, bytes| {
        let mut from = 0;
        while let Some(rest) = bytes.get(from..)
            && let Ok(text) = CStr::from_bytes_until_nul(rest)
        {
            let plain = without_private(text.to_bytes());
            let end = from + plain.len();
            for (name, len) in tails.of_text(plain).map(|(name, text)| (*name, text.len())) {
                longer |= plain.len() > len;
                places.extend(u32::try_from(at + (end - len) as u64).ok().map(|place| (place, name)));
            }
            from += text.count_bytes() + 1;
        }
        places.len() < MAX_PLACES
    });
    places.truncate(MAX_PLACES);
    // Names where two pieces overlap were seen twice.
    common::order::by_key(&mut places, |p| (p.0.into(), p.1 as u64));
    places.dedup_by_key(|p| p.0);
    (places, longer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of strings, followed by defined functions whose names start at these positions.
    fn file(strings: &[u8], symbols: &[u32]) -> (Pages, SymTab) {
        let mut bytes = strings.to_vec();
        for name in symbols {
            let mut s = [0; SYM_SIZE];
            s[..4].copy_from_slice(&name.to_le_bytes());
            s[4] = 0x12;
            s[6] = 1;
            s[8..16].copy_from_slice(&u64::from(*name).to_le_bytes());
            bytes.extend(s);
        }
        let len = strings.len() as u64;
        let table = SymTab { syms: (len, symbols.len() as u64 * SYM_SIZE as u64), strs: (0, len) };
        (Pages::of_bytes(bytes, "file"), table)
    }

    fn found(strings: &[u8], symbols: &[u32], names: &[&str]) -> Vec<(usize, u64)> {
        let (pages, table) = file(strings, symbols);
        let mut out = Vec::new();
        find(&pages, table, names, &mut |name, symbol| out.push((name, symbol.vaddr)));
        out
    }

    #[test]
    fn a_name_may_be_the_end_of_another() {
        let strings = b"\0my_ggml_get_name\0other\0";
        assert_eq!(found(strings, &[4], &["ggml_get_name"]), [(0, 4)]);
        assert_eq!(found(strings, &[1, 18], &["other", "my_ggml_get_name"]), [(1, 1), (0, 18)]);
        assert_eq!(found(strings, &[1, 5], &["ggml_get_name"]), [], "another place");
        assert_eq!(found(b"\0ggml_get_name", &[1], &["ggml_get_name"]), [], "no end");
    }

    #[test]
    fn names_across_pieces_are_found_once() {
        let name = "ggml_get_name";
        for pad in (192 * 1024 - 20..192 * 1024 + 20).chain([2 * 192 * 1024 - 7]) {
            let strings = [&vec![b'x'; pad][..], b"\0", name.as_bytes(), b"\0"].concat();
            assert_eq!(found(&strings, &[pad as u32 + 1], &[name]), [(0, pad as u64 + 1)], "{pad}");
        }
    }

    #[test]
    fn names_that_the_linker_made_local_are_found() {
        let found = |text: &str| {
            let (pages, table) = file(format!("\0{text}\0").as_bytes(), &[1]);
            let mut out = Vec::new();
            find(&pages, table, &["ggml_barrier", "ggml_op_name"], &mut |name, _| out.push(name));
            out
        };
        assert_eq!(found("ggml_barrier.lto_priv.0"), [0]);
        assert_eq!(found("ggml_op_name.lto_priv.1234"), [1]);
        for other in ["isra.0", "constprop.0", "part.0", "cold", "lto_priv.", "lto_priv.1234567"] {
            assert_eq!(found(&format!("ggml_barrier.{other}")), [0; 0], "{other}");
        }
    }

    #[test]
    fn a_table_full_of_one_name_is_left_early() {
        let strings = b"ggml_op_name\0".repeat(1 << 16);
        let (pages, table) = file(&strings, &[]);
        assert_eq!(places(&pages, table.strs, &["ggml_op_name"]).0.len(), MAX_PLACES);
    }

    #[test]
    fn names_are_found_by_a_part_of_them() {
        let of = |strings: &[u8]| {
            let (pages, table) = file(strings, &[]);
            containing(&pages, table, "build_graph")
        };
        assert_eq!(of(b"\0_Z3build_graphi\0other\0build_graph\0"), ["_Z3build_graphi", "build_graph"]);
        assert_eq!(of(b"\0no end build_graph"), [""; 0]);
        assert_eq!(of(b"\0\xff build_graph\0"), [""; 0], "no text");
        assert_eq!(of(&[b"\0", &b"x".repeat(MAX_LONG)[..], b"build_graph\0"].concat()), [""; 0], "too long");
        for pad in (192 * 1024 - 20..192 * 1024 + 20).chain([2 * 192 * 1024 - 7]) {
            let strings = [&vec![b'x'; pad][..], b"\0_Zbuild_graphv\0"].concat();
            assert_eq!(of(&strings), ["_Zbuild_graphv"], "{pad}");
        }
        assert_eq!(of(&b"build_graph\0".repeat(1 << 12)).len(), MAX_PREFIXED);
    }

    #[test]
    fn what_stands_before_a_name_is_told() {
        let strings = b"\0lm_ggml_op_name\0a b ggml_op_name\0ggml_op_name\0x_other\0";
        let before = |symbols: &[u32]| {
            let (pages, table) = file(strings, symbols);
            let mut out = Vec::new();
            prefixed(&pages, table, &["ggml_op_name", "other"], &mut |name, text| {
                out.push((name, text.to_owned()))
            });
            out
        };
        assert_eq!(before(&[1]), [(0, "lm_".to_owned())]);
        assert_eq!(before(&[2, 47]), [(0, "m_".to_owned()), (1, "x_".to_owned())]);
        // The name itself, one with spaces before it, another string.
        assert_eq!(before(&[34, 17, 0, 4]), []);
        assert_eq!(before(&vec![1; 100_000]).len(), MAX_PREFIXED);
        let (pages, table) = file(strings, &[]);
        assert!(find(&pages, table, &["ggml_op_name"], &mut |_, _| {}));
        let (pages, table) = file(b"\0ggml_op_name\0", &[]);
        assert!(!find(&pages, table, &["ggml_op_name"], &mut |_, _| {}));
    }
}
