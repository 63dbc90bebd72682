//! Traces of a synthetic model whose graph is known edge by edge: views, caches, a constant with several users, two
//! ops fused into one, a copy onto itself.
#![allow(dead_code, reason = "each test binary uses a part")]

use analysis::questions::dag::{Dag, DagError, DagOptions, dag};
use analysis::recorded::load::LoadProgress;
use pfi::record::*;
use pfi::{Encoder, EncoderConfig, ITSELF, PlanHit, Slice, SliceRun, TensorDesc, Trace};

use crate::synth_trace::{self, ORIGIN};

pub const PID: u32 = 77;
/// Time of position p on thread 0; thread 1 takes a third of it.
pub fn busy(p: usize) -> u64 {
    3000 + 300 * p as u64
}

pub const OPS: [&str; 13] = [
    "NONE", "GET_ROWS", "RMS_NORM", "MUL", "MUL_MAT", "ROPE", "ADD", "VIEW", "RESHAPE", "PERMUTE",
    "SET_ROWS", "SOFT_MAX", "CPY",
];

/// Model variants.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub layers: u32,
    /// An ADD after each of Q, K and V, as in qwen2.
    pub biases: bool,
    /// The last layer reads only some rows of its input.
    pub last_differs: bool,
    pub structure: bool,
    pub pid: u32,
}

pub const LLAMA: Model = Model { layers: 3, biases: false, last_differs: false, structure: true, pid: PID };

/// Writes batches of one model.
pub struct Made {
    pub enc: Encoder<Vec<u8>>,
    pub model: Model,
    /// Inserted into the name of the first weight.
    pub nasty: &'static str,
    pub hits: Vec<PlanHit>,
    plan: u32,
    addr: u64,
    batches: u64,
    now: u64,
}

impl Made {
    pub fn new(model: Model) -> Made {
        Made::with(
            model,
            "",
            Encoder::new(Vec::new(), EncoderConfig::default(), &synth_trace::header(model.structure))
                .unwrap(),
            0,
        )
    }

    pub fn with(model: Model, nasty: &'static str, mut enc: Encoder<Vec<u8>>, batches: u64) -> Made {
        let exe = "/opt/llama/llama-cli";
        enc.engine(&Engine { id: 0, version: "0.25.1", layout: "" }).unwrap();
        enc.process(&Process { pid: model.pid, engine: 0, exe, cmdline: "llama-cli" }).unwrap();
        for (id, name) in OPS.iter().enumerate() {
            enc.op_def(id as u16, name, name);
        }
        enc.type_def(0, "f32", 1, 4);
        enc.type_def(1, "f16", 1, 2);
        enc.type_def(2, "q4_0", 32, 18);
        enc.type_def(3, "i32", 1, 4);
        let now = ORIGIN + batches * 1_000_000;
        let mut made = Made { enc, model, nasty, hits: Vec::new(), plan: 0, addr: 0x1000, batches, now };
        made.build(2);
        made
    }

    pub fn tensor(
        &mut self,
        op: &str,
        ty: u16,
        name: &str,
        ne: [u64; 4],
        src: &[u32],
        view_src: Option<u32>,
    ) -> u32 {
        self.addr += 336;
        let src: Vec<Option<u32>> = src.iter().map(|id| Some(*id)).collect();
        let op = OPS.iter().position(|o| *o == op).unwrap() as u16;
        let (pid, addr, known) = (self.model.pid, self.addr, self.model.structure);
        let name = name.as_bytes();
        let d = TensorDesc { pid, addr, known, op, ty, flags: 0, name, ne, nb: None, src: &src, view_src };
        self.enc.tensor(&d).unwrap()
    }

    /// The id of the next tensor.
    pub fn next_id(&mut self) -> u32 {
        self.tensor("NONE", 0, "x", [1; 4], &[], None) + 1
    }

    fn leaf(&mut self, ty: u16, name: &str, ne: [u64; 4]) -> u32 {
        self.tensor("NONE", ty, name, ne, &[], None)
    }

    fn run(&mut self, op: &str, name: &str, ne: [u64; 4], src: &[u32]) -> u32 {
        let id = self.tensor(op, 0, name, ne, src, None);
        self.hits.push(PlanHit { tensor: id, fused: None });
        id
    }

    fn view(&mut self, op: &str, name: &str, ne: [u64; 4], of: u32) -> u32 {
        self.tensor(op, 0, name, ne, &[of], Some(of))
    }

    /// RMS_NORM and MUL fused into one.
    fn norm(&mut self, name: &str, weight: &str, x: u32, n: u64) -> u32 {
        let w = self.leaf(0, weight, [32, 1, 1, 1]);
        let (_, layer) = name.rsplit_once('-').unwrap_or(("", ""));
        let plain = if layer.is_empty() { "norm".into() } else { format!("norm-{layer}") };
        let norm = self.tensor("RMS_NORM", 0, &plain, [32, n, 1, 1], &[x], None);
        let mul = self.tensor("MUL", 0, name, [32, n, 1, 1], &[norm, w], None);
        self.hits.push(PlanHit { tensor: norm, fused: Some(mul) });
        mul
    }

    fn mat(&mut self, name: &str, weight: &str, x: u32, n: u64) -> u32 {
        let nasty = std::mem::take(&mut self.nasty);
        let w = self.leaf(2, &format!("{weight}{nasty}"), [32, 32, 1, 1]);
        self.run("MUL_MAT", name, [32, n, 1, 1], &[w, x])
    }

    fn build(&mut self, n: u64) {
        let wide = [32, n, 1, 1];
        let table = self.leaf(1, "token_embd.weight", [32, 99, 1, 1]);
        let tokens = self.leaf(3, "inp_tokens", [n, 1, 1, 1]);
        let mut x = self.run("GET_ROWS", "inp_embd", wide, &[table, tokens]);
        let pos = self.leaf(3, "inp_pos", [n, 1, 1, 1]);
        let mask = self.leaf(0, "KQ_mask", [64, n, 1, 1]);
        // A cast: a copy whose second source is itself.
        let mask = self.run("CPY", "KQ_mask (copy)", [64, n, 1, 1], &[mask, ITSELF]);
        for l in 0..self.model.layers {
            x = self.layer(l, x, pos, mask, n);
        }
        let y = self.norm("result_norm", "output_norm.weight", x, n);
        self.mat("result_output", "output.weight", y, n);
        self.plan = self.enc.plan(self.model.pid, self.hits.len() as u32, &self.hits).unwrap();
    }

    fn layer(&mut self, l: u32, x: u32, pos: u32, mask: u32, n: u64) -> u32 {
        let (w, t) = (|name: &str| format!("blk.{l}.{name}"), |name: &str| format!("{name}-{l}"));
        let (wide, heads) = ([32, n, 1, 1], [8, 4, n, 1]);
        let y = self.norm(&t("attn_norm"), &w("attn_norm.weight"), x, n);
        let mut qkv = [0; 3];
        for (slot, (name, of)) in
            qkv.iter_mut().zip([("Qcur", "attn_q"), ("Kcur", "attn_k"), ("Vcur", "attn_v")])
        {
            *slot = self.mat(&t(name), &w(&format!("{of}.weight")), y, n);
            if self.model.biases {
                let bias = self.leaf(0, &w(&format!("{of}.bias")), [32, 1, 1, 1]);
                *slot = self.run("ADD", &t(name), wide, &[*slot, bias]);
            }
        }
        let [q, k, _] = qkv;
        let q = self.view("RESHAPE", &t("Qcur"), heads, q);
        let q = self.run("ROPE", &t("Qcur"), heads, &[q, pos]);
        let k = self.view("RESHAPE", &t("Kcur"), heads, k);
        let k = self.run("ROPE", &t("Kcur"), heads, &[k, pos]);
        let cache = self.leaf(1, &format!("cache_k_l{l}"), [32, 64, 1, 1]);
        let rows = self.view("VIEW", &format!("{} (view)", t("Kcur")), wide, k);
        self.run("SET_ROWS", &format!("cache_k_l{l} (view)"), [32, 64, 1, 1], &[rows, pos, cache]);
        let keys = self.view("VIEW", &format!("cache_k_l{l} (view)"), [8, 4, 64, 1], cache);
        let keys = self.view("PERMUTE", &format!("cache_k_l{l} (view) (permuted)"), [8, 64, 4, 1], keys);
        let kq = self.run("MUL_MAT", &t("kq"), [64, n, 4, 1], &[keys, q]);
        let soft = self.run("SOFT_MAX", &t("kq_soft_max"), [64, n, 4, 1], &[kq, mask]);
        let mut out = self.mat(&t("attn_out"), &w("attn_output.weight"), soft, n);
        let mut x = x;
        if self.model.last_differs && l + 1 == self.model.layers {
            let ids = self.leaf(3, "inp_out_ids", [1, 1, 1, 1]);
            // These have no names: they are placed by their sources.
            out = self.run("GET_ROWS", &format!("node_{}", 100 + l), [32, 1, 1, 1], &[out, ids]);
            x = self.run("GET_ROWS", &format!("node_{}", 200 + l), [32, 1, 1, 1], &[x, ids]);
        }
        self.run("ADD", &t("l_out"), wide, &[out, x])
    }

    /// Later batches run this plan.
    pub fn replan(&mut self, plan: u32) {
        self.plan = plan;
    }

    /// A batch of `tokens` tokens, each op `slower` ns longer.
    pub fn batch(&mut self, tokens: u32, slower: u64) {
        let (pid, seq, hits) = (self.model.pid, self.batches, self.hits.len());
        let start = self.now;
        for ith in 0..2u16 {
            let mut at = start + 100;
            let mut slices = Vec::new();
            for p in 0..hits {
                let whole = busy(p) + slower;
                slices.push(Slice { start: at, end: Some(at + if ith == 0 { whole } else { whole / 3 }) });
                at += whole + 10;
            }
            let run = SliceRun {
                graph: seq,
                ith,
                tid: pid + u32::from(ith),
                plan: self.plan,
                first: 0,
                barrier: true,
            };
            self.enc.slices(&run, &slices).unwrap();
            self.now = at + 100;
        }
        let (t, dur, cut) = (start as i64, self.now - start, false);
        let n_nodes = hits as u32;
        let g = CpuGraph {
            seq,
            graph: Some(seq),
            split: None,
            pid,
            tid: pid,
            plan: Some(self.plan),
            n_nodes,
            n_threads: 2,
            ubatch: tokens,
            t,
            dur,
            expected: None,
            seen: n_nodes * 2,
            barrier: true,
            cut,
        };
        self.enc.cpu_graph(&g).unwrap();
        let token = Some(seq);
        self.enc
            .graph(&Graph {
                seq,
                token,
                pid,
                tid: pid,
                cgraph: 1,
                n_nodes,
                ubatch: tokens,
                t,
                dur,
                cut,
                device: Device::Idle,
            })
            .unwrap();
        let n_tokens = Some(tokens);
        self.enc
            .token(&Token {
                seq,
                pid,
                tid: pid,
                entry: Entry::Decode,
                n_tokens,
                t,
                dur,
                cut,
                device: Device::Idle,
            })
            .unwrap();
        self.batches += 1;
    }

    pub fn finish(self) -> Vec<u8> {
        self.enc.finish(&synth_trace::footer("target exited")).unwrap()
    }
}

/// A prefill and some decodes.
pub fn run(model: Model, decodes: u64) -> Vec<u8> {
    let mut made = Made::new(model);
    made.batch(2, 5000);
    for i in 0..decodes {
        made.batch(1, 100 * i);
    }
    made.finish()
}

pub fn drawn(bytes: Vec<u8>, options: &DagOptions) -> Result<Dag, DagError> {
    dag(&Trace::from_bytes(bytes).unwrap(), options, &LoadProgress::default())
}

/// Every element is closed by its own name, attributes are quoted, and no text contains a bare `&` or `<`.
pub fn well_formed(xml: &str) {
    let mut open = Vec::new();
    let mut parts = xml.split('<');
    assert_eq!(parts.next(), Some(""));
    for part in parts {
        let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("an element without end: {part}"));
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        for text in [text, tag] {
            for after in text.split('&').skip(1) {
                assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|e| after.starts_with(e)), "{text}");
            }
        }
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with(['/', '?']) => {}
            None => open.push(tag.split([' ', '\n']).next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}
