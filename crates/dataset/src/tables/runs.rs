//! Runs: the machine, the engine, the model, and the figures of a run in one row.

use analysis::questions::report::PhaseReport;
use analysis::recorded::calls::{Latency, Phase};
use analysis::recorded::clusters::clusters;
use common::redact;
use parquet::errors::Result;
use pfi::record::{Module, StateAt};

use super::contexts::{model, quantisation, weight_bytes};
use crate::column::{RUN, Table, boolean, int, long, real, text, time};
use crate::rows::Rows;
use crate::run::Run;

pub const TABLE: Table = Table {
    name: "runs",
    about: "a recorded run: a trace. Where it has several processes or contexts, the columns from `pid` on, except the \
            last four, are of the one that `report` shows",
    single: true,
    columns: &[
        RUN,
        text("file", "file name of the trace").or_null(),
        time("started", "start of the recording").or_null(),
        long("span_ns", "from the first start to the last end of anything recorded"),
        text("tool", "version of the recorder").or_null(),
        text("command", "command line of the recorder, without secrets").or_null(),
        text("kernel", "kernel of the machine").or_null(),
        text("arch", "architecture of the machine").or_null(),
        text("cpu_model", "its CPU or SoC").or_null(),
        int("cpus", "its CPUs").or_null(),
        text("level", "what was recorded at most: `token`, `graph` or `op`").or_null(),
        text("source", "`bpf`, or `perf` on a kernel without bpf()").or_null(),
        text("engine_version", "version that the engine reports").or_null(),
        text("engine_build", "build id of its file with the CPU's kernels, else of another one").or_null(),
        int("contexts", "processes with calls, and their contexts, as in `contexts`"),
        int("pid", "process").or_null(),
        text("model", "file name of the model on the command line, if it is the only one").or_null(),
        text("quantisation", "type of most of the weights' bytes").or_null(),
        long("weight_bytes", "bytes of the weights that the recorded ops read").or_null(),
        int("layers", "layers of the model").or_null(),
        int("embedding", "width of the residual stream").or_null(),
        int("experts", "experts of a layer").or_null(),
        int("threads", "threads of its largest graph on the CPU").or_null(),
        long("prefill_tokens", "tokens of prefill calls that ended").or_null(),
        long("decode_tokens", "the same of decode").or_null(),
        long("prefill_ns", "time in these calls").or_null(),
        long("decode_ns", "the same of decode").or_null(),
        real("prefill_tokens_per_s", "tokens over the time in calls").or_null(),
        real("decode_tokens_per_s", "the same of decode").or_null(),
        real("between_calls", "share of the time from a decode call to the next one that is between them")
            .or_null(),
        long("ttft_ns", "time to first token: median over the requests").or_null(),
        long("tpot_p50_ns", "time per output token in decode calls: median").or_null(),
        long("tpot_p99_ns", "the same: 99th percentile").or_null(),
        real("prefill_j_per_token", "energy of a prefill token").or_null(),
        real("decode_j_per_token", "energy of a decode token").or_null(),
        text("energy_source", "sensor that tells it").or_null(),
        text(
            "energy_origin",
            "what it covers: `meter`, `device`, `estimate`, `package`, `rail`, `model` or `unknown`",
        )
        .or_null(),
        long("minor_faults", "page faults without I/O of the process during the recording").or_null(),
        long("major_faults", "page faults with I/O").or_null(),
        long("throttled_us", "time for which its cgroup was throttled during the recording").or_null(),
        boolean("complete", "nothing is lost, damaged or missing in the recording"),
        real("lost_share", "share of the events that were lost").or_null(),
        long("slices", "op slices of the trace"),
        text("ended", "why the recording ended; null if it was cut").or_null(),
    ],
    fill,
};

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let header = run.loaded.header.as_ref();
    let known = |text: &'static str| (!text.is_empty()).then_some(text);
    let of = |get: fn(&pfi::record::Header<'_>) -> String| header.map(get).filter(|text| !text.is_empty());
    let cpus: usize = header.map_or(0, |h| clusters(h.topology).iter().map(|c| c.cpus.len()).sum());
    let shown = run.shown();
    let phase = |phase: Phase| run.report.phases.iter().find(|p| p.phase == phase);
    let (prefill, decode) = (phase(Phase::Prefill), phase(Phase::Decode));
    let tpot = decode.and_then(|p| p.tpot);
    let energy = run.report.energy.as_ref().and_then(|e| e.primary.as_ref());
    let model_facts = shown.map(|r| &r.model);
    let q = &run.report.quality;
    let (engine, build) = engine(run, shown.map(|r| r.pid));
    let during = During::of(run, shown.map(|r| r.pid));
    rows.row()
        .text(run.file.as_deref())
        .long(run.started())
        .long(Some(run.report.run.span_ns))
        .text(of(|h| h.tool.into()).as_deref())
        .text(of(|h| redact::line(h.command)).as_deref())
        .text(of(|h| h.kernel.into()).as_deref())
        .text(of(|h| h.arch.into()).as_deref())
        .text(of(|h| h.cpu_model.into()).as_deref())
        .int((cpus > 0).then_some(cpus))
        .text(header.and_then(|h| known(h.level.name())))
        .text(header.and_then(|h| known(h.source.name())))
        .text(engine)
        .text(build)
        .int(Some(run.runs.list.len()))
        .int(shown.map(|r| r.pid))
        .text(shown.and_then(|r| model(&r.command)).as_deref())
        .text(model_facts.and_then(quantisation))
        .long(model_facts.and_then(weight_bytes))
        .int(model_facts.and_then(|m| m.layers))
        .int(model_facts.and_then(|m| m.embedding))
        .int(model_facts.and_then(|m| m.experts))
        .int(threads(run, shown.map(|r| r.pid)))
        .long(prefill.and_then(|p| p.tokens))
        .long(decode.and_then(|p| p.tokens))
        .long(prefill.map(|p| p.in_call_ns))
        .long(decode.map(|p| p.in_call_ns))
        .real(prefill.and_then(|p| p.tokens_per_s))
        .real(decode.and_then(|p: &PhaseReport| p.tokens_per_s))
        .real(decode.and_then(|p| p.between_calls))
        .long(run.report.ttft.map(|t| t.p50_ns))
        .long(tpot.map(|t: Latency| t.p50_ns))
        .long(tpot.map(|t| t.p99_ns))
        .real(energy.and_then(|e| e.prefill_j_per_token))
        .real(energy.and_then(|e| e.decode_j_per_token))
        .text(energy.map(|e| e.source.as_str()))
        .text(energy.map(|e| e.origin))
        .long(during.minor_faults)
        .long(during.major_faults)
        .long(during.throttled_us)
        .bool(Some(q.complete))
        .real(q.lost_share.value)
        .long(Some(q.hits.slices))
        .text(q.end.as_deref())
        .end()
}

/// Threads of the process's largest graph on the CPU.
fn threads(run: &Run<'_, '_>, pid: Option<u32>) -> Option<u32> {
    let of = run.loaded.cpu_graphs.iter().filter(|g| pid.is_none_or(|pid| pid == g.pid));
    of.map(|g| g.n_threads).max().filter(|n| *n > 0)
}

/// Version and build of the process's engine.
fn engine<'r>(run: &'r Run<'_, '_>, pid: Option<u32>) -> (Option<&'r str>, Option<&'r str>) {
    let l = &run.loaded;
    let process = l.processes.iter().find(|p| pid.is_none_or(|pid| pid == p.pid));
    let Some(id) = process.map(|p| p.engine) else { return (None, None) };
    let version = l.engines.iter().find(|e| e.id == id).map(|e| e.version).filter(|v| !v.is_empty());
    let own = |m: &&Module<'_>| m.engine == id && !m.build_id.is_empty();
    let role = |wanted: &str| l.modules.iter().filter(own).find(|m| m.role.split('+').any(|r| r == wanted));
    let module = role("cpu").or_else(|| role("base")).or_else(|| role("llama"));
    (version, module.map(|m| m.build_id))
}

/// What grew from the first to the last state of a process.
#[derive(Default)]
struct During {
    minor_faults: Option<u64>,
    major_faults: Option<u64>,
    throttled_us: Option<u64>,
}

impl During {
    fn of(run: &Run<'_, '_>, pid: Option<u32>) -> During {
        let mut states = run.loaded.states.values().filter(|s| pid.is_none_or(|pid| pid == s.pid));
        let (Some(first), Some(last)) = (states.next(), states.next_back()) else { return During::default() };
        if last.at != StateAt::End {
            return During::default();
        }
        let grown = |a: Option<u64>, b: Option<u64>| b?.checked_sub(a?);
        During {
            minor_faults: grown(first.minor_faults, last.minor_faults),
            major_faults: grown(first.major_faults, last.major_faults),
            throttled_us: grown(first.throttled_us, last.throttled_us),
        }
    }
}
