//! Reads of mapped files from storage, by the phase of the calls in which they came.

use crate::recorded::calls::{Phase, Timeline};
use common::order;
use pfi::record::FileRead;

/// Whether a read came during a call of such a phase of its process.
pub fn in_calls(line: &Timeline, wanted: impl Fn(Phase) -> bool) -> impl Fn(&FileRead) -> bool {
    let of_phase = line.calls.iter().filter(|c| wanted(c.phase));
    let mut calls: Vec<(u32, i64, i64)> = of_phase.map(|c| (c.pid, c.start, c.end())).collect();
    order::by(&mut calls, |a, b| (a.0, a.1).cmp(&(b.0, b.1)));
    // Calls of several contexts overlap: each has the end of the last one to end.
    let mut before: Option<(u32, i64)> = None;
    for (pid, _, end) in &mut calls {
        *end = before.filter(|(of, _)| of == pid).map_or(*end, |(_, last)| last.max(*end));
        before = Some((*pid, *end));
    }
    move |r| {
        let at = calls.partition_point(|(pid, start, _)| (*pid, *start) <= (r.pid, r.t));
        let call = at.checked_sub(1).and_then(|at| calls.get(at));
        call.is_some_and(|(pid, _, end)| *pid == r.pid && r.t <= *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::calls::{Call, CallSource, RunWork};

    fn call(pid: u32, start: i64, dur: u64, phase: Phase) -> Call {
        Call {
            seq: 0,
            pid,
            tid: pid,
            entry: None,
            start,
            dur,
            tokens: Some(1),
            phase,
            graphs: 1,
            cut: false,
            unseen: false,
            device: 0,
        }
    }

    #[test]
    fn a_read_belongs_to_the_calls_of_its_process() {
        let calls = vec![
            call(7, 0, 10, Phase::Prefill),
            call(7, 100, 100, Phase::Decode),
            // Another context's, within it; and another process's.
            call(7, 120, 10, Phase::Decode),
            call(8, 150, 10, Phase::Decode),
            call(7, 300, 10, Phase::Decode),
        ];
        let line = Timeline {
            source: CallSource::Token,
            work: RunWork::Tokens,
            calls,
            cpu_phase: Vec::new(),
            cpu_call: Vec::new(),
            graph_phase: std::collections::HashMap::new(),
            graph_call: std::collections::HashMap::new(),
            sequences: None,
        };
        let within = in_calls(&line, |phase| phase == Phase::Decode);
        let at = |pid, t| within(&FileRead { pid, tid: pid, file: 0, t, dur: 0, addr: 0, bytes: 1 });
        assert_eq!(
            [5, 99, 100, 140, 180, 201, 305].map(|t| at(7, t)),
            [false, false, true, true, true, false, true]
        );
        assert_eq!([140, 155, 170].map(|t| at(8, t)), [false, true, false]);
        assert!(!at(6, 150) && !at(9, 150));
    }
}
