//! Shared by the trace tests: sample records, a small file with every kind, a synthetic decode stream.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod causes;

use std::io::{self, Write};

use pfi::record::*;
use pfi::*;

pub const PID: u32 = 4711;

/// An append-only output, like a pipe.
pub struct Pipe(pub Vec<u8>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Pipe {
    fn seekable(&self) -> bool {
        false
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        unreachable!("it said that it cannot")
    }
}

/// The kinds of the records of a trace.
pub fn kinds(bytes: &[u8]) -> std::collections::BTreeSet<usize> {
    let trace = Trace::from_bytes(bytes.to_vec()).unwrap();
    let blocks = (0..trace.blocks().len()).map(|i| trace.block(i).unwrap());
    blocks.flat_map(|block| block.records().map(|r| r.unwrap().kind()).collect::<Vec<_>>()).collect()
}

pub fn header() -> Header<'static> {
    Header {
        tool: "profinfer 0.1.0",
        command: "profinfer record -- llama-cli -m 'a model.gguf'",
        kernel: "6.1.0",
        arch: "aarch64",
        host: "board",
        cpu_model: "Cortex-A55",
        topology: "0,0,0,1800000,400;1,1,0,1800000,400",
        mono_ns: 1_000_000,
        boot_ns: 2_000_000,
        real_ns: 1_700_000_000_000_000_000,
        level: Level::Op,
        structure: true,
        transport: TransportKind::Ring,
        buffer_bytes: 8 << 20,
        hit_ns: 512,
        source: SourceKind::Perf,
    }
}

pub fn footer() -> Footer<'static> {
    Footer {
        end: "target exited",
        kinds: vec![
            KindCount { kind: "op", seen: 1000, recorded: 998, lost: 2 },
            KindCount { kind: "graph", seen: 10, recorded: 10, lost: 0 },
        ],
        lost_cpu: vec![0, 2],
        orphans: 3,
        read_errors: 1,
        agent_user_us: 12_345,
        agent_sys_us: 54_321,
        agent_peak_rss: 9 << 20,
        wall_ns: 5_000_000_000,
        bpf_ns: 400_000,
        bpf_runs: 1010,
    }
}

pub fn token(seq: u64, t: u64, dur: u64) -> Token {
    let n_tokens = (seq != 1).then_some(1);
    Token {
        seq,
        pid: PID,
        tid: PID,
        entry: Entry::Decode,
        n_tokens,
        t: t as i64,
        dur,
        cut: false,
        device: Device::Idle,
    }
}

pub fn graph(seq: u64, t: u64, dur: u64) -> Graph {
    let token = Some(seq);
    let cgraph = 0x7f12_3456_7000;
    Graph {
        seq,
        token,
        pid: PID,
        tid: PID,
        cgraph,
        n_nodes: 80,
        ubatch: 1,
        t: t as i64,
        dur,
        cut: false,
        device: Device::Idle,
    }
}

pub fn split(seq: u64, backend: u32, t: u64, dur: u64) -> Split {
    Split {
        seq,
        graph: Some(seq),
        backend,
        pid: PID,
        tid: PID,
        n_nodes: 80,
        t: t as i64,
        dur,
        cut: false,
        device: Device::Idle,
        plan: None,
    }
}

pub fn cpu_graph(seq: u64, plan: u32, t: u64, dur: u64) -> CpuGraph {
    CpuGraph {
        seq,
        graph: Some(seq),
        split: Some(seq),
        pid: PID,
        tid: PID,
        plan: Some(plan),
        n_nodes: 80,
        n_threads: 2,
        ubatch: 1,
        t: t as i64,
        dur,
        expected: Some(146),
        seen: 146,
        barrier: true,
        cut: false,
    }
}

pub fn setup<W: Write>(e: &mut Encoder<W>) {
    e.engine(&Engine { id: 0, version: "b6000", layout: "op@80 ne@16 nb@48" }).unwrap();
    e.module(&Module { engine: 0, path: "/usr/lib/libggml-cpu.so", build_id: "abc0", role: "cpu" }).unwrap();
    let why = "push r13: emulated, after endbr64";
    let module = "/usr/lib/libggml-cpu.so";
    e.probe(&ProbeRecord { engine: 0, symbol: "ggml_barrier", module, ret: false, offset: 4, why }).unwrap();
    e.process(&Process { pid: PID, engine: 0, exe: "/usr/bin/llama-cli", cmdline: "llama-cli -m x" })
        .unwrap();
    let (role, name) = ("op", "ggml_compute_forward");
    e.rung(&RungRecord { engine: 0, role, name, used: true, expected: Some(146), seen: 146, why: "first" })
        .unwrap();
    for (id, name) in
        ["NONE", "MUL_MAT", "RMS_NORM", "ADD", "MUL", "ROPE", "UNARY", "GET_ROWS"].iter().enumerate()
    {
        e.op_def(id as u16, name, if *name == "UNARY" { "SILU" } else { name });
    }
    e.type_def(0, "f32", 1, 4);
    e.type_def(2, "q4_0", 32, 18);
}

pub fn desc<'a>(addr: u64, name: &'a str, op: u16, ne: [u64; 4], src: &'a [Option<u32>]) -> TensorDesc<'a> {
    let ty = if op == 0 { 2 } else { 0 };
    let (name, known) = (name.as_bytes(), true);
    TensorDesc { pid: PID, addr, known, op, ty, flags: 0, name, ne, nb: None, src, view_src: None }
}

/// Pseudorandom numbers, the same in every run.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniformly distributed over `lo..hi`.
    pub fn even(&mut self, lo: f64, hi: f64) -> u64 {
        (lo + self.unit() * (hi - lo)) as u64
    }

    /// Log-uniformly distributed over `lo..hi`.
    pub fn log(&mut self, lo: f64, hi: f64) -> u64 {
        (lo * (hi / lo).powf(self.unit())) as u64
    }
}

/// A model with `layers` layers of 18 ops (4 layers: 73 ops with the output), named and ordered as in llama.cpp.
pub fn model<W: Write>(e: &mut Encoder<W>, layers: u32) -> u32 {
    let mut addr = 0x5555_0000_1000u64;
    let mut hits = Vec::new();
    let mut leaf = |e: &mut Encoder<W>, name: &str, ne| {
        addr += 368;
        e.tensor(&desc(addr, name, 0, ne, &[])).unwrap()
    };
    let mut weights = Vec::new();
    for l in 0..layers {
        let ids = [
            "attn_norm",
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_output",
            "ffn_norm",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
        ]
        .map(|w| {
            leaf(e, &format!("blk.{l}.{w}.weight"), [2048, if w.ends_with("norm") { 1 } else { 2048 }, 1, 1])
        });
        weights.push(ids);
    }
    let shared =
        ["inp_tokens", "inp_pos", "kq_mask", "cache_k", "cache_v", "output_norm.weight", "output.weight"]
            .map(|n| leaf(e, n, [2048, 32, 1, 1]));
    let mut addr = 0x7fff_0000_1000u64;
    let mut node = |e: &mut Encoder<W>, name: String, op, src: &[u32]| {
        addr += 368;
        let src: Vec<Option<u32>> = src.iter().copied().map(Some).collect();
        let id = e.tensor(&desc(addr, &name, op, [2048, 1, 1, 1], &src)).unwrap();
        hits.push(PlanHit { tensor: id, fused: None });
        id
    };
    let mut x = node(e, "inp_embd".into(), 7, &[shared[6], shared[0]]);
    for (l, w) in weights.iter().enumerate() {
        let mut n = |e: &mut Encoder<W>, name: &str, op, src: &[u32]| node(e, format!("{name}-{l}"), op, src);
        let norm = n(e, "norm", 2, &[x]);
        let normed = n(e, "attn_norm", 4, &[norm, w[0]]);
        let [q, k, v] =
            [("Qcur", 1), ("Kcur", 2), ("Vcur", 3)].map(|(name, i)| n(e, name, 1, &[w[i], normed]));
        let q = n(e, "Qcur_rope", 5, &[q, shared[1]]);
        let k = n(e, "Kcur_rope", 5, &[k, shared[1]]);
        let ck = n(e, "cache_k_l (copy)", 3, &[k, shared[3]]);
        let cv = n(e, "cache_v_l (copy)", 3, &[v, shared[4]]);
        let kq = n(e, "kq", 1, &[ck, q]);
        let soft = n(e, "kq_soft_max", 6, &[kq, shared[2]]);
        let kqv = n(e, "kqv", 1, &[cv, soft]);
        let out = n(e, "attn_out", 1, &[w[4], kqv]);
        let inp = n(e, "ffn_inp", 3, &[out, x]);
        let norm = n(e, "ffn_norm", 2, &[inp, w[5]]);
        let gate = n(e, "ffn_gate", 1, &[w[6], norm]);
        let up = n(e, "ffn_up", 1, &[w[7], norm]);
        let down = n(e, "ffn_out", 1, &[w[8], gate, up]);
        x = down;
    }
    e.plan(PID, hits.len() as u32 + 12, &hits).unwrap()
}

/// `n` tensors, some similar and some very different, and their names; a plan that runs them all.
pub fn odd_tensors<W: Write>(e: &mut Encoder<W>, n: u32) -> (u32, Vec<TensorRecord>) {
    let mut rng = Rng(4711);
    let (mut hits, mut all) = (Vec::new(), Vec::<TensorRecord>::new());
    let parts =
        ["blk.", "é-", "00", "9", "12", "999999999", "1234567890", " (view)", ".weight", "0", "x", ""];
    for i in 0..n {
        let id = all.last().map_or(0, |t| t.id + 1);
        let mut small = |n: u64| (rng.next() >> 20 & 0xffff_ffff) as usize % n as usize;
        let number = small(40) + if small(3) == 0 { 99_999_980 } else { 0 };
        let name = match small(8) {
            0 => "y".repeat(250) + parts[small(12)] + &number.to_string(),
            1 => (0..small(5)).map(|_| parts[small(12)]).collect(),
            _ => format!("{}{}{number}{}", parts[small(2)], ["", "a", "b."][small(3)], parts[7 + small(5)]),
        };
        let mut cut = name.len().min(255);
        while !name.is_char_boundary(cut) {
            cut -= 1;
        }
        let mut src: Vec<Option<u32>> = (0..small(if i % 50 == 0 { 17 } else { 4 }))
            .map(|_| match small(40) {
                0 => Some(ITSELF),
                n => (n > 7).then(|| id.wrapping_sub(small(300) as u32 + 1)).filter(|s| *s < u32::MAX),
            })
            .collect();
        while src.last() == Some(&None) {
            src.pop();
        }
        let dims = [1, 2, 7, 2048, u64::MAX];
        let ne = [(); 4].map(|()| dims[small(5)]);
        let nb = (small(4) == 0).then(|| [(); 4].map(|()| dims[small(5)]));
        let known = small(9) > 0;
        let addr =
            if small(20) == 0 { u64::MAX - small(9) as u64 } else { u64::from(i) * 368 + small(9) as u64 };
        let (op, ty, flags) = (small(3) as u16, 2 * small(2) as u16, small(3) as u32);
        let view_src = (small(3) == 0).then(|| id.wrapping_sub(1)).filter(|s| *s < u32::MAX);
        let d = TensorDesc {
            pid: PID,
            addr,
            known,
            op,
            ty,
            flags,
            name: name.as_bytes(),
            ne,
            nb,
            src: &src,
            view_src,
        };
        let id = e.tensor(&d).unwrap();
        hits.push(PlanHit { tensor: id, fused: None });
        let name = name[..cut].into();
        let src: Vec<Option<u32>> =
            src.iter().map(|s| if *s == Some(ITSELF) { Some(id) } else { *s }).collect();
        all.push(TensorRecord {
            id,
            tensor: match known {
                true => {
                    Tensor { pid: PID, addr, known, op, ty, flags, name, ne, nb, src: src.into(), view_src }
                }
                false => Tensor {
                    pid: PID,
                    addr,
                    known,
                    op: 0,
                    ty: 0,
                    flags: 0,
                    name: "".into(),
                    ne: [1; 4],
                    nb: None,
                    src: [].into(),
                    view_src: None,
                },
            },
        });
    }
    (e.plan(PID, n, &hits).unwrap(), all)
}

/// How the times of a synthetic stream are distributed.
#[derive(Clone, Copy)]
pub enum Times {
    Even,
    Log,
}

/// `n` decode tokens of `hits` ops on two threads in barrier mode.
pub fn decode<W: Write>(
    e: &mut Encoder<W>,
    plan: u32,
    hits: usize,
    tokens: std::ops::Range<u64>,
    times: Times,
) {
    let mut rng = Rng(0x1234_5678_9abc_def1 ^ tokens.start);
    let mut now = 5_000_000_000 + tokens.start * 40_000_000;
    let backend = e.backend([7; 16], "CPU");
    for seq in tokens {
        let start = now;
        for ith in 0..2u16 {
            let mut t = start + 20_000 + u64::from(ith) * 3_000;
            let mut slices = [Slice { start: 0, end: None }; 512];
            for s in &mut slices[..hits] {
                let (busy, gap) = match times {
                    Times::Even => (rng.even(2e3, 1e6), rng.even(300.0, 1e5)),
                    Times::Log => (rng.log(2e3, 1e6), rng.log(300.0, 1e5)),
                };
                *s = Slice { start: t, end: Some(t + busy) };
                t += busy + gap;
            }
            now = now.max(t);
            let run = SliceRun { graph: seq, ith, tid: PID + u32::from(ith), plan, first: 0, barrier: true };
            e.slices(&run, &slices[..hits]).unwrap();
        }
        let dur = now - start;
        e.cpu_graph(&cpu_graph(seq, plan, start, dur)).unwrap();
        e.split(&split(seq, backend, start, dur)).unwrap();
        e.graph(&graph(seq, start, dur)).unwrap();
        e.token(&token(seq, start, dur)).unwrap();
        e.tick(now).unwrap();
        now += 300_000;
    }
}

/// A small file of several blocks with every kind of record.
pub fn small_file() -> Vec<u8> {
    let cfg = EncoderConfig { block_bytes: 4096, seal_ns: 0, ..EncoderConfig::default() };
    let mut e = Encoder::new(Pipe(Vec::new()), cfg, &header()).unwrap();
    setup(&mut e);
    let plan = model(&mut e, 1);
    decode(&mut e, plan, 19, 0..4, Times::Log);
    e.notice(&Notice { t: 5_900_000_000, text: "a probe left" }).unwrap();
    causes::write(&mut e, plan, 5_900_000_000);
    let (role, name) = ("op", "ggml_compute_forward");
    e.rung(&RungRecord {
        engine: 0,
        role,
        name,
        used: true,
        expected: Some(152),
        seen: 152,
        why: "at the end",
    })
    .unwrap();
    e.finish(&footer()).unwrap().0
}

/// Like `small_file`, generated with integers only, with the codings' rare cases, and interval mode.
pub fn golden_file() -> Vec<u8> {
    let cfg = EncoderConfig { block_bytes: 4096, seal_ns: 0, ..EncoderConfig::default() };
    let mut e = Encoder::new(Pipe(Vec::new()), cfg, &header()).unwrap();
    setup(&mut e);
    let mut plan = model(&mut e, 1);
    for graph in 0..3u64 {
        for ith in 0..2u16 {
            let mut rng = Rng(77 + graph);
            let mut t = 1_000_000_000 + graph * 1_000_000_000;
            let slices: Vec<Slice> = (0..19)
                .map(|i| {
                    let (busy, gap) = (rng.next() >> (30 + i % 32), rng.next() >> (40 + i % 24));
                    let slice = Slice { start: t, end: (i != 5).then_some(t + busy) };
                    t += busy + gap;
                    slice
                })
                .collect();
            let run = SliceRun { graph, ith, tid: PID + u32::from(ith), plan, first: 0, barrier: graph < 2 };
            e.slices(&run, &slices).unwrap();
        }
        let start = 1_000_000_000 + graph * 1_000_000_000;
        e.cpu_graph(&cpu_graph(graph, plan, start, 900_000_000)).unwrap();
        let backend = e.backend([7; 16], "CPU");
        let device = [Device::Idle, Device::Busy(800_000_000 + graph), Device::Unseen][graph as usize];
        let of_device = (device != Device::Idle).then_some(plan);
        let split = split(graph, backend, start - 5, 900_000_010);
        e.split(&Split { device, plan: of_device, ..split }).unwrap();
        e.graph(&Graph { device, ..self::graph(graph, start - 10, 900_000_020) }).unwrap();
        e.token(&Token { device, ..token(graph, start - 20, 900_000_040) }).unwrap();
        e.tick(start).unwrap();
        let odd =
            e.tensor(&TensorDesc { known: false, ..desc(u64::MAX - graph, "", 0, [1; 4], &[]) }).unwrap();
        let src = [None, Some(odd)];
        let strided = TensorDesc {
            nb: Some([4, 8, 4096, 0]),
            view_src: Some(odd),
            ..desc(64, "v (view)", 4, [3, 1, 2, 1], &src)
        };
        let view = e.tensor(&strided).unwrap();
        let hits: Vec<PlanHit> = (0..19)
            .map(|i| PlanHit { tensor: if i == 3 { view } else { i * 2 }, fused: (i % 4 == 0).then_some(i) })
            .collect();
        plan = e.plan(PID, 25, &hits).unwrap();
    }
    e.notice(&Notice { t: 5_900_000_000, text: "a probe left" }).unwrap();
    causes::write(&mut e, plan, 6_000_000_000);
    e.finish(&footer()).unwrap().0
}

/// Start and end of each block of an intact file.
pub fn spans(file: &[u8]) -> Vec<(usize, usize)> {
    let trace = Trace::from_bytes(file.to_vec()).unwrap();
    trace
        .blocks()
        .iter()
        .map(|b| (b.offset as usize, b.offset as usize + BLOCK_HEADER + b.len as usize))
        .collect()
}

/// Repairs the checksums of the block at `at` after its bytes were changed.
pub fn seal(file: &mut [u8], at: usize) {
    let Some(len) = file.get(at + 12..at + 16).map(|b| u32::from_le_bytes(b.try_into().unwrap()) as usize)
    else {
        return;
    };
    let Some(payload) = file.get(at + BLOCK_HEADER..at + BLOCK_HEADER + len) else { return };
    let crc = crc32c::crc32c(payload);
    file[at + 32..at + 36].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&file[at..at + 36]);
    file[at + 36..at + 40].copy_from_slice(&crc.to_le_bytes());
}
