//! Calls that are phases in their own right rather than ops or graphs: which functions they are, and how their
//! events are written.

use std::io::Write;

use crate::capture::event;
use engine::probes::{PHASES, PhaseDef};
use pfi::record::{Availability, Feature, PhaseCall};
use pfi::{Encoder, WriteError};

/// Calls whose return has not been seen yet.
#[derive(Default)]
pub struct OpenPhases {
    calls: heapless::Vec<OpenPhase, 64>,
}

#[derive(Clone, Copy)]
struct OpenPhase {
    what: i32,
    tgid: u32,
    tid: u32,
    start: u64,
}

impl OpenPhase {
    fn write<W: Write>(&self, end: u64, cut: bool, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let &OpenPhase { what, tgid: pid, tid, start } = self;
        let Some(phase) = usize::try_from(what).ok().and_then(|i| PHASES.get(i)) else { return Ok(()) };
        let (t, dur) = (start as i64, end.saturating_sub(start));
        enc.phase_call(&PhaseCall { what: phase.name, pid, tid, t, dur, cut })
    }
}

impl OpenPhases {
    /// Takes an event: a call that begins, or one that has ended.
    pub fn take<W: Write>(&mut self, e: &event::Call, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let call =
            OpenPhase { what: e.n, tgid: e.h.tgid, tid: e.h.tid, start: if e.a == 0 { e.h.ts } else { e.a } };
        self.calls.retain(|c| (c.what, c.tid) != (call.what, call.tid));
        match e.a {
            // A call that found no room is written when it ends.
            0 => drop(self.calls.push(call)),
            _ => call.write(e.h.ts, false, enc)?,
        }
        Ok(())
    }

    /// A process (all, with None) or its recording has ended: its open calls are cut.
    pub fn close<W: Write>(
        &mut self,
        tgid: Option<u32>,
        at: u64,
        enc: &mut Encoder<W>,
    ) -> Result<(), WriteError> {
        let ends = |c: &OpenPhase| tgid.is_none_or(|t| t == c.tgid);
        for c in self.calls.iter().filter(|c| ends(c)) {
            c.write(at, true, enc)?;
        }
        self.calls.retain(|c| !ends(c));
        Ok(())
    }
}

/// Status of the phases feature: the phases with `probed` functions.
pub fn feature<W: Write>(enc: &mut Encoder<W>, probed: &[&str], lost: u64) -> Result<(), WriteError> {
    let (had, missing): (Vec<_>, Vec<_>) =
        PHASES.iter().partition(|p| p.functions.iter().any(|f| probed.contains(f)));
    let names = |of: Vec<&PhaseDef>| of.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    let state = match (had.is_empty(), missing.is_empty() && lost == 0) {
        (true, _) => Availability::None,
        (_, true) => Availability::Whole,
        (_, false) => Availability::Partly,
    };
    let had_none = had.is_empty();
    let mut why = match had_none {
        true => "no matching functions in this engine".to_owned(),
        false => format!("calls of {}", probed.join(", ")),
    };
    if !had_none && !missing.is_empty() {
        why.push_str(&format!("; no function found for: {}", names(missing)));
    }
    if lost > 0 {
        why.push_str(&format!("; {lost} events lost"));
    }
    enc.feature(&Feature { name: "phases", state, why: &why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::event::{Call, Head};
    use crate::recorder::sample;
    use pfi::record::Record;
    use pfi::{EncoderConfig, Trace};

    #[test]
    fn what_has_begun_ends_once_or_is_cut() {
        let mut enc =
            Encoder::new(Vec::new(), EncoderConfig::default(), &sample::HEADER).expect("memory takes it");
        let event = |tid: u32, what: i32, start: u64, ts: u64| Call {
            h: Head { ts, tgid: tid / 10, tid, ..Head::default() },
            a: start,
            n: what,
            ..Call::default()
        };
        let mut begun = OpenPhases::default();
        let all = [event(10, 3, 0, 100), event(20, 3, 0, 110), event(30, 3, 0, 120), event(20, 3, 110, 400)];
        // One that is short, and one that no release has.
        for e in all.iter().chain(&[event(10, 0, 420, 430), event(10, 9, 420, 430)]) {
            begun.take(e, &mut enc).expect("memory takes it");
        }
        begun.close(Some(1), 500, &mut enc).expect("memory takes it");
        begun.close(None, 600, &mut enc).expect("memory takes it");
        begun.close(None, 700, &mut enc).expect("memory takes it");
        let bytes = enc.finish(&sample::footer()).expect("memory takes it");
        let trace = Trace::from_bytes(bytes).expect("a trace");
        let mut told = Vec::new();
        for i in 0..trace.blocks().len() {
            for record in trace.block(i).expect("a whole block").records() {
                if let Record::PhaseCall(p) = record.expect("a whole record") {
                    told.push((p.what, p.tid, p.t, p.dur, p.cut));
                }
            }
        }
        assert_eq!(
            told,
            [
                ("load", 20, 110, 290, false),
                ("tokenize", 10, 420, 10, false),
                ("load", 10, 100, 400, true),
                ("load", 30, 120, 480, true),
            ]
        );
    }
}
