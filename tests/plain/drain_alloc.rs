//! The drain of a warm engine allocates nothing per event: tokens, splits, graphs of two threads, repeated plans,
//! tensors sent again because they changed. Needs no root: the events are synthetic, with the layout of the fake
//! engine.

use crate::common;
use crate::common::allocator::allocations;

use std::io::{Sink, Write};

use agent::capture::event::{self, Call, Counted, Experts, Head, KIND_NAMES, Nodes, OffCpuEvent, Op, Tensor};
use agent::capture::structure::Reading;
use agent::recorder::drain::Drain;
use engine::discover::{self, DiscoveredEngine};
use pfi::{Encoder, EncoderConfig};

const PID: u32 = 1 << 30;
const NODES: u64 = 90;
const TENSORS: u64 = 0x10_0000;
const CGRAPH: u64 = 0x20_0000;
const POOL: u64 = 0x30_0000;

/// Sends events as the BPF programs would.
struct Fake {
    drain: Drain<Sink>,
    engine: DiscoveredEngine,
    now: u64,
    events: u64,
    /// Ops carry counts; start of each thread's current op.
    counted: bool,
    since: [u64; 2],
}

fn bytes<T: Copy>(event: &T) -> &[u8] {
    // SAFETY: the events are plain structs of integers without padding, and the borrow keeps them alive.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(event).cast(), size_of::<T>()) }
}

fn address(node: u64) -> u64 {
    TENSORS + 336 * node
}

impl Fake {
    fn head(&mut self, kind: &str, thread: u32) -> Head {
        self.now += 700;
        self.events += 1;
        let kind = KIND_NAMES.iter().position(|k| *k == kind).expect("a kind of event") as u16;
        Head { ts: self.now, tgid: PID, tid: PID + thread, kind, engine: 0, ith: thread as u16, flags: 0 }
    }

    fn call(&mut self, kind: &str, object: u64, graph: u64, n: i32) {
        let h = self.head(kind, 0);
        let guid = *b"0123456789abcdef";
        let e = Call {
            h,
            a: object,
            b: graph,
            n,
            threads: 2,
            width: 1,
            nodes_changed: 0,
            kernels: 0,
            launches: 0,
            guid,
        };
        self.drain.event(bytes(&e));
    }

    fn op(&mut self, thread: u32, node: u64, fused: bool) {
        let mut h = self.head("op", thread);
        // It moves once in each graph.
        h.flags = event::cpu_flags(Some((2 * thread) as u16 + u16::from(node > NODES / 2)));
        let tensor2 = if fused { address(node + 1) } else { 0 };
        let mut op = Op { h, tensor: address(node), tensor2, pool: POOL, prev_end: h.ts - 300 };
        if !self.counted {
            return self.drain.event(bytes(&op));
        }
        op.h.flags |= event::FLAG_COUNTED;
        let since = std::mem::replace(&mut self.since[thread as usize], h.ts);
        self.drain.event(bytes(&Counted { op, since, known: 3, scaled: 0, count: [node; 8] }));
    }

    /// A tensor with two sources; `width` is one of its dims.
    fn tensor(&mut self, node: u64, width: u64) {
        let l = &self.engine.layout;
        let mut e = Tensor { h: Head::default(), addr: address(node), raw: [0; 448] };
        let mut put = |at: u32, v: u64, n: usize| {
            e.raw[at as usize..at as usize + n].copy_from_slice(&v.to_le_bytes()[..n]);
        };
        put(l.op_off, 2 + node % 20, 4);
        for i in 0..4 {
            put(l.ne_off + 8 * i, if i == 1 { width } else { 8 }, 8);
            put(l.nb_off + 8 * i, 4 << (3 * i), 8);
        }
        if let Some(at) = l.flags_off {
            put(at, 16, 4);
        }
        if node > 1 {
            put(l.src_off, address(node - 1), 8);
            put(l.src_off + 8, address(node / 2), 8);
        }
        let mut name = &mut e.raw[l.name_off as usize..];
        write!(name, "blk.{}.node_{node}", node / 10).expect("room for the name");
        e.h = self.head("tensor", 0);
        self.drain.event(bytes(&e));
    }

    fn nodes(&mut self) {
        for first in (0..NODES).step_by(48) {
            let h = self.head("nodes", 0);
            let (first, total) = (first as u32, NODES as u32);
            let mut e = Nodes { h, cgraph: CGRAPH, first, total, node: [0; 48], info: [0; 48] };
            for (i, (at, info)) in e.node.iter_mut().zip(&mut e.info).enumerate() {
                let node = u64::from(first) + i as u64;
                *at = address(node);
                *info = event::NODE_COMPUTE | (2 + node % 20) as u32;
            }
            self.drain.event(bytes(&e));
        }
    }

    /// The ids of 32 tokens with four experts each, in two pieces.
    fn experts(&mut self, node: u64) {
        for first in [0, 16] {
            let (h, ids, weights) = (self.head("experts", 0), address(node), address(node + 1));
            let mut e =
                Experts { h, ids, weights, used: 4, tokens: 32, first, rows: 16, ..Default::default() };
            e.id.iter_mut().zip(first as i32..).for_each(|(id, i)| *id = i);
            self.drain.event(bytes(&e));
        }
    }

    /// One CPU graph, with some of its op hits lost.
    fn lossy_graph(&mut self, cgraph: u64, lost: impl Fn(u64) -> bool) {
        self.call("graph-enter", cgraph, 1, NODES as i32);
        for node in (0..NODES).filter(|n| !lost(*n)) {
            self.op(0, node, false);
            self.op(1, node, false);
        }
        self.call("graph-exit", self.now, 0, 0);
        self.drain.enc.tick(self.now).expect("nothing can fail");
    }

    /// A worker was off-CPU, displaced by one of a few other tasks.
    fn offcpu(&mut self, n: u64) {
        let h = self.head("offcpu", 1);
        let out = h.ts - 500;
        let by_comm = *b"somebody else\0\0\0";
        let e = OffCpuEvent {
            h,
            out,
            woken: out + 100,
            by: 7 + (n % 5) as u32,
            state: 1,
            by_comm,
            ..Default::default()
        };
        self.drain.event(bytes(&e));
    }

    /// One token from entry to return; with `change`, some tensors are new.
    fn token(&mut self, n: u64, change: bool) {
        self.call("token-enter", 1, 1, 1);
        self.call("sched-enter", 2, CGRAPH, NODES as i32);
        self.call("split-enter", 3, CGRAPH, NODES as i32);
        if change {
            self.nodes();
        }
        self.call("graph-enter", CGRAPH, n, NODES as i32);
        let mut node = 0;
        while node < NODES {
            let fused = node % 30 == 4;
            if change && node % 3 == 0 {
                self.tensor(node, 1 + n);
            }
            if node % 9 == 0 {
                self.experts(node);
                self.offcpu(node);
            }
            self.op(0, node, fused);
            self.op(1, node, fused);
            node += if fused { 2 } else { 1 };
        }
        let h = self.head("thread-end", 1);
        let e = Op { h, tensor: address(NODES - 1), tensor2: 0, pool: POOL, prev_end: 0 };
        self.drain.event(bytes(&e));
        self.call("graph-exit", self.now, 0, 0);
        self.call("split-exit", 0, 0, 0);
        self.call("sched-exit", 0, 0, 0);
        self.call("token-exit", 0, 0, 0);
        self.drain.enc.tick(self.now).expect("nothing can fail");
    }
}

/// A drain that knows the tensors of one graph.
fn fake() -> Option<Fake> {
    let dir = common::fixture_dir("modern")?;
    let engine = discover::of_path(&dir.join("fakellama")).expect("an engine").remove(0);
    let config = EncoderConfig { block_bytes: 32 << 10, max_tensors: 2048, ..EncoderConfig::default() };
    let enc = Encoder::new(std::io::sink(), config, &common::made::header()).expect("a sink takes all");
    let mut drain = Drain::new(enc);
    drain.add_engine(Reading::new(0, engine.layout.clone(), &engine.tables));
    let mut fake = Fake { drain, engine, now: 1_000_000, events: 0, counted: false, since: [0; 2] };
    for node in 0..NODES {
        fake.tensor(node, 1);
    }
    Some(fake)
}

/// Each loss changes the order of ops and so makes another plan; the encoder drops plans that were not used
/// recently.
#[test]
fn losses_without_end_do_not_end_the_recording() {
    let Some(mut fake) = fake() else { common::skip!("no gcc for the fixture") };
    fake.lossy_graph(CGRAPH, |_| false);
    for i in 0..600 {
        fake.lossy_graph(CGRAPH + 4096, |node| node == i % NODES || node == i / NODES + 2 * (i % 40));
    }
    fake.lossy_graph(CGRAPH, |_| false);
    assert!(fake.drain.take_error().is_none());
    assert_eq!((fake.drain.shown[0].graphs, fake.drain.orphans()), (602, 0));
}

#[test]
fn a_warm_engine_costs_no_allocation() {
    let Some(dir) = common::fixture_dir("modern") else { common::skip!("no gcc for the fixture") };
    let engine = discover::of_path(&dir.join("fakellama")).expect("an engine").remove(0);
    // Small tables are full after the warm-up: new entries then replace old ones.
    let config =
        EncoderConfig { block_bytes: 32 << 10, max_tensors: 512, max_plans: 4, ..EncoderConfig::default() };
    let enc = Encoder::new(std::io::sink(), config, &common::made::header()).expect("a sink takes all");
    let mut drain = Drain::new(enc);
    drain.add_engine(Reading::new(0, engine.layout.clone(), &engine.tables));
    drain.count(2);
    let mut fake = Fake { drain, engine, now: 1_000_000, events: 0, counted: true, since: [0; 2] };
    for node in 0..NODES {
        fake.tensor(node, 1);
    }
    for n in 0..300 {
        fake.token(n, n % 4 == 0);
    }
    let (before, events) = (allocations(), fake.events);
    assert!(before > 0, "the counter counts");
    for n in 300..600 {
        fake.token(n, false);
    }
    assert_eq!(allocations(), before, "allocations over {} events", fake.events - events);
    for n in 600..740 {
        fake.token(n, true);
    }
    assert_eq!(allocations(), before, "allocations over graphs whose tensors change");
    assert!(fake.events > events + 80_000);
    // The run did real work: everything arrived, was assigned, and was written.
    assert_eq!(fake.drain.totals.malformed, 0);
    assert_eq!(fake.drain.totals.events, fake.events);
    assert_eq!((fake.drain.orphans(), fake.drain.dropped_tensors()), (0, 0));
    assert_eq!(fake.drain.totals.calls, 740);
    let shown = fake.drain.shown[0];
    assert_eq!((shown.graphs, shown.ops), (740, 740 * 2 * 87));
    assert_eq!((shown.unknown, shown.expected, shown.seen), (0, shown.ops, shown.ops));
    assert!(fake.drain.enc.stats().blocks > 10, "blocks were sealed meanwhile");
    assert!(fake.drain.take_error().is_none());
}
