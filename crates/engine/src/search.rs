//! Which files a program may load: its dependencies by the loader's rules, and the files next to them.
//!
//! A program may be in a chroot, a container or another machine's file system: all paths are resolved under its root.
//!
//! Engines load their CPU variants by themselves at run time, from the directory of the program or library; so
//! every shared object in these directories, and in backend directories under them, is a candidate.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::elf::ElfFile;
use common::order;
use machine::budget::Budget;
use machine::open;
use machine::root::Root;

/// Maximum number of files of one program; discovery reports it if its own, lower limit is reached.
const MAX_FILES: usize = 4100;
/// Maximum number of missing libraries reported.
const MAX_MISSING: usize = 8;
/// Maximum depth of the search under a directory named by the user.
const MAX_DEPTH: usize = 4;

/// How a program is started, as far as this determines the libraries it loads.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// The program, a library, or a directory of either.
    pub program: PathBuf,
    /// The program's root directory; the paths below are as the program sees them.
    pub root: Root,
    /// Directories of `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// Extra files the engine loads (`GGML_BACKEND_PATH`).
    pub extra: Vec<PathBuf>,
}

impl Launch {
    /// A file named by the user, in the root that contains it; this process's environment is used.
    pub fn of_path(path: &Path) -> Launch {
        Launch::within(path, Root::of(path))
    }

    /// The same for a known root.
    pub fn within(path: &Path, root: Root) -> Launch {
        let list = |name| std::env::var_os(name).map(|v| std::env::split_paths(&v).collect::<Vec<_>>());
        let library_path = list("LD_LIBRARY_PATH").unwrap_or_default();
        let extra = std::env::var_os("GGML_BACKEND_PATH").map(PathBuf::from).into_iter().collect();
        let not_empty = |p: &PathBuf| !p.as_os_str().is_empty();
        Launch {
            program: root.path().and_then(|_| root.place(path)).unwrap_or_else(|| path.to_owned()),
            root,
            library_path: library_path.into_iter().filter(not_empty).collect(),
            extra,
        }
    }

    /// A command as a shell would find it; `None` if it is not in PATH.
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

/// Directories that the loader searches by default (glibc and musl, multiarch included).
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

/// What the names of GGML's own libraries begin with.
const GGML: &str = "libggml";

/// Names of directories in which packages of different projects put libraries of Python, side by side.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// Directories whose other files do not belong to the program; they hold thousands.
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

/// The files found.
#[derive(Debug, Default)]
pub struct FoundFiles {
    /// The program, its dependencies, then the shared objects next to them; paths without links, each only once.
    pub found: Vec<PathBuf>,
    /// How many of them the program itself opens: those before the ones that are only next to them.
    pub opened: usize,
    /// Names of libraries that are needed and were not found.
    pub missing: Vec<String>,
}

/// Finds all files. `open` reads the dependencies of one file. Ends early, as `budget` then shows, if there are too
/// many names to look up.
pub fn files(launch: &Launch, open: impl Fn(&Path) -> Option<ElfFile>, budget: &Budget) -> FoundFiles {
    let root = &launch.root;
    let (mut order, mut missing) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    let extra = launch.extra.iter().filter_map(|p| root.resolve(p));
    let mut queue: VecDeque<PathBuf> = match launch.program.is_dir() {
        true => below(&launch.program, budget).into(),
        false => root.place(&launch.program).into_iter().collect(),
    };
    queue.extend(extra);
    let (mut dirs, mut known) = (BTreeSet::new(), HashSet::new());
    while let Some(path) = queue.pop_front() {
        if order.len() >= MAX_FILES || !seen.insert(path.clone()) {
            continue;
        }
        let elf = open(&path);
        let place = path.parent().unwrap_or(Path::new("/")).to_owned();
        // The loader expands $ORIGIN to the real directory of a file.
        let origin = root.inside(&place);
        for name in elf.iter().flat_map(|e| &e.needed) {
            let own = elf.iter().flat_map(|e| &e.runpath).map(|r| expand(r, &origin));
            match resolve(name, own, launch, budget) {
                Some(path) => queue.push_back(path),
                None if missing.len() < MAX_MISSING && !missing.contains(name) => missing.push(name.clone()),
                None => {}
            }
        }
        // Below a directory of all programs' libraries, backends belong to the library of GGML that is in it.
        let has_backends =
            !is_shared(&origin) || elf.iter().flat_map(|e| &e.needed).any(|n| n.starts_with(GGML));
        if has_backends && known.insert(place.clone()) {
            dirs.extend(backend_dirs(&place, budget));
        }
        let of_packages = origin.file_name().is_some_and(|name| PACKAGES.iter().any(|other| name == *other));
        if !is_shared(&origin) && !of_packages {
            dirs.insert(place);
        }
        order.push(path);
    }
    let opened = order.len();
    for file in dirs.iter().flat_map(|d| shared_objects(d, root, budget)) {
        if order.len() < MAX_FILES && seen.insert(file.clone()) {
            order.push(file);
        }
    }
    // A library next to the others is not missing: its own program knows where to find it.
    let names: HashSet<_> = order.iter().filter_map(|p: &PathBuf| p.file_name()).collect();
    missing.retain(|name| !names.contains(std::ffi::OsStr::new(name)));
    FoundFiles { found: order, opened, missing }
}

/// Whether the directory's other files do not belong to the program; the path is as the program sees it.
pub fn is_shared(dir: &Path) -> bool {
    SHARED_DIRS.iter().any(|d| Path::new(d) == dir)
}

/// All ELF files in a directory named by the user and in its subdirectories, without links.
pub fn below(dir: &Path, budget: &Budget) -> Vec<PathBuf> {
    let (mut files, mut dirs) = (Vec::new(), VecDeque::from([(dir.to_owned(), 0)]));
    while let Some((dir, depth)) = dirs.pop_front() {
        for path in entries(&dir, budget) {
            match std::fs::symlink_metadata(&path).map(|m| m.file_type()) {
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => dirs.push_back((path, depth + 1)),
                Ok(kind) if kind.is_file() && files.len() < MAX_FILES && is_elf(&path) => files.push(path),
                _ => {}
            }
        }
    }
    files
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
    let there = |path: &Path| launch.root.resolve(path).filter(|p| p.is_file());
    if name.contains('/') {
        return budget.name(name).then(|| there(Path::new(name))).flatten();
    }
    let default = DEFAULT_DIRS.iter().map(PathBuf::from);
    let dirs = launch.library_path.iter().cloned().chain(own).chain(default);
    let mut paths = dirs.map(|d| d.join(name)).take_while(|p| budget.name(&p.to_string_lossy()));
    paths.find_map(|p| there(&p))
}

/// Directories of loadable backends under a library's directory, as laid out by distributions (`backends*`,
/// `ggml/backends*`).
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

/// Files of a directory that start like ELF files, links followed. Names are ignored: extension modules are called
/// `.so`, `.node` or have no extension.
fn shared_objects(dir: &Path, root: &Root, budget: &Budget) -> Vec<PathBuf> {
    let there = entries(dir, budget).into_iter().take_while(|_| budget.spent().is_none());
    there.filter_map(|p| root.place(&p)).filter(|p| is_elf(p)).collect()
}

fn is_elf(path: &Path) -> bool {
    let mut head = [0u8; 4];
    open::regular(path).is_ok_and(|mut file| file.read_exact(&mut head).is_ok()) && head == *b"\x7fELF"
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::budget::{Limit, Limits};

    /// Number of files found next to a program in this directory.
    fn beside(dir: &Path, budget: &Budget) -> usize {
        files(&Launch { program: dir.join("program"), ..Launch::default() }, |_| None, budget).found.len()
    }

    /// A root directory with GGML as distributions install it, and two programs: one needs it, the other a library beside it.
    fn root_with_backends() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let (bin, lib) = (root.path().join("usr/bin"), root.path().join("usr/lib"));
        std::fs::create_dir_all(lib.join("ggml/backends0")).expect("made");
        std::fs::create_dir_all(&bin).expect("made");
        for (out, needs) in [
            (lib.join("libggml-base.so"), None),
            (lib.join("libggml.so"), Some("ggml-base")),
            (lib.join("libother.so"), None),
            (lib.join("ggml/backends0/libggml-cpu-any.so"), Some("ggml-base")),
            (bin.join("engine"), Some("ggml")),
            (bin.join("other"), Some("other")),
        ] {
            let mut cc = std::process::Command::new("cc");
            cc.args(["-shared", "-nostdlib", "-Wl,--no-as-needed", "-x", "c", "/dev/null", "-o"]).arg(&out);
            cc.arg("-L").arg(&lib).args(needs.map(|name| format!("-l{name}")));
            assert!(cc.status().expect("cc").success(), "{}", out.display());
        }
        root
    }

    #[test]
    fn backends_beside_all_libraries_belong_to_who_needs_ggml() {
        let root = root_with_backends();
        let backends = |program: &str| {
            let program = root.path().join("usr/bin").join(program);
            let launch = Launch::within(&program, Root::given(root.path(), &program).expect("a root"));
            let found = files(&launch, |path| ElfFile::open(path).ok(), &Budget::default()).found;
            assert!(found.len() > 1, "{found:?}");
            found.iter().filter(|path| path.ends_with("libggml-cpu-any.so")).count()
        };
        assert_eq!((backends("engine"), backends("other")), (1, 0));
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
