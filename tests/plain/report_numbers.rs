//! `report` on traces with results known to the nanosecond.

use crate::synth_trace;

use analysis::questions::report::{By, OpTime, PhaseReport, Report, ReportOptions, report};
use analysis::recorded::calls::{CallSource, Phase, RunWork};
use analysis::recorded::load::LoadProgress;
use analysis::sums::tables::{GAPS_ROW, OTHER_ROW, OpRow, WAIT_ROW};
use pfi::Trace;
use synth_trace::*;

fn read(bytes: Vec<u8>, top: Option<usize>) -> Report {
    let trace = Trace::from_bytes(bytes).unwrap();
    report(
        &trace,
        &ReportOptions { top, tables: By::ALL.to_vec(), ..ReportOptions::default() },
        &LoadProgress::default(),
    )
}

fn finish(s: Synth<Vec<u8>>) -> Report {
    read(s.enc.finish(&footer("target exited")).unwrap(), None)
}

fn phase(r: &Report, phase: Phase) -> &PhaseReport {
    r.phases.iter().find(|p| p.phase == phase).unwrap()
}

fn row<'r>(rows: &'r Option<Vec<OpRow>>, name: &str) -> &'r OpRow {
    let rows = rows.as_ref().unwrap();
    rows.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name} in {rows:?}"))
}

/// Time of position `p` on thread 0; thread 1 needs twice as much.
fn busy(p: usize, ith: u16) -> u64 {
    (1000 + 10 * p as u64) * (1 + u64::from(ith))
}

/// Thread 0's time at the positions selected by `which`, in one graph.
fn sum(positions: usize, which: impl Fn(usize) -> bool) -> u64 {
    (0..positions).filter(|p| which(*p)).map(|p| busy(p, 0)).sum()
}

fn prefill_and_decodes(spec: Spec, decodes: u64) -> Synth<Vec<u8>> {
    let mut s = Synth::new(Vec::new(), spec);
    s.call(8, busy);
    for _ in 0..decodes {
        s.call(1, busy);
    }
    s
}

/// Length of a graph in which every op takes as long as on thread 1.
fn graph_len(positions: usize) -> u64 {
    2 * LEAD + sum(positions, |_| true) * 2 + SYNC * positions as u64
}

#[test]
fn op_times_waits_and_gaps_add_up() {
    let r = finish(prefill_and_decodes(Spec::default(), 10));
    let p = phase(&r, Phase::Decode);
    // 3 hits around two layers of 15.
    let n = 33;
    assert_eq!(p.op_time, Some(OpTime::Busy));
    assert_eq!((p.cpu_graphs, p.graph_ns), (10, 10 * graph_len(n)));
    assert_eq!(p.op_ns, 10 * sum(n, |_| true));
    // Thread 0 waits for thread 1, which takes twice its time; the wait after the last op is not seen.
    assert_eq!(p.wait_ns, Some(10 * (sum(n, |p| p + 1 < n) + SYNC * (n as u64 - 1))));
    assert_eq!(p.op_ns + p.wait_ns.unwrap() + p.gaps_ns, p.graph_ns);

    let first = row(&p.by_op, "GET_ROWS");
    assert_eq!((first.calls, first.total_ns), (10, 10 * busy(0, 0)));
    assert_eq!((first.min_ns, first.max_ns, first.mean_ns), (Some(1000), Some(1000), Some(1000.0)));
    assert_eq!(first.all_threads_ns, 10 * (busy(0, 0) + busy(0, 1)));
    // Two layers with attention and feed-forward norms, and the last one.
    let norm = row(&p.by_op, "RMS_NORM+MUL");
    let norms = [1, 10, 16, 25, 31];
    assert_eq!((norm.calls, norm.total_ns), (50, 10 * sum(n, |p| norms.contains(&p))));
    assert_eq!((norm.min_ns, norm.max_ns), (Some(busy(1, 0)), Some(busy(31, 0))));
    for table in [&p.by_op, &p.by_name, &p.by_layer] {
        let rows = table.as_ref().unwrap();
        assert_eq!(rows.iter().map(|r| r.total_ns).sum::<u64>(), p.graph_ns);
        assert!((rows.iter().map(|r| r.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((rows.last().unwrap().cumulative_share - 1.0).abs() < 1e-9);
        assert_eq!(rows.iter().map(|r| r.calls).sum::<u64>(), 10 * n as u64);
        let ops = &rows[..rows.len() - 2];
        assert!(ops.is_sorted_by_key(|r| std::cmp::Reverse(r.total_ns)));
    }
    assert_eq!(row(&p.by_op, WAIT_ROW).total_ns, p.wait_ns.unwrap());
    assert_eq!(row(&p.by_op, GAPS_ROW).total_ns, p.gaps_ns);
    assert_eq!(r.quality.verdict, "complete");
    assert_eq!(r.quality.hits.slices, 11 * n as u64 * 2);
}

#[test]
fn names_are_folded_and_layers_told_apart() {
    let r = finish(prefill_and_decodes(Spec::default(), 1));
    let p = phase(&r, Phase::Decode);
    let q = row(&p.by_name, "MUL_MAT  Qcur-{L}");
    assert_eq!((q.calls, q.total_ns), (2, busy(2, 0) + busy(17, 0)));
    assert_eq!(row(&p.by_name, "ROPE  Qcur-{L}").calls, 2);
    // The attention's output has no name; its weight identifies it.
    assert_eq!(row(&p.by_name, "MUL_MAT  node_{N} [blk.{L}.attn_output.weight]").calls, 2);
    for layer in 0..2 {
        let l = row(&p.by_layer, &format!("layer {layer}"));
        let range = 1 + 15 * layer..1 + 15 * (layer + 1);
        assert_eq!((l.calls, l.total_ns), (15, sum(33, |p| range.contains(&p))));
    }
    assert_eq!(row(&p.by_layer, "(no layer)").calls, 3);
}

#[test]
fn top_sums_up_what_it_leaves_out() {
    let s = prefill_and_decodes(Spec::default(), 1);
    let r = read(s.enc.finish(&footer("x")).unwrap(), Some(2));
    let p = phase(&r, Phase::Decode);
    let rows = p.by_op.as_ref().unwrap();
    let names: Vec<_> = rows.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["MUL_MAT", "ADD", OTHER_ROW, WAIT_ROW, GAPS_ROW]);
    assert_eq!(rows.iter().map(|r| r.total_ns).sum::<u64>(), p.graph_ns);
    assert_eq!(rows.iter().map(|r| r.calls).sum::<u64>(), 33);
    assert_eq!(p.by_thread.as_ref().unwrap().len(), 2);
}

#[test]
fn threads_and_imbalance() {
    let r = finish(prefill_and_decodes(Spec::default(), 4));
    let p = phase(&r, Phase::Decode);
    // 2 against 1: the maximum is 2, the mean 1.5.
    assert!((row(&p.by_op, "MUL_MAT").imbalance.unwrap() - 4.0 / 3.0).abs() < 1e-9);
    let threads = p.by_thread.as_ref().unwrap();
    assert_eq!((threads[0].ith, threads[0].op_ns, threads[0].slices), (1, 4 * 2 * sum(33, |_| true), 132));
    assert_eq!((threads[1].ith, threads[1].op_ns), (0, 4 * sum(33, |_| true)));
    assert_eq!(threads[0].wait_ns, Some(4 * 32 * SYNC));
    assert_eq!(threads[0].tids, 1);
}

#[test]
fn interval_mode_is_wall_time_and_says_so() {
    let spec = Spec { barrier: false, ..Spec::default() };
    let r = finish(prefill_and_decodes(spec, 3));
    let p = phase(&r, Phase::Decode);
    assert_eq!(p.op_time, Some(OpTime::Wall));
    assert_eq!(p.wait_ns, None);
    // Every op lasts until the next one starts, the last one until its own end.
    let wall = 2 * sum(33, |p| p < 32) + 32 * SYNC + busy(32, 0);
    assert_eq!(p.op_ns, 3 * wall);
    let mm = row(&p.by_op, "MUL_MAT");
    assert_eq!((mm.imbalance, mm.wait_ns), (None, None));
    assert!(p.by_op.as_ref().unwrap().iter().all(|r| r.name != WAIT_ROW));
    assert_eq!(p.by_op.as_ref().unwrap().iter().map(|r| r.total_ns).sum::<u64>(), p.graph_ns);
}

#[test]
fn calls_phases_and_latencies() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    let first = s.now;
    // A prompt in two calls; the last ubatch of the first call has one token and still counts as prefill.
    s.ubatches(&[8, 1], busy);
    s.call(8, busy);
    let prefill_end = s.now - PAUSE;
    let mut durations = Vec::new();
    let mut starts = Vec::new();
    for i in 0..100u64 {
        starts.push(s.now);
        s.call(1, |_, _| 100 * (i + 1));
        durations.push(s.now - PAUSE - starts[i as usize]);
    }
    let r = finish(s);
    let p = phase(&r, Phase::Prefill);
    assert_eq!((p.calls, p.tokens, p.cpu_graphs), (2, Some(17), 3));
    assert_eq!(p.splits[0].splits, 3);
    assert_eq!((r.requests.len(), r.requests[0].prefill_calls, r.requests[0].decode_calls), (1, 2, 100));
    assert_eq!(r.requests[0].prompt_tokens, Some(17));
    assert_eq!(r.requests[0].ttft_ns, Some(prefill_end - first));
    assert_eq!(r.ttft.unwrap().max_ns, prefill_end - first);
    assert_eq!(r.requests[0].prefill_ns, prefill_end - first - PAUSE);

    let d = phase(&r, Phase::Decode);
    let l = d.latency.unwrap();
    assert_eq!((d.calls, d.tokens, l.n), (100, Some(100), 100));
    assert_eq!((l.p50_ns, l.p95_ns, l.p99_ns), (durations[49], durations[94], durations[98]));
    assert_eq!(l.max_ns, durations[99]);
    let total: u64 = durations.iter().sum();
    assert_eq!(d.in_call_ns, total);
    assert!((d.tokens_per_s.unwrap() - 100.0 * 1e9 / total as f64).abs() < 1e-6);
    let steps = d.start_to_start.unwrap();
    assert_eq!((steps.n, steps.max_ns), (99, durations[98] + PAUSE));
    let wall = starts[99] - starts[0];
    assert!((d.tokens_per_s_wall.unwrap() - 99.0 * 1e9 / wall as f64).abs() < 1e-6);
    let slowest = &d.by_token.as_ref().unwrap()[0];
    assert_eq!((slowest.seq, slowest.dur_ns, slowest.slices), (101, durations[99], 66));
    assert_eq!(slowest.op_ns, 33 * 10_000);
    assert_eq!(slowest.since_last_ns, Some(PAUSE as i64));
}

#[test]
fn a_call_that_was_cut_is_in_no_time() {
    use pfi::record::{Entry, Token};
    let mut s = prefill_and_decodes(Spec::default(), 2);
    let (t, dur) = (s.now as i64, 999_999_999);
    let token = Token {
        seq: 3,
        pid: PID,
        tid: TID,
        entry: Entry::Decode,
        n_tokens: Some(1),
        t,
        dur,
        cut: true,
        device: pfi::record::Device::Idle,
    };
    s.enc.token(&token).unwrap();
    let r = finish(s);
    let d = phase(&r, Phase::Decode);
    assert_eq!((d.calls, d.cut_calls, d.tokens), (3, 1, Some(2)));
    assert!(d.latency.unwrap().max_ns < 1_000_000);
}

#[test]
fn attached_in_the_middle_there_is_no_ttft_and_it_is_said() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(1, busy);
    s.call(1, busy);
    let r = finish(s);
    assert_eq!((r.ttft, r.requests[0].prefill_calls, r.requests[0].decode_calls), (None, 0, 2));
    let mut out = Vec::new();
    render::text::write(&mut out, &r, &Default::default()).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("unknown (no request's prefill was recorded completely)"), "{out}");
}

#[test]
fn unknown_widths_are_a_phase_of_their_own() {
    let spec = Spec { widths: false, ..Spec::default() };
    let r = finish(prefill_and_decodes(spec, 2));
    assert_eq!(r.phases.len(), 1);
    let p = phase(&r, Phase::Unknown);
    assert_eq!((p.calls, p.tokens, p.tokens_per_s), (3, None, None));
    assert_eq!((r.ttft, p.start_to_start), (None, None));
    assert_eq!(row(&p.by_op, "GET_ROWS").calls, 3);
}

#[test]
fn without_calls_the_graphs_stand_in() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    for width in [8, 1, 1] {
        let start = s.now;
        s.now = s.graph(None, width, start, busy) + PAUSE;
    }
    let r = finish(s);
    assert_eq!(r.call_source, CallSource::SchedulerGraph);
    assert_eq!(phase(&r, Phase::Prefill).tokens, Some(8));
    assert_eq!(phase(&r, Phase::Decode).latency.unwrap().n, 2);
    assert_eq!(r.requests[0].decode_calls, 2);
}

/// As of whisper.cpp: an encoder's graph, and those of tokens after it.
#[test]
fn graphs_of_other_programs_are_runs_of_kinds_without_tokens() {
    let mut s = Synth::new(Vec::new(), Spec { foreign: true, ..Spec::default() });
    for width in [30, 1, 1, 30, 1] {
        let start = s.now;
        s.now = s.graph(None, width, start, busy) + PAUSE;
    }
    let r = finish(s);
    assert_eq!((r.work, r.ttft, r.requests.len(), r.runs.len()), (RunWork::Graphs, None, 0, 1));
    let [p] = r.phases.as_slice() else { panic!("{:?}", r.phases) };
    assert_eq!((p.phase, p.calls, p.tokens, p.tokens_per_s), (Phase::Unknown, 5, None, None));
    assert_eq!(p.runs_per_s.map(|rate| (rate * p.in_call_ns as f64 / 1e9).round()), Some(5.0));
    let kinds: Vec<_> = r.graph_kinds.iter().map(|k| (k.result.as_deref(), k.graphs)).collect();
    assert_eq!(kinds.len(), 2);
    assert!(kinds.contains(&(Some("embd_enc"), 2)) && kinds.contains(&(Some("logits"), 3)), "{kinds:?}");
    assert_eq!(r.graph_kinds.iter().map(|k| k.total_ns).sum::<u64>(), p.in_call_ns);
    assert!((r.graph_kinds.iter().map(|k| k.share).sum::<f64>() - 1.0).abs() < 1e-9);
}

#[test]
fn embeddings_are_runs_of_texts() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.entry = pfi::record::Entry::Encode;
    for width in [5, 1, 7] {
        s.call(width, busy);
    }
    let r = finish(s);
    assert_eq!((r.work, r.ttft), (RunWork::Embeddings, None));
    assert!(r.requests.is_empty() && r.graph_kinds.is_empty());
    // A text of one token is a run like any other.
    let [p] = r.phases.as_slice() else { panic!("{:?}", r.phases) };
    assert_eq!((p.phase, p.calls, p.tokens), (Phase::Prefill, 3, Some(13)));
    assert!(p.runs_per_s.is_some());
}

#[test]
fn below_op_level_there_are_calls_but_no_ops() {
    use pfi::record::{Entry, Level, Token};
    use pfi::{Encoder, EncoderConfig};
    let mut header = header(true);
    header.level = Level::Token;
    let mut enc = Encoder::new(Vec::new(), EncoderConfig::default(), &header).unwrap();
    for seq in 0..3 {
        let (t, dur) = ((ORIGIN + 100 * seq) as i64, 80);
        let n_tokens = Some(if seq == 0 { 7 } else { 1 });
        let token = Token {
            seq,
            pid: PID,
            tid: TID,
            entry: Entry::Process,
            n_tokens,
            t,
            dur,
            cut: false,
            device: pfi::record::Device::Idle,
        };
        enc.token(&token).unwrap();
    }
    let r = read(enc.finish(&footer("duration")).unwrap(), None);
    assert_eq!((phase(&r, Phase::Prefill).tokens, phase(&r, Phase::Decode).tokens), (Some(7), Some(2)));
    let p = phase(&r, Phase::Decode);
    assert_eq!((p.op_time, p.by_op.as_deref()), (None, Some(&[][..])));
    assert_eq!(r.quality.verdict, "complete");
}

#[test]
fn without_structure_positions_have_no_names() {
    let spec = Spec { structure: false, ..Spec::default() };
    let r = finish(prefill_and_decodes(spec, 1));
    let p = phase(&r, Phase::Decode);
    let only = row(&p.by_op, "(structure not recorded)");
    assert_eq!((only.calls, only.total_ns), (33, sum(33, |_| true)));
    assert_eq!((only.model_gb_per_s, only.model_gflop_per_s), (None, None));
    assert_eq!(row(&p.by_layer, "(structure not recorded)").calls, 33);
    let position = row(&p.by_name, "(structure not recorded) position 32");
    assert_eq!((position.calls, position.total_ns), (1, busy(32, 0)));
    assert_eq!((r.model.layers, r.model.embedding, r.model.weight_bytes), (None, None, 0));
}

#[test]
fn the_model_is_read_off_its_tensors() {
    let r = finish(prefill_and_decodes(Spec { layers: 3, ..Spec::default() }, 1));
    let m = &r.model;
    assert_eq!(
        (m.layers, m.embedding, m.feed_forward, m.vocabulary),
        (Some(3), Some(EMBD), Some(FF), Some(VOCAB))
    );
    assert_eq!((m.heads, m.kv_heads, m.head_width), (Some(HEADS), Some(KV_HEADS), Some(EMBD / HEADS)));
    assert_eq!((m.experts, m.experts_used), (None, None));
    // Prefill and decode read the same weights, which are counted once.
    let layer = 2 * EMBD * EMBD + 2 * EMBD * 32 + 3 * EMBD * FF;
    let q4 = (3 * layer + EMBD * VOCAB) / 32 * 18;
    let f16 = 2 * EMBD * VOCAB;
    let weights: Vec<_> = m.weights.iter().map(|w| (w.name.as_str(), w.tensors, w.bytes)).collect();
    assert_eq!(weights, [("q4_0", 22, Some(q4)), ("f16", 1, Some(f16))]);
    assert_eq!(m.weight_bytes, q4 + f16);
}

#[test]
fn experts_are_counted() {
    let r = finish(prefill_and_decodes(Spec { experts: true, ..Spec::default() }, 1));
    assert_eq!((r.model.experts, r.model.experts_used, r.model.feed_forward), (Some(8), Some(2), Some(FF)));
    assert_eq!(row(&phase(&r, Phase::Decode).by_op, "MUL_MAT_ID").calls, 4);
}

#[test]
fn rates_come_from_the_slowest_threads_time() {
    let r = finish(prefill_and_decodes(Spec::default(), 5));
    let out = row(&phase(&r, Phase::Decode).by_name, "MUL_MAT  result_output");
    let ns = busy(32, 1) as f64;
    assert!((out.model_gflop_per_s.unwrap() - 2.0 * (EMBD * VOCAB) as f64 / ns).abs() < 1e-9);
    let bytes = EMBD * VOCAB / 32 * 18 + 4 * EMBD + 4 * VOCAB;
    assert!((out.model_gb_per_s.unwrap() - bytes as f64 / ns).abs() < 1e-9);
}

#[test]
fn the_cost_of_recording_is_told() {
    let r = finish(prefill_and_decodes(Spec::default(), 1));
    let b = &r.quality;
    assert_eq!((b.bpf_ns.value, b.hit_ns.value), (Some(200.0), Some(500.0)));
    assert_eq!((b.agent_cpu_ms.value, b.agent_cpu_share.value), (Some(5.0), Some(0.005)));
    // Thread 0: its ops, its half of the barriers, and entry and return of call, graph, split and CPU graph.
    assert_eq!(b.busiest_thread_hits, 33 * 2 + 70 + 2 * 4 * 2);
    let calls: u64 = r.phases.iter().map(|p| p.in_call_ns).sum();
    assert!((b.predicted_slowdown.value.unwrap() - 152.0 * 500.0 / calls as f64).abs() < 1e-9);
    assert_eq!((b.rungs[0].expected, b.rungs[0].seen), (Some(100), 100));
}

#[test]
fn many_blocks_give_the_same_answer_as_few() {
    // Enough slices for several worker threads and dozens of blocks.
    let decodes = 12_000;
    let r = finish(prefill_and_decodes(Spec { layers: 8, ..Spec::default() }, decodes));
    let p = phase(&r, Phase::Decode);
    let n = 3 + 15 * 8;
    assert!(r.run.blocks > 50);
    assert_eq!(p.graph_ns, decodes * graph_len(n));
    assert_eq!(p.op_ns, decodes * sum(n, |_| true));
    assert_eq!(row(&p.by_op, "GET_ROWS").calls, decodes);
    assert_eq!(r.quality.verdict, "complete");
}
