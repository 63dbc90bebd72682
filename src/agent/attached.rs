//! An engine with its probes: which rung of the ladder each role stands on, attaching, leaving a rung, modules that come
//! late. Uses `discover`, `ladder`, `maps`, `memory`, `prologue` and
//! `source`.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use super::discover::{Engine, Module};
use super::elf::ElfFile;
use super::ladder::{How, Ladder, ProbePoint, Rung};
use super::maps::FileId;
use super::prologue::{self, Choice, Need};
use super::source::{Guard, Prober, Prog};
use super::{maps, memory, phases};

/// What a rung observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Token,
    Graph,
    Split,
    CpuGraph,
    Op,
    OpEnd,
    Phase,
}

impl Role {
    /// In the order in which they are attached: what lies inside first, so that a token seen is a token seen whole.
    pub const ALL: [Role; 7] =
        [Role::OpEnd, Role::Op, Role::CpuGraph, Role::Split, Role::Graph, Role::Token, Role::Phase];

    /// Name in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Role::Token => "token",
            Role::Graph => "graph",
            Role::Split => "split",
            Role::CpuGraph => "cpu-graph",
            Role::Op => "op",
            Role::OpEnd => "op-end",
            Role::Phase => "phase",
        }
    }

    /// Its rungs, best first.
    pub fn rungs(self, ladder: &Ladder) -> &[Rung] {
        match self {
            Role::Token => &ladder.token,
            Role::Graph => &ladder.graph,
            Role::Split => &ladder.split,
            Role::CpuGraph => &ladder.cpu_graph,
            Role::Op => &ladder.op,
            Role::OpEnd => &ladder.op_end,
            Role::Phase => &ladder.phase,
        }
    }
}

/// Where in a function the probes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// On the cheapest valid instruction.
    Cheapest,
    /// On the first one, for comparison.
    First,
    /// On the first one, with a return probe on each op: the published method, for comparison.
    FirstAndReturn,
}

/// A probe as attached, for the trace.
#[derive(Debug, Clone)]
pub struct ProbeInfo {
    pub symbol: String,
    pub module: String,
    pub ret: bool,
    pub offset: u32,
    pub why: String,
}

/// A rung in use or left.
#[derive(Debug, Clone)]
pub struct Stand {
    pub role: Role,
    pub rung: &'static str,
    pub used: bool,
    pub why: String,
}

/// The engine.
pub struct Attached {
    pub engine: Engine,
    pub ladder: Ladder,
    pub prober: Box<dyn Prober>,
    site: Site,
    /// Position of each role's rung in its ladder (index by [`Role::ALL`]); beyond the end = none left.
    at: [usize; 7],
    links: [Vec<Guard>; 7],
    /// Probes being removed.
    leaving: Vec<JoinHandle<()>>,
    files: HashSet<FileId>,
    /// Modules written to the trace.
    pub written: HashSet<(u64, u64)>,
    /// Probes and rungs not yet written to the trace.
    pub probes: Vec<ProbeInfo>,
    pub stands: Vec<Stand>,
    /// What is attached stays: it could not be attached again.
    pub stays: bool,
    /// The recording is over: nothing is attached any more, and this is what was.
    closed: Option<[bool; 7]>,
    /// Entry points attached and not, over all roles.
    pub attached: usize,
    pub failures: Vec<String>,
}

/// The engine's ladder; of its files only what that needs is kept in memory.
fn ladder(engine: &Engine) -> Ladder {
    let ladder = Ladder::of(engine);
    engine.modules.iter().for_each(|m| m.elf.release());
    ladder
}

/// A path to an open file that stays right when its process or its name is gone.
fn open_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn index(role: Role) -> usize {
    Role::ALL.iter().position(|&r| r == role).unwrap_or(0)
}

fn programs(symbol: &str, role: Role) -> (Prog, Option<Prog>) {
    match (role, symbol) {
        (Role::Token, "llama_process") => (Prog::TokenProcess, Some(Prog::TokenExit)),
        (Role::Token, "llama_decode") => (Prog::TokenDecode, Some(Prog::TokenExit)),
        (Role::Token, _) => (Prog::TokenEncode, Some(Prog::TokenExit)),
        (Role::Graph, _) => (Prog::SchedEnter, Some(Prog::SchedExit)),
        (Role::Split, _) => (Prog::SplitEnter, Some(Prog::SplitExit)),
        (Role::CpuGraph, _) => (Prog::GraphEnter, Some(Prog::GraphExit)),
        (Role::Op, s) if super::ladder::FUSED.contains(&s) => (Prog::Fused, Some(Prog::OpExit)),
        (Role::Op, _) => (Prog::Op, Some(Prog::OpExit)),
        (Role::OpEnd, _) => (Prog::Barrier, None),
        (Role::Phase, _) => (phases::program(symbol), Some(Prog::PhaseExit)),
    }
}

impl Attached {
    pub fn new(engine: Engine, prober: Box<dyn Prober>, site: Site) -> Attached {
        let ladder = ladder(&engine);
        let files = engine.modules.iter().map(|m| (m.dev, m.inode)).collect();
        Attached {
            engine,
            ladder,
            prober,
            site,
            at: [0; 7],
            links: Default::default(),
            leaving: Vec::new(),
            files,
            written: HashSet::new(),
            probes: Vec::new(),
            stands: Vec::new(),
            stays: false,
            closed: None,
            attached: 0,
            failures: Vec::new(),
        }
    }

    /// The rung a role stands on.
    pub fn rung(&self, role: Role) -> Option<&Rung> {
        role.rungs(&self.ladder).get(self.at[index(role)])
    }

    /// True while the role has probes of its own, or had when the recording ended.
    pub fn probed(&self, role: Role) -> bool {
        self.closed.map_or(!self.links[index(role)].is_empty(), |had| had[index(role)])
    }

    /// Functions of the role's rung, where it has or had probes.
    pub fn probed_symbols(&self, role: Role) -> impl Iterator<Item = &'static str> {
        let points = self.rung(role).filter(|_| self.probed(role)).map_or(&[][..], |r| &r.points);
        points.iter().map(|p| p.symbol)
    }

    /// Attaches the role's present rung, for the modules from position `from` on.
    pub fn attach(&mut self, role: Role, from: usize) {
        if self.closed.is_some() {
            return;
        }
        let points: Vec<ProbePoint> = match self.rung(role) {
            Some(rung) => rung.points.iter().filter(|p| p.module >= from).cloned().collect(),
            None => return,
        };
        for point in points {
            let Some(module) = self.engine.modules.get(point.module) else { continue };
            let file = module.file.as_ref().map_or_else(|| module.host_path.clone(), open_path);
            let shown = module.path_in_target.display().to_string();
            self.attach_point(role, &point, &file, &shown);
        }
    }

    fn attach_point(&mut self, role: Role, point: &ProbePoint, file: &Path, shown: &str) {
        let (enter, leave) = programs(point.symbol, role);
        let entry = match self.site {
            Site::Cheapest => point.entry.clone(),
            _ => Choice { offset: 0, why: "first instruction, as asked".into(), ..point.entry.clone() },
        };
        self.link(role, enter, point, &entry, file, shown);
        let wanted = match role {
            Role::Op => self.site == Site::FirstAndReturn,
            _ => true,
        };
        if let Some(leave) = leave.filter(|_| wanted) {
            // Where the return means nothing to us, the published method's probe is put there all the same.
            let ret = match (&point.ret, self.site) {
                (Some(ret), Site::Cheapest) => ret.clone(),
                _ => Choice { offset: 0, why: "first instruction, as asked".into(), ..point.entry.clone() },
            };
            self.link(role, leave, point, &ret, file, shown);
        }
    }

    fn link(&mut self, role: Role, prog: Prog, point: &ProbePoint, at: &Choice, file: &Path, shown: &str) {
        let offset = point.sym_file_offset.saturating_add(at.offset.into());
        match self.prober.attach(prog, file, offset) {
            Ok(link) => {
                self.links[index(role)].push(link);
                self.attached += 1;
                self.probes.push(ProbeInfo {
                    symbol: point.symbol.into(),
                    module: shown.into(),
                    ret: prog.is_return(),
                    offset: at.offset,
                    why: format!("{}: {}", at.insn, at.why),
                });
            }
            Err(why) => self.failures.push(format!("{}+{} in {shown}: {why}", point.symbol, at.offset)),
        }
    }

    /// Removes the role's probes, aside: the kernel waits for all CPUs at each, and events go on arriving.
    pub fn detach(&mut self, role: Role) {
        let links = std::mem::take(&mut self.links[index(role)]);
        if !links.is_empty() {
            let aside = std::thread::Builder::new().name("detach".into()).spawn(move || drop(links));
            // Where no thread can be had the closure is dropped at once, and the probes with it.
            self.leaving.extend(aside.ok());
        }
    }

    /// True while probes are being removed.
    pub fn leaving(&mut self) -> bool {
        self.leaving.retain(|aside| !aside.is_finished());
        !self.leaving.is_empty()
    }

    /// Gives away all probes, the outermost first: those that begin a call before those inside it.
    pub fn take_links(&mut self) -> Vec<Guard> {
        // A thread that only drops has no result and cannot fail.
        self.leaving.drain(..).for_each(|aside| drop(aside.join()));
        self.closed = Some(std::array::from_fn(|i| !self.links[i].is_empty()));
        self.links.iter_mut().rev().flat_map(std::mem::take).collect()
    }

    /// Leaves the role's rung for the next and attaches that. False: there is none.
    pub fn leave(&mut self, role: Role, why: &str) -> bool {
        if let Some(rung) = self.rung(role) {
            self.stands.push(Stand { role, rung: rung.name, used: false, why: why.into() });
        }
        self.detach(role);
        self.at[index(role)] += 1;
        let next = self.rung(role).is_some();
        self.attach(role, 0);
        next
    }

    /// Takes modules of the same engine that came later (CPU variants that it has opened after its start).
    pub fn extend(&mut self, modules: Vec<Module>, roles: &[Role]) -> usize {
        let from = self.engine.modules.len();
        self.engine.modules.extend(modules.into_iter().filter(|m| self.files.insert((m.dev, m.inode))));
        let added = self.engine.modules.len() - from;
        if added > 0 {
            self.ladder = ladder(&self.engine);
            for &role in roles {
                self.attach(role, from);
            }
        }
        added
    }

    /// Whether a file is one of the engine's modules.
    pub fn has(&self, id: FileId) -> bool {
        self.files.contains(&id)
    }

    /// True when the engines stand on the same base library.
    pub fn same_base(&self, other: &Engine) -> bool {
        let base = |e: &Engine| e.modules.iter().find(|m| m.roles.base).map(|m| (m.dev, m.inode));
        base(&self.engine) == base(other)
    }

    /// The vtable route: follows the backends of a live scheduler to the functions that compute their graphs.
    /// Err says which check failed.
    pub fn attach_vtables(&mut self, pid: u32, scheduler: u64) -> Result<usize, String> {
        let at = self
            .engine
            .layout
            .graph_compute_off
            .ok_or("offset of graph_compute in ggml_backend is not known")?;
        let maps = maps::read(pid).map_err(|e| format!("maps of process {pid}: {e}"))?;
        let mut done: HashSet<(u64, u64)> = HashSet::new();
        for backend in backends(pid, scheduler)? {
            let function = memory::read_u64(pid, backend + u64::from(at))
                .map_err(|e| format!("vtable of a backend: {e}"))?;
            let (mapping, offset) = maps::file_offset(&maps, function)
                .filter(|(m, _)| m.executable)
                .ok_or_else(|| format!("graph_compute of a backend ({function:#x}) is no code of a file"))?;
            let (_, file, id) =
                maps::open(pid, mapping).map_err(|e| format!("{}: {e}", mapping.path.display()))?;
            if !done.insert((id.1, offset)) {
                continue;
            }
            let shown = mapping.path.display().to_string();
            let elf = ElfFile::from_file(&file, shown.clone()).map_err(|e| e.to_string())?;
            let code = elf.vaddr_of(offset).map(|v| elf.bytes_at(v, 4096)).unwrap_or_default();
            let point = ProbePoint {
                symbol: "(backend vtable) graph_compute",
                module: 0,
                sym_file_offset: offset,
                entry: prologue::entry(elf.machine, code, Need { args: 2, stack: false }),
                ret: Some(prologue::ret(elf.machine, code)),
                n_args: 2,
                batch: None,
            };
            self.attach_point(Role::Split, &point, &open_path(&file), &shown);
        }
        Ok(done.len())
    }

    /// True when the role's rung has no probes of its own but needs a live pointer.
    pub fn wants_vtable(&self) -> bool {
        self.closed.is_none()
            && self.rung(Role::Split).is_some_and(|r| r.how == How::Vtable)
            && !self.probed(Role::Split)
    }
}

/// `struct ggml_backend_sched` begins `bool is_reset; bool is_alloc; int n_backends; ggml_backend_t backends[16]`
/// (ggml-backend.cpp, 2024-03 to date). Each backend begins with a pointer to its 16-byte guid: checked.
fn backends(pid: u32, scheduler: u64) -> Result<Vec<u64>, String> {
    let mut head = [0; 8 + 16 * 8];
    memory::read(pid, scheduler, &mut head).map_err(|e| format!("scheduler at {scheduler:#x}: {e}"))?;
    let n = i32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if !(1..=16).contains(&n) {
        return Err(format!("scheduler says it has {n} backends: not a layout we know"));
    }
    let pointers = head[8..].as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
    let found: Vec<u64> = pointers.take(n as usize).collect();
    for &backend in &found {
        let guid = memory::read_u64(pid, backend).map_err(|e| format!("backend at {backend:#x}: {e}"))?;
        memory::read(pid, guid, &mut [0; 16])
            .map_err(|e| format!("guid of the backend at {backend:#x}: {e}"))?;
    }
    Ok(found)
}
