//! Finds the files of a target that form its GGML engine, and the role of each.
//!
//! Files are recognised by the functions they define, never by name: packagers rename libraries, and language
//! bindings put the complete engine into one extension module.
//!
//! The target's owner controls these files. They are read with the least privileges that reading needs, and the
//! total cost per target is limited.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::elf::{ElfError, ElfFile, ElfMachine};
use crate::layout::{self, Layout, LayoutError};
use crate::roles::prefix;
pub use crate::roles::{BASE, Roles};
use crate::search::{self, Launch};
use crate::tables::{Tables, TablesError};
use crate::{beside, ladder, version};
use machine::budget::{Budget, Spent};
use machine::maps::{self, FileId, Mapping};
use machine::{capset, open};

/// Maximum number of files of one engine, including files next to the mapped ones; the largest package has sixteen.
const MAX_BESIDE: usize = 64;

/// The roles of a file. All names that will be looked up are, so that its tables are read only once.
fn roles(elf: &ElfFile) -> Roles {
    let all: Vec<&str> = ladder::names().chain(layout::NAMES).chain(version::NAMES).chain(BASE).collect();
    elf.find_into(&all, &mut []);
    Roles::of(elf)
}

/// One file of the engine.
pub struct EngineModule {
    /// Path as the target sees it.
    pub path_in_target: PathBuf,
    /// Path by which this process opens the same file.
    pub host_path: PathBuf,
    /// The file, kept open: its process may exit before the probes are attached.
    pub file: Option<Arc<File>>,
    pub dev: u64,
    pub inode: u64,
    /// GNU build id in hexadecimal, empty if there is none.
    pub build_id: String,
    pub roles: Roles,
    pub elf: ElfFile,
}

impl EngineModule {
    pub(super) fn new(
        mut elf: ElfFile,
        path_in_target: PathBuf,
        host_path: PathBuf,
        id: FileId,
    ) -> EngineModule {
        let (mut roles, build_id) = (self::roles(&elf), elf.build_id_hex());
        if !roles.base
            && !roles.cpu
            && let Some(prefix) = prefix(&elf)
        {
            elf.set_prefix(&prefix);
            roles = self::roles(&elf);
        }
        // A target may have a hundred files, and recent kernels map far more of each than was read.
        elf.release();
        EngineModule { path_in_target, host_path, file: None, dev: id.0, inode: id.1, build_id, roles, elf }
    }
}

/// Modules that share one base and so one layout. They may include several CPU variants, one of which is loaded.
pub struct DiscoveredEngine {
    pub machine: ElfMachine,
    pub modules: Vec<EngineModule>,
    pub tables: Tables,
    pub layout: Layout,
    /// Why the tables or the layout of tensors could not be read: then only calls and graphs are observed.
    pub unread: Option<String>,
}

impl DiscoveredEngine {
    /// The offsets that are used, or why they are not known.
    pub fn layout_told(&self) -> String {
        self.unread.as_ref().map_or_else(|| self.layout.to_string(), |why| format!("not known: {why}"))
    }

    /// Paths of the modules with a role, for messages.
    pub fn paths(&self, role: impl Fn(&Roles) -> bool) -> Vec<&Path> {
        self.modules.iter().filter(|m| role(&m.roles)).map(|m| m.path_in_target.as_path()).collect()
    }
}

/// Why no engine was found. Each message says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error(
        "no GGML in {target}: none of its {looked} files has a function of GGML (ggml_op_name, ggml_graph_compute, \
         llama_decode){}; give a program built on GGML, as llama.cpp or whisper.cpp, or a process that runs one", not_found(.missing)
    )]
    NoEngine { target: String, looked: usize, missing: Vec<String> },
    #[error(
        "{path} contains GGML (its table of op names is there) but is statically linked and stripped: it \
         exports no function of GGML and has no symbol table; probes need names, so use a build with \
         symbols (link without -s, do not run strip)"
    )]
    StaticStripped { path: String },
    #[error("{path} is for {found}, but this machine is {host}; record on a machine of that kind")]
    WrongMachine { path: String, found: &'static str, host: &'static str },
    #[error(
        "{target} has parts of GGML ({found}) but not its base library (ggml_op_name); \
         give the directory or process that has all of them"
    )]
    NoBase { target: String, found: String },
    #[error(
        "{path} has a GGML that is too old (of 2023, without ggml_op_name): its ops and graphs cannot be read; use a \
         release of llama.cpp since October 2023"
    )]
    TooOld { path: String },
    #[error(
        "process {pid} cannot be inspected: {source}; check that it is running and that you are root or \
         its owner"
    )]
    Process { pid: u32, source: std::io::Error },
    #[error("command {command} was not found in PATH; give its full path")]
    NoCommand { command: String },
    #[error(transparent)]
    Spent(#[from] Spent),
    #[error(transparent)]
    Elf(#[from] ElfError),
    #[error(transparent)]
    Tables(#[from] TablesError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Message about libraries that were not found.
fn not_found(missing: &[String]) -> String {
    match missing {
        [] => String::new(),
        names => format!(
            "; needed libraries not found through RUNPATH, LD_LIBRARY_PATH or in the usual directories: \
             {}; if the target belongs to another root directory, give that with --sysroot",
            names.join(", ")
        ),
    }
}

/// The engine in one open file that has the base code, without searching for other files.
pub fn of_file(elf: ElfFile) -> Result<DiscoveredEngine, DiscoverError> {
    let path = PathBuf::from(elf.path());
    engine(vec![EngineModule::new(elf, path.clone(), path, (0, 0))])
}

/// Collects modules, each file only once.
#[derive(Default)]
struct Collector {
    seen: HashSet<FileId>,
    /// Directories already searched.
    places: HashSet<FileId>,
    modules: Vec<EngineModule>,
    /// The files are now those that are only next to the target.
    beside: bool,
    /// The target is a program or a library: another program next to it is no part of its engine.
    is_elf: bool,
    looked: usize,
    /// Libraries that are needed and were not found.
    missing: Vec<String>,
    budget: Arc<Budget>,
}

impl Collector {
    /// Examines an open file and keeps it if it has a role. True if it has one.
    fn look(&mut self, in_target: &Path, host: &Path, file: File, id: FileId) -> Result<bool, ElfError> {
        let shown = in_target.display().to_string();
        if !self.seen.insert(id) || !self.budget.file(&shown) {
            return Ok(false);
        }
        self.looked += 1;
        let file = Arc::new(file);
        let elf = ElfFile::of(file.clone(), shown.clone(), self.budget.clone())?;
        if self.beside && self.is_elf && elf.is_program {
            return Ok(false);
        }
        let module = EngineModule::new(elf, in_target.to_owned(), host.to_owned(), id);
        // Packages that cannot hold links have a copy for each name of a library.
        let same = |m: &EngineModule| !m.build_id.is_empty() && m.build_id == module.build_id;
        if !module.roles.any() || self.beside && self.modules.iter().any(same) {
            return Ok(false);
        }
        if !self.budget.module(&shown) {
            return Ok(false);
        }
        self.modules.push(EngineModule { file: Some(file), ..module });
        Ok(true)
    }

    /// Collects the CPU and device parts of the engine that are next to one of its mapped files, and in backend
    /// directories there: an engine opens all of them to ask which is best, and may use another one later. Only a file
    /// that depends on the base that was found is a part. Reaching a limit here ends the search, but keeps what was found.
    fn look_beside(
        &mut self,
        pid: u32,
        m: &Mapping,
        known: &dyn Fn(FileId) -> bool,
        strangers: &mut HashSet<FileId>,
    ) {
        let bases = self.modules.iter().filter(|b| b.roles.base);
        let names = bases.flat_map(|b| {
            let file = b.path_in_target.file_name().map(|name| name.to_string_lossy().into_owned());
            b.elf.soname.clone().into_iter().chain(file)
        });
        let names: Vec<String> = names.collect();
        let Some(dir) = beside::directory(pid, m).filter(|dir| self.places.insert(dir.id)) else { return };
        let few = Arc::new(Budget::new(beside::LIMITS));
        for entry in beside::files(&dir, &few) {
            if self.modules.len() >= MAX_BESIDE
                || self.seen.contains(&entry.id)
                || strangers.contains(&entry.id)
                || known(entry.id)
            {
                continue;
            }
            let shown = entry.in_target.display().to_string();
            let file = Arc::new(entry.file);
            let Ok(elf) = ElfFile::of(file.clone(), shown, few.clone()) else { continue };
            // Its names are looked up only if it may be a part.
            if !elf.needed.iter().any(|name| names.contains(name)) {
                continue;
            }
            let module = EngineModule::new(elf, entry.in_target, entry.host, entry.id);
            if (module.roles.cpu || module.roles.device) && !module.roles.base && few.spent().is_none() {
                self.seen.insert(entry.id);
                self.modules.push(EngineModule { file: Some(file), ..module });
            } else if !module.roles.any() && few.spent().is_none() {
                strangers.insert(entry.id);
            }
        }
        // A part is read again when it is in use.
        few.found();
    }

    fn look_path(&mut self, path: &Path) -> io::Result<()> {
        let file = open::regular(path)?;
        let meta = file.metadata()?;
        // A file next to the program that is not an ELF file is ignored.
        drop(self.look(path, path, file, (meta.dev(), meta.ino())));
        Ok(())
    }

    /// An error if a limit was reached: the files not examined may be the engine.
    fn within_budget(&self) -> Result<(), Spent> {
        self.budget.spent().map_or(Ok(()), Err)
    }

    fn engines(self, target: &str) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
        if self.modules.is_empty() {
            let (target, missing) = (target.to_owned(), self.missing);
            return Err(DiscoverError::NoEngine { target, looked: self.looked, missing });
        }
        let engines = group(self.modules, target);
        self.budget.spent().map_or(Ok(()), Err)?;
        self.budget.found();
        engines
    }
}

/// The engines in a running process.
pub fn of_pid(pid: u32) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
    of_pid_again(pid, &|_| false, &mut HashSet::new())
}

/// The engines in a running process that is examined repeatedly. Files in `strangers` are known not to be part of
/// an engine and are not read; files found not to be part of one are added. If all files that are part of an engine
/// are already `known`, the result is empty and none of them is read. A file that exhausts the budget is a stranger
/// from then on.
pub fn of_pid_again(
    pid: u32,
    known: &dyn Fn(FileId) -> bool,
    strangers: &mut HashSet<FileId>,
) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
    let _least = capset::reading();
    let maps = maps::read(pid).map_err(|source| DiscoverError::Process { pid, source })?;
    let target = format!("process {pid}");
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let mut all = Collector::default();
    let main = match MainFile::open(&exe, Some(&target), &all.budget) {
        Err(DiscoverError::Elf(ElfError::Io { source, .. })) => {
            return Err(DiscoverError::Process { pid, source });
        }
        other => other?,
    };
    main.must_run_here()?;
    let mut mapped: HashSet<(u32, u32, u64)> = HashSet::new();
    let mut old = Vec::new();
    let mut denied = None;
    for m in maps.iter().filter(|m| m.executable && m.is_file()) {
        if !mapped.insert((m.major, m.minor, m.inode)) {
            continue;
        }
        match maps::open(pid, m) {
            // A library that is damaged or of a foreign class cannot be part of the running engine.
            Ok((_, _, id)) if strangers.contains(&id) => all.looked += 1,
            Ok((host, file, id)) if known(id) => old.push((m, host, file, id)),
            Ok((host, file, id)) => {
                if !all.look(&m.path, &host, file, id).unwrap_or(false) || all.budget.spent().is_some() {
                    strangers.insert(id);
                }
                all.within_budget()?;
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => denied = Some(e),
            Err(_) => {}
        }
    }
    if all.modules.is_empty() && !old.is_empty() {
        return Ok(Vec::new());
    }
    // New files may belong to an engine whose base is known.
    for (m, host, file, id) in old {
        drop(all.look(&m.path, &host, file, id));
    }
    for m in &maps {
        if m.executable && m.is_file() && all.modules.iter().any(|module| module.path_in_target == m.path) {
            all.look_beside(pid, m, known, strangers);
        }
    }
    match (all.modules.iter().all(|m| m.roles.is_runtime()), denied) {
        (true, Some(source)) => Err(DiscoverError::Process { pid, source }),
        (true, None) => Err(main.err_without_engine(&target, &all)),
        _ => all.engines(&target),
    }
}

/// The engines in a file given by the user: the file itself, its dependencies, and the files next to it. For a
/// directory, the engines in its files.
pub fn of_path(path: &Path) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
    of_launch(&Launch::of_path(path))
}

/// The engines that a command will load, before it is started: of each, the program itself or a library that it is linked
/// to is a part. Libraries that a running engine loads by itself (CPU variants) are found next to the others.
pub fn of_command(argv: &[std::ffi::OsString]) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
    let command = argv.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    let launch = Launch::of_command(argv).ok_or(DiscoverError::NoCommand { command })?;
    let _least = capset::reading();
    MainFile::open(&launch.program, None, &Arc::default())?.must_run_here()?;
    opened(&launch)
}

/// The same for a program that a process has just begun to run.
pub fn of_program(path: &Path) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
    opened(&Launch::of_path(path))
}

/// An engine that is only in the same directory, as beside a script, may be one that never runs.
fn opened(launch: &Launch) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
    let (mut engines, opened) = look(launch)?;
    engines.retain(|engine| engine.modules.iter().any(|module| opened.contains(&module.host_path)));
    Ok(engines)
}

/// The engines of a program, a library or a directory, and those next to it.
pub fn of_launch(launch: &Launch) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
    Ok(look(launch)?.0)
}

/// These, and the files that the program itself opens.
fn look(launch: &Launch) -> Result<(Vec<DiscoveredEngine>, Vec<PathBuf>), DiscoverError> {
    let _least = capset::reading();
    let target = launch.program.display().to_string();
    let mut all = Collector::default();
    let main = match launch.program.is_dir() {
        true => MainFile { path: target.clone(), elf: None },
        false => MainFile::open(&launch.program, None, &all.budget)?,
    };
    let budget = all.budget.clone();
    let read = |path: &Path| {
        let file = open::regular(path).ok()?;
        ElfFile::of(Arc::new(file), path.display().to_string(), budget.clone()).ok()
    };
    let mut files = search::files(launch, read, &budget);
    all.missing = files.missing;
    all.is_elf = main.elf.is_some();
    for (i, path) in files.found.iter().enumerate() {
        all.beside = i >= files.opened;
        // The program itself has been checked.
        drop(all.look_path(path));
        all.within_budget()?;
    }
    all.within_budget()?;
    if all.modules.is_empty() {
        return Err(main.err_without_engine(&target, &all));
    }
    files.found.truncate(files.opened);
    Ok((all.engines(&target)?, files.found))
}

/// The program itself, which determines the message about a target without GGML.
struct MainFile {
    path: String,
    /// `None` for a script.
    elf: Option<ElfFile>,
}

impl MainFile {
    /// Opens the program to distinguish a wrong kind of file from one without GGML. Messages show `shown` instead
    /// of its path.
    fn open(path: &Path, shown: Option<&str>, budget: &Arc<Budget>) -> Result<MainFile, DiscoverError> {
        let name = || path.display().to_string();
        let file = open::regular(path).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput => ElfError::NotElf { path: name() },
            _ => ElfError::Io { path: name(), source },
        });
        let elf = match file.and_then(|file| ElfFile::of(Arc::new(file), name(), budget.clone())) {
            Ok(elf) => Some(elf),
            // A script starts an engine through its interpreter; files next to it still count.
            Err(ElfError::NotElf { .. }) => None,
            Err(e) => return Err(e.into()),
        };
        Ok(MainFile { path: shown.map_or_else(|| path.display().to_string(), str::to_owned), elf })
    }

    fn must_run_here(&self) -> Result<(), DiscoverError> {
        match (self.elf.as_ref().map(|e| e.machine), ElfMachine::host()) {
            (Some(found), Some(host)) if found != host => {
                let path = self.path.clone();
                Err(DiscoverError::WrongMachine { path, found: found.name(), host: host.name() })
            }
            _ => Ok(()),
        }
    }

    /// GGML without symbols is recognised by its tables, which stripping keeps.
    fn err_without_engine(self, target: &str, all: &Collector) -> DiscoverError {
        let mut stripped = self.elf.filter(ElfFile::is_stripped);
        let tables = stripped.as_mut().map(Tables::read);
        match (tables, all.budget.spent()) {
            (_, Some(spent)) => spent.into(),
            (Some(Ok(_)), _) => DiscoverError::StaticStripped { path: self.path },
            _ => {
                let (target, missing) = (target.to_owned(), all.missing.clone());
                DiscoverError::NoEngine { target, looked: all.looked, missing }
            }
        }
    }
}

/// One engine per base module; the other modules go to the base they need, and a graphics runtime to the engine that
/// needs it.
fn group(modules: Vec<EngineModule>, target: &str) -> Result<Vec<DiscoveredEngine>, DiscoverError> {
    let (bases, others): (Vec<EngineModule>, Vec<EngineModule>) =
        modules.into_iter().partition(|m| m.roles.base);
    let (runtimes, others): (Vec<EngineModule>, Vec<EngineModule>) =
        others.into_iter().partition(|m| m.roles.is_runtime());
    if bases.is_empty() {
        // Backends came in October 2023.
        let is_old = |m: &&EngineModule| {
            matches!(m.elf.find(["ggml_nbytes", "ggml_backend_graph_compute"]), [Some(_), None])
        };
        if let Some(old) = others.iter().find(is_old).filter(|m| !m.roles.llama) {
            return Err(DiscoverError::TooOld { path: old.path_in_target.display().to_string() });
        }
        let found =
            others.iter().map(|m| m.path_in_target.display().to_string()).collect::<Vec<_>>().join(", ");
        let why = DiscoverError::NoBase { target: target.to_owned(), found };
        // One file with calls and graphs was linked with its base, whose functions were inlined or left out.
        let (whole, _) = others.into_iter().partition(|m| m.roles.llama && m.roles.cpu);
        return of_calls(whole, why).map(|engine| vec![engine]);
    }
    let mut groups: Vec<Vec<EngineModule>> = bases.into_iter().map(|b| vec![b]).collect();
    for module in others {
        let best = groups.iter().enumerate().max_by_key(|(i, g)| {
            let fit = g.first().map_or(0, |base| fit(&module, base));
            (fit, std::cmp::Reverse(*i))
        });
        let Some(index) = best.map(|(i, _)| i) else { continue };
        if let Some(group) = groups.get_mut(index).filter(|g| same_machine(g, &module)) {
            group.push(module);
        }
    }
    for runtime in runtimes {
        let needs = |g: &Vec<EngineModule>| g.iter().any(|m| needs(m, &runtime));
        let index = groups.iter().position(needs).unwrap_or(0);
        if let Some(group) = groups.get_mut(index).filter(|g| same_machine(g, &runtime)) {
            group.push(runtime);
        }
    }
    let mut engines = Vec::new();
    let mut first_error = None;
    for group in groups {
        match engine(group) {
            Ok(e) => engines.push(e),
            Err(e) => first_error = first_error.or(Some(e)),
        }
    }
    // One readable engine is more useful than the error of another.
    match first_error {
        Some(e) if engines.is_empty() => Err(e),
        _ => Ok(engines),
    }
}

fn same_machine(group: &[EngineModule], module: &EngineModule) -> bool {
    group.first().is_some_and(|b| b.elf.machine == module.elf.machine)
}

/// Whether a module is linked with a library.
pub(super) fn needs(module: &EngineModule, library: &EngineModule) -> bool {
    let file_name = library.path_in_target.file_name().map(|n| n.to_string_lossy().into_owned());
    let names = [library.elf.soname.as_ref(), file_name.as_ref()];
    names.iter().flatten().any(|n| module.elf.needed.contains(n))
}

/// How well a module matches a base: same prefix of functions, dependency on its name, same directory, or no evidence.
fn fit(module: &EngineModule, base: &EngineModule) -> u8 {
    let needs = needs(module, base);
    let beside = module.path_in_target.parent() == base.path_in_target.parent();
    // A module without GGML's functions may be built on any base.
    let alike = module.elf.prefix() == base.elf.prefix() && module.roles.cpu;
    u8::from(alike) * 4 + u8::from(needs) * 2 + u8::from(beside)
}

fn engine(mut modules: Vec<EngineModule>) -> Result<DiscoveredEngine, DiscoverError> {
    match structure(&mut modules) {
        Ok((machine, tables, layout)) => {
            Ok(DiscoveredEngine { machine, tables, layout, modules, unread: None })
        }
        Err(why) => of_calls(modules, why),
    }
}

/// What is read from the base, the first of the modules.
fn structure(modules: &mut [EngineModule]) -> Result<(ElfMachine, Tables, Layout), DiscoverError> {
    let no_base = || DiscoverError::NoBase { target: String::new(), found: String::new() };
    let base = modules.first_mut().ok_or_else(no_base)?;
    let tables = Tables::read(&mut base.elf)?;
    base.elf.forget_pointers();
    let base = modules.first().ok_or_else(no_base)?;
    let named = modules.iter().filter(|m| m.roles.has_names());
    let has = |name: &str| named.clone().any(|m| m.elf.find([name]).iter().flatten().any(|s| s.function));
    tables.check(base.elf.path(), &layout::op_numbers(&base.elf))?;
    Ok((base.elf.machine, tables, Layout::read(&base.elf, &has)?))
}

/// An engine whose tensors cannot be read, for this reason; its calls can, if it has any.
fn of_calls(modules: Vec<EngineModule>, why: DiscoverError) -> Result<DiscoveredEngine, DiscoverError> {
    match modules.iter().find(|m| m.roles.llama).map(|m| m.elf.machine) {
        Some(machine) => Ok(DiscoveredEngine {
            machine,
            modules,
            tables: Tables::default(),
            layout: Layout::of_graphs(),
            unread: Some(why.to_string()),
        }),
        None => Err(why),
    }
}
