//! Facts about a recording: the machine, the processes, the engines.

use serde::Serialize;

use crate::recorded::clusters::{Cluster, clusters};
use crate::recorded::load::Loaded;
use common::redact;

/// Facts about the recording.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunFacts {
    /// Version of the recording profinfer; this and the next five are empty if the header is lost.
    pub tool: String,
    pub command: String,
    pub kernel: String,
    pub arch: String,
    pub host: String,
    pub cpu_model: String,
    /// CPU clusters of the machine, largest cores first; empty if the header is lost or does not contain them.
    pub clusters: Vec<Cluster>,
    pub level: Option<String>,
    pub structure: Option<bool>,
    /// `bpf`, or `perf`: perf events on a kernel without bpf().
    pub source: Option<String>,
    pub transport: Option<String>,
    /// CLOCK_REALTIME at the start, ns since 1970.
    pub started_unix_ns: Option<u64>,
    /// From the first start to the last end of anything recorded.
    pub span_ns: u64,
    pub processes: Vec<ProcessFacts>,
    pub engines: Vec<EngineFacts>,
    pub blocks: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessFacts {
    pub pid: u32,
    pub engine: u32,
    pub exe: String,
    pub cmdline: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineFacts {
    pub id: u32,
    pub version: String,
    pub layout: String,
    pub modules: Vec<ModuleFacts>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModuleFacts {
    pub path: String,
    pub build_id: String,
    pub role: String,
}

/// Facts about a recording.
pub fn run(loaded: &Loaded<'_>) -> RunFacts {
    let mut facts = RunFacts { span_ns: span(loaded), blocks: loaded.blocks, ..RunFacts::default() };
    if let Some(h) = &loaded.header {
        facts.tool = h.tool.into();
        facts.command = redact::line(h.command);
        facts.kernel = h.kernel.into();
        facts.arch = h.arch.into();
        facts.host = h.host.into();
        facts.cpu_model = h.cpu_model.into();
        facts.clusters = clusters(h.topology);
        facts.level = Some(h.level.name().into());
        facts.structure = Some(h.structure);
        facts.source = Some(h.source.name().into());
        facts.transport = Some(h.transport.name().into());
        facts.started_unix_ns = Some(h.real_ns);
    }
    facts.processes = loaded
        .processes
        .iter()
        .map(|p| ProcessFacts {
            pid: p.pid,
            engine: p.engine,
            exe: p.exe.into(),
            cmdline: redact::line(p.cmdline),
        })
        .collect();
    facts.engines = loaded
        .engines
        .iter()
        .map(|e| EngineFacts {
            id: e.id,
            version: e.version.into(),
            layout: e.layout.into(),
            modules: loaded
                .modules
                .iter()
                .filter(|m| m.engine == e.id)
                .map(|m| ModuleFacts {
                    path: m.path.into(),
                    build_id: m.build_id.into(),
                    role: m.role.into(),
                })
                .collect(),
        })
        .collect();
    facts
}

fn span(loaded: &Loaded<'_>) -> u64 {
    let tokens = loaded.tokens.iter().map(|t| (t.t, t.dur));
    let graphs = loaded.graphs.iter().map(|g| (g.t, g.dur));
    let cpu = loaded.cpu_graphs.iter().map(|g| (g.t, g.dur));
    let ends = tokens.chain(graphs).chain(cpu).map(|(t, dur)| (t, t.saturating_add_unsigned(dur)));
    let bounds = ends.fold(None, |acc: Option<(i64, i64)>, (from, to)| match acc {
        None => Some((from, to)),
        Some((a, b)) => Some((a.min(from), b.max(to))),
    });
    bounds.map_or(0, |(from, to)| from.abs_diff(to))
}
