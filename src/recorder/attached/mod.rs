//! An engine with its probes: the ladder rung of each role, attaching, abandoning a rung, the probed processes, and
//! modules that are loaded later.

pub mod callee;
pub mod removal;

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::removal::remove;
use crate::capture::error::{AttachError, ProbeError};
use crate::capture::source::{Guard, Probe, Prober};
use crate::recorder::drain::Shown;
use crate::recorder::recording::ProbedEngine;
use engine::backends::{self, BackendsError, NotProbed};
use engine::discover::{DiscoveredEngine, EngineModule};
use engine::enqueue::{self, OpProbe};
use engine::ladder::{Ladder, NodeArg, ProbePoint, Rung, RungMethod};
use engine::probes::{self, Prog, ROLES, Role, Site};
use engine::prologue::ProbeOffset;
use machine::maps::FileId;
use machine::{capset, maps, usage};

/// Placing all probes in a process takes less than this unless somebody else holds the kernel's lock.
const SLOW: Duration = Duration::from_millis(20);

/// Probes of a process or a role that are removed at a time.
const ASIDE: usize = 32;

/// An attached probe, for the trace.
#[derive(Debug, Clone)]
pub struct ProbeInfo {
    pub symbol: String,
    pub module: String,
    /// The file, if it is one of several CPU variants.
    pub variant: Option<FileId>,
    pub ret: bool,
    pub offset: u32,
    pub why: String,
}

/// A rung in use or abandoned.
#[derive(Debug, Clone)]
pub struct Stand {
    pub role: Role,
    pub rung: &'static str,
    pub used: bool,
    pub why: String,
}

/// Why no function was found through a live scheduler.
#[derive(Debug, thiserror::Error)]
pub enum VtableError {
    #[error("offset of graph_compute in ggml_backend is unknown")]
    Offset,
    #[error(transparent)]
    Backends(#[from] BackendsError),
    #[error("maps of process {pid}: {source}")]
    Maps { pid: u32, source: io::Error },
    #[error("the scheduler has no backends")]
    NoBackends,
    /// The last of the functions found.
    #[error(transparent)]
    NotProbed(NotProbed),
}

/// An engine and its probes.
pub struct AttachedEngine {
    pub engine: DiscoveredEngine,
    pub ladder: Ladder,
    pub prober: Box<dyn Prober>,
    site: Site,
    /// Position of each role's rung in its ladder (indexed by [`Role::ALL`]); past the end = no rung left.
    at: [usize; ROLES],
    links: [Vec<Box<dyn Probe>>; ROLES],
    /// Where each role's probes were placed: module, and offset in its file.
    places: [BTreeSet<(usize, u64)>; ROLES],
    /// Probes of a role's rung that are currently in no process; they need not be placed again.
    parked: [Vec<Box<dyn Probe>>; ROLES],
    /// Probes of abandoned rungs. The kernel is slow to remove them, so this is done at the end.
    abandoned: Vec<Box<dyn Probe>>,
    /// Probed processes.
    pids: BTreeSet<u32>,
    /// Probes being removed.
    leaving: Vec<JoinHandle<()>>,
    files: HashSet<FileId>,
    /// Modules written to the trace.
    pub written: HashSet<(u64, u64)>,
    /// Probes and rungs not yet written to the trace. Those of a CPU variant wait for its record: of many variants,
    /// which are all probed, a process loads one.
    pub probes: Vec<ProbeInfo>,
    pub stands: Vec<Stand>,
    /// The function for one node of a backend without symbols has been searched for.
    searched: bool,
    /// When the last probes of nodes, and of kernels and batches given to a device, were attached, CLOCK_MONOTONIC ns.
    nodes_since: u64,
    dispatches_since: u64,
    batches_since: u64,
    /// The user's function that enqueues a node.
    pub own: Option<OpProbe>,
    /// Attached probes stay: they could not be attached again.
    pub stays: bool,
    /// Set when the recording is over: nothing is attached any longer; the roles that had probes.
    closed: Option<[bool; ROLES]>,
    /// Entry points that were attached and that were not, over all roles.
    pub attached: usize,
    pub failures: Vec<AttachError>,
}

/// The engine's ladder; keeps in memory only what it needs from the engine's files.
fn ladder(engine: &DiscoveredEngine, own: Option<OpProbe>) -> Ladder {
    let mut ladder = Ladder::of(engine);
    if let Some(own) = own {
        ladder.node = enqueue::own_rung(engine, own).into_iter().collect();
    }
    engine.modules.iter().for_each(|m| m.elf.release());
    ladder
}

/// A path to an open file that stays valid after its process or its name is gone.
fn open_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn index(role: Role) -> usize {
    Role::ALL.iter().position(|&r| r == role).unwrap_or(0)
}

fn programs(point: &ProbePoint, role: Role) -> (Prog, Option<Prog>) {
    let symbol = point.symbol;
    match (role, symbol) {
        (Role::Token, "llama_process") => (Prog::TokenProcess, Some(Prog::TokenExit)),
        (Role::Token, "llama_decode") => (Prog::TokenDecode, Some(Prog::TokenExit)),
        (Role::Token, _) => (Prog::TokenEncode, Some(Prog::TokenExit)),
        (Role::Graph, _) => (Prog::SchedEnter, Some(Prog::SchedExit)),
        (Role::Split, _) => (Prog::SplitEnter, Some(Prog::SplitExit)),
        (Role::CpuGraph, _) => (Prog::GraphEnter, Some(Prog::GraphExit)),
        (Role::Op, s) if engine::ladder::FUSED.contains(&s) => (Prog::Fused, Some(Prog::OpExit)),
        (Role::Op, _) => (Prog::Op, Some(Prog::OpExit)),
        (Role::OpEnd, _) => (Prog::Barrier, None),
        (Role::Node, _) => (node_program(point.node), point.ret.is_some().then_some(Prog::NodeExit)),
        (Role::Kernel, _) => (Prog::Kernels, None),
        (Role::Dispatch, s) if probes::GRAPH_LAUNCHES.contains(&s) => (Prog::DispatchGraph, None),
        (Role::Dispatch, _) => (Prog::DispatchKernel, None),
        (Role::Batch, s) if s == probes::BATCHES[0] => (Prog::BatchWrite, Some(Prog::BatchWritten)),
        (Role::Batch, _) => (Prog::BatchRead, Some(Prog::BatchAnswered)),
        (Role::Phase, _) => (probes::of_phase(symbol), Some(Prog::PhaseExit)),
        (Role::Wait, _) => (probes::of_wait(symbol), Some(Prog::WaitExit)),
        (Role::Ubatch, _) => (Prog::UbatchEnter, None),
        (Role::Memory, _) => (probes::of_memory(symbol), None),
        (Role::Task, _) => (probes::of_task(symbol), None),
    }
}

/// The program that reads the node from its argument.
fn node_program(node: Option<NodeArg>) -> Prog {
    match node {
        Some(NodeArg::Tensor(1)) => Prog::NodeTensor1,
        Some(NodeArg::Tensor(2)) => Prog::NodeTensor2,
        Some(NodeArg::Tensor(3)) => Prog::NodeTensor3,
        Some(NodeArg::Tensor(_)) => Prog::NodeTensor4,
        Some(NodeArg::Index) | None => Prog::NodeEnter,
    }
}

impl AttachedEngine {
    pub fn new(
        engine: DiscoveredEngine,
        prober: Box<dyn Prober>,
        site: Site,
        own: Option<OpProbe>,
    ) -> AttachedEngine {
        let ladder = ladder(&engine, own);
        let files = engine.modules.iter().map(|m| (m.dev, m.inode)).collect();
        AttachedEngine {
            engine,
            ladder,
            prober,
            site,
            own,
            at: [0; ROLES],
            links: Default::default(),
            places: Default::default(),
            parked: Default::default(),
            abandoned: Vec::new(),
            pids: BTreeSet::new(),
            leaving: Vec::new(),
            files,
            written: HashSet::new(),
            probes: Vec::new(),
            stands: Vec::new(),
            searched: false,
            nodes_since: 0,
            dispatches_since: 0,
            batches_since: 0,
            stays: false,
            closed: None,
            attached: 0,
            failures: Vec::new(),
        }
    }

    /// A role's current rung.
    pub fn rung(&self, role: Role) -> Option<&Rung> {
        self.ladder.rungs(role).get(self.at[index(role)])
    }

    /// True while the role has its own probes, or if it had when the recording ended.
    pub fn probed(&self, role: Role) -> bool {
        self.closed.map_or(!self.links[index(role)].is_empty(), |had| had[index(role)])
    }

    /// Functions of the role's rung, if it has or had probes.
    pub fn probed_symbols(&self, role: Role) -> impl Iterator<Item = &'static str> {
        let points = self.rung(role).filter(|_| self.probed(role)).map_or(&[][..], |r| &r.points);
        points.iter().map(|p| p.symbol)
    }

    /// Tells the reader of its events what is probed.
    pub fn tell(&self, shown: &mut Shown) {
        shown.waits_on = self.probed(Role::Wait);
        shown.dispatches_since = self.probed(Role::Dispatch).then_some(self.dispatches_since);
        shown.batches_since = self.probed(Role::Batch).then_some(self.batches_since);
    }

    /// Attaches the role's current rung, for the modules from position `from` on.
    pub fn attach(&mut self, role: Role, from: usize) {
        if self.closed.is_some() || !self.prober.takes(role) {
            return;
        }
        if from == 0 && !self.parked[index(role)].is_empty() {
            self.links[index(role)].append(&mut self.parked[index(role)]);
            let links = &mut self.links[index(role)];
            let refused = self.pids.iter().flat_map(|&pid| enter(links.iter_mut(), pid));
            self.failures.extend(refused.map(AttachError::Process));
            self.note(role);
            return;
        }
        let points: Vec<ProbePoint> = match self.rung(role) {
            Some(rung) => rung.points.iter().filter(|p| p.module >= from).cloned().collect(),
            None => return,
        };
        for point in points {
            let Some(module) = self.engine.modules.get(point.module) else { continue };
            let shown = module.path_in_target.display().to_string();
            let Some(file) = self.file_of(point.module) else { continue };
            self.attach_point(role, &point, &file, &shown);
        }
        self.mark(role, from);
        self.note(role);
    }

    /// Prepares the probes of all rungs of these roles, for the modules from position `from` on: some may be needed when
    /// the engine runs already.
    pub fn reserve(&self, roles: &[Role], from: usize) {
        for &role in roles.iter().filter(|&&role| self.prober.takes(role)) {
            for point in self.ladder.rungs(role).iter().flat_map(|rung| &rung.points) {
                let Some(file) = self.file_of(point.module).filter(|_| point.module >= from) else {
                    continue;
                };
                let (enter, leave) = programs(point, role);
                for prog in [Some(enter), leave.filter(|_| role != Role::Op)].into_iter().flatten() {
                    self.prober.reserve(prog, &file, point.sym_file_offset);
                }
            }
        }
    }

    /// Notes when the role's probes were attached.
    fn note(&mut self, role: Role) {
        match role {
            Role::Node => self.nodes_since = usage::now(),
            Role::Dispatch => self.dispatches_since = usage::now(),
            Role::Batch => self.batches_since = usage::now(),
            _ => {}
        }
    }

    fn attach_point(&mut self, role: Role, point: &ProbePoint, file: &Path, shown: &str) {
        let (enter, leave) = programs(point, role);
        let entry = match self.site {
            Site::Cheapest => point.entry.clone(),
            _ => ProbeOffset {
                offset: 0,
                why: "first instruction, as requested".into(),
                ..point.entry.clone()
            },
        };
        self.link(role, enter, point, &entry, file, shown);
        let wanted = match role {
            Role::Op => self.site == Site::FirstAndReturn,
            _ => true,
        };
        if let Some(leave) = leave.filter(|_| wanted) {
            // Where we do not need the return, place the published method's probe there anyway.
            let ret = match (&point.ret, self.site) {
                (Some(ret), Site::Cheapest) => ret.clone(),
                _ => ProbeOffset {
                    offset: 0,
                    why: "first instruction, as requested".into(),
                    ..point.entry.clone()
                },
            };
            self.link(role, leave, point, &ret, file, shown);
        }
    }

    fn link(
        &mut self,
        role: Role,
        prog: Prog,
        point: &ProbePoint,
        at: &ProbeOffset,
        file: &Path,
        shown: &str,
    ) {
        let offset = point.sym_file_offset.saturating_add(at.offset.into());
        machine::helper::pulse::beat();
        let placed = self.prober.place(prog, file, offset).and_then(|mut probe| {
            self.pids.iter().try_for_each(|&pid| probe.enter(pid))?;
            Ok(probe)
        });
        match placed {
            Ok(probe) => {
                self.links[index(role)].push(probe);
                self.places[index(role)].insert((point.module, offset));
                self.attached += 1;
                let modules = &self.engine.modules;
                let module = modules.get(point.module);
                let variant = |m: &&EngineModule| m.roles.cpu && !m.roles.base;
                let several = modules.iter().filter(variant).nth(1).is_some();
                self.probes.push(ProbeInfo {
                    symbol: module.map_or(point.symbol.into(), |m| m.elf.name_of(point.symbol)).into_owned(),
                    module: shown.into(),
                    variant: module.filter(|m| several && variant(m)).map(|m| (m.dev, m.inode)),
                    ret: prog.is_return(),
                    offset: at.offset,
                    why: format!("{}: {}", at.insn, at.why),
                });
            }
            Err(source) => self.failures.push(AttachError::Point {
                symbol: point.symbol,
                offset: at.offset,
                module: shown.into(),
                source,
            }),
        }
    }

    /// Places what shows later whether a forked child ran an outer function before it was probed; see
    /// [`Attached::breakpoints`]. Done once, with the outermost role.
    fn mark(&mut self, role: Role, from: usize) {
        let outer = [Role::Token, Role::Graph, Role::CpuGraph];
        let outermost = outer.into_iter().find(|&role| self.rung(role).is_some());
        if outermost != Some(role) || self.prober.clears_inherited() {
            return;
        }
        let points = outer.into_iter().filter_map(|role| self.rung(role)).flat_map(|rung| &rung.points);
        let marked = points.filter(|p| p.module >= from).filter_map(|p| {
            let at = p.sym_file_offset.checked_add(p.marker?.into())?;
            Some((p.module, at, self.file_of(p.module)?))
        });
        let (places, sites): (Vec<_>, Vec<_>) =
            marked.map(|(module, at, file)| ((module, at), (file, at))).unzip();
        let placed = self.prober.place_markers(&sites).and_then(|mut markers| {
            let enter = |marker: &mut Box<dyn Probe>| self.pids.iter().try_for_each(|&pid| marker.enter(pid));
            markers.iter_mut().try_for_each(enter)?;
            Ok(markers)
        });
        match placed {
            Ok(markers) => {
                self.links[index(role)].extend(markers);
                self.places[index(role)].extend(places);
            }
            Err(why) => self.failures.push(AttachError::Marker(why)),
        }
    }

    /// A path to a module's file.
    fn file_of(&self, module: usize) -> Option<PathBuf> {
        let module = self.engine.modules.get(module)?;
        Some(module.file.as_deref().map_or_else(|| module.host_path.clone(), open_path))
    }

    /// Probes a further process. Returns why probes could not be placed in it. The probes appear in no particular
    /// order: none may be counted before all are present.
    pub fn enter(&mut self, pid: u32) -> Vec<ProbeError> {
        if self.closed.is_some() || !self.pids.insert(pid) {
            return Vec::new();
        }
        let refused = enter(self.links.iter_mut().flatten(), pid);
        // Not in the order of roles, if it took long.
        self.note(Role::Dispatch);
        self.note(Role::Batch);
        refused
    }

    /// Modules and file offsets that currently have breakpoints in the probed processes.
    pub fn breakpoints(&self) -> impl Iterator<Item = (&EngineModule, u64)> {
        let sit = self.places.iter().zip(&self.links).filter(|(_, links)| !links.is_empty());
        let all = sit.flat_map(|(places, _)| places);
        all.filter_map(|&(module, offset)| Some((self.engine.modules.get(module)?, offset)))
    }

    /// Whether a process is probed.
    pub fn is_in(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// Stops probing a process.
    pub fn exit(&mut self, pid: u32) {
        if self.pids.remove(&pid) {
            let rest = self.links.iter_mut().flatten().filter_map(|probe| probe.leave(pid)).collect();
            self.aside(rest);
        }
    }

    /// Takes the role's probes out of all processes; events still arrive.
    pub fn detach(&mut self, role: Role) {
        let mut links = std::mem::take(&mut self.links[index(role)]);
        let rest = links.iter_mut().flat_map(|probe| probe.leave_all()).collect();
        self.parked[index(role)].append(&mut links);
        self.aside(rest);
    }

    /// Drops probes in a thread, because dropping them is slow.
    fn aside(&mut self, rest: Vec<Guard>) {
        if !rest.is_empty() {
            let aside = thread::Builder::new().name("detach".into()).spawn(move || remove(rest, ASIDE));
            // If no thread can be started, the closure is dropped here, and the probes with it.
            self.leaving.extend(aside.ok());
        }
    }

    /// True while probes are being removed.
    pub fn leaving(&mut self) -> bool {
        self.leaving.retain(|aside| !aside.is_finished());
        !self.leaving.is_empty()
    }

    /// Takes all probes out of all processes, the outermost first: those at the start of a call before those inside
    /// it. Returns what is left of them, which is slow to drop.
    pub fn take_links(&mut self) -> Vec<Guard> {
        self.closed = Some(std::array::from_fn(|i| !self.links[i].is_empty()));
        let mut links: Vec<Box<dyn Probe>> = self.links.iter_mut().rev().flat_map(std::mem::take).collect();
        let mut rest: Vec<Guard> = links.iter_mut().flat_map(|probe| probe.leave_all()).collect();
        // A thread that only drops has no result and cannot fail.
        self.leaving.drain(..).for_each(|aside| drop(aside.join()));
        links.extend(self.parked.iter_mut().flat_map(std::mem::take));
        links.append(&mut self.abandoned);
        rest.extend(links.into_iter().map(|probe| Box::new(probe) as Guard));
        rest
    }

    /// Abandons the role's rung and attaches the next one. False: there is none.
    pub fn leave(&mut self, role: Role, why: &str) -> bool {
        if let Some(rung) = self.rung(role) {
            self.stands.push(Stand { role, rung: rung.name, used: false, why: why.into() });
        }
        self.detach(role);
        let left = std::mem::take(&mut self.parked[index(role)]);
        self.places[index(role)].clear();
        self.abandoned.extend(left);
        self.at[index(role)] += 1;
        let next = self.rung(role).is_some();
        self.attach(role, 0);
        next
    }

    /// That the user's function is nowhere, if so.
    pub fn own_missing(&self) -> Option<String> {
        let OpProbe { symbol, .. } = self.own?;
        if self.ladder.node.iter().any(|r| r.name == symbol) {
            return None;
        }
        Some(format!(
            "--op-probe: no library of the engine has a function {symbol}, or its symbols are stripped: \
             `nm -C LIBRARY` lists those of a library"
        ))
    }

    /// Adds modules of the same engine that were loaded later (CPU variants opened after its start).
    pub fn extend(&mut self, modules: Vec<EngineModule>, roles: &[Role]) -> usize {
        let from = self.engine.modules.len();
        self.engine.modules.extend(modules.into_iter().filter(|m| self.files.insert((m.dev, m.inode))));
        let added = self.engine.modules.len() - from;
        if added > 0 {
            let node = std::mem::take(&mut self.ladder.node);
            self.ladder = ladder(&self.engine, self.own);
            // What was found in a live process is not in the files.
            if node.iter().any(|r| r.how == RungMethod::Callee) {
                self.ladder.node = node;
            }
            for &role in roles {
                // A device's module added this rung; its functions are in modules that were already loaded.
                let first = matches!(role, Role::Wait | Role::Node | Role::Kernel) && !self.probed(role);
                self.attach(role, if first { 0 } else { from });
            }
        }
        added
    }

    /// Whether a file is one of the engine's modules.
    pub fn has(&self, id: FileId) -> bool {
        self.files.contains(&id)
    }

    /// The file with the engine's base code.
    pub fn base(&self) -> Option<FileId> {
        self.engine.modules.iter().find(|m| m.roles.base).map(|m| (m.dev, m.inode))
    }

    /// What is told of it when it is found in a process.
    pub fn probed_engine(&self, again: bool) -> ProbedEngine<'_> {
        let base = self.engine.modules.iter().find(|m| m.roles.base);
        ProbedEngine {
            build_id: base.map_or("", |m| &m.build_id),
            file: base.map(|m| &*m.path_in_target),
            probes: self.links.iter().map(Vec::len).sum(),
            again,
        }
    }

    /// True if both engines use the same base library.
    pub fn same_base(&self, other: &DiscoveredEngine) -> bool {
        let base = |e: &DiscoveredEngine| e.modules.iter().find(|m| m.roles.base).map(|m| (m.dev, m.inode));
        base(&self.engine) == base(other)
    }

    /// The vtable route: follows the backends of a live scheduler to the functions that compute their graphs. The
    /// target's memory is trusted only as far as it names functions of the engine's own files. Returns how many
    /// were attached, and what was rejected of the others.
    ///
    /// # Errors
    /// Nothing was attached.
    pub fn attach_vtables(
        &mut self,
        pid: u32,
        scheduler: u64,
    ) -> Result<(usize, Vec<NotProbed>), VtableError> {
        let at = self.engine.layout.graph_compute_off.ok_or(VtableError::Offset)?;
        // The target can forge what is read here: use as few privileges as reading needs.
        let few = capset::reading();
        let functions = backends::functions(pid, scheduler, at)?;
        let maps = maps::read(pid).map_err(|source| VtableError::Maps { pid, source })?;
        let (mut points, mut refused) = (Vec::new(), Vec::new());
        for function in functions {
            match backends::point(&self.engine.modules, pid, &maps, function) {
                Ok(point) if !points.contains(&point) => points.push(point),
                Ok(_) => {}
                Err(why) => refused.push(why),
            }
        }
        drop(few);
        if points.is_empty() {
            return Err(refused.pop().map_or(VtableError::NoBackends, VtableError::NotProbed));
        }
        for point in &points {
            let Some(module) = self.engine.modules.get(point.module) else { continue };
            let shown = module.path_in_target.display().to_string();
            let Some(file) = self.file_of(point.module) else { continue };
            self.attach_point(Role::Split, point, &file, &shown);
        }
        Ok((points.len(), refused))
    }

    /// True if the role's rung has no probes yet because it needs a live pointer.
    pub fn wants_vtable(&self) -> bool {
        self.closed.is_none()
            && self.rung(Role::Split).is_some_and(|r| r.how == RungMethod::Vtable)
            && !self.probed(Role::Split)
    }
}

/// Places all these probes in a process; returns why some failed.
///
/// The kernel places one at a time, under a lock that any probe's removal holds for a fifth of a second. Once one
/// probe had to wait for that, the rest are placed from several threads: they then get the lock one after the
/// other.
fn enter<'a>(probes: impl IntoIterator<Item = &'a mut Box<dyn Probe>>, pid: u32) -> Vec<ProbeError> {
    let (mut probes, begin) = (probes.into_iter(), Instant::now());
    let mut failures = Vec::new();
    while begin.elapsed() < SLOW {
        let Some(probe) = probes.next() else { return failures };
        failures.extend(probe.enter(pid).err());
        machine::helper::pulse::beat();
    }
    let rest: Vec<Mutex<&mut Box<dyn Probe>>> = probes.map(Mutex::new).collect();
    let do_one = |probe: &Mutex<&mut Box<dyn Probe>>| {
        let done = probe.lock().unwrap_or_else(PoisonError::into_inner).enter(pid);
        machine::helper::pulse::beat();
        done.err()
    };
    thread::scope(|s| {
        let enter = |probe| {
            let thread = thread::Builder::new().name("enter".into()).spawn_scoped(s, move || do_one(probe));
            thread.map_err(|_| probe)
        };
        let begun: Vec<_> = rest.iter().map(enter).collect();
        // If no thread can be started, do it here.
        let done = begun.into_iter().map(|begun| match begun {
            Ok(thread) => thread.join().unwrap_or_else(|_| Some(ProbeError::ThreadEnded)),
            Err(probe) => do_one(probe),
        });
        failures.extend(done.flatten());
    });
    failures
}
