//! Records read from a trace equal the records written.

use crate::trace_support;

use std::collections::HashMap;

use pfi::record::*;
use pfi::*;
use proptest::prelude::*;
use trace_support::*;

fn encoder() -> Encoder<Vec<u8>> {
    Encoder::new(Vec::new(), EncoderConfig::default(), &header()).unwrap()
}

fn each(trace: &Trace, mut f: impl FnMut(u32, Record)) {
    for i in 0..trace.blocks().len() {
        let block = trace.block(i).unwrap();
        block.records().for_each(|r| f(block.seq(), r.unwrap()));
    }
}

#[test]
fn every_kind_of_record_comes_back() {
    let trace = Trace::from_bytes(small_file()).unwrap();
    assert!(trace.blocks().len() >= 4 && trace.verify().is_empty(), "{:?}", trace.verify());
    assert!(!trace.is_newer_minor());
    let mut seen = HashMap::<String, Vec<String>>::new();
    each(&trace, |_, r| {
        let text = format!("{r:?}");
        let kind = text.split('(').next().unwrap_or_default().to_owned();
        seen.entry(kind).or_default().push(text);
    });
    assert_eq!(seen.len(), KIND_NAMES.len());
    let all: Vec<String> = seen.into_values().flatten().collect();
    let has =
        |r: Record, n: usize| assert_eq!(all.iter().filter(|s| **s == format!("{r:?}")).count(), n, "{r:?}");
    has(Record::Header(header()), 2);
    has(Record::Footer(footer()), 1);
    has(Record::Engine(Engine { id: 0, version: "b6000", layout: "op@80 ne@16 nb@48" }), 2);
    has(Record::Notice(Notice { t: 5_900_000_000, text: "a probe left" }), 1);
    has(Record::OpDef(OpDef { id: 6, name: "UNARY", desc: "SILU" }), 5);
    let rung = |seen, why| {
        let (role, name) = ("op", "ggml_compute_forward");
        Record::Rung(RungRecord { engine: 0, role, name, used: true, expected: Some(seen), seen, why })
    };
    has(rung(146, "first"), 1);
    has(rung(152, "at the end"), 2);
    let token_has = |seq, text| {
        let start = format!("Token(Token {{ seq: {seq},");
        assert!(all.iter().any(|s| s.starts_with(&start) && s.contains(text)), "{text}");
    };
    token_has(0, "t: 5000000000,");
    token_has(1, "n_tokens: None,");
}

#[test]
fn the_last_block_says_what_was_measured_after_the_beginning() {
    let mut enc = encoder();
    enc.hit_cost(321).unwrap();
    let trace = Trace::from_bytes(enc.finish(&footer()).unwrap()).unwrap();
    let mut seen = Vec::new();
    each(&trace, |_, r| {
        if let Record::Header(h) = r {
            seen.push((h.hit_ns, Header { hit_ns: 0, ..h } == Header { hit_ns: 0, ..header() }));
        }
    });
    assert_eq!(seen, [(header().hit_ns, true), (321, true)]);
}

/// Thread, start and CPU of every slice of a block, from nothing but that block.
fn cpus_of(block: &Block) -> Vec<(u32, i64, Option<u16>)> {
    let (mut changes, mut out) = (HashMap::<u32, Vec<_>>::new(), Vec::new());
    block.records().map(Result::unwrap).for_each(|r| {
        if let Record::OpCpus(r) = r {
            changes.entry(r.tid).or_default().extend(cpu_changes(&r));
        }
    });
    for r in block.records().map(Result::unwrap) {
        let Record::Slices(s) = r else { continue };
        for slice in slice_iter(&s) {
            let mut of = changes.get(&s.tid).into_iter().flatten();
            out.push((s.tid, slice.start, of.rfind(|c| c.0 <= slice.start).and_then(|c| c.1)));
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn each_block_knows_the_cpus_of_its_slices(
        runs in prop::collection::vec((0..3u32, prop::collection::vec(prop::option::weighted(0.8, 0..4u16), 1..40)), 1..200),
        barrier: bool,
    ) {
        let mut e =
            Encoder::new(Vec::new(), EncoderConfig { block_bytes: 4096, ..EncoderConfig::default() }, &header()).unwrap();
        let tensor = e.tensor(&TensorDesc { known: false, ..desc(1, "", 0, [1; 4], &[]) }).unwrap();
        let plan = e.plan(PID, 1, &[PlanHit { tensor, fused: None }; 64]).unwrap();
        let (mut now, mut expected) = (header().mono_ns, Vec::new());
        for (tid, cpus) in &runs {
            let slices: Vec<Slice> = cpus.iter().enumerate().map(|(i, _)| Slice {
                start: now + i as u64 * 1000, end: barrier.then_some(now + i as u64 * 1000 + 7),
            }).collect();
            now += cpus.len() as u64 * 1000 + 5000;
            let run = SliceRun { graph: 0, ith: *tid as u16, tid: *tid, plan, first: 0, barrier };
            e.slices(&run, &slices).unwrap();
            let starts = slices.iter().map(|s| s.start);
            e.op_cpus(*tid, starts.zip(cpus.iter().copied())).unwrap();
            expected.extend(slices.iter().zip(cpus).map(|(s, cpu)| (*tid, s.start as i64, *cpu)));
        }
        let trace = Trace::from_bytes(e.finish(&footer()).unwrap()).unwrap();
        prop_assert!(trace.verify().is_empty());
        let blocks = (0..trace.blocks().len()).map(|i| cpus_of(&trace.block(i).unwrap()));
        prop_assert_eq!(blocks.flatten().collect::<Vec<_>>(), expected);
    }
}

/// A thread that stays on its CPU costs one record a block; where no CPU is known there is none.
#[test]
fn cpus_cost_nothing_while_they_stay() {
    let written = |cpu: fn(u64) -> Option<u16>| {
        let mut e = encoder();
        let tensor = e.tensor(&TensorDesc { known: false, ..desc(1, "", 0, [1; 4], &[]) }).unwrap();
        let plan = e.plan(PID, 1, &[PlanHit { tensor, fused: None }; 64]).unwrap();
        for i in 0..20 {
            let start = header().mono_ns + i * 1000;
            let run = SliceRun { graph: i, ith: 0, tid: 7, plan, first: 0, barrier: false };
            e.slices(&run, &[Slice { start, end: Some(start + 1) }]).unwrap();
            e.op_cpus(7, [(start, cpu(i))]).unwrap();
        }
        let (trace, mut changes) = (Trace::from_bytes(e.finish(&footer()).unwrap()).unwrap(), Vec::new());
        each(&trace, |_, r| {
            if let Record::OpCpus(r) = r {
                changes.extend(cpu_changes(&r).map(|c| c.1));
            }
        });
        changes
    };
    assert_eq!(written(|_| None), []);
    assert_eq!(written(|_| Some(3)), [Some(3)]);
    assert_eq!(written(|i| (i < 10).then_some(3)), [Some(3), None]);
    assert_eq!(written(|i| Some(i as u16 / 10)), [Some(0), Some(1)]);
}

#[test]
fn every_block_defines_what_it_refers_to() {
    let trace = Trace::from_bytes(small_file()).unwrap();
    for i in 0..trace.blocks().len() {
        let mut known = std::collections::HashSet::new();
        for r in trace.block(i).unwrap().records().map(Result::unwrap) {
            match r {
                Record::Process(p) => assert!(known.insert(("process", p.pid)) || i == 0),
                Record::OpDef(d) => assert!(known.insert(("op", d.id.into()))),
                Record::TypeDef(d) => assert!(known.insert(("type", d.id.into()))),
                Record::Backend(b) => assert!(known.insert(("backend", b.id))),
                Record::Plan(p) => {
                    assert!(known.contains(&("process", p.pid)));
                    assert!(plan_hits(&p).all(|h| known.contains(&("tensor", h.tensor))));
                    assert!(known.insert(("plan", p.id)));
                }
                Record::Tensor(TensorRecord { id, tensor: t }) => {
                    assert!(known.contains(&("op", t.op.into())) && known.contains(&("type", t.ty.into())));
                    assert!(
                        t.src.iter().flatten().all(|s| known.contains(&("tensor", *s))),
                        "sources come first"
                    );
                    assert!(known.insert(("tensor", id)));
                }
                Record::CpuGraph(g) => assert!(known.contains(&("plan", g.plan.unwrap()))),
                Record::Slices(s) => assert!(known.contains(&("plan", s.plan))),
                Record::Split(s) => {
                    assert!(known.contains(&("backend", s.backend)));
                    assert!(s.plan.is_none_or(|plan| known.contains(&("plan", plan))));
                }
                Record::Enqueued(e) => assert!(known.contains(&("plan", e.plan))),
                _ => {}
            }
        }
    }
}

#[test]
fn tensors_keep_all_their_fields_and_are_interned_by_content() {
    let mut e = encoder();
    setup(&mut e);
    let far = TensorDesc { known: false, ..desc(u64::MAX, "ignored", 3, [9; 4], &[Some(1)]) };
    let a = e.tensor(&far).unwrap();
    assert_eq!(e.tensor(&TensorDesc { name: b"", ..far }).unwrap(), a);
    let long = "blk.0.naïve.".to_owned() + &"x".repeat(300);
    let base = desc(16, &long, 1, [4096, 1, 7, 1], &[None, Some(0), None]);
    let full = TensorDesc { flags: 5, nb: Some([4, 0, u64::MAX, 1]), view_src: Some(a), ..base };
    let b = e.tensor(&full).unwrap();
    let c = e.tensor(&desc(32, "blk.0.naive", 2, [1; 4], &[Some(b), Some(77)])).unwrap();
    assert_eq!([e.tensor(&full).unwrap(), b, c], [b, 1, 2]);
    assert_ne!(e.tensor(&TensorDesc { flags: 6, ..full }).unwrap(), b);
    let hits = [PlanHit { tensor: c, fused: Some(a) }, PlanHit { tensor: 0, fused: None }];
    let plan = e.plan(PID, 3, &hits).unwrap();
    assert_eq!((e.plan(PID, 3, &hits).unwrap(), e.plan(PID, 4, &hits).unwrap()), (plan, plan + 1));
    e.cpu_graph(&cpu_graph(0, plan, 1, 2)).unwrap();
    let trace = Trace::from_bytes(e.finish(&footer()).unwrap()).unwrap();
    let mut seen = Vec::new();
    each(&trace, |_, r| match r {
        Record::Tensor(t) => {
            seen.push((t.id, t.tensor));
        }
        Record::Plan(p) => {
            assert_eq!((plan_hits(&p).collect::<Vec<_>>(), p.n_nodes, p.id), (hits.to_vec(), 3, plan))
        }
        _ => {}
    });
    let tensor = |addr, name: &str, src: &[Option<u32>]| Tensor {
        pid: PID,
        addr,
        known: true,
        op: 1,
        ty: 0,
        flags: 0,
        name: name.into(),
        ne: [1; 4],
        nb: None,
        src: src.into(),
        view_src: None,
    };
    assert_eq!(seen[0], (a, Tensor { known: false, op: 0, ..tensor(u64::MAX, "", &[]) }));
    let ne = [4096, 1, 7, 1];
    let strided = Tensor { flags: 5, ne, nb: full.nb, ..tensor(16, &long[..255], &[None, Some(0)]) };
    assert_eq!(seen[1], (b, Tensor { view_src: Some(a), ..strided }));
    assert_eq!(seen[2], (c, Tensor { op: 2, ..tensor(32, "blk.0.naive", &[Some(b), Some(77)]) }));
    assert_eq!(seen.len(), 3, "what is not used is not written");
}

#[test]
fn tensors_of_every_likeness_come_back() {
    let mut e = encoder();
    setup(&mut e);
    let (plan, mut all) = odd_tensors(&mut e, 900);
    e.cpu_graph(&cpu_graph(0, plan, 1, 2)).unwrap();
    let trace = Trace::from_bytes(e.finish(&footer()).unwrap()).unwrap();
    let mut seen = Vec::new();
    each(&trace, |_, r| {
        if let Record::Tensor(t) = r {
            seen.push(t)
        }
    });
    seen.sort_by_key(|t| t.id);
    all.sort_by_key(|t| t.id);
    all.dedup_by_key(|t| t.id);
    assert_eq!(seen.len(), all.len());
    seen.iter().zip(&all).for_each(|(s, t)| assert_eq!(s, t));
}

fn run(barrier: bool, plan: u32) -> SliceRun {
    SliceRun { graph: 3, ith: 1, tid: 9, plan, first: 2, barrier }
}

fn round_trip(barrier: bool, slices: &[Slice]) -> Vec<SliceTime> {
    let mut e = encoder();
    let plan = e.plan(PID, 0, &[]).unwrap();
    e.slices(&run(barrier, plan), slices).unwrap();
    let trace = Trace::from_bytes(e.finish(&footer()).unwrap()).unwrap();
    let (mut out, mut at) = (Vec::new(), 2);
    each(&trace, |_, r| {
        if let Record::Slices(s) = r {
            assert_eq!((s.graph, s.ith, s.tid, s.first, s.barrier), (3, 1, 9, at, barrier));
            at += s.n;
            out.extend(slice_iter(&s));
        }
    });
    out
}

#[test]
fn long_runs_are_cut_and_stay_whole() {
    let all: Vec<Slice> = (0..10_000).map(|i| Slice { start: i * 100, end: Some(i * 100 + 60) }).collect();
    let back = round_trip(true, &all);
    assert!(back.iter().zip(&all).all(|(b, s)| b.start == s.start as i64 && b.busy == Some(60)));
    let open: Vec<Slice> = all.iter().map(|s| Slice { end: None, ..*s }).collect();
    let back = round_trip(false, &open);
    assert_eq!(back.len(), 10_000);
    assert!(back[..9999].iter().all(|b| b.next == Some(b.start + 100)), "over the cuts as well");
    assert_eq!(back[9999].next, None);
}

#[test]
fn times_that_run_backwards_are_clamped() {
    let s = |start, end| Slice { start, end };
    let back = round_trip(true, &[s(100, Some(500)), s(200, Some(150)), s(50, Some(u64::MAX))]);
    let times: Vec<_> = back.iter().map(|b| (b.start, b.busy)).collect();
    assert_eq!(times, [(100, Some(100)), (200, Some(0)), (200, Some(u64::MAX - 200))].map(|t| t));
    assert_eq!(round_trip(false, &[s(100, None), s(50, Some(20))])[1].next, None);
}

#[test]
fn a_plan_that_left_the_table_is_an_error_that_says_so() {
    let mut e =
        Encoder::new(Vec::new(), EncoderConfig { max_plans: 2, ..Default::default() }, &header()).unwrap();
    for n in 0..3 {
        e.plan(PID, n, &[]).unwrap();
    }
    assert!(matches!(
        e.slices(&run(true, 0), &[Slice { start: 0, end: None }]),
        Err(WriteError::UnknownPlan(0))
    ));
    assert!(e.slices(&run(true, 2), &[Slice { start: 0, end: None }]).is_ok());
    let many = vec![PlanHit { tensor: 0, fused: None }; 65_537];
    assert!(matches!(e.plan(PID, 0, &many), Err(WriteError::TooManyHits(65_537))));
}

#[test]
fn the_largest_plan_fits_one_block() {
    let cfg = EncoderConfig { max_tensors: 32_768, ..EncoderConfig::default() };
    let mut e = Encoder::new(Vec::new(), cfg, &header()).unwrap();
    let name = |i: u64| format!("{i:06}{}", "n".repeat(249));
    let src = [Some(u32::MAX - 1); 16];
    let tensor = |e: &mut Encoder<Vec<u8>>, i: u64| {
        let addr = (i & 1) << 63 | i;
        e.tensor(&TensorDesc { nb: Some([u64::MAX; 4]), ..desc(addr, &name(i), 1, [u64::MAX; 4], &src) })
            .unwrap()
    };
    let ids: Vec<u32> = (0..32_768).map(|i| tensor(&mut e, i)).collect();
    let hits: Vec<_> =
        (0..65_536).map(|i| PlanHit { tensor: ids[i * 7919 % 32_768], fused: Some(ids[i / 2]) }).collect();
    let plan = e.plan(PID, 65_536, &hits).unwrap();
    e.slices(&run(true, plan), &[Slice { start: 1, end: None }; 5000]).unwrap();
    let trace = Trace::from_bytes(e.finish(&footer()).unwrap()).unwrap();
    assert!(trace.verify().is_empty());
    each(&trace, |_, r| {
        if let Record::Plan(p) = r {
            assert!(plan_hits(&p).eq(hits.iter().copied()));
        }
    });
}

#[test]
fn tick_seals_a_block_only_where_it_cannot_grow() {
    let cfg = EncoderConfig { seal_ns: 5_000_000_000, ..EncoderConfig::default() };
    let mut e = Encoder::new(Pipe(Vec::new()), cfg, &header()).unwrap();
    e.token(&token(0, 1, 2)).unwrap();
    e.tick(1_000).unwrap();
    e.tick(5_000_000_999).unwrap();
    assert_eq!(e.stats().blocks, 0);
    e.tick(5_000_001_000).unwrap();
    assert_eq!(e.stats().blocks, 1);
    e.tick(50_000_000_000).unwrap();
    assert_eq!(e.stats().blocks, 1, "an empty block is not written");
}

fn times() -> impl Strategy<Value = u64> {
    prop_oneof![0..10u64, 0..5_000u64, 0..2_000_000u64, 0..1u64 << 40]
}

proptest! {
    #[test]
    fn barrier_slices_come_back(
        start in 0..1u64 << 60,
        steps in prop::collection::vec((any::<bool>(), times(), times()), 1..200),
    ) {
        let (mut t, mut slices) = (start, Vec::new());
        for (seen, busy, gap) in steps {
            slices.push(Slice { start: t, end: seen.then_some(t + busy) });
            t += busy + gap;
        }
        let back = round_trip(true, &slices);
        prop_assert_eq!(back.len(), slices.len());
        for (i, (b, s)) in back.iter().zip(&slices).enumerate() {
            prop_assert_eq!(b.start, s.start as i64);
            prop_assert_eq!(b.busy, s.end.map(|e| e - s.start));
            prop_assert_eq!(b.next, slices.get(i + 1).map(|n| n.start as i64));
        }
    }

    #[test]
    fn interval_slices_come_back(
        start in 0..1u64 << 60,
        steps in prop::collection::vec(times(), 0..200),
        last in prop::option::of(1..1u64 << 40),
    ) {
        let mut slices = vec![Slice { start, end: None }];
        for step in steps {
            let t = slices[slices.len() - 1].start + step;
            slices.push(Slice { start: t, end: None });
        }
        let n = slices.len();
        slices[n - 1].end = last.map(|d| slices[n - 1].start + d);
        let back = round_trip(false, &slices);
        prop_assert_eq!(back.len(), n);
        for (i, (b, s)) in back.iter().zip(&slices).enumerate() {
            prop_assert_eq!(b.start, s.start as i64);
            let next = slices.get(i + 1).map(|n| n.start).or(s.end);
            prop_assert_eq!(b.next, next.map(|t| t as i64));
        }
    }

    #[test]
    fn plans_come_back(hits in prop::collection::vec((any::<u32>(), prop::option::of(any::<u32>())), 0..100)) {
        let hits: Vec<_> = hits.into_iter().map(|(tensor, fused)| PlanHit { tensor, fused }).collect();
        let mut e = encoder();
        let plan = e.plan(PID, 9, &hits).unwrap();
        e.cpu_graph(&cpu_graph(0, plan, 1, 2)).unwrap();
        let trace = Trace::from_bytes(e.finish(&footer()).unwrap()).unwrap();
        let mut back = None;
        each(&trace, |_, r| if let Record::Plan(p) = r { back = Some(plan_hits(&p).collect::<Vec<_>>()) });
        prop_assert_eq!(back, Some(hits));
    }
}
