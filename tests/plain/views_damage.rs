//! Damaged traces, real ones in `live_views` and synthetic ones here, through every view: each is rendered or
//! refused with a message; nothing panics, hangs or uses unbounded memory.

use crate::all_views;
use crate::dag_support;
use crate::html_support;
use crate::synth_trace;
use crate::trace_support;

use std::sync::OnceLock;

use dag_support::LLAMA;
use pfi::record::{Footer, KindCount};
use pfi::{BLOCK_HEADER, FILE_HEADER, Trace};
use proptest::prelude::*;
use synth_trace::causes::one_of_each;
use synth_trace::*;
use trace_support::{seal, small_file, spans};

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
        vec![small_file(), mixed, html_support::rich(4), html_support::rich(20), dag_support::run(LLAMA, 5)]
    })
}

#[test]
fn whole_traces_pass_all_views() {
    for (i, bytes) in traces().iter().enumerate() {
        let shown = all_views::all(bytes.clone());
        assert!(shown > 2000, "trace {i}: {shown} bytes in all");
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
        which in 0usize..5,
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
        which in 0usize..5,
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
        which in (0usize..5, 0usize..5),
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
