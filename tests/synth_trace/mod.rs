//! Traces of a synthetic llama-like engine with times known to the nanosecond: for tests of `report` and for its
//! benchmark.
#![allow(dead_code)]

pub mod causes;

use std::io::Write;

use pfi::record::*;
use pfi::{Encoder, EncoderConfig, Output, PlanHit, Slice, SliceRun, TensorDesc};

pub const PID: u32 = 4242;
pub const TID: u32 = 4243;
/// RecorderBackoff from a call's start to its graph's, to the CPU graph's, and to the first op; the same in reverse at the
/// end.
pub const LEAD: u64 = 1000;
/// From the slowest thread's barrier entry to the next op.
pub const SYNC: u64 = 100;
/// From the end of a call to the start of the next one.
pub const PAUSE: u64 = 10_000;
/// Numbers of splits on a device begin here.
pub const DEVICE_SPLITS: u64 = 1 << 32;
/// GUID of the Vulkan backend.
const VULKAN: [u8; 16] = 0xb8f74f86_403ce102_91c8dde9_023fc02b_u128.to_be_bytes();
/// First instant of a trace.
pub const ORIGIN: u64 = 1_000_000_000_000;

pub const EMBD: u64 = 64;
pub const FF: u64 = 128;
pub const HEADS: u64 = 4;
pub const KV_HEADS: u64 = 2;
pub const VOCAB: u64 = 256;

const F32: u16 = 0;
const F16: u16 = 1;
const Q4_0: u16 = 2;
const I32: u16 = 3;
pub const Q4_0_WEIGHTS: u16 = Q4_0;
pub const Q8_0_WEIGHTS: u16 = 4;

const OPS: [(&str, &str); 10] = [
    ("NONE", "NONE"),
    ("GET_ROWS", "GET_ROWS"),
    ("RMS_NORM", "RMS_NORM"),
    ("MUL", "MUL"),
    ("MUL_MAT", "MUL_MAT"),
    ("ROPE", "ROPE"),
    ("ADD", "ADD"),
    ("GLU", "SWIGLU"),
    ("MUL_MAT_ID", "MUL_MAT_ID"),
    ("ARGSORT", "ARGSORT"),
];

/// What to record.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub layers: u32,
    pub threads: u16,
    pub experts: bool,
    pub barrier: bool,
    pub structure: bool,
    pub source: SourceKind,
    /// False: the ubatch and the batch could not be read.
    pub widths: bool,
    /// CPUs 0 and 1 of capacity 400, 2 and 3 of 1024; otherwise two equal ones.
    pub clusters: bool,
    /// Type of the weights that are multiplied.
    pub weights: u16,
    /// Tensors have none of llama.cpp's names, but those that GGML gives; only the result of a graph has one.
    pub foreign: bool,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            layers: 2,
            threads: 2,
            experts: false,
            barrier: true,
            structure: true,
            source: SourceKind::Bpf,
            widths: true,
            clusters: false,
            weights: Q4_0,
            foreign: false,
        }
    }
}

/// Where and with what a trace was recorded.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'o> {
    pub host: &'o str,
    pub cpu_model: &'o str,
    pub arch: &'o str,
    /// CLOCK_REALTIME at the start, ns.
    pub real_ns: u64,
    pub engine_version: &'o str,
    pub engine_build: &'o str,
    pub cmdline: &'o str,
}

impl Default for Origin<'_> {
    fn default() -> Self {
        let h = header(true);
        Origin {
            host: h.host,
            cpu_model: h.cpu_model,
            arch: h.arch,
            real_ns: h.real_ns,
            engine_version: "0.25.1",
            engine_build: "00c0ffee",
            cmdline: "llama-cli -m x",
        }
    }
}

pub fn header(structure: bool) -> Header<'static> {
    Header {
        tool: "profinfer 0.1.0",
        command: "profinfer record -p 4242",
        kernel: "6.1.0",
        arch: "x86_64",
        host: "bench",
        cpu_model: "Made-up CPU",
        topology: "0,0,0,0,0;1,1,0,0,0",
        mono_ns: ORIGIN,
        boot_ns: ORIGIN,
        real_ns: 1_700_000_000_000_000_000,
        level: Level::Op,
        structure,
        transport: TransportKind::Ring,
        buffer_bytes: 8 << 20,
        hit_ns: 500,
        source: pfi::record::SourceKind::Bpf,
    }
}

pub fn footer(end: &str) -> Footer<'_> {
    Footer {
        end,
        kinds: vec![KindCount { kind: "barrier", seen: 140, recorded: 140, lost: 0 }],
        lost_cpu: Vec::new(),
        orphans: 0,
        read_errors: 0,
        agent_user_us: 3000,
        agent_sys_us: 2000,
        agent_peak_rss: 9 << 20,
        wall_ns: 1_000_000_000,
        bpf_ns: 2_000_000,
        bpf_runs: 10_000,
    }
}

/// Writes a trace shaped like a 1B model's decode: 16 layers, 2 threads, 1 to 500 us per op.
pub fn generate(path: &std::path::Path, slices: u64, barrier: bool) {
    let out = std::fs::File::create(path).expect("the trace can be written");
    let mut synth = Synth::new(out, Spec { layers: 16, barrier, ..Spec::default() });
    let mut state = 1u64;
    synth.call(32, |p, _| 1000 + 977 * p as u64);
    while synth.slices < slices {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let seed = state;
        synth.call(1, |p, t| {
            let x = (seed ^ (p as u64) << 17 ^ u64::from(t) << 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            1000 + (x >> 40) % if p % 3 == 0 { 500_000 } else { 5000 }
        });
    }
    synth.enc.finish(&footer("target exited")).expect("the trace can be ended");
}

/// Writes calls in sequence.
pub struct Synth<W: Write> {
    pub enc: Encoder<W>,
    pub spec: Spec,
    /// The next call starts here.
    pub now: u64,
    pub calls: u64,
    pub graphs: u64,
    pub slices: u64,
    /// Whether the following CPU graphs are marked as cut.
    pub cut: bool,
    /// The function of the following calls.
    pub entry: Entry,
    /// Whether ops of the following graphs are recorded.
    pub ops: bool,
    /// CPU of a position on a thread of a graph.
    pub cpu: fn(u64, usize, u16) -> Option<u16>,
    /// Kernel thread of thread index 0.
    pub caller: u32,
    /// Backend of the following splits: its GUID and name.
    pub backend: ([u8; 16], &'static str),
    /// A device's split before each of these, of as many nodes as there are on the CPU: the time of it, ns.
    pub device: Option<u64>,
    /// Process of the following calls; see [`Synth::process`].
    pid: u32,
    /// See [`Synth::context`].
    context: u64,
    /// Address of the graphs of calls.
    cgraph: u64,
    plans: Vec<((u32, u64, u32), Vec<PlanHit>)>,
    experts: Vec<ExpertTensors>,
    buffer: Vec<Slice>,
    addr: u64,
}

impl<W: Output> Synth<W> {
    pub fn new(out: W, spec: Spec) -> Synth<W> {
        Synth::of(out, spec, &Origin::default())
    }

    pub fn of(out: W, spec: Spec, origin: &Origin<'_>) -> Synth<W> {
        Synth::with(out, spec, origin, EncoderConfig::default())
    }

    pub fn with(out: W, spec: Spec, origin: &Origin<'_>, config: EncoderConfig) -> Synth<W> {
        let Origin { host, cpu_model, arch, real_ns, engine_version, engine_build, cmdline } = *origin;
        let mut header =
            Header { host, cpu_model, arch, real_ns, source: spec.source, ..header(spec.structure) };
        if spec.clusters {
            header.topology = "0,0,0,1800000,400;1,1,0,1800000,400;2,2,1,2900000,1024;3,3,1,2900000,1024";
        }
        let mut enc = Encoder::new(out, config, &header).unwrap();
        enc.engine(&Engine { id: 0, version: engine_version, layout: "op@80 ne@16" }).unwrap();
        let path = "/opt/llama/libggml-cpu.so";
        enc.module(&Module { engine: 0, path, build_id: engine_build, role: "base+cpu" }).unwrap();
        enc.process(&Process { pid: PID, engine: 0, exe: "/opt/llama/llama-cli", cmdline }).unwrap();
        let (role, name, why) = ("op", "ggml_cpu_extra_compute_forward", "hits as expected");
        enc.rung(&RungRecord { engine: 0, role, name, used: true, expected: Some(100), seen: 100, why })
            .unwrap();
        for (id, (name, desc)) in OPS.iter().enumerate() {
            enc.op_def(id as u16, name, desc);
        }
        enc.type_def(F32, "f32", 1, 4);
        enc.type_def(F16, "f16", 1, 2);
        enc.type_def(Q4_0, "q4_0", 32, 18);
        enc.type_def(I32, "i32", 1, 4);
        if spec.weights == Q8_0_WEIGHTS {
            enc.type_def(Q8_0_WEIGHTS, "q8_0", 32, 34);
        }
        let (plans, buffer) = (Vec::new(), Vec::new());
        let (pid, addr) = (PID, 0x7000_0000);
        let backend = ([7; 16], "CPU");
        let now = ORIGIN;
        Synth {
            enc,
            spec,
            now,
            calls: 0,
            graphs: 0,
            slices: 0,
            cut: false,
            entry: Entry::Decode,
            ops: true,
            cpu: |_, _, _| None,
            caller: TID,
            backend,
            device: None,
            pid,
            context: 0,
            cgraph: 0x1234,
            plans,
            experts: Vec::new(),
            buffer,
            addr,
        }
    }

    /// From now on calls belong to another process of the same program.
    pub fn process(&mut self, pid: u32) {
        self.pid = pid;
        let exe = "/opt/llama/llama-cli";
        self.enc.process(&Process { pid, engine: 0, exe, cmdline: "llama-cli -m x" }).unwrap();
    }

    /// From now on calls belong to another context of the process, with its own model of `layers` layers.
    pub fn context(&mut self, n: u64, layers: u32) {
        (self.context, self.spec.layers, self.cgraph) = (n, layers, 0x1234 + n);
    }

    /// From now on graphs are at another address; nothing else changes.
    pub fn moved(&mut self, by: u64) {
        self.cgraph += by;
    }

    /// One call of one ubatch of `width` tokens; `busy` gives the time of a position on a thread, ns.
    pub fn call(&mut self, width: u32, busy: impl Fn(usize, u16) -> u64) {
        self.ubatches(&[width], busy);
    }

    /// One call of several ubatches, one graph each.
    pub fn ubatches(&mut self, widths: &[u32], busy: impl Fn(usize, u16) -> u64) {
        let (start, seq) = (self.now, self.calls);
        let mut end = start;
        for width in widths {
            end = self.graph(Some(seq), *width, end + LEAD, &busy);
        }
        end += LEAD;
        let width = self.spec.widths.then(|| widths.iter().sum());
        let (t, dur) = (start as i64, end - start);
        let entry = self.entry;
        let token = Token {
            seq,
            pid: self.pid,
            tid: TID,
            entry,
            n_tokens: width,
            t,
            dur,
            cut: false,
            device: Device::Idle,
        };
        self.enc.token(&token).unwrap();
        self.now = end + PAUSE;
        self.calls += 1;
    }

    /// Scheduler graph, split and CPU graph from `start` on; returns the end of the first.
    pub fn graph(
        &mut self,
        token: Option<u64>,
        width: u32,
        start: u64,
        busy: impl Fn(usize, u16) -> u64,
    ) -> u64 {
        let seq = self.graphs;
        self.graphs += 1;
        let begin = start;
        let start = start + self.device.map_or(0, |ns| self.device_split(seq, width, start, ns));
        let cpu_end = self.cpu_graph(seq, width, start + LEAD, busy);
        let (end, n_nodes, cut) = (cpu_end + LEAD, 100, false);
        let ubatch = if self.spec.widths { width } else { 0 };
        let backend = self.enc.backend(self.backend.0, self.backend.1);
        let (t, dur) = ((start + LEAD) as i64, cpu_end - start - LEAD);
        let split = Split {
            seq,
            graph: Some(seq),
            backend,
            pid: self.pid,
            tid: TID,
            n_nodes,
            t,
            dur,
            cut,
            device: Device::Idle,
            plan: None,
        };
        self.enc.split(&split).unwrap();
        let (t, dur, cgraph) = (begin as i64, end - begin, self.cgraph);
        self.enc
            .graph(&Graph {
                seq,
                token,
                pid: self.pid,
                tid: TID,
                cgraph,
                n_nodes,
                ubatch,
                t,
                dur,
                cut,
                device: Device::Idle,
            })
            .unwrap();
        end
    }

    /// Returns the time that it takes, with the wait for the device.
    fn device_split(&mut self, graph: u64, width: u32, start: u64, ns: u64) -> u64 {
        let hits = self.plan(width);
        let plan = self.enc.plan(self.pid, hits.len() as u32, &hits).unwrap();
        let backend = self.enc.backend(VULKAN, "Vulkan");
        let split = Split {
            seq: DEVICE_SPLITS + graph,
            graph: Some(graph),
            backend,
            pid: self.pid,
            tid: TID,
            n_nodes: hits.len() as u32,
            t: start as i64,
            dur: ns,
            cut: false,
            device: Device::Busy(ns / 2),
            plan: Some(plan),
        };
        self.enc.split(&split).unwrap();
        ns
    }

    fn cpu_graph(&mut self, seq: u64, width: u32, start: u64, busy: impl Fn(usize, u16) -> u64) -> u64 {
        let hits = self.plan(width);
        let plan = self.enc.plan(self.pid, hits.len() as u32, &hits).unwrap();
        let (n, threads, barrier) = (hits.len(), self.spec.threads, self.spec.barrier);
        let slot = |p: usize| (0..threads).map(|t| busy(p, t)).max().unwrap_or(0) + SYNC;
        let first = start + LEAD;
        let mut end = first;
        for ith in 0..threads {
            let mut at = first;
            self.buffer.clear();
            for p in 0..n {
                let own_end = at + busy(p, ith);
                let end = if barrier || p + 1 == n { Some(own_end) } else { None };
                self.buffer.push(Slice { start: at, end });
                at += slot(p);
            }
            end = at;
            if !self.ops {
                continue;
            }
            let tid = if ith == 0 { self.caller } else { TID + u32::from(ith) };
            let run = SliceRun { graph: seq, ith, tid, plan, first: 0, barrier };
            self.enc.slices(&run, &self.buffer).unwrap();
            let cpus = self.buffer.iter().enumerate().map(|(p, s)| (s.start, (self.cpu)(seq, p, ith)));
            self.enc.op_cpus(run.tid, cpus).unwrap();
            self.slices += n as u64;
        }
        end += LEAD;
        let hits = if self.ops { n as u32 * u32::from(threads) } else { 0 };
        let graph = CpuGraph {
            seq,
            graph: Some(seq),
            split: Some(seq),
            pid: self.pid,
            tid: TID,
            plan: self.ops.then_some(plan),
            n_nodes: n as u32,
            n_threads: u32::from(threads),
            ubatch: if self.spec.widths { width } else { 0 },
            t: start as i64,
            dur: end - start,
            expected: self.ops.then_some(hits),
            seen: hits,
            barrier,
            cut: self.cut,
        };
        self.enc.cpu_graph(&graph).unwrap();
        end
    }

    /// Tensors of the experts' choices and weights of a layer, in calls of this width.
    pub fn expert_tensors(&mut self, width: u32, layer: u32) -> Option<(u32, u32)> {
        self.plan(width);
        let found = self.experts.iter().find(|t| t.of == (self.pid, self.context, width, layer));
        found.map(|t| (t.ids, t.weights))
    }

    /// Names of the positions of a plan: op label and tensor name.
    pub fn positions(&mut self, width: u32) -> usize {
        self.plan(width).len()
    }

    fn plan(&mut self, width: u32) -> Vec<PlanHit> {
        if let Some((_, hits)) = self.plans.iter().find(|(of, _)| *of == (self.pid, self.context, width)) {
            return hits.clone();
        }
        // Weights keep their addresses across widths.
        self.addr = 0x7000_0000 + (self.context << 32);
        let hits = Builder { synth: self, hits: Vec::new() }.build(u64::from(width));
        self.plans.push(((self.pid, self.context, width), hits.clone()));
        hits
    }
}

/// Tensors of the experts of a layer.
struct ExpertTensors {
    /// Process, context, width of the call, and layer.
    of: (u32, u64, u32, u32),
    ids: u32,
    weights: u32,
}

struct Builder<'s, W: Write> {
    synth: &'s mut Synth<W>,
    hits: Vec<PlanHit>,
}

impl<W: Write> Builder<'_, W> {
    fn tensor(&mut self, op: &str, ty: u16, name: &str, ne: [u64; 4], src: &[u32]) -> u32 {
        self.synth.addr += 336;
        let src: Vec<Option<u32>> = src.iter().map(|id| Some(*id)).collect();
        let op = OPS.iter().position(|(name, _)| *name == op).unwrap() as u16;
        let (addr, known) = (self.synth.addr, self.synth.spec.structure);
        let named =
            if self.synth.spec.foreign { foreign(name, addr, op == 0, ne[1]) } else { name.to_owned() };
        let name = named.as_bytes();
        let d = TensorDesc {
            pid: self.synth.pid,
            addr,
            known,
            op,
            ty,
            flags: 0,
            name,
            ne,
            nb: None,
            src: &src,
            view_src: None,
        };
        self.synth.enc.tensor(&d).unwrap()
    }

    fn weight(&mut self, ty: u16, name: &str, ne: [u64; 4]) -> u32 {
        self.tensor("NONE", ty, name, ne, &[])
    }

    fn op(&mut self, op: &str, name: &str, ne: [u64; 4], src: &[u32]) -> u32 {
        let id = self.tensor(op, F32, name, ne, src);
        self.hits.push(PlanHit { tensor: id, fused: None });
        id
    }

    fn norm(&mut self, name: &str, weight: &str, x: u32, ne: [u64; 4]) -> u32 {
        let w = self.weight(F32, weight, [EMBD, 1, 1, 1]);
        let norm = self.tensor("RMS_NORM", F32, &name.replace("attn_norm", "norm"), ne, &[x]);
        let mul = self.tensor("MUL", F32, name, ne, &[norm, w]);
        self.hits.push(PlanHit { tensor: norm, fused: Some(mul) });
        mul
    }

    fn mat(&mut self, name: &str, weight: &str, rows: u64, x: u32, k: u64, n: u64) -> u32 {
        let w = self.weight(self.synth.spec.weights, weight, [k, rows, 1, 1]);
        self.op("MUL_MAT", name, [rows, n, 1, 1], &[w, x])
    }

    /// 16 hits per layer, and three around them (one more per layer with experts).
    fn build(mut self, n: u64) -> Vec<PlanHit> {
        let head = EMBD / HEADS;
        let wide = [EMBD, n, 1, 1];
        let table = self.weight(F16, "token_embd.weight", [EMBD, VOCAB, 1, 1]);
        let tokens = self.weight(I32, "inp_tokens", [n, 1, 1, 1]);
        let mut x = self.op("GET_ROWS", "embd", wide, &[table, tokens]);
        for l in 0..self.synth.spec.layers {
            let w = |name: &str| format!("blk.{l}.{name}.weight");
            let t = |name: &str| format!("{name}-{l}");
            let y = self.norm(&t("attn_norm"), &w("attn_norm"), x, wide);
            let q = self.mat(&t("Qcur"), &w("attn_q"), EMBD, y, EMBD, n);
            self.op("ROPE", &t("Qcur"), [head, HEADS, n, 1], &[q]);
            let k = self.mat(&t("Kcur"), &w("attn_k"), head * KV_HEADS, y, EMBD, n);
            self.op("ROPE", &t("Kcur"), [head, KV_HEADS, n, 1], &[k]);
            let v = self.mat(&t("Vcur"), &w("attn_v"), head * KV_HEADS, y, EMBD, n);
            self.op("ADD", &t("Vcur"), [head * KV_HEADS, n, 1, 1], &[v, v]);
            let o = self.mat(&format!("node_{}", 31 + l), &w("attn_output"), EMBD, y, EMBD, n);
            let o = self.op("ADD", &t("ffn_inp"), wide, &[o, x]);
            let y = self.norm(&t("ffn_norm"), &w("ffn_norm"), o, wide);
            let down = if self.synth.spec.experts { self.experts(l, y, n) } else { self.dense(l, y, n) };
            x = self.op("ADD", &t("l_out"), wide, &[down, o]);
        }
        let y = self.norm("result_norm", "output_norm.weight", x, wide);
        self.mat("result_output", "output.weight", VOCAB, y, EMBD, n);
        self.hits
    }

    fn dense(&mut self, l: u32, y: u32, n: u64) -> u32 {
        let gate = self.mat(&format!("ffn_gate-{l}"), &format!("blk.{l}.ffn_gate.weight"), FF, y, EMBD, n);
        let up = self.mat(&format!("ffn_up-{l}"), &format!("blk.{l}.ffn_up.weight"), FF, y, EMBD, n);
        let glu = self.op("GLU", &format!("ffn_swiglu-{l}"), [FF, n, 1, 1], &[gate, up]);
        self.mat(&format!("ffn_out-{l}"), &format!("blk.{l}.ffn_down.weight"), EMBD, glu, FF, n)
    }

    fn experts(&mut self, l: u32, y: u32, n: u64) -> u32 {
        let sorted = self.op("ARGSORT", &format!("ffn_moe_argsort-{l}"), [8, n, 1, 1], &[y]);
        let ids = self.tensor("NONE", I32, &format!("ffn_moe_topk-{l}"), [2, n, 1, 1], &[sorted]);
        let up =
            self.weight(self.synth.spec.weights, &format!("blk.{l}.ffn_up_exps.weight"), [EMBD, FF, 8, 1]);
        let (s, width) = (&mut self.synth, n as u32);
        s.experts.push(ExpertTensors { of: (s.pid, s.context, width, l), ids, weights: up });
        let up = self.op("MUL_MAT_ID", &format!("ffn_moe_up-{l}"), [FF, 2, n, 1], &[up, y, ids]);
        let down =
            self.weight(self.synth.spec.weights, &format!("blk.{l}.ffn_down_exps.weight"), [FF, EMBD, 8, 1]);
        self.op("MUL_MAT_ID", &format!("ffn_moe_down-{l}"), [EMBD, 2, n, 1], &[down, up, ids])
    }
}

/// A name as GGML gives it; the result of a graph is named for what it is.
fn foreign(name: &str, addr: u64, leaf: bool, width: u64) -> String {
    match (name, leaf) {
        ("result_output", _) if width > 1 => "embd_enc".to_owned(),
        ("result_output", _) => "logits".to_owned(),
        (_, true) => format!("leaf_{}", addr % 1000),
        (_, false) => format!("node_{}", addr % 1000),
    }
}
