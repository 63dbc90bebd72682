//! Offsets of the kernel struct fields that our programs use, read from a BTF: the running kernel's, or a file made
//! for it.
//!
//! The bytes are untrusted and are not passed on: libbpf gets a BTF of our own that has only those fields. They are
//! read once from start to end and never held: a kernel's are some 5 MB, about as much memory as the complete
//! recorder uses. The format: include/uapi/linux/btf.h and Documentation/bpf/btf.rst of the kernel.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use object::LittleEndian as LE;
use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::{FileHeader, SectionHeader};

/// The running kernel's BTF.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";
/// Maximum number of bytes of types and of strings; kernels have up to 10 MB.
const MOST: u64 = 64 << 20;

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// Bytes of the known part of the header.
const HEADER: u32 = 24;
/// Bytes of the common part of a type, and of a struct member.
const TYPE: usize = 12;
const MEMBER: usize = 12;
/// Nesting depth of structs to search, and maximum number of anonymous ones (task_struct has about 30).
const DEPTH: usize = 4;
const NAMELESS: usize = 512;
/// Bytes read at a time.
const CHUNK: usize = 64 << 10;

/// Why a BTF cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    #[error("cannot read {path}: {error}; --btf needs the BTF of the running kernel")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is {what}; --btf needs the BTF of the running kernel: {NEXT}")]
    NotBtf { path: PathBuf, what: String },
    #[error("{path} is a damaged BTF: {what}; check that the file is complete")]
    Damaged { path: PathBuf, what: String },
}

const NEXT: &str = "its vmlinux with a .BTF section, or the output of pahole --btf_encode_detached for it";

/// Byte offsets of the fields of `struct task_struct` that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskOffsets {
    pub pid: u32,
    pub tgid: u32,
    /// `se.sum_exec_runtime`: how long the task has run so far, ns; None if the types do not have it under this name.
    pub ran: Option<u32>,
}

/// A BTF that has the required types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Btf {
    pub path: PathBuf,
    pub task: TaskOffsets,
}

/// What is wrong, before the file name is added.
#[derive(Debug)]
enum Fault {
    Io(io::Error),
    NotBtf(String),
    Damaged(String),
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Fault {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Damaged("it is too short".into()),
            _ => Fault::Io(e),
        }
    }
}

fn damaged<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(what.into()))
}

impl Btf {
    /// Reads a BTF, or the `.BTF` section of an ELF file such as a vmlinux.
    pub fn read(path: &Path) -> Result<Btf, BtfError> {
        let open = || {
            // Check before opening: opening a pipe would wait for a writer.
            let meta = std::fs::metadata(path)?;
            if !meta.is_file() {
                let what = if meta.is_dir() { "a directory" } else { "not a regular file" };
                return Err(Fault::NotBtf(what.into()));
            }
            let mut file = File::open(path)?;
            let mut magic = [0; 4];
            read_up_to(&mut file, &mut magic)?;
            let (at, size) = if magic == object::elf::ELFMAG { section(&file)? } else { (0, meta.len()) };
            task(&mut file, at, size)
        };
        let path = || path.to_owned();
        match open() {
            Ok(task) => Ok(Btf { path: path(), task }),
            Err(Fault::Io(error)) => Err(BtfError::Io { path: path(), error }),
            Err(Fault::NotBtf(what)) => Err(BtfError::NotBtf { path: path(), what }),
            Err(Fault::Damaged(what)) => Err(BtfError::Damaged { path: path(), what }),
        }
    }

    /// The running kernel's own, `None` if it has none.
    pub fn of_kernel() -> Option<Result<Btf, BtfError>> {
        let path = Path::new(KERNEL);
        path.exists().then(|| Btf::read(path))
    }
}

/// Offset and size of an ELF file's `.BTF` section.
fn section(file: &File) -> Result<(u64, u64), Fault> {
    let cache = ReadCache::new(file);
    let bad = |e: object::read::Error| Fault::NotBtf(format!("an ELF file that cannot be read ({e})"));
    let header = FileHeader64::<LE>::parse(&cache).map_err(bad)?;
    let sections = header.endian().and_then(|endian| header.sections(endian, &cache)).map_err(bad)?;
    match sections.section_by_name(LE, b".BTF") {
        Some((_, s)) => Ok((s.sh_offset(LE), s.sh_size(LE))),
        None => Err(Fault::NotBtf("an ELF file without a .BTF section".into())),
    }
}

/// Where types and strings are in the file, bytes.
#[derive(Debug, PartialEq, Eq)]
struct BtfSections {
    types: (u64, u64),
    strings: (u64, u64),
}

/// Checks the header of a BTF of `size` bytes.
fn parts(head: &[u8; HEADER as usize], size: u64) -> Result<BtfSections, Fault> {
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (len, types, strings) = (word(4), (word(8), word(12)), (word(16), word(20)));
    if half(0) == MAGIC.swap_bytes() {
        return Err(Fault::NotBtf("a BTF of a big-endian machine".into()));
    }
    if half(0) != MAGIC {
        return Err(Fault::NotBtf("neither a BTF nor an ELF file".into()));
    }
    if head[2] != VERSION {
        return Err(Fault::NotBtf(format!(
            "a BTF of version {}, but only version {VERSION} is supported",
            head[2]
        )));
    }
    if len < HEADER {
        return damaged(format!("a header of {len} bytes"));
    }
    let place = |name: &str, (off, bytes): (u32, u32)| {
        let at = u64::from(len) + u64::from(off);
        let end = at + u64::from(bytes);
        match end {
            _ if end > size => damaged(format!("its {name} end at byte {end}, the file has {size}")),
            _ if bytes == 0 => damaged(format!("it has no {name}")),
            _ if u64::from(bytes) > MOST => damaged(format!("{bytes} bytes of {name}")),
            _ => Ok((at, u64::from(bytes))),
        }
    };
    Ok(BtfSections { types: place("types", types)?, strings: place("strings", strings)? })
}

/// The names to look up: a struct and its fields, and a nested struct with a field.
const NAMES: [&str; 6] = ["task_struct", "pid", "tgid", "se", "sched_entity", "sum_exec_runtime"];

/// Finds the fields in the BTF at `at`.
fn task<F: Read + Seek>(file: &mut F, at: u64, size: u64) -> Result<TaskOffsets, Fault> {
    let mut head = [0; HEADER as usize];
    file.seek(SeekFrom::Start(at))?;
    let n = read_up_to(file, &mut head)?;
    let parts = parts(&head, size).map_err(|fault| match fault {
        Fault::NotBtf(_) => fault,
        _ if n < head.len() => Fault::Damaged("it ends inside its header".into()),
        _ => fault,
    })?;
    let strings = part(file, at, parts.strings)?;
    let [Some(name), Some(pid), Some(tgid), se, entity, ran] = names(strings, NAMES)? else {
        return Err(Fault::NotBtf("a BTF, but not of a complete kernel (it has no task_struct)".into()));
    };
    // A name that was not found gets an offset that no name has: 0 is the empty name at the start of the strings.
    let [se, entity, ran] = [se, entity, ran].map(|n| n.unwrap_or(u32::MAX));
    let mut types = |of, names: &[u32], found: &mut [Option<u32>]| {
        let mut wanted = WantedStruct::Name(of);
        for _ in 0..DEPTH {
            let nameless = look(part(file, at, parts.types)?, &wanted, names, found)?;
            if nameless.is_empty() || found.iter().all(Option::is_some) {
                break;
            }
            wanted = WantedStruct::Ids(nameless);
        }
        Ok::<_, Fault>(())
    };
    let (mut of_task, mut of_entity) = ([None; 3], [None]);
    types(name, &[pid, tgid, se], &mut of_task)?;
    let [Some(pid), Some(tgid), se] = of_task else {
        return Err(Fault::NotBtf("a BTF whose task_struct has no pid and tgid".into()));
    };
    if se.is_some() {
        types(entity, &[ran], &mut of_entity)?;
    }
    Ok(TaskOffsets { pid, tgid, ran: se.zip(of_entity[0]).map(|(se, ran)| se.saturating_add(ran)) })
}

/// A part of the BTF at `at`.
fn part<F: Read + Seek>(file: &mut F, at: u64, (off, bytes): (u64, u64)) -> io::Result<impl BufRead> {
    file.seek(SeekFrom::Start(at.saturating_add(off)))?;
    Ok(BufReader::with_capacity(CHUNK, file.take(bytes)))
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes read.
fn read_up_to(from: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match from.read(&mut buf[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

/// Offsets of names in the strings, each of which ends in a zero.
fn names<const N: usize>(mut strings: impl BufRead, names: [&str; N]) -> Result<[Option<u32>; N], Fault> {
    let (mut out, mut at, mut one) = ([None; N], 0, Vec::new());
    loop {
        one.clear();
        let n = strings.read_until(0, &mut one)?;
        if n == 0 {
            return Ok(out);
        }
        if let Some(i) = names.iter().position(|name| one.strip_suffix(&[0]) == Some(name.as_bytes())) {
            out[i] = Some(at);
        }
        // All strings together are shorter than MOST.
        at += n as u32;
    }
}

/// Structs to search.
enum WantedStruct {
    /// The struct of this name, an offset in the strings.
    Name(u32),
    /// The structs with these ids, each with its bit offset in the struct that contains it.
    Ids(Vec<(u32, u32)>),
}

/// Reads all types, searches the wanted ones for members with the given names and records their byte offsets.
/// Returns the anonymous structs and unions found in them.
fn look(
    mut types: impl BufRead,
    wanted: &WantedStruct,
    names: &[u32],
    found: &mut [Option<u32>],
) -> Result<Vec<(u32, u32)>, Fault> {
    let mut nameless = Vec::new();
    let mut rest = Vec::new();
    for id in 1.. {
        let mut head = [0; TYPE];
        match read_up_to(&mut types, &mut head)? {
            0 => break,
            TYPE => {}
            _ => return damaged("it ends inside a type"),
        }
        let [name, info, _] = words(&head);
        let (kind, count, bitfields) = (info >> 24 & 0x1f, info as usize & 0xffff, info >> 31 == 1);
        rest.resize(behind(kind, count)?, 0);
        types.read_exact(&mut rest)?;
        let base = match wanted {
            WantedStruct::Name(n) => (kind == STRUCT && name == *n).then_some(0),
            WantedStruct::Ids(ids) => ids.iter().find(|(of, _)| *of == id).map(|(_, bit)| *bit),
        };
        let Some(base) = base.filter(|_| matches!(kind, STRUCT | UNION)) else { continue };
        for member in rest.as_chunks::<MEMBER>().0 {
            let [name, of, bit] = words(member);
            // In a struct with bit fields, the upper byte is their size.
            let bit = base.saturating_add(if bitfields { bit & 0xff_ffff } else { bit });
            match names.iter().position(|n| *n == name) {
                Some(i) => found[i] = Some(bit / 8),
                None if name == 0 && nameless.len() < NAMELESS => nameless.push((of, bit)),
                None => {}
            }
        }
        if matches!(wanted, WantedStruct::Name(_)) {
            break;
        }
    }
    Ok(nameless)
}

fn words(bytes: &[u8; 12]) -> [u32; 3] {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4), word(8)]
}

const STRUCT: u32 = 4;
const UNION: u32 = 5;

/// Bytes after the common part of a type.
fn behind(kind: u32, count: usize) -> Result<usize, Fault> {
    Ok(match kind {
        // Integer, variable, tag.
        1 | 14 | 17 => 4,
        // Pointer, forward, typedef, volatile, const, restrict, function, floating point, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        3 => 12,
        STRUCT | UNION => count * MEMBER,
        // Enumeration, parameters of a function.
        6 | 13 => count * 8,
        // Variables of a section, 64-bit enumeration.
        15 | 19 => count * 12,
        _ => return damaged(format!("a type of unknown kind ({kind})")),
    })
}

impl TaskOffsets {
    /// A BTF with only these fields, which libbpf uses for relocation.
    pub fn to_btf(self) -> Vec<u8> {
        const STRINGS: &[u8] = b"\0int\0task_struct\0pid\0tgid\0";
        // Their offsets in STRINGS.
        let [int, name, pid, tgid] = [1, 5, 17, 21];
        let mut members = [(pid, self.pid), (tgid, self.tgid)];
        if self.tgid < self.pid {
            members.reverse();
        }
        let size = members[1].1.saturating_add(4);
        // Type 1: a signed 32-bit integer. Type 2: the struct.
        let mut types = vec![int, 1 << 24, 4, 1 << 24 | 32, name, STRUCT << 24 | 2, size];
        types.extend(members.iter().flat_map(|(name, at)| [*name, 1, at.saturating_mul(8)]));
        let len = 4 * types.len() as u32;
        let start = [u32::from(VERSION) << 16 | u32::from(MAGIC), HEADER, 0, len, len, STRINGS.len() as u32];
        start.iter().chain(&types).flat_map(|w| w.to_le_bytes()).chain(STRINGS.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    /// A BTF of types given as words, with its strings: like a kernel's, but small.
    fn btf(types: &[u32], strings: &[u8]) -> Vec<u8> {
        let len = 4 * types.len() as u32;
        let head = [u32::from(VERSION) << 16 | u32::from(MAGIC), HEADER, 0, len, len, strings.len() as u32];
        let words = head.iter().chain(types).flat_map(|w| w.to_le_bytes());
        words.chain(strings.iter().copied()).collect()
    }

    const STRINGS: &[u8] = b"\0int\0task_struct\0pid\0tgid\0state\0";
    const INT: u32 = 1;
    const NAME: u32 = 5;
    const PID: u32 = 17;
    const TGID: u32 = 21;
    const STATE: u32 = 26;

    fn found(bytes: &[u8]) -> Result<TaskOffsets, Fault> {
        task(&mut Cursor::new(bytes), 0, bytes.len() as u64)
    }

    /// Types of each kind before the struct, so that all have to be skipped.
    fn others() -> Vec<u32> {
        let int = [INT, 1 << 24, 4, 32];
        let array = [0, 3 << 24, 0, 1, 1, 8];
        let pointer = [0, 2 << 24, 1];
        let other = [STATE, STRUCT << 24 | 1, 4, PID, 1, 8 * 4000];
        let function = [0, 13 << 24 | 2, 0, 0, 1, 0, 1];
        let section = [STATE, 15 << 24 | 1, 4, 1, 0, 4];
        [&int[..], &array, &pointer, &other, &function, &section].concat()
    }

    fn plain() -> Vec<u8> {
        let task = [NAME, STRUCT << 24 | 3, 9000, STATE, 1, 0, PID, 1, 8 * 1192, TGID, 1, 8 * 1196];
        btf(&[others(), task.to_vec()].concat(), STRINGS)
    }

    #[test]
    fn fields_are_found_where_they_are() {
        let want = TaskOffsets { pid: 1192, tgid: 1196, ran: None };
        assert_eq!(found(&plain()).expect("found"), want);
        // The BTF made for libbpf can be read back.
        for task in [want, TaskOffsets { pid: 8, tgid: 4, ran: None }] {
            assert_eq!(found(&task.to_btf()).expect("found"), task);
        }
    }

    #[test]
    fn fields_of_a_shuffled_struct_lie_in_a_nameless_one() {
        let outer = [NAME, 1 << 31 | STRUCT << 24 | 2, 9000, STATE, 1, 3 << 24, 0, 8, 8 * 64];
        let inner = [0, STRUCT << 24 | 2, 8, TGID, 1, 8 * 16, PID, 1, 8 * 24];
        let types = [others(), outer.to_vec(), inner.to_vec()].concat();
        assert_eq!(
            found(&btf(&types, STRINGS)).expect("found"),
            TaskOffsets { pid: 88, tgid: 80, ran: None }
        );
    }

    #[test]
    fn a_field_of_a_struct_within_is_found() {
        const STRINGS: &[u8] = b"\0int\0task_struct\0pid\0tgid\0state\0se\0sched_entity\0sum_exec_runtime\0";
        let (se, entity, ran) = (32, 35, 48);
        let task = [NAME, STRUCT << 24 | 3, 9000, PID, 1, 8 * 1192, TGID, 1, 8 * 1196, se, 8, 8 * 128];
        let within = [entity, STRUCT << 24 | 2, 64, STATE, 1, 0, ran, 1, 8 * 80];
        let all = [others(), task.to_vec(), within.to_vec()].concat();
        assert_eq!(found(&btf(&all, STRINGS)).expect("found").ran, Some(128 + 80));
        let without = [others(), task.to_vec()].concat();
        assert_eq!(found(&btf(&without, STRINGS)).expect("found").ran, None);
    }

    fn fault(bytes: &[u8]) -> String {
        match found(bytes) {
            Err(Fault::NotBtf(what) | Fault::Damaged(what)) => what,
            Err(Fault::Io(e)) => e.to_string(),
            Ok(task) => format!("{task:?}"),
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = plain();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            fault(&bytes)
        };
        assert!(fault(b"").contains("neither a BTF nor an ELF"));
        assert!(fault(&good[..20]).contains("inside its header"));
        assert!(fault(&good[..good.len() - 1]).contains("its strings end at byte"));
        assert!(fault(&[0xeb, 0x9f]).contains("big-endian"));
        assert!(with(2, 9).contains("version 9"));
        assert!(with(4, 3).contains("a header of 3 bytes"));
        assert!(with(15, 0x7f).contains("its types end"));
        assert!(with(24 + 7, 30).contains("unknown kind (30)"), "{}", with(24 + 7, 30));
        assert!(fault(&btf(&others(), b"\0int\0")).contains("not of a complete kernel"));
        assert!(fault(&btf(&others(), STRINGS)).contains("no pid and tgid"));
    }

    #[test]
    fn files_that_are_no_btf() {
        let said = |path: &str| Btf::read(Path::new(path)).expect_err("no BTF").to_string();
        assert!(said("/nonexistent").contains("No such file"));
        assert!(said("/").contains("a directory"));
        assert!(said("/dev/null").contains("not a regular file"));
        assert!(said("/etc/passwd").contains("neither a BTF nor an ELF file"));
        assert!(said("/proc/self/exe").contains("without a .BTF section"));
    }

    #[test]
    fn the_running_kernel_names_what_is_needed() {
        match Btf::of_kernel() {
            Some(btf) => drop(btf.expect("readable")),
            None => crate::skips::lacking("this kernel has no BTF"),
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = found(&bytes);
        }

        #[test]
        fn no_change_can_harm(changes in prop::collection::vec((0usize..300, any::<u8>()), 1..8), cut in 0usize..300) {
            let mut bytes = plain();
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - cut % bytes.len());
            if let Ok(task) = found(&bytes) {
                // Whatever was found, libbpf gets a valid BTF.
                prop_assert_eq!(found(&task.to_btf()).expect("sound"), TaskOffsets { ran: None, ..task });
            }
        }
    }
}
