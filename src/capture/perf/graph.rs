//! What is known about the target's graphs and tensors without BPF. At a hit the kernel fetches op, type, dims and
//! name. Sources, strides and the node list are read from memory (`snapshot`), and are used only if the graph that
//! was read was still the one that was entered.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::fields::{FetchArg, SamplePositions};
use super::sample::EventOut;
use super::snapshot::{GraphEntry, Snapshot};
use crate::capture::event::{self, Head, NODE_COMPUTE, NODE_EMPTY, NODE_OP, NODE_UNREAD, Nodes, Tensor};
use crate::capture::skel::types::ev_kind;
use crate::capture::structure::Reading;
use engine::layout::TENSOR_RAW;

/// Maximum number of tensors remembered. When it is reached, all are forgotten and sent again.
const MAX_KNOWN: usize = 32768;
/// Maximum number of graphs remembered, likewise.
const MAX_GRAPHS: usize = 1024;
/// GGML_TENSOR_FLAG_COMPUTE (ggml.h, since 2026-01).
const COMPUTE: u64 = 16;
/// GGML_MAX_SRC (ggml.h).
const MAX_SRC: u32 = 10;
/// Placeholder for unknown sources: no tensor has this address.
const NOWHERE: u64 = 1;
/// Nodes in one event, `NODES_CHUNK` of src/bpf/event.h.
const CHUNK: usize = 48;

/// What was last sent about the tensor at an address.
#[derive(Debug, Clone, Copy, Default)]
struct SentTensor {
    /// Hash of what a hit shows.
    own: u64,
    /// Hash of everything that memory shows; 0: only a hit was seen.
    whole: u64,
}

/// What was last sent about the graph at an address.
#[derive(Debug, Clone, Copy, Default)]
struct SentGraph {
    uid: u64,
    /// Hash of its nodes; 0: unknown.
    nodes: u64,
}

/// A graph that a thread is in.
#[derive(Default)]
struct ThreadGraph {
    entered: u64,
    cgraph: u64,
    /// It is the graph that was read, according to its uid.
    trusted: bool,
    /// Otherwise: those of its tensors whose sources were sent for an earlier graph, as the hits show them.
    doubted: Vec<(u64, [u8; TENSOR_RAW])>,
}

/// The state of all graphs and tensors.
#[derive(Default)]
pub struct PerfGraphs {
    readings: Vec<Reading>,
    known: HashMap<(u32, u64), SentTensor>,
    told: HashMap<(u32, u64), SentGraph>,
    /// What was read of graphs that have not ended yet: reading runs ahead of the events, which are processed in order.
    held: Vec<Snapshot>,
    /// By thread.
    open: HashMap<u32, ThreadGraph>,
    /// Graphs that were read too late, and those read in time.
    pub late: u64,
    pub in_time: u64,
    /// Tensors that could not be read.
    pub unread: u64,
}

fn hash(of: impl Hash) -> u64 {
    let mut hash = DefaultHasher::new();
    of.hash(&mut hash);
    hash.finish() | 1
}

/// What a hit shows of a tensor: op with its first parameter, type, dims, name. Less than a
/// [`TargetTensor`](crate::capture::structure::TargetTensor): a probe's arguments cannot follow all pointers.
struct HitTensor<'a> {
    op: u32,
    param: u32,
    ty: u32,
    ne: [u64; 4],
    name: &'a [u8],
}

impl<'a> HitTensor<'a> {
    fn of_hit(
        places: &SamplePositions,
        raw: &'a [u8],
        [op, ty, ne, name]: [FetchArg; 4],
    ) -> Option<HitTensor<'a>> {
        let op = places.u64(raw, op)?;
        Some(HitTensor {
            op: op as u32,
            param: (op >> 32) as u32,
            ty: places.u32(raw, ty)?,
            ne: places.words(raw, ne)?,
            name: places.text(raw, name)?,
        })
    }

    fn of_memory(raw: &'a [u8], r: &Reading) -> HitTensor<'a> {
        let l = &r.layout;
        let name = raw.get(l.name_off as usize..).unwrap_or_default();
        HitTensor {
            op: event::word(raw, l.op_off) as u32,
            param: event::word(raw, l.op_params_off) as u32,
            ty: event::word(raw, l.type_off) as u32,
            ne: std::array::from_fn(|i| event::word(raw, l.ne_off + 8 * i as u32)),
            name: name.split(|&b| b == 0).next().unwrap_or_default(),
        }
    }

    /// Includes the parameter only if it is the op's kind.
    fn hash(&self, r: &Reading) -> u64 {
        let param = if self.op == r.unary || self.op == r.glu { self.param } else { 0 };
        hash((self.op, param, self.ty, self.ne, self.name))
    }

    /// As a tensor struct, with unknown sources.
    fn raw(&self, r: &Reading) -> [u8; TENSOR_RAW] {
        let (l, mut raw) = (&r.layout, [0; TENSOR_RAW]);
        let mut put = |off: u32, bytes: &[u8]| {
            let off = off as usize;
            if let Some(room) = raw.get_mut(off..off + bytes.len()) {
                room.copy_from_slice(bytes);
            }
        };
        put(l.type_off, &self.ty.to_ne_bytes());
        put(l.op_off, &self.op.to_ne_bytes());
        put(l.op_params_off, &self.param.to_ne_bytes());
        for (i, (ne, nb)) in self.ne.iter().zip(r.strides(self.ty, &self.ne)).enumerate() {
            put(l.ne_off + 8 * i as u32, &ne.to_ne_bytes());
            put(l.nb_off + 8 * i as u32, &nb.to_ne_bytes());
        }
        put(l.src_off, &NOWHERE.to_ne_bytes());
        let room = (l.name_len as usize).saturating_sub(1);
        put(l.name_off, &self.name[..self.name.len().min(room)]);
        raw
    }
}

impl PerfGraphs {
    /// Adds an engine; its number is its index.
    pub fn add_engine(&mut self, reading: &Reading) {
        self.readings.push(reading.clone());
    }

    pub fn reading(&self, engine: u16) -> Option<&Reading> {
        self.readings.get(usize::from(engine))
    }

    pub fn forget(&mut self, tgid: u32) {
        self.known.retain(|k, _| k.0 != tgid);
        self.told.retain(|k, _| k.0 != tgid);
        self.held.retain(|s| s.entry.tgid != tgid);
    }

    pub fn leave(&mut self, tid: u32) {
        self.open.remove(&tid);
    }

    /// Whether the graph of an entry is worth reading. If its uid is the one last read, the graph is unchanged.
    pub fn wanted(&self, e: &GraphEntry) -> bool {
        let told = self.told.get(&(e.tgid, e.cgraph));
        e.uid == 0 || told.is_none_or(|t| t.uid != e.uid || t.nodes == 0)
    }

    /// Keeps what was read until the graph ends.
    pub fn hold(&mut self, s: Snapshot) {
        if self.held.len() >= MAX_GRAPHS {
            self.held.clear();
        }
        self.held.push(s);
    }

    /// A thread enters a graph.
    pub fn begin(&mut self, h: &Head, cgraph: u64, uid: u64) {
        let told = self.told.get(&(h.tgid, cgraph));
        let same = |s: &Snapshot| s.entry.tid == h.tid && s.entry.at == h.ts && s.same_uid;
        let trusted =
            uid != 0 && told.is_some_and(|t| t.uid == uid && t.nodes != 0) || self.held.iter().any(same);
        self.open.insert(h.tid, ThreadGraph { entered: h.ts, cgraph, trusted, doubted: Vec::new() });
    }

    /// A hit of thread 0 shows a tensor. Sends the tensor if it differs from the known one.
    pub fn hit(
        &mut self,
        h: &Head,
        at: u64,
        places: &SamplePositions,
        raw: &[u8],
        fields: [FetchArg; 4],
        out: &mut EventOut,
    ) {
        let Some(r) = self.readings.get(usize::from(h.engine)) else { return };
        let Some(own) = HitTensor::of_hit(places, raw, fields) else { return };
        let now = SentTensor { own: own.hash(r), whole: 0 };
        match self.known.get(&(h.tgid, at)) {
            Some(k) if k.own == now.own => {
                let doubtful = |o: &&mut ThreadGraph| !o.trusted && k.whole != 0;
                if let Some(open) = self.open.get_mut(&h.tid).filter(doubtful) {
                    open.doubted.push((at, own.raw(r)));
                }
            }
            _ => {
                tell(h, at, &own.raw(r), out);
                self.keep(h.tgid, at, now);
            }
        }
    }

    fn keep(&mut self, tgid: u32, at: u64, known: SentTensor) {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert((tgid, at), known);
    }

    /// A thread leaves its graph at `h.ts`. The reading is valid if it was finished before that, or if the graph's uid
    /// did not change; then it is sent. Otherwise what was sent for an earlier graph does not apply to this one.
    pub fn end(&mut self, h: &Head, out: &mut EventOut) {
        let Some(open) = self.open.remove(&h.tid) else { return };
        let found = self.held.iter().position(|s| s.entry.tid == h.tid && s.entry.at == open.entered);
        let snapshot = found.map(|i| self.held.swap_remove(i));
        // The ends of earlier graphs were not seen.
        self.held.retain(|s| s.entry.tid != h.tid || s.entry.at > open.entered);
        match snapshot {
            Some(s) if s.same_uid || s.until < h.ts => self.learn(h, &s, out),
            None if open.trusted => {}
            _ => self.doubt(h, open, out),
        }
    }

    fn doubt(&mut self, h: &Head, open: ThreadGraph, out: &mut EventOut) {
        self.late += 1;
        if self.told.insert((h.tgid, open.cgraph), SentGraph::default()).is_some_and(|t| t.nodes != 0) {
            unknown_nodes(h, open.cgraph, out);
        }
        for (at, raw) in open.doubted {
            if let Some(k) = self.known.get_mut(&(h.tgid, at)).filter(|k| k.whole != 0) {
                k.whole = 0;
                tell(h, at, &raw, out);
            }
        }
    }

    fn learn(&mut self, h: &Head, s: &Snapshot, out: &mut EventOut) {
        self.in_time += 1;
        self.unread += s.unread;
        let Some(r) = self.readings.get(usize::from(h.engine)) else { return };
        let info: Vec<u32> = s.nodes.iter().map(|&at| node_info(s.tensor(at), r)).collect();
        let nodes = hash((&s.nodes, &info));
        if self.told.len() >= MAX_GRAPHS {
            self.told.clear();
        }
        let old = self.told.insert((h.tgid, s.entry.cgraph), SentGraph { uid: s.entry.uid, nodes });
        if old.is_none_or(|t| t.nodes != nodes) {
            tell_nodes(h, s, &info, out);
        }
        let mut fresh = Vec::new();
        for (at, raw) in s.tensors() {
            let now = SentTensor { own: HitTensor::of_memory(raw, r).hash(r), whole: whole(raw, r) };
            if self.known.get(&(h.tgid, at)).is_none_or(|k| k.whole != now.whole) {
                tell(h, at, raw, out);
                fresh.push((at, now));
            }
        }
        fresh.into_iter().for_each(|(at, now)| self.keep(h.tgid, at, now));
    }
}

/// Hash of everything in a tensor that its description contains.
fn whole(raw: &[u8], r: &Reading) -> u64 {
    let l = &r.layout;
    let words = |off: u32, n: u32| (0..n).map(move |i| event::word(raw, off + 8 * i));
    let rest: Vec<u64> = words(l.nb_off, 4).chain(words(l.src_off, l.n_src.min(MAX_SRC))).collect();
    hash((HitTensor::of_memory(raw, r).hash(r), event::word(raw, l.view_src_off), rest))
}

/// The data that decide whether a node runs.
fn node_info(raw: Option<&[u8]>, r: &Reading) -> u32 {
    let Some(raw) = raw else { return NODE_UNREAD };
    let own = HitTensor::of_memory(raw, r);
    let mut info = own.op & NODE_OP;
    if own.ne.contains(&0) {
        info |= NODE_EMPTY;
    }
    if r.layout.flags_off.is_some_and(|off| event::word(raw, off) & COMPUTE != 0) {
        info |= NODE_COMPUTE;
    }
    info
}

fn tell(h: &Head, addr: u64, raw: &[u8], out: &mut EventOut) {
    let kind = ev_kind::EV_TENSOR;
    let mut e = Tensor { h: Head { kind: kind.0 as u16, ..*h }, addr, raw: [0; TENSOR_RAW] };
    let len = raw.len().min(TENSOR_RAW);
    e.raw[..len].copy_from_slice(&raw[..len]);
    out.send(kind, &e);
}

fn tell_nodes(h: &Head, s: &Snapshot, info: &[u32], out: &mut EventOut) {
    let kind = ev_kind::EV_NODES;
    for (i, (nodes, info)) in s.nodes.chunks(CHUNK).zip(info.chunks(CHUNK)).enumerate() {
        let mut e = Nodes {
            h: Head { kind: kind.0 as u16, ..*h },
            cgraph: s.entry.cgraph,
            first: (i * CHUNK) as u32,
            total: s.entry.n_nodes,
            ..Default::default()
        };
        e.node[..nodes.len()].copy_from_slice(nodes);
        e.info[..info.len()].copy_from_slice(info);
        out.send(kind, &e);
    }
}

/// A list that starts and never ends, and so is not used.
fn unknown_nodes(h: &Head, cgraph: u64, out: &mut EventOut) {
    let kind = ev_kind::EV_NODES;
    let h = Head { kind: kind.0 as u16, ..*h };
    out.send(kind, &Nodes { h, cgraph, first: 0, total: u32::MAX, ..Default::default() });
}
