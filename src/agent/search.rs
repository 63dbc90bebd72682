//! Which files a program may load: its dependencies by the loader's rules, and what lies beside them. Uses `elf`, `open`
//! and `budget`.
//!
//! Engines load their CPU variants by themselves at run time, out of the directory of the program or library; so
//! every shared object in these directories, and in backend directories below them, is a candidate.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::budget::Budget;
use super::elf::ElfFile;
use super::open;
use crate::order;

/// Most files of one program; discovery says when it has looked at fewer.
const MAX_FILES: usize = 4100;

/// How a program is started, as far as it decides which libraries it gets.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    pub program: PathBuf,
    /// Directories of `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// Extra files the engine loads (`GGML_BACKEND_PATH`).
    pub extra: Vec<PathBuf>,
}

impl Launch {
    /// A file named by the user; this process' environment decides.
    pub fn of_path(path: &Path) -> Launch {
        let list = |name| std::env::var_os(name).map(|v| std::env::split_paths(&v).collect::<Vec<_>>());
        let library_path = list("LD_LIBRARY_PATH").unwrap_or_default();
        let extra = std::env::var_os("GGML_BACKEND_PATH").map(PathBuf::from).into_iter().collect();
        let not_empty = |p: &PathBuf| !p.as_os_str().is_empty();
        Launch {
            program: path.to_owned(),
            library_path: library_path.into_iter().filter(not_empty).collect(),
            extra,
        }
    }

    /// A command as a shell would find it; `None` when it is not in PATH.
    pub fn of_command(argv: &[OsString]) -> Option<Launch> {
        let name = Path::new(argv.first()?);
        if name.components().count() > 1 || name.is_absolute() {
            return Some(Launch::of_path(name));
        }
        let path = std::env::var_os("PATH")?;
        let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| is_executable(p))?;
        Some(Launch::of_path(&found))
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Directories the loader searches without being told (glibc and musl, multiarch included).
const DEFAULT_DIRS: [&str; 10] = [
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/local/lib64",
];

/// Directories whose other files are none of the program's; they hold thousands.
const SHARED_DIRS: [&str; 12] = [
    "/bin",
    "/sbin",
    "/usr/bin",
    "/usr/sbin",
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// The program, its dependencies, then the shared objects beside them; canonical paths, each once. `open` gives the
/// dependencies of a file. Ends early, and `budget` says so, where there are too many names to look up.
pub fn files(launch: &Launch, open: impl Fn(&Path) -> Option<ElfFile>, budget: &Budget) -> Vec<PathBuf> {
    let mut order = Vec::new();
    let mut seen = HashSet::new();
    let mut queue: VecDeque<PathBuf> =
        [launch.program.clone()].into_iter().chain(launch.extra.clone()).collect();
    let (mut dirs, mut known) = (BTreeSet::new(), HashSet::new());
    while let Some(path) = queue.pop_front() {
        // The loader expands $ORIGIN by the real place of a file, so links are followed first.
        let Ok(path) = path.canonicalize() else { continue };
        if order.len() >= MAX_FILES || !seen.insert(path.clone()) {
            continue;
        }
        let elf = open(&path);
        let origin = path.parent().unwrap_or(Path::new("/")).to_owned();
        for name in elf.iter().flat_map(|e| &e.needed) {
            let own = elf.iter().flat_map(|e| &e.runpath).map(|r| expand(r, &origin));
            queue.extend(resolve(name, own, launch, budget));
        }
        if known.insert(origin.clone()) {
            dirs.extend(backend_dirs(&origin, budget));
        }
        if !SHARED_DIRS.iter().any(|d| Path::new(d) == origin) {
            dirs.insert(origin);
        }
        order.push(path);
    }
    for file in dirs.iter().flat_map(|d| shared_objects(d, budget)) {
        if order.len() < MAX_FILES && seen.insert(file.clone()) {
            order.push(file);
        }
    }
    order
}

fn expand(entry: &str, origin: &Path) -> PathBuf {
    let origin = origin.to_string_lossy();
    PathBuf::from(entry.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
}

fn resolve(
    name: &str,
    own: impl Iterator<Item = PathBuf>,
    launch: &Launch,
    budget: &Budget,
) -> Option<PathBuf> {
    if name.contains('/') {
        return budget.name(name).then(|| PathBuf::from(name));
    }
    let default = DEFAULT_DIRS.iter().map(PathBuf::from);
    let dirs = launch.library_path.iter().cloned().chain(own).chain(default);
    let mut paths = dirs.map(|d| d.join(name)).take_while(|p| budget.name(&p.to_string_lossy()));
    paths.find(|p| p.is_file())
}

/// Directories of loadable backends below a library's directory, as distributions lay them out
/// (`backends*`, `ggml/backends*`).
fn backend_dirs(dir: &Path, budget: &Budget) -> Vec<PathBuf> {
    let wanted = |p: &PathBuf| {
        p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("backends")) && p.is_dir()
    };
    [dir.to_owned(), dir.join("ggml")].iter().flat_map(|d| entries(d, budget)).filter(wanted).collect()
}

fn entries(dir: &Path, budget: &Budget) -> Vec<PathBuf> {
    let Ok(list) = std::fs::read_dir(dir) else { return Vec::new() };
    let there = list.flatten().map(|e| e.path()).take_while(|p| budget.name(&p.to_string_lossy()));
    let mut out: Vec<PathBuf> = there.collect();
    order::by(&mut out, |a, b| a.cmp(b));
    out
}

/// Files of a directory that begin as ELF files do, links followed. Names do not count: extension modules are called
/// `.so`, `.node` or nothing at all.
fn shared_objects(dir: &Path, budget: &Budget) -> Vec<PathBuf> {
    let is_elf = |p: &PathBuf| {
        let mut head = [0u8; 4];
        open::regular(p).is_ok_and(|mut file| file.read_exact(&mut head).is_ok()) && head == *b"\x7fELF"
    };
    let there = entries(dir, budget).into_iter().take_while(|_| budget.spent().is_none());
    there.filter(is_elf).filter_map(|p| p.canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::budget::{Limit, Limits};

    /// What is found beside a program in this directory.
    fn beside(dir: &Path, budget: &Budget) -> usize {
        files(&Launch { program: dir.join("program"), ..Launch::default() }, |_| None, budget).len()
    }

    #[test]
    fn a_directory_of_many_files_ends_at_the_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        for n in 0..300 {
            std::fs::write(dir.path().join(format!("f{n}")), "\x7fELF").expect("written");
        }
        std::fs::write(dir.path().join("program"), "text").expect("written");
        let enough = Budget::default();
        assert_eq!(beside(dir.path(), &enough), 301);
        assert!(enough.spent().is_none());
        let few = Budget::new(Limits { names: 400, ..Limits::default() });
        assert!(beside(dir.path(), &few) < 301);
        assert_eq!(few.spent().map(|s| s.limit), Some(Limit::Names(400)));
    }
}
