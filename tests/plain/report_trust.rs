//! `report` on traces with gaps: it reports what is missing, never fails, and never makes up numbers.

use crate::synth_trace;

use analysis::questions::report::{By, Report, ReportOptions, report};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use pfi::record::{CpuGraph, Footer, KindCount, Notice, SourceKind};
use pfi::{PlanHit, Slice, SliceRun, Trace};
use proptest::prelude::*;
use render::table::Style;
use render::{json, text};
use synth_trace::*;

fn read(trace: &Trace) -> Report {
    report(
        trace,
        &ReportOptions { top: None, tables: By::ALL.to_vec(), ..ReportOptions::default() },
        &LoadProgress::default(),
    )
}

/// The report's text at the width of a small terminal.
fn shown(r: &Report) -> String {
    let mut out = Vec::new();
    text::write(&mut out, r, &Style { width: Some(80), ..Style::default() }).unwrap();
    json::write(&mut Vec::new(), r).unwrap();
    String::from_utf8(out).unwrap()
}

fn busy(p: usize, _: u16) -> u64 {
    1000 + p as u64
}

fn synth(decodes: u64) -> Synth<Vec<u8>> {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(8, busy);
    for _ in 0..decodes {
        s.call(1, busy);
    }
    s
}

fn finish(s: Synth<Vec<u8>>, footer: &Footer<'_>) -> Report {
    read(&Trace::from_bytes(s.enc.finish(footer).unwrap()).unwrap())
}

#[test]
fn losses_are_told_in_percent() {
    let mut f = footer("target exited");
    f.kinds.push(KindCount { kind: "op", seen: 1000, recorded: 990, lost: 10 });
    f.kinds.push(KindCount { kind: "graph", seen: 1000, recorded: 1000, lost: 0 });
    f.lost_cpu.extend([0, 10]);
    let r = finish(synth(1), &f);
    assert!(!r.quality.complete);
    assert_eq!(r.quality.verdict, "0.50 % of the events lost");
    assert_eq!(r.quality.lost_share.value, Some(0.005));
    let text = shown(&r);
    assert!(text.contains("NOT complete: 0.50 % of the events lost"), "{text}");
    assert!(text.contains("CPU 1: 10"), "{text}");
}

#[test]
fn a_loss_too_small_to_show_is_not_none() {
    let mut f = footer("signal");
    f.kinds.push(KindCount { kind: "op", seen: 10_000_000, recorded: 9_999_999, lost: 1 });
    assert_eq!(finish(synth(1), &f).quality.verdict, "< 0.01 % of the events lost");
}

#[test]
fn books_that_do_not_close_are_told() {
    let mut f = footer("signal");
    f.kinds.push(KindCount { kind: "op", seen: 10, recorded: 9, lost: 0 });
    let verdict = finish(synth(1), &f).quality.verdict;
    assert_eq!(verdict, "`op` counts disagree: 10 seen != 9 recorded + 0 lost");
}

#[test]
fn what_was_asked_for_and_left_out_is_said_at_the_head() {
    use pfi::record::Availability::*;
    let mut s = synth(1);
    for (name, state, why) in [
        ("scheduler", None, "no permission: kernel.perf_event_paranoid is 3"),
        ("counters", Partly, "2 of 3"),
        ("experts", Whole, ""),
    ] {
        s.enc.feature(&causes::feature(name, state, why)).unwrap();
    }
    let r = finish(s, &footer("x"));
    let states: Vec<_> = r.quality.features.iter().map(|f| (f.name.as_str(), f.state)).collect();
    assert_eq!(states, [("scheduler", "none"), ("counters", "partly"), ("experts", "whole")]);
    let text = shown(&r);
    let head = text.split("\n\n").next().unwrap();
    assert!(
        head.contains("not recorded scheduler: no permission: kernel.perf_event_paranoid is 3"),
        "{text}"
    );
    assert!(head.contains("partial      counters: 2 of 3") && !head.contains("experts"), "{text}");
    let foot = text.split("Recording quality").nth(1).unwrap();
    assert!(
        foot.contains("experts: recorded\n") && foot.contains("scheduler: not recorded (no perm"),
        "{text}"
    );
}

fn one_graph(s: &mut Synth<Vec<u8>>, seq: u64, expected: Option<u32>, seen: u32) {
    let (plan, n_nodes, ubatch) = (None, 100, 1);
    let (t, dur) = (s.now as i64, 5000);
    let graph = CpuGraph {
        seq,
        graph: None,
        split: None,
        pid: PID,
        tid: TID,
        plan,
        n_nodes,
        n_threads: 2,
        ubatch,
        t,
        dur,
        expected,
        seen,
        barrier: true,
        cut: false,
    };
    s.enc.cpu_graph(&graph).unwrap();
}

#[test]
fn missing_hits_are_told() {
    let mut s = synth(1);
    one_graph(&mut s, 77, Some(132), 66);
    let r = finish(s, &footer("signal"));
    // 66 of 132 + 132.
    assert_eq!(r.quality.verdict, "25.00 % of the expected op hits missing (1 of 3 graphs differ)");

    let mut s = synth(1);
    one_graph(&mut s, 77, None, 66);
    let verdict = finish(s, &footer("signal")).quality.verdict;
    assert_eq!(verdict, "1 graph could not be checked for missing hits");
}

#[test]
fn what_was_not_to_be_recorded_is_not_missing() {
    let of = |spec: Spec| {
        let mut s = Synth::new(Vec::new(), spec);
        s.call(1, busy);
        one_graph(&mut s, 77, None, 66);
        finish(s, &footer("signal")).quality
    };
    let bare = of(Spec { structure: false, ..Spec::default() });
    assert_eq!((bare.complete, &*bare.verdict), (true, "complete"));
    // Without BPF, graphs are read when they have begun.
    let perf = of(Spec { source: SourceKind::Perf, ..Spec::default() });
    let told = "complete; 1 graph could not be checked for missing hits without BPF";
    assert_eq!((perf.complete, &*perf.verdict), (true, told));
}

#[test]
fn slices_that_do_not_fit_their_graph_are_told() {
    let mut s = synth(1);
    let plan = s.enc.plan(PID, 1, &[PlanHit { tensor: 0, fused: None }]).unwrap();
    let run = SliceRun { graph: 1, ith: 7, tid: TID, plan, first: 0, barrier: true };
    let t = s.now;
    s.enc.slices(&run, &[Slice { start: t, end: Some(t + 5) }]).unwrap();
    let verdict = finish(s, &footer("signal")).quality.verdict;
    assert_eq!(verdict, "some slices of 1 graph are missing from the file");

    let mut s = synth(1);
    one_graph(&mut s, 77, Some(1), 1);
    let run = SliceRun { graph: 77, ith: 0, ..run };
    let t = s.now;
    s.enc.plan(PID, 1, &[PlanHit { tensor: 0, fused: None }]).unwrap();
    s.enc.slices(&run, &[Slice { start: t, end: Some(t + 5001) }]).unwrap();
    let verdict = finish(s, &footer("signal")).quality.verdict;
    assert_eq!(verdict, "times of 1 graph are inconsistent: the ops take longer than the graph");
}

#[test]
fn a_recording_without_an_end_is_read_and_distrusted() {
    let bytes = synth(3).enc.finish(&footer("signal")).unwrap();
    let whole = Trace::from_bytes(bytes.clone()).unwrap();
    let last = whole.blocks().last().unwrap().offset as usize;
    let r = read(&Trace::from_bytes(bytes[..last].to_vec()).unwrap());
    assert_eq!(r.quality.end, None);
    assert_eq!(r.quality.verdict, "did not end cleanly, so the loss is unknown");
    assert!(r.quality.damage.is_empty());
    assert_eq!(r.quality.agent_cpu_ms.unknown.as_deref(), Some("the recording did not end cleanly"));
    assert_eq!(r.quality.hits.slices, 33 * 4 * 2);
    let text = shown(&r);
    assert!(text.contains("unknown (the recording did not end cleanly)"), "{text}");
}

#[test]
fn a_flipped_byte_costs_its_block_and_is_told() {
    let mut bytes = synth(12_000).enc.finish(&footer("signal")).unwrap();
    let trace = Trace::from_bytes(bytes.clone()).unwrap();
    let all = read(&trace).quality.hits.slices;
    let middle = trace.blocks()[trace.blocks().len() / 2];
    bytes[middle.offset as usize + middle.len as usize / 2] ^= 1;
    let r = read(&Trace::from_bytes(bytes).unwrap());
    assert_eq!(r.quality.damage.len(), 1);
    assert!(r.quality.verdict.contains("file damaged in 1 place"), "{}", r.quality.verdict);
    let lost = all - r.quality.hits.slices;
    assert!(lost > 0 && lost < all / 3, "{lost} of {all} slices lost");
    // A graph whose slices and record are in different blocks may have lost either; its time then does not count as
    // decode.
    let unrecorded = r.quality.hits.graphs_without_record;
    assert_eq!(unrecorded, r.phases.iter().find(|p| p.phase == Phase::Unknown).map_or(0, |p| p.cpu_graphs));
}

#[test]
fn slices_of_an_unknown_graph_are_kept_apart() {
    let mut s = synth(1);
    let tensor = PlanHit { tensor: 0, fused: None };
    let plan = s.enc.plan(PID, 1, &[tensor, tensor]).unwrap();
    let run = SliceRun { graph: 999, ith: 0, tid: TID, plan, first: 0, barrier: true };
    let t = s.now;
    let slices = [Slice { start: t, end: Some(t + 10) }, Slice { start: t + 30, end: Some(t + 50) }];
    s.enc.slices(&run, &slices).unwrap();
    // Positions beyond the plan: 5 ns of an unknown op.
    let run = SliceRun { graph: 1000, first: u32::MAX, ..run };
    s.enc.slices(&run, &[Slice { start: t + 60, end: Some(t + 65) }]).unwrap();
    let r = finish(s, &footer("signal"));
    let p = r.phases.iter().find(|p| p.phase == Phase::Unknown).unwrap();
    // Without its record a graph lasts as long as thread 0's slices.
    assert_eq!((p.cpu_graphs, p.graph_ns, p.op_ns, p.wait_ns), (2, 55, 35, Some(20)));
    assert_eq!(r.quality.verdict, "2 graphs without a record");
    let rows = p.by_op.as_ref().unwrap();
    assert!(rows.iter().any(|r| r.name == "(structure not recorded)" && r.total_ns == 5), "{rows:?}");
}

#[test]
fn time_across_lost_slices_belongs_to_no_op() {
    for barrier in [false, true] {
        let mut s = Synth::new(Vec::new(), Spec { barrier, ..Spec::default() });
        s.call(1, busy);
        let tensor = PlanHit { tensor: 0, fused: None };
        let plan = s.enc.plan(PID, 4, &[tensor; 4]).unwrap();
        let t = s.now;
        let run = SliceRun { graph: 50, ith: 0, tid: TID, plan, first: 0, barrier };
        // Positions 1 and 2 are lost, and so is the end of position 0.
        s.enc.slices(&run, &[Slice { start: t, end: None }]).unwrap();
        let last = Slice { start: t + 900, end: Some(t + 907) };
        s.enc.slices(&SliceRun { first: 3, ..run }, &[last]).unwrap();
        let r = finish(s, &footer("signal"));
        let p = r.phases.iter().find(|p| p.phase == Phase::Unknown).unwrap();
        assert_eq!((p.op_ns, p.graph_ns, p.gaps_ns), (7, 907, 900), "barrier {barrier}");
    }
}

#[test]
fn text_from_the_target_cannot_act_on_the_terminal() {
    let mut s = synth(1);
    let text = "evil \x1b[2J\u{202e}\nfake line";
    s.enc.notice(&Notice { t: s.now as i64, text }).unwrap();
    let out = shown(&finish(s, &footer("signal\x07")));
    assert!(out.contains(r"evil \u{1b}[2J\u{202e}\nfake line"), "{out}");
    assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{out:?}");
}

/// Runs `diff` on a trace and an intact one, in both orders, and `stat` on the trace.
fn compared(trace: &Trace) {
    use analysis::questions::diff::{DiffOptions, diff};
    use analysis::recorded::idents::OpKey;
    let sound = Trace::from_bytes(synth(20).enc.finish(&footer("signal")).unwrap()).unwrap();
    for by in [OpKey::Name, OpKey::Op, OpKey::Layer] {
        let options =
            DiffOptions { phase: Phase::Decode, by, false_discovery: 0.01, least: 0.01, pids: Vec::new() };
        let sides = |a: &[&Trace], b: &[&Trace]| {
            let Ok(found) = diff(a, b, &options, &LoadProgress::default()) else { return };
            let names = [a, b].map(|side| vec!["a".to_string(); side.len()]);
            render::diff::write(&mut Vec::new(), &found, &names, 5, &Style::default()).unwrap();
            render::diff::csv(&mut Vec::new(), &found).unwrap();
            json::write(&mut Vec::new(), &found).unwrap();
        };
        sides(&[trace], &[&sound]);
        sides(&[&sound], &[trace]);
        sides(&[trace, &sound], &[&sound, trace]);
        sides(&[trace, trace], &[trace, &sound]);
    }
    counted(trace);
}

/// Runs all views of `stat` on a trace.
fn counted(trace: &Trace) {
    use analysis::questions::stat::{StatOptions, View, stat};
    for phase in [Phase::Decode, Phase::Prefill] {
        for context in [None, Some(5000)] {
            let options = StatOptions { context, ..StatOptions::new(phase, View::ALL.to_vec()) };
            let Ok(found) = stat(trace, &options, &LoadProgress::default()) else { continue };
            render::stat::write(&mut Vec::new(), &found, &View::ALL, 5, &Style::default()).unwrap();
            for view in View::ALL {
                render::stat::csv(&mut Vec::new(), &found, view).unwrap();
            }
            json::write(&mut Vec::new(), &found).unwrap();
        }
    }
}

/// Damage applied to a trace.
#[derive(Debug, Clone)]
enum Harm {
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Drop(usize, usize),
    /// Changes a payload and repairs its checksums, so that the records themselves are hostile.
    Forge(usize, u8),
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = any::<usize>();
    prop_oneof![
        (at, any::<u8>()).prop_map(|(at, b)| Harm::Flip(at, b)),
        any::<usize>().prop_map(Harm::Cut),
        (any::<usize>(), prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(at, b)| Harm::Insert(at, b)),
        (any::<usize>(), 0usize..4096).prop_map(|(at, n)| Harm::Drop(at, n)),
        (any::<usize>(), any::<u8>()).prop_map(|(at, b)| Harm::Forge(at, b)),
        (any::<usize>(), any::<u8>()).prop_map(|(at, b)| Harm::Forge(at, b)),
        (any::<usize>(), any::<u8>()).prop_map(|(at, b)| Harm::Forge(at, b)),
    ]
}

fn apply(bytes: &mut Vec<u8>, harm: &Harm) {
    let len = bytes.len().max(1);
    match harm {
        Harm::Flip(at, b) => {
            if let Some(byte) = bytes.get_mut(at % len) {
                *byte ^= b;
            }
        }
        Harm::Cut(at) => bytes.truncate(at % len),
        Harm::Insert(at, more) => {
            let at = (at % len).min(bytes.len());
            bytes.splice(at..at, more.iter().copied());
        }
        Harm::Drop(at, n) => {
            let at = (at % len).min(bytes.len());
            let end = (at + n).min(bytes.len());
            bytes.drain(at..end);
        }
        Harm::Forge(at, b) => forge(bytes, *at, *b),
    }
}

fn forge(bytes: &mut [u8], at: usize, b: u8) {
    use pfi::BLOCK_HEADER;
    let Ok(trace) = Trace::from_bytes(bytes.to_vec()) else { return };
    let Some(block) = trace.blocks().get(at % trace.blocks().len().max(1)).copied() else { return };
    let start = block.offset as usize + BLOCK_HEADER;
    let Some(payload) = bytes.get_mut(start..start + block.len as usize) else { return };
    if payload.is_empty() {
        return;
    }
    let n = payload.len();
    payload[at / 7 % n] = b;
    // Checksum of the payload, then of the header before it (docs/FORMAT.md).
    let payload_crc = crc32c::crc32c(payload);
    let header = &mut bytes[block.offset as usize..start];
    header[32..36].copy_from_slice(&payload_crc.to_le_bytes());
    let header_crc = crc32c::crc32c(&header[..36]);
    header[36..40].copy_from_slice(&header_crc.to_le_bytes());
}

proptest! {
    #[test]
    fn no_trace_makes_report_panic(harms in prop::collection::vec(harm(), 1..8), barrier: bool, structure: bool) {
        let spec = Spec { layers: 1, experts: true, barrier, structure, ..Spec::default() };
        let mut s = Synth::new(Vec::new(), spec);
        s.call(4, busy);
        s.call(1, busy);
        causes::one_of_each(&mut s);
        s.call(1, busy);
        causes::one_of_each(&mut s);
        let mut bytes = s.enc.finish(&footer("signal")).unwrap();
        for harm in &harms {
            apply(&mut bytes, harm);
        }
        if let Ok(trace) = Trace::from_bytes(bytes) {
            shown(&read(&trace));
            compared(&trace);
        }
    }
}
