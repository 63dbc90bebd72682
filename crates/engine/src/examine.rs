//! What can be recorded of a target, without changing it: engines, tables, layout, the expected rung for each role,
//! where each probe would go and why.

use serde::Serialize;

use crate::discover::{self, DiscoverError, DiscoveredEngine, EngineModule};
use crate::elf::ElfMachine;
use crate::ladder::{Ladder, ProbePoint, Rung, RungMethod};
use crate::probes::Role;
use crate::prologue::{InsnHandling, ProbeOffset};
use crate::search::Launch;
use machine::target;

/// What to examine.
#[derive(Debug, Clone)]
pub enum Subject {
    Pid(u32),
    Path(Launch),
}

/// Why there is nothing to examine, with the next step.
#[derive(Debug, thiserror::Error)]
enum SubjectError {
    #[error("process {0} does not exist: give the PID of a running process")]
    NoProcess(u32),
    #[error(transparent)]
    Discover(#[from] DiscoverError),
}

impl Subject {
    fn engines(&self) -> Result<Vec<DiscoveredEngine>, SubjectError> {
        match self {
            Subject::Pid(pid) if !target::alive(*pid) => Err(SubjectError::NoProcess(*pid)),
            Subject::Pid(pid) => Ok(discover::of_pid(*pid)?),
            Subject::Path(launch) => Ok(discover::of_launch(launch)?),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct ExaminedTarget {
    /// "process N" or the path.
    pub name: String,
    /// Arguments of `record` for this target.
    pub record: String,
    pub engines: Vec<ExaminedEngine>,
    /// Why nothing was found, with the next step.
    pub error: Option<String>,
}

/// One of its engines.
#[derive(Debug, Serialize)]
pub struct ExaminedEngine {
    /// Instruction set.
    pub machine: &'static str,
    pub modules: Vec<ExaminedModule>,
    pub tables: TableCounts,
    /// Offsets of the fields that are read, as found in this build.
    pub layout: String,
    pub roles: Vec<RoleFacts>,
    /// What cannot be recorded with this engine.
    pub limits: Vec<Limitation>,
    /// What the kernel does at the op probe, `None` without one.
    pub op_site: Option<SiteCost>,
}

#[derive(Debug, Serialize)]
pub struct ExaminedModule {
    pub path: String,
    /// Empty if the file has none.
    pub build_id: String,
    pub roles: Vec<&'static str>,
    /// Only exported names are known.
    pub stripped: bool,
}

/// Entries of the engine's own name tables.
#[derive(Debug, Serialize)]
pub struct TableCounts {
    pub ops: usize,
    pub unary: usize,
    pub glu: usize,
    pub types: usize,
}

/// The ladder of one role, best rung first: the first is expected to work, the next is used if it stays silent.
#[derive(Debug, Serialize)]
pub struct RoleFacts {
    pub role: &'static str,
    pub rungs: Vec<RungFacts>,
}

#[derive(Debug, Serialize)]
pub struct RungFacts {
    pub name: &'static str,
    /// `symbols`, `vtable` or `interval`.
    pub how: &'static str,
    pub points: Vec<PointFacts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PointFacts {
    /// Name of the function in its file.
    pub symbol: String,
    /// Index into the engine's modules.
    pub module: usize,
    /// File offset of the function, bytes.
    pub file_offset: u64,
    pub entry: ProbeSite,
    pub ret: Option<ProbeSite>,
}

/// Position of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbeSite {
    /// Bytes from the function's first instruction.
    pub offset: u32,
    /// Mnemonic.
    pub instruction: String,
    pub cost: SiteCost,
    pub why: String,
}

/// What the kernel does with the instruction under a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteCost {
    /// Replaced with a call on new kernels, single-stepped on older ones.
    Nop5,
    Emulated,
    SingleStepped,
}

/// Something that cannot be recorded.
#[derive(Debug, Serialize)]
pub struct Limitation {
    /// Nothing can be recorded at op level.
    pub blocks_ops: bool,
    /// The engine is for another machine.
    pub of_machine: bool,
    pub what: String,
    pub advice: String,
}

impl Limitation {
    fn new(blocks_ops: bool, what: &str, advice: &str) -> Limitation {
        Limitation { blocks_ops, of_machine: false, what: what.to_owned(), advice: advice.to_owned() }
    }
}

/// Examines a target. The engines are returned as well, for trials that need them.
pub fn examine(subject: &Subject) -> (ExaminedTarget, Vec<DiscoveredEngine>) {
    let (name, record) = match subject {
        Subject::Pid(pid) => (format!("process {pid}"), format!("-p {pid}")),
        Subject::Path(launch) => {
            let path = launch.program.display();
            (path.to_string(), format!("--exe {path}"))
        }
    };
    match subject.engines() {
        Ok(engines) => {
            let facts = engines.iter().map(facts).collect();
            (ExaminedTarget { name, record, engines: facts, error: None }, engines)
        }
        Err(error) => {
            (ExaminedTarget { name, record, engines: Vec::new(), error: Some(error.to_string()) }, Vec::new())
        }
    }
}

fn facts(e: &DiscoveredEngine) -> ExaminedEngine {
    let ladder = Ladder::of(e);
    let op = ladder.op.first().and_then(|r| r.points.first());
    ExaminedEngine {
        machine: e.machine.name(),
        modules: e.modules.iter().map(module).collect(),
        tables: TableCounts {
            ops: e.tables.ops.len(),
            unary: e.tables.unary.len(),
            glu: e.tables.glu.len(),
            types: e.tables.types.len(),
        },
        layout: e.layout_told(),
        // From the outside in, the natural order for people.
        roles: Role::ALL
            .iter()
            .rev()
            .map(|&role| RoleFacts {
                role: role.name(),
                rungs: ladder.rungs(role).iter().map(|r| rung(e, r)).collect(),
            })
            .collect(),
        limits: limits(e, &ladder),
        op_site: op.map(|p| site_cost(p.entry.cost)),
    }
}

fn module(m: &EngineModule) -> ExaminedModule {
    let roles = [("llama", m.roles.llama), ("base", m.roles.base), ("cpu", m.roles.cpu)];
    ExaminedModule {
        path: m.path_in_target.display().to_string(),
        build_id: m.build_id.clone(),
        roles: roles.iter().filter(|r| r.1).map(|r| r.0).collect(),
        stripped: m.elf.is_stripped(),
    }
}

fn rung(e: &DiscoveredEngine, r: &Rung) -> RungFacts {
    let how = match r.how {
        RungMethod::Symbols => "symbols",
        RungMethod::Vtable => "vtable",
        RungMethod::Interval => "interval",
        RungMethod::Callee => "called by graph_compute",
    };
    RungFacts { name: r.name, how, points: r.points.iter().map(|p| point(e, p)).collect() }
}

fn point(e: &DiscoveredEngine, p: &ProbePoint) -> PointFacts {
    let module = e.modules.get(p.module);
    PointFacts {
        symbol: module.map_or(p.symbol.into(), |m| m.elf.name_of(p.symbol)).into_owned(),
        module: p.module,
        file_offset: p.sym_file_offset,
        entry: site(&p.entry),
        ret: p.ret.as_ref().map(site),
    }
}

fn site(c: &ProbeOffset) -> ProbeSite {
    ProbeSite { offset: c.offset, instruction: c.insn.clone(), cost: site_cost(c.cost), why: c.why.clone() }
}

fn site_cost(c: InsnHandling) -> SiteCost {
    match c {
        InsnHandling::Nop5 => SiteCost::Nop5,
        InsnHandling::Emulated => SiteCost::Emulated,
        InsnHandling::SingleStepped => SiteCost::SingleStepped,
    }
}

fn limits(e: &DiscoveredEngine, ladder: &Ladder) -> Vec<Limitation> {
    let mut out = Vec::new();
    if let Some(host) = ElfMachine::host().filter(|h| *h != e.machine) {
        let what = format!("it is for {}, this machine is {}", e.machine.name(), host.name());
        let advice = format!("record on an {} machine", e.machine.name());
        out.push(Limitation { of_machine: true, ..Limitation::new(true, &what, &advice) });
    }
    if let Some(why) = &e.unread {
        let level = if ladder.graph.is_empty() { "token" } else { "graph" };
        out.push(Limitation::new(true, &format!("single ops: {why}"), &format!("--level {level} works")));
    } else if ladder.cpu_graph.is_empty() {
        out.push(Limitation::new(
            true,
            "graphs on the CPU: no file has ggml_graph_compute",
            "give the directory or process that also has the CPU part of GGML",
        ));
    } else if ladder.op.is_empty() {
        let tried = "single ops: the build has neither ggml_compute_forward nor \
            ggml_cpu_extra_compute_forward";
        let stripped = e.modules.iter().any(|m| m.roles.cpu && m.elf.is_stripped());
        let advice = match stripped {
            true => {
                "use a build with symbols (do not run strip), or a release since 2024-12; --level graph works"
            }
            false => "use a release since 2024-12, built without link-time optimisation; --level graph works",
        };
        out.push(Limitation::new(true, tried, advice));
    }
    if ladder.token.is_empty() {
        let what = "tokens: no llama_process, llama_decode or llama_encode (GGML without llama.cpp)";
        out.push(Limitation::new(false, what, "graphs are counted as tokens"));
    }
    if ladder.graph.is_empty() {
        let what = "scheduler graphs: no ggml_backend_sched_graph_compute_async";
        out.push(Limitation::new(false, what, "graphs on the CPU are still recorded"));
    }
    if ladder.split.is_empty() {
        out.push(Limitation::new(
            false,
            "splits by backend: no function to probe",
            "work outside the CPU is not distinguished",
        ));
    }
    let interval_only = ladder.op_end.first().is_some_and(|r| r.how == RungMethod::Interval);
    if interval_only {
        let what = "barrier waits: no ggml_barrier, an op ends when the next one starts";
        out.push(Limitation::new(false, what, "op times are wall times that include waiting"));
    }
    out
}
