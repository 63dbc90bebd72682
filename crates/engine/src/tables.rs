//! Names and numbers of ops and types, read from the target's own tables: enum values change from release to
//! release, the tables are always right.
//!
//! They are not exported, but each table is a run of pointers that the loader relocates: the ops begin with "NONE",
//! "DUP", the unary ops with "ABS", "SGN", the gated ones with "REGLU", "GEGLU". The type traits are records of 72,
//! 120, 64 or 56 bytes by release, 128 in ik_llama.cpp, whose first field is the name, "f32" before "f16".

use crate::elf::ElfFile;

/// Maximum number of entries read from one table; the largest known has 101.
const MAX_ENTRIES: usize = 512;
/// Maximum number of types; the largest known type number is below 64.
const MAX_TYPES: u64 = 128;
/// Maximum number of removed types in a row; the largest known gap is 3.
const MAX_GAP: u32 = 8;
/// Longest name read, in bytes.
const MAX_NAME: usize = 48;
/// Maximum number of possible table starts that are followed; a file has one or two.
const MAX_STARTS: usize = 256;
/// Maximum number of words that look like the start of a table of distances but are not, before the search ends.
const MAX_TRIED: usize = 1 << 16;
/// First names of the tables, used to find them.
const FIRST: [&str; 8] = ["NONE", "DUP", "ABS", "SGN", "REGLU", "GEGLU", "f32", "f16"];

/// One entry of the type table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeTrait {
    /// `enum ggml_type` of this build.
    pub number: u32,
    pub name: String,
    /// Elements in one block.
    pub block: u32,
    /// Bytes of one block.
    pub bytes: u32,
}

/// The name tables of one engine; the index is the number of the op.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    pub ops: Vec<String>,
    pub unary: Vec<String>,
    pub glu: Vec<String>,
    /// Types in use, ascending by number; numbers of removed types are omitted.
    pub types: Vec<TypeTrait>,
}

/// Which check of the tables failed.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    #[error(
        "{path} has no table of GGML op names (pointers to \"NONE\", \"DUP\", ...); it is not GGML's base library"
    )]
    NoOps { path: String },
    #[error(
        "{path}: table of op names lacks \"{missing}\" (it has {found} names); this version of GGML is not \
         supported"
    )]
    Incomplete { path: String, missing: &'static str, found: usize },
    #[error("{path}: check of op {name} failed: the names say number {table}, the code compares with {code}")]
    Contradiction { path: String, name: &'static str, table: i64, code: i64 },
    #[error(
        "{path} has no table of GGML types (records named \"f32\", \"f16\", ...); it is not GGML's base library"
    )]
    NoTypes { path: String },
    #[error("{path}: type table check failed: {name} has block {block} and {bytes} bytes")]
    BadType { path: String, name: String, block: u64, bytes: u64 },
}

impl Tables {
    /// Reads all tables from the file with GGML's base code.
    pub fn read(elf: &mut ElfFile) -> Result<Tables, TablesError> {
        elf.load_pointers();
        let elf = &*elf;
        let path = || elf.path().to_owned();
        let starts = Starts { elf, places: elf.pointers_to(&FIRST) };
        let ops = starts.names("NONE", "DUP", &["ABS", "REGLU"]);
        if ops.is_empty() {
            return Err(TablesError::NoOps { path: path() });
        }
        for missing in ["MUL_MAT", "ADD", "VIEW"] {
            if !ops.iter().any(|o| o == missing) {
                return Err(TablesError::Incomplete { path: path(), missing, found: ops.len() });
            }
        }
        let or_near = |found: Vec<String>, of: &str, first, second, stop: &[&str]| match found.is_empty() {
            true if ops.iter().any(|o| o == of) => near_names(elf, first, second, stop),
            _ => found,
        };
        let (kinds, stop) = (starts.names("ABS", "SGN", &["REGLU", "NONE"]), ["REGLU", "NONE"]);
        let unary = or_near(kinds, "UNARY", "ABS", "SGN", &stop);
        let (kinds, stop) = (starts.names("REGLU", "GEGLU", &["NONE", "ABS"]), ["NONE", "ABS"]);
        let glu = or_near(kinds, "GLU", "REGLU", "GEGLU", &stop);
        Ok(Tables { ops, unary, glu, types: starts.types()? })
    }

    /// Compares with numbers read from the code; a number that could not be read is no evidence.
    pub fn check(&self, path: &str, numbers: &[(&'static str, Option<i64>)]) -> Result<(), TablesError> {
        for &(name, code) in numbers {
            let table = self.op(name).map_or(-1, i64::from);
            if let Some(code) = code.filter(|c| *c != table) {
                return Err(TablesError::Contradiction { path: path.to_owned(), name, table, code });
            }
        }
        Ok(())
    }

    /// Number of the op with this name in this build.
    pub fn op(&self, name: &str) -> Option<u32> {
        self.ops.iter().position(|o| o == name).and_then(|n| u32::try_from(n).ok())
    }

    /// The trait of a type number, `None` if this build does not use it.
    pub fn type_trait(&self, number: u32) -> Option<&TypeTrait> {
        self.types.iter().find(|t| t.number == number)
    }
}

/// Addresses of pointers to the first names.
struct Starts<'e> {
    elf: &'e ElfFile,
    /// Address, ascending, and index in [`FIRST`].
    places: Vec<(u64, usize)>,
}

impl Starts<'_> {
    /// Whether the pointer at an address points to this name.
    fn is(&self, at: u64, name: &str) -> bool {
        let place = self.places.binary_search_by_key(&at, |p| p.0).ok().and_then(|i| self.places.get(i));
        place.and_then(|p| FIRST.get(p.1)).is_some_and(|first| *first == name)
    }

    /// Addresses of pointers to this name.
    fn of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = u64> + 's {
        self.places.iter().filter(move |p| FIRST.get(p.1).is_some_and(|first| *first == name)).map(|p| p.0)
    }

    /// The longest run of upper-case names that begins with `first`, `second` and ends before any of `stop`.
    fn names(&self, first: &str, second: &str, stop: &[&str]) -> Vec<String> {
        let begins = |at: &u64| at.checked_add(8).is_some_and(|next| self.is(next, second));
        let mut best = Vec::new();
        for at in self.of(first).filter(begins).take(MAX_STARTS) {
            let run = run_of_names(self.elf, at, stop);
            if run.len() > best.len() {
                best = run;
            }
        }
        best
    }
}

/// The same for a table of 32-bit distances from its own start; clang converts a table to this form if only one
/// function reads it.
fn near_names(elf: &ElfFile, first: &str, second: &str, stop: &[&str]) -> Vec<String> {
    // Ascending within each segment of the file.
    let mut targets = elf.addresses_of(&[b"\0", first.as_bytes(), b"\0"].concat());
    targets.iter_mut().for_each(|at| *at = at.wrapping_add(1));
    let (Some(&least), Some(&most)) = (targets.iter().min(), targets.iter().max()) else { return Vec::new() };
    targets.sort_unstable();
    let name = |table: u64, i: u64| {
        let at = elf.i32_at(table.checked_add(4 * i)?)?;
        elf.text_at(table.checked_add_signed(at.into())?, MAX_NAME)
    };
    let upper = |n: &String| {
        !n.is_empty() && n.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    let (mut found, mut tried) = (Vec::new(), 0);
    elf.pieces(4, 0, &mut |at, bytes| {
        for (i, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let table = at.wrapping_add(4 * i as u64);
            let target = table.wrapping_add_signed(i32::from_le_bytes(*word).into());
            if target < least || target > most || targets.binary_search(&target).is_err() {
                continue;
            }
            tried += 1;
            if name(table, 1).as_deref() == Some(second) {
                let run = (0..MAX_ENTRIES as u64).map_while(|i| name(table, i)).take_while(upper);
                found = run.take_while(|n| !stop.contains(&n.as_str())).collect();
                return false;
            }
        }
        tried < MAX_TRIED
    });
    found
}

fn run_of_names(elf: &ElfFile, start: u64, stop: &[&str]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut at = start;
    while out.len() < MAX_ENTRIES {
        let Some(name) = elf.pointer_at(at).and_then(|p| elf.text_at(p, MAX_NAME)) else { break };
        let upper = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
        // Another table may follow directly: its first name, or our own first name, ends the run.
        let again = out.first() == Some(&name);
        if name.is_empty() || !name.bytes().all(upper) || stop.contains(&name.as_str()) || again {
            break;
        }
        out.push(name);
        let Some(next) = at.checked_add(8) else { break };
        at = next;
    }
    out
}

/// Record sizes of `ggml_type_traits` and the offset of `type_size`, by release (newest first), then of ik_llama.cpp.
const TRAIT_LAYOUTS: [(u64, u64); 5] = [(56, 24), (64, 24), (120, 24), (72, 16), (128, 24)];

impl Starts<'_> {
    fn types(&self) -> Result<Vec<TypeTrait>, TablesError> {
        let path = || self.elf.path().to_owned();
        let mut bad = None;
        for at in self.of("f32").take(MAX_STARTS) {
            for (stride, size_off) in TRAIT_LAYOUTS {
                if !at.checked_add(stride).is_some_and(|next| self.is(next, "f16")) {
                    continue;
                }
                let types = run_of_types(self.elf, at, stride, size_off);
                let want = [("f32", 1, 4), ("f16", 1, 2), ("q4_0", 32, 18)];
                let wrong =
                    want.iter().find(|w| !types.iter().any(|t| (t.name.as_str(), t.block, t.bytes) == **w));
                match wrong {
                    None => return Ok(types),
                    Some(w) => {
                        let got = types.iter().find(|t| t.name == w.0);
                        bad = Some((w.0.to_owned(), got.map_or(0, |t| t.block), got.map_or(0, |t| t.bytes)));
                    }
                }
            }
        }
        match bad {
            Some((name, block, bytes)) => {
                Err(TablesError::BadType { path: path(), name, block: block.into(), bytes: bytes.into() })
            }
            None => Err(TablesError::NoTypes { path: path() }),
        }
    }
}

fn run_of_types(elf: &ElfFile, start: u64, stride: u64, size_off: u64) -> Vec<TypeTrait> {
    let mut out: Vec<TypeTrait> = Vec::new();
    let mut gap = 0;
    for number in 0..MAX_TYPES {
        let Some(at) = stride.checked_mul(number).and_then(|d| start.checked_add(d)) else { break };
        let field = |off: u64| at.checked_add(off).and_then(|v| elf.u64_at(v));
        let (Some(block), Some(bytes)) = (field(8), field(size_off)) else { break };
        let name = elf.pointer_at(at).and_then(|p| elf.text_at(p, MAX_NAME)).unwrap_or_default();
        // Numbers of removed types stay in the enum; their records are empty or have a remark as their name.
        if block == 0 && bytes == 0 {
            gap += 1;
            if gap > MAX_GAP {
                break;
            }
            continue;
        }
        gap = 0;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let known = matches!(block, 1 | 16 | 32 | 64 | 128 | 256) && (1..=4096).contains(&bytes);
        let named = !name.is_empty() && name.bytes().all(plain) && !out.iter().any(|t| t.name == name);
        if !known || !named {
            break;
        }
        out.push(TypeTrait { number: number as u32, name, block: block as u32, bytes: bytes as u32 });
    }
    out
}
