//! Totals of one process, for the complete run and for the last seconds.

use serde::Serialize;

use super::devices::DeviceSums;
use super::sums::{CallSum, LiveSums};
use super::{STEPS, WINDOW_NS};
use crate::recorded::calls::Phase;

/// Calls and speeds of a process over the run, as one row among others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessSpan {
    /// None: the sum of all processes above the limit.
    pub pid: Option<u32>,
    pub calls: u64,
    pub in_call_ns: u64,
    pub prefill_tokens_per_s: Option<f64>,
    pub decode_tokens_per_s: Option<f64>,
    /// The process that the other figures are for.
    pub shown: bool,
}

/// By [`Phase`].
pub type Phases = [LiveSums; 3];

pub struct LiveRun {
    pub pid: Option<u32>,
    pub total: Phases,
    pub devices: DeviceSums,
    /// The totals at several times within the window, oldest first.
    past: Vec<(u64, Phases, DeviceSums)>,
    /// Tokens/s by phase in each of the last steps, and the sums at the end of the last one.
    speeds: Vec<[Option<f64>; 3]>,
    marked: [CallSum; 3],
    /// Start and duration of the last call if it was one of decode, by source.
    last_decode: [Option<(i64, u64)>; 3],
}

/// Steps of the history that are kept: the columns of a wide terminal.
const MARKS: usize = 200;

impl LiveRun {
    /// A process without any data before `t`, CLOCK_MONOTONIC ns.
    pub fn new(pid: Option<u32>, t: u64) -> LiveRun {
        let none = || (Phases::default(), DeviceSums::default());
        let ((total, devices), (phases, sums)) = (none(), none());
        let past = vec![(t, phases, sums)];
        LiveRun {
            pid,
            total,
            devices,
            past,
            speeds: Vec::new(),
            marked: Default::default(),
            last_decode: [None; 3],
        }
    }

    /// Advances the window to `t`.
    pub fn tick(&mut self, t: u64) {
        if self.past.last().is_none_or(|(last, ..)| t.saturating_sub(*last) >= WINDOW_NS / STEPS) {
            self.past.push((t, self.total.clone(), self.devices.clone()));
        }
        while self.past.get(1).is_some_and(|(next, ..)| next.saturating_add(WINDOW_NS) <= t) {
            self.past.remove(0);
        }
    }

    /// A call has ended; `seen`: its start and duration. Steps are those of `report`: between calls of decode that follow
    /// each other in one process.
    pub fn step(&mut self, source: usize, phase: Phase, seen: Option<(i64, u64)>) {
        let seen = seen.filter(|_| phase == Phase::Decode && self.pid.is_some());
        let Some(last) = self.last_decode.get_mut(source) else { return };
        let before = std::mem::replace(last, seen);
        if let Some((before, (now, _))) = before.zip(seen) {
            self.total[phase as usize].calls[source].steps.add(before, now);
        }
    }

    /// The amount added within the window.
    pub fn lately(&self) -> Phases {
        let mut sums = self.total.clone();
        if let Some((_, before, _)) = self.past.first() {
            sums.iter_mut().zip(before).for_each(|(s, b)| s.combine(b, u64::saturating_sub));
        }
        sums
    }

    /// The same of devices.
    pub fn devices_lately(&self) -> DeviceSums {
        let mut sums = self.devices.clone();
        if let Some((_, _, before)) = self.past.first() {
            sums.combine(before, u64::saturating_sub);
        }
        sums
    }

    /// Ends a step of the history.
    pub fn mark(&mut self) {
        let source = self.source();
        let now = self.total.each_ref().map(|sums| sums.calls[source]);
        let mut speeds = [None; 3];
        for ((speed, now), before) in speeds.iter_mut().zip(&now).zip(&self.marked) {
            *speed = now.combined(before, u64::saturating_sub).tokens_per_s();
        }
        self.marked = now;
        if self.speeds.len() == MARKS {
            self.speeds.remove(0);
        }
        self.speeds.push(speeds);
    }

    /// Tokens/s in each of the last steps, oldest first.
    pub fn speeds(&self, phase: Phase) -> Vec<Option<f64>> {
        self.speeds.iter().map(|step| step[phase as usize]).collect()
    }

    /// Start of the window.
    pub fn since(&self) -> u64 {
        self.past.first().map_or(0, |(t, ..)| *t)
    }

    /// Number of past totals kept for the window.
    #[cfg(test)]
    pub fn steps(&self) -> usize {
        self.past.len()
    }

    /// The outermost recorded calls, as in `report`: an index of [`crate::recorded::calls::CallSource`].
    pub fn source(&self) -> usize {
        (0..3).find(|s| self.total.iter().any(|t| t.calls[*s].calls > 0)).unwrap_or(0)
    }

    pub fn calls(&self) -> u64 {
        calls(&self.total, self.source())
    }

    pub fn is_at_work(&self) -> bool {
        let then = self.past.first().map_or(0, |(_, sums, _)| calls(sums, self.source()));
        self.calls() > then
    }

    pub fn row(&self, shown: bool) -> ProcessSpan {
        let source = self.source();
        let of = |phase: Phase| self.total[phase as usize].calls[source];
        let speed = |phase| of(phase).tokens_per_s();
        ProcessSpan {
            pid: self.pid,
            calls: self.calls(),
            in_call_ns: Phase::ALL.into_iter().fold(0, |sum: u64, p| sum.saturating_add(of(p).ns)),
            prefill_tokens_per_s: speed(Phase::Prefill),
            decode_tokens_per_s: speed(Phase::Decode),
            shown,
        }
    }
}

fn calls(sums: &Phases, source: usize) -> u64 {
    sums.iter().fold(0, |n: u64, s| n.saturating_add(s.calls[source].calls))
}
