//! Damaged traces, real ones in `live_views` and synthetic ones here, through every view: each is rendered or
//! refused with a message; nothing panics, hangs or uses unbounded memory.

use crate::all_views;
use crate::dag_support;
use crate::html_support;
use crate::synth_trace;
use crate::trace_support;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use analysis::questions::experts::{CacheOptions, experts};
use analysis::questions::report::{ReportOptions, report};
use analysis::recorded::load::LoadProgress;
use dag_support::LLAMA;
use pfi::record::{FileRead, Footer, KIND_NAMES, KindCount, ReadFile, TensorData};
use pfi::{BLOCK_HEADER, FILE_HEADER, Trace};
use proptest::prelude::*;
use synth_trace::causes::{EXPERT_DATA, file_reads, one_of_each, stored};
use synth_trace::*;
use trace_support::{kinds, seal, small_file, spans};

/// Traces that together contain everything a trace can contain.
fn traces() -> &'static [Vec<u8>] {
    static ALL: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut s = Synth::new(Vec::new(), Spec { experts: true, ..Spec::default() });
        s.call(4, |p, _| 1000 + p as u64);
        for i in 0..18 {
            s.backend = if i % 2 == 0 { ([7; 16], "CPU") } else { ([9; 16], "AMX") };
            s.call(1, |p, t| 1000 + 10 * p as u64 + u64::from(t) + i);
        }
        one_of_each(&mut s);
        s.process(7);
        s.call(1, |p, _| 1000 + p as u64);
        let mixed = s.enc.finish(&footer("signal")).unwrap();
        let stored = stored(4).enc.finish(&footer("signal")).unwrap();
        let [page, more] = [4, 20].map(html_support::rich);
        vec![small_file(), mixed, stored, page, more, dag_support::run(LLAMA, 5)]
    })
}

#[test]
fn whole_traces_pass_all_views() {
    for (i, bytes) in traces().iter().enumerate() {
        let shown = all_views::all(bytes.clone());
        assert!(shown > 2000, "trace {i}: {shown} bytes in all");
    }
}

/// A kind that is in none of them is not damaged by the tests below.
#[test]
fn the_traces_have_every_kind_of_record() {
    let all: BTreeSet<usize> = traces().iter().flat_map(|bytes| kinds(bytes)).collect();
    let missing: Vec<&str> =
        (0..KIND_NAMES.len()).filter(|k| !all.contains(k)).map(|k| KIND_NAMES[k]).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// What was read from storage is in the verdict, and in what `experts` says.
#[test]
fn the_views_of_file_reads_are_among_them() {
    let trace = Trace::from_bytes(stored(4).enc.finish(&footer("signal")).unwrap()).unwrap();
    let progress = LoadProgress::default();
    let told = report(&trace, &ReportOptions { verdict: true, ..ReportOptions::default() }, &progress);
    let storage = told.verdict.and_then(|v| v.phases.into_iter().next()?.storage).unwrap();
    let reads = experts(&trace, &CacheOptions::default(), &progress).unwrap().reads.unwrap();
    assert!(storage.storage_bytes > 0 && reads.needed_bytes > 0, "{storage:?} {reads:?}");
    assert_eq!(storage.storage_bytes, reads.storage_bytes);
    assert_eq!(reads.storage_bytes, reads.needed_bytes + reads.ahead_bytes + reads.other_bytes);
}

/// FileRead, ReadFile and TensorData at the ends of their ranges, and of files and tensors that are not there.
#[test]
fn file_reads_that_cannot_be_pass_all_views() {
    for most in [u64::MAX, 1 << 63, 1 << 46] {
        let mut s = stored(3);
        let now = s.now as i64;
        for (t, dur) in [(now, most), (i64::MIN, 0), (i64::MAX, most), (0, 0)] {
            for addr in [0, 1, EXPERT_DATA - 1, most, u64::MAX] {
                for (bytes, pid) in [(0, PID), (most, PID), (most, 0)] {
                    let read = FileRead { pid, tid: TID, file: u32::MAX, t, dur, addr, bytes };
                    s.enc.file_read(&read).unwrap();
                }
            }
        }
        for tensor in 0..40 {
            s.enc.tensor_data(&TensorData { tensor, addr: most - u64::from(tensor) }).unwrap();
        }
        for id in [3, u32::MAX] {
            let file = ReadFile { id, name: "\u{202e}x", setting: "\n", read_ahead_kb: Some(most) };
            s.enc.read_file(&file).unwrap();
        }
        file_reads(&mut s, now, most);
        all_views::all(s.enc.finish(&footer("signal")).unwrap());
    }
}

/// Counts and times whose sums need more than 64 bits.
#[test]
fn counts_that_cannot_be_pass_all_views() {
    for most in [u64::MAX, u64::MAX / 2 + 1, i64::MAX as u64] {
        let mut s = Synth::new(Vec::new(), Spec::default());
        s.call(1, |p, _| 1000 + p as u64);
        let kinds =
            ["barrier", "op", "token"].map(|kind| KindCount { kind, seen: most, recorded: most, lost: most });
        let footer = Footer {
            end: "signal",
            kinds: kinds.to_vec(),
            lost_cpu: vec![most; 3],
            orphans: most,
            read_errors: most,
            agent_user_us: most,
            agent_sys_us: most,
            agent_peak_rss: most,
            wall_ns: most,
            bpf_ns: most,
            bpf_runs: most,
        };
        all_views::all(s.enc.finish(&footer).unwrap());
    }
}

proptest! {
    // Few: each case runs all views. `make proptest` runs more.
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Changed bytes in blocks with repaired checksums: the reader cannot distinguish this from a recording.
    #[test]
    fn changed_records_pass_all_views(
        which in 0usize..6,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut file = traces()[which].clone();
        let spans = spans(&file);
        for (at, byte) in &edits {
            let at = at.index(file.len());
            if at >= FILE_HEADER && !spans.iter().any(|s| (s.0..s.0 + BLOCK_HEADER).contains(&at)) {
                file[at] = *byte;
            }
        }
        spans.iter().for_each(|s| seal(&mut file, s.0));
        prop_assert_eq!(Trace::from_bytes(file.clone()).unwrap().blocks().len(), spans.len());
        all_views::all(file);
    }

    /// Files that were truncated, lost a part, or have one twice.
    #[test]
    fn torn_files_pass_all_views(
        which in 0usize..6,
        ends in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        twice in any::<bool>(),
    ) {
        let file = &traces()[which];
        let (a, b) = (ends.0.index(file.len()), ends.1.index(file.len()));
        let (from, to) = (a.min(b), a.max(b));
        let torn = if twice { [&file[..to], &file[from..]].concat() } else { [&file[..from], &file[to..]].concat() };
        all_views::all(torn);
        all_views::all(file[..to].to_vec());
    }

    /// Blocks reordered, or taken from another recording.
    #[test]
    fn blocks_of_others_pass_all_views(
        which in (0usize..6, 0usize..6),
        order in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..24),
    ) {
        let of = [&traces()[which.0], &traces()[which.1]];
        let mut file = of[0][..FILE_HEADER].to_vec();
        for (i, (second, at)) in order.iter().enumerate() {
            let from = of[usize::from(*second)];
            let spans = spans(from);
            let (start, end) = spans[at.index(spans.len())];
            let to = file.len();
            file.extend_from_slice(&from[start..end]);
            // With its position adjusted.
            file[to + 16..to + 20].copy_from_slice(&(i as u32).to_le_bytes());
            seal(&mut file, to);
        }
        all_views::all(file);
    }
}
