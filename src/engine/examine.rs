//! What can be recorded of a target, without changing it: engines, tables, layout, the expected rung for each role,
//! where each probe would go and why.

use serde::Serialize;

use crate::engine::discover::{self, DiscoverError, Engine, Module};
use crate::engine::elf::Machine;
use crate::engine::ladder::{How, Ladder, ProbePoint, Rung};
use crate::engine::probes::Role;
use crate::engine::prologue::{Choice, Cost};
use crate::engine::search::Launch;
use crate::host::target;

/// What to examine.
#[derive(Debug, Clone)]
pub enum Subject {
    Pid(u32),
    Path(Launch),
}

impl Subject {
    fn engines(&self) -> Result<Vec<Engine>, String> {
        match self {
            Subject::Pid(pid) if !target::alive(*pid) => {
                Err(format!("process {pid} does not exist: give the PID of a running process"))
            }
            Subject::Pid(pid) => discover::of_pid(*pid).map_err(|e| e.to_string()),
            Subject::Path(launch) => discover::of_launch(launch).map_err(|e: DiscoverError| e.to_string()),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Target {
    /// "process N" or the path.
    pub name: String,
    /// Arguments of `record` for this target.
    pub record: String,
    pub engines: Vec<EngineFacts>,
    /// Why nothing was found, with the next step.
    pub error: Option<String>,
}

/// One of its engines.
#[derive(Debug, Serialize)]
pub struct EngineFacts {
    /// Instruction set.
    pub machine: &'static str,
    pub modules: Vec<ModuleFacts>,
    pub tables: TableCounts,
    /// Offsets of the fields that are read, as found in this build.
    pub layout: String,
    pub roles: Vec<RoleFacts>,
    /// What cannot be recorded with this engine.
    pub limits: Vec<Limit>,
    /// What the kernel does at the op probe, `None` without one.
    pub op_site: Option<SiteCost>,
}

#[derive(Debug, Serialize)]
pub struct ModuleFacts {
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
    pub entry: Site,
    pub ret: Option<Site>,
}

/// Position of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Site {
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
pub struct Limit {
    /// Nothing can be recorded at op level.
    pub blocks_ops: bool,
    /// The engine is for another machine.
    pub of_machine: bool,
    pub what: String,
    pub advice: String,
}

impl Limit {
    fn new(blocks_ops: bool, what: &str, advice: &str) -> Limit {
        Limit { blocks_ops, of_machine: false, what: what.to_owned(), advice: advice.to_owned() }
    }
}

/// Examines a target. The engines are returned as well, for trials that need them.
pub fn examine(subject: &Subject) -> (Target, Vec<Engine>) {
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
            (Target { name, record, engines: facts, error: None }, engines)
        }
        Err(error) => (Target { name, record, engines: Vec::new(), error: Some(error) }, Vec::new()),
    }
}

fn facts(e: &Engine) -> EngineFacts {
    let ladder = Ladder::of(e);
    let op = ladder.op.first().and_then(|r| r.points.first());
    EngineFacts {
        machine: e.machine.name(),
        modules: e.modules.iter().map(module).collect(),
        tables: TableCounts {
            ops: e.tables.ops.len(),
            unary: e.tables.unary.len(),
            glu: e.tables.glu.len(),
            types: e.tables.types.len(),
        },
        layout: e.layout.to_string(),
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

fn module(m: &Module) -> ModuleFacts {
    let roles = [("llama", m.roles.llama), ("base", m.roles.base), ("cpu", m.roles.cpu)];
    ModuleFacts {
        path: m.path_in_target.display().to_string(),
        build_id: m.build_id.clone(),
        roles: roles.iter().filter(|r| r.1).map(|r| r.0).collect(),
        stripped: m.elf.is_stripped(),
    }
}

fn rung(e: &Engine, r: &Rung) -> RungFacts {
    let how = match r.how {
        How::Symbols => "symbols",
        How::Vtable => "vtable",
        How::Interval => "interval",
    };
    RungFacts { name: r.name, how, points: r.points.iter().map(|p| point(e, p)).collect() }
}

fn point(e: &Engine, p: &ProbePoint) -> PointFacts {
    let module = e.modules.get(p.module);
    PointFacts {
        symbol: module.map_or(p.symbol.into(), |m| m.elf.name_of(p.symbol)).into_owned(),
        module: p.module,
        file_offset: p.sym_file_offset,
        entry: site(&p.entry),
        ret: p.ret.as_ref().map(site),
    }
}

fn site(c: &Choice) -> Site {
    Site { offset: c.offset, instruction: c.insn.clone(), cost: site_cost(c.cost), why: c.why.clone() }
}

fn site_cost(c: Cost) -> SiteCost {
    match c {
        Cost::Nop5 => SiteCost::Nop5,
        Cost::Emulated => SiteCost::Emulated,
        Cost::SingleStepped => SiteCost::SingleStepped,
    }
}

fn limits(e: &Engine, ladder: &Ladder) -> Vec<Limit> {
    let mut out = Vec::new();
    if let Some(host) = Machine::host().filter(|h| *h != e.machine) {
        let what = format!("it is for {}, this machine is {}", e.machine.name(), host.name());
        let advice = format!("record on an {} machine", e.machine.name());
        out.push(Limit { of_machine: true, ..Limit::new(true, &what, &advice) });
    }
    if ladder.cpu_graph.is_empty() {
        out.push(Limit::new(
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
        out.push(Limit::new(true, tried, advice));
    }
    if ladder.token.is_empty() {
        let what = "tokens: no llama_process, llama_decode or llama_encode (GGML without llama.cpp)";
        out.push(Limit::new(false, what, "graphs are counted as tokens"));
    }
    if ladder.graph.is_empty() {
        let what = "scheduler graphs: no ggml_backend_sched_graph_compute_async";
        out.push(Limit::new(false, what, "graphs on the CPU are still recorded"));
    }
    if ladder.split.is_empty() {
        out.push(Limit::new(
            false,
            "splits by backend: no function to probe",
            "work outside the CPU is not distinguished",
        ));
    }
    let interval_only = ladder.op_end.first().is_some_and(|r| r.how == How::Interval);
    if interval_only {
        let what = "barrier waits: no ggml_barrier, an op ends when the next one starts";
        out.push(Limit::new(false, what, "op times are wall times that include waiting"));
    }
    out
}
