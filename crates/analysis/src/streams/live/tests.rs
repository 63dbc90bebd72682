//! Live figures from hand-made records, without a recorder.

use super::*;
use pfi::record::{Backend, Device, Entry, Split};

/// Encodes slices in interval mode: start-to-start distances, the last to its end, 0 = not seen.
fn run(graph: u64, ith: u16, first: u32, t: i64, data: &[u8]) -> Slices<'_> {
    Slices { graph, ith, tid: 1, plan: 7, first, n: data.len() as u32, t, barrier: false, data }
}

fn cpu_graph(seq: u64, graph: Option<u64>, t: i64, dur: u64) -> CpuGraph {
    CpuGraph {
        seq,
        graph,
        split: None,
        pid: 1,
        tid: 1,
        plan: Some(7),
        n_nodes: 4,
        n_threads: 1,
        ubatch: 1,
        t,
        dur,
        expected: None,
        seen: 4,
        barrier: false,
        cut: false,
    }
}

fn total(live: &Live) -> Vec<(u64, u64)> {
    let span = live.whole(0);
    span.phases.iter().flat_map(|p| &p.ops).map(|o| (o.calls, o.total_ns)).collect()
}

#[test]
fn what_ends_a_slice_may_come_in_another_record() {
    let defined = Loaded::default();
    let mut live = Live::default();
    live.slices(&defined, &run(0, 0, 0, 100, &[10, 0]));
    // Continues the previous run: its last slice ends here.
    live.slices(&defined, &run(0, 0, 2, 130, &[5, 0]));
    // A hit was lost in between, so the duration of the slice before it is not known.
    live.slices(&defined, &run(0, 0, 5, 180, &[0]));
    live.cpu_graph(&cpu_graph(0, None, 90, 200));
    assert_eq!(total(&live), [(5, 10 + 20 + 5 + 110)]);
    assert!(live.open.is_empty());
}

#[test]
fn the_ops_of_a_graph_that_was_cut_are_left_out() {
    let defined = Loaded::default();
    let mut live = Live { tokens: true, ..Live::default() };
    for (seq, cut) in [(0, true), (1, false), (2, true)] {
        live.slices(&defined, &run(seq, 0, 0, 100, &[10, 7]));
        live.cpu_graph(&CpuGraph { cut, ..cpu_graph(seq, Some(seq), 90, 30) });
        live.graph(&Graph {
            seq,
            token: None,
            pid: 1,
            tid: 1,
            cgraph: 1,
            n_nodes: 4,
            ubatch: 1,
            t: 80,
            dur: 50,
            cut: false,
            device: Device::Idle,
        });
    }
    assert_eq!(total(&live), [(2, 17)]);
    let phase = &live.whole(0).phases[0];
    assert_eq!((phase.calls, phase.cpu_graphs, phase.graph_ns), (3, 1, 30));
    assert_eq!(phase.ops[0].ns_per_token, Some(17.0));
}

#[test]
fn what_never_ends_is_bounded_and_counted() {
    let defined = Loaded::default();
    let mut live = Live::default();
    for seq in 0..2000 {
        live.slices(&defined, &run(seq, 0, 0, 100, &[10, 7]));
        let _ = live.plan(&defined, seq as u32);
        live.cpu_graph(&cpu_graph(10_000 + seq, Some(seq), 0, 10));
        live.widen(seq, 1);
        live.tick(seq * 100_000_000);
        assert!(live.open.len() <= OPEN && live.widths.len() <= OPEN && live.plans.len() <= PLANS);
        assert!(live.runs[0].steps() as u64 <= STEPS + 2, "{}", live.runs[0].steps());
    }
    live.finish();
    assert_eq!(total(&live), [(4000, 34_000)]);
}

#[test]
fn a_name_too_many_is_another() {
    let mut names = Vec::new();
    for i in 0..NAMES + 100 {
        assert!(usize::from(name(&mut names, i.to_string())) <= NAMES);
    }
    assert_eq!((names.len(), names[NAMES].as_str()), (NAMES + 1, OTHER_ROW));
    assert_eq!(name(&mut names, "5".into()), 5);
}

#[test]
fn now_is_the_last_seconds() {
    let mut live = Live::default();
    let mut seq = 0;
    let mut decode = |live: &mut Live, n: u64| {
        for _ in 0..n {
            let (entry, n_tokens) = (Entry::Decode, Some(1));
            live.token(&Token {
                seq,
                pid: 1,
                tid: 1,
                entry,
                n_tokens,
                t: 0,
                dur: 1_000_000,
                cut: false,
                device: Device::Idle,
            });
            seq += 1;
        }
    };
    let calls = |live: &Live, t| live.now(t).phases.iter().map(|p| p.calls).sum::<u64>();
    const S: u64 = 1_000_000_000;
    assert_eq!(live.now(0), LiveSpan::default());
    live.tick(0);
    decode(&mut live, 10);
    live.tick(S);
    assert_eq!(calls(&live, S), 10);
    decode(&mut live, 5);
    live.tick(7 * S);
    assert_eq!((calls(&live, 7 * S), live.now(7 * S).seconds), (5, 6.0));
    assert_eq!(live.now(7 * S).phases[0].tokens_per_s, Some(1000.0));
    live.tick(13 * S);
    assert_eq!(calls(&live, 13 * S), 0);
    let whole = live.whole(13 * S);
    assert_eq!((whole.seconds, whole.phases[0].calls, whole.phases[0].tokens), (13.0, 15, Some(15)));
}

#[test]
fn rows_left_out_are_summed_up() {
    let op = |total_ns: u64| LiveOp {
        name: total_ns.to_string(),
        calls: 2,
        total_ns,
        share: 0.25,
        calls_per_s: Some(3.0),
        ns_per_token: Some(total_ns as f64),
    };
    let mut ops = vec![op(40), op(30), op(20)];
    keep(&mut ops, 3);
    assert_eq!(ops.len(), 3);
    keep(&mut ops, 1);
    let other = LiveOp { name: OTHER_ROW.into(), calls: 4, share: 0.5, calls_per_s: Some(6.0), ..op(50) };
    assert_eq!(ops, [op(40), other]);
}

#[test]
fn processes_are_told_apart() {
    let defined = Loaded::default();
    let mut live = Live { tokens: true, ..Live::default() };
    live.tick(0);
    let call = |live: &mut Live, pid: u32, seq: u64, dur: u64| {
        live.slices(&defined, &run(seq, 0, 0, 100, &[10, 7]));
        live.cpu_graph(&CpuGraph { pid, ..cpu_graph(seq, None, 90, dur) });
    };
    for seq in 0..4 {
        call(&mut live, 1, seq, 1_000);
        call(&mut live, 2, 100 + seq, 4_000);
    }
    call(&mut live, 2, 200, 4_000);
    live.tick(1);
    // The process that came first, while it computes.
    let rows = live.processes();
    assert_eq!(
        rows.iter().map(|r| (r.pid, r.calls, r.shown)).collect::<Vec<_>>(),
        [(Some(1), 4, true), (Some(2), 5, false)]
    );
    assert_eq!(rows[0].decode_tokens_per_s, Some(1e6));
    assert_eq!(rows[1].decode_tokens_per_s, Some(2.5e5));
    assert_eq!((live.whole(1).phases[0].calls, live.now(1).phases[0].tokens_per_s), (4, Some(1e6)));
    // Only the other one continues.
    for step in 1..20 {
        call(&mut live, 2, 300 + step, 4_000);
        live.tick(step * WINDOW_NS / STEPS);
    }
    assert_eq!(live.whole(2).phases[0].calls, 24);
    live.show_next();
    assert_eq!(live.whole(2).phases[0].calls, 4);
    live.finish();
    assert!(live.processes()[0].shown, "it was asked for");
}

#[test]
fn more_processes_than_are_told_apart_are_one() {
    let mut live = Live::default();
    for pid in 1..=RUNS as u32 + 10 {
        live.cpu_graph(&CpuGraph { pid, ..cpu_graph(pid.into(), None, 90, 10) });
    }
    let rows = live.processes();
    assert_eq!((rows.len(), rows[RUNS].pid, rows[RUNS].calls), (RUNS + 1, None, 10));
}

#[test]
fn devices_have_their_part_of_the_calls() {
    const VULKAN: [u8; 16] =
        [0xb8, 0xf7, 0x4f, 0x86, 0x40, 0x3c, 0xe1, 0x02, 0x91, 0xc8, 0xdd, 0xe9, 0x02, 0x3f, 0xc0, 0x2b];
    let defined = Loaded::default();
    let mut live = Live::default();
    live.take(&defined, &Record::Backend(Backend { id: 3, guid: VULKAN, name: "Vulkan" }));
    let split = |seq, backend, device| Split {
        seq,
        graph: None,
        backend,
        pid: 1,
        tid: 1,
        n_nodes: 2,
        t: 100,
        dur: 400,
        cut: false,
        device,
        plan: None,
    };
    for s in [split(1, 3, Device::Busy(300)), split(2, 0, Device::Idle), split(3, 3, Device::Unseen)] {
        live.take(&defined, &Record::Split(s));
    }
    live.token(&Token {
        seq: 0,
        pid: 1,
        tid: 1,
        entry: Entry::Decode,
        n_tokens: Some(1),
        t: 90,
        dur: 800,
        cut: false,
        device: Device::Busy(300),
    });
    let [device] = &live.whole(0).devices[..] else { panic!("{:?}", live.whole(0)) };
    assert_eq!((&*device.backend, device.splits, device.unseen), ("Vulkan", 2, 1));
    assert_eq!((device.share, device.waited_share, device.busy_share), (0.5, 0.375, None));
}
