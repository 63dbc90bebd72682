//! Graphs made by hand; each quantity beside a run in which there is none.

use super::*;
use crate::recorded::calls::timeline;
use crate::recorded::idents::Idents;
use crate::recorded::load::{Loaded, PlanInfo};
use crate::sums::ops::{OpTimes, PlanStat, PosStat};
use crate::sums::tables::Reasons;
use pfi::record::{Device, Engine, Entry, Graph, OpDef, TensorData, Token, TypeDef, Ubatch};

const OPS: [&str; 6] = ["NONE", "MUL_MAT", "SCALE", "ADD", "FLASH_ATTN_EXT", "SOFT_MAX"];
const TYPES: [&str; 3] = ["f32", "q4_0", "q6_K"];

/// A run of calls of one token; each op takes 1 us, and 1 us more at its barrier.
#[derive(Default)]
struct Made(Loaded<'static>);

impl Made {
    fn tensor(&mut self, op: &str, name: &str, (ty, ne): (&str, [u64; 4]), src: &[u32]) -> u32 {
        let id = self.0.tensors.len() as u32 + 1;
        let number = |all: &[&str], name| all.iter().position(|n| *n == name).expect("known") as u16;
        let (op, ty) = (number(&OPS, op), number(&TYPES, ty));
        let src = src.iter().map(|id| Some(*id)).collect();
        let (addr, name) = (u64::from(id) * 512, name.into());
        self.0.tensors.insert(
            id,
            Tensor { pid: 1, addr, known: true, op, ty, flags: 0, name, ne, nb: None, src, view_src: None },
        );
        id
    }

    fn weight(&mut self, name: &str, ty: &'static str) -> u32 {
        self.tensor("NONE", name, (ty, [256, 256, 1, 1]), &[])
    }

    fn op(&mut self, op: &str, src: &[u32]) -> u32 {
        self.tensor(op, "node_1", ("f32", [256, 1, 1, 1]), src)
    }

    /// Two calls that compute these results, each with the tokens of these sequences, at these positions.
    fn facts(mut self, hits: &[u32], batch: &[(u8, u8)]) -> GraphFacts {
        let loaded = &mut self.0;
        let def = |(id, name): (usize, &'static &str)| (id as u16, OpDef { id: id as u16, name, desc: name });
        loaded.ops = OPS.iter().enumerate().map(def).collect();
        let def = |(id, name): (usize, &'static &str)| {
            (id as u16, TypeDef { id: id as u16, name, block: 1, bytes: 1 })
        };
        loaded.types = TYPES.iter().enumerate().map(def).collect();
        let hits: Box<[HitTensors]> = hits.iter().map(|id| (*id, None)).collect();
        let n = hits.len() as u32;
        loaded.plans.insert(1, PlanInfo { n_nodes: n, hits });
        let data = batch.iter().flat_map(|(seq, pos)| [seq * 2, pos * 2, 1, 1]).collect::<Vec<u8>>().leak();
        for seq in 0..2u64 {
            let (t, dur) = (seq as i64 * 1000, 900);
            let device = Device::Idle;
            let (entry, n_tokens) = (Entry::Decode, Some(1));
            loaded.tokens.push(Token { seq, pid: 1, tid: 1, entry, n_tokens, t, dur, cut: false, device });
            let token = Some(seq);
            loaded.graphs.push(Graph {
                seq,
                token,
                pid: 1,
                tid: 1,
                cgraph: 1,
                n_nodes: n,
                ubatch: 1,
                t,
                dur,
                cut: false,
                device,
            });
            loaded.cpu_graphs.push(CpuGraph {
                seq,
                graph: Some(seq),
                split: None,
                pid: 1,
                tid: 1,
                plan: Some(1),
                n_nodes: n,
                n_threads: 1,
                ubatch: 1,
                t,
                dur,
                expected: None,
                seen: n,
                barrier: true,
                cut: false,
            });
            let tokens = batch.len() as u32;
            let (unread, whole) = (0, false);
            loaded.causes.ubatches.push(Ubatch {
                token,
                pid: 1,
                tid: 1,
                t,
                context: 1,
                tokens,
                unread,
                whole,
                data,
            });
        }
        let line = timeline(loaded);
        let phase = line.cpu_phase[0];
        let pos = PosStat { calls: 2, timed: 2, total: 2000, wait: 2000, ..PosStat::default() };
        let positions = vec![pos; n as usize];
        let mut times = OpTimes::default();
        times.plans.insert((1, phase), PlanStat { positions, beyond: PosStat::default() });
        let idents = Idents::new(loaded);
        let (why, reasons) = (None, Reasons::default());
        let input = FactInput { loaded: &self.0, line: &line, times: &times, idents: &idents, why, reasons };
        GraphFacts::of(&input, phase)
    }
}

#[test]
fn weights_in_the_file_of_types_that_are_repacked() {
    let of = |version: &'static str, stored: &[usize]| {
        let mut made = Made::default();
        made.0.engines.push(Engine { id: 0, version, layout: "" });
        let weights =
            [("blk.0.attn_q.weight", "q4_0"), ("blk.0.ffn_up.weight", "q4_0"), ("output.weight", "q6_K")]
                .map(|(name, ty)| made.weight(name, ty));
        let input = made.op("ADD", &[]);
        let results = weights.map(|w| made.op("MUL_MAT", &[w, input]));
        let data = |at: &usize| TensorData { tensor: weights[*at], addr: 4096 };
        made.0.causes.tensor_data = stored.iter().map(data).collect();
        made.facts(&results, &[(0, 5)]).plain
    };
    let part = |stored: &[usize]| of("0.25.1", stored);
    // It has them twice.
    assert_eq!(of("0.2.0 (ggml-runner)", &[0, 1, 2]), None);
    // Two of three are repacked, and lie elsewhere; or in the file.
    assert_eq!(part(&[2]), None);
    assert_eq!(part(&[0, 1, 2]), Some(2.0 / 3.0));
    assert_eq!(part(&[0]), Some(1.0 / 3.0));
    // Where weights are was not recorded.
    assert_eq!(part(&[]), None);
}

#[test]
fn an_adapter_adds_four_operators_to_a_product() {
    let with = |suffixes: [&str; 2]| {
        let mut made = Made::default();
        let input = made.op("ADD", &[]);
        let base = made.weight("blk.0.attn_q.weight", "q4_0");
        let [a, b] = suffixes.map(|s| made.weight(&format!("blk.0.attn_q.weight{s}"), "f32"));
        let own = made.op("MUL_MAT", &[base, input]);
        let low = made.op("MUL_MAT", &[a, input]);
        let high = made.op("MUL_MAT", &[b, low]);
        let scaled = made.op("SCALE", &[high]);
        let sum = made.op("ADD", &[own, scaled]);
        // The residual is the model's own.
        let residual = made.op("ADD", &[sum, input]);
        made.facts(&[own, low, high, scaled, sum, residual], &[(0, 5)]).adapter
    };
    let found = with([".lora_a", ".lora_b"]).expect("an adapter");
    assert_eq!(found, AdapterWork { ops: 4.0, all_ops: 6.0, ns: 8000.0 });
    assert_eq!(with(["_a", "_b"]), None);
}

#[test]
fn attention_reads_the_cells_of_its_cache() {
    let of = |fused: bool, batch: &[(u8, u8)]| {
        let mut made = Made::default();
        let keys = made.tensor("NONE", "cache_k_l0", ("f32", [64, 1024, 8, 1]), &[]);
        let values = made.tensor("NONE", "cache_v_l0", ("f32", [1024, 64, 8, 1]), &[]);
        let query = made.op("ADD", &[]);
        let hits = match fused {
            true => vec![query, made.op("FLASH_ATTN_EXT", &[query, keys, values])],
            false => {
                let product = made.op("MUL_MAT", &[keys, query]);
                let soft = made.op("SOFT_MAX", &[product]);
                vec![query, product, soft, made.op("MUL_MAT", &[values, soft])]
            }
        };
        made.facts(&hits, batch).attention.expect("attention")
    };
    let one = of(true, &[(0, 60)]);
    let alone = Some((1024.0, 61.0));
    assert_eq!(one, AttentionWork { fused: true, ns: 2000.0, cells: 1024.0, alone });
    assert_eq!(of(false, &[(0, 60)]), AttentionWork { fused: false, ns: 6000.0, cells: 1024.0, alone });
    // Two sequences share the cells.
    assert_eq!(of(true, &[(0, 60), (1, 60)]).alone, None);
}
