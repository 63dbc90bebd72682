//! Calls of samplers within the phase `sampling`: writes them, and keeps which samplers have no name yet. The session names
//! them from the engine's files.

use std::collections::{HashMap, VecDeque};
use std::io::Write;

use crate::capture::event;
use pfi::record::{Availability, Feature, SamplerCall};
use pfi::{Encoder, WriteError};

/// Samplers known at a time, over all processes.
const MOST: usize = 8192;

/// `ev_sampler.does` of a call that passes the chosen token (src/bpf/event.h).
const ACCEPTED: u32 = 1;

/// A sampler of which calls were written under an id that has no name yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnnamedSampler {
    pub id: u32,
    pub pid: u32,
    pub engine: u16,
    /// Address of its table of functions in the process.
    pub table: u64,
}

/// What is known of the samplers that were called.
#[derive(Default)]
pub struct Samplers {
    /// Ids by process and address of the table of functions.
    ids: HashMap<(u32, u64), u32>,
    /// Samplers ever known: an id is not used again.
    last: u32,
    /// Those that have no name yet.
    pub unnamed: VecDeque<UnnamedSampler>,
    /// Samplers without a name, in the trace that ends here, and why the first of them has none.
    pub nameless: Option<String>,
    /// Calls recorded in it.
    calls: u64,
}

impl Samplers {
    /// Writes a call that has ended.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn write<W: Write>(&mut self, e: &event::Sampler, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let sampler = self.id_of(e);
        self.calls += 1;
        let &event::Sampler { h, start, within, does, .. } = e;
        let dur = h.ts.saturating_sub(start);
        enc.sampler_call(&SamplerCall {
            sampler,
            pid: h.tgid,
            tid: h.tid,
            t: start as i64,
            dur,
            within: within.min(dur),
            accept: does == ACCEPTED,
        })
    }

    /// 0: its table was not read, or there are too many.
    fn id_of(&mut self, e: &event::Sampler) -> u32 {
        let key = (e.h.tgid, e.table);
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        if e.table == 0 || self.ids.len() >= MOST {
            self.nameless.get_or_insert_with(|| "its functions could not be read".to_owned());
            return 0;
        }
        self.last += 1;
        self.ids.insert(key, self.last);
        let one = UnnamedSampler { id: self.last, pid: e.h.tgid, engine: e.h.engine, table: e.table };
        self.unnamed.push_back(one);
        self.last
    }

    /// A process has ended: another one may get its number.
    pub fn forget(&mut self, tgid: u32) {
        self.ids.retain(|(of, _), _| *of != tgid);
    }

    /// Status of the samplers, in the trace that ends here: `probed` functions, events lost, and why the source does not
    /// tell of them, if so.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn feature<W: Write>(
        &mut self,
        enc: &mut Encoder<W>,
        probed: &[&str],
        lost: u64,
        cannot: Option<&str>,
    ) -> Result<(), WriteError> {
        let (calls, nameless) = (std::mem::take(&mut self.calls), self.nameless.take());
        let (state, why) = match (cannot, probed.is_empty()) {
            (Some(why), _) => (Availability::None, why.to_owned()),
            (None, true) => (Availability::None, "no function llama_sampler_apply in this engine".to_owned()),
            (None, false) => {
                let mut why = format!("{calls} calls of samplers");
                if lost > 0 {
                    why.push_str(&format!("; {lost} events lost"));
                }
                let whole = lost == 0 && nameless.is_none();
                if let Some(nameless) = nameless {
                    why.push_str(&format!("; a sampler has no name: {nameless}"));
                }
                (if whole { Availability::Whole } else { Availability::Partly }, why)
            }
        };
        enc.feature(&Feature { name: "samplers", state, why: &why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::event::{Head, Sampler};
    use crate::recorder::sample;
    use pfi::record::{Record, SamplerName};
    use pfi::{EncoderConfig, Trace};

    fn call(tgid: u32, table: u64, within: u64, does: u32) -> Sampler {
        let h = Head { ts: 900, tgid, tid: tgid, ..Head::default() };
        Sampler { h, start: 100, table, within, does, unused: 0 }
    }

    #[test]
    fn a_sampler_of_a_process_has_one_id_and_its_name_may_come_later() {
        let mut enc =
            Encoder::new(Vec::new(), EncoderConfig::default(), &sample::HEADER).expect("memory takes it");
        let mut samplers = Samplers::default();
        let all = [call(7, 64, 0, 0), call(7, 64, 900, 1), call(8, 64, 5, 0), call(7, 0, 5, 0)];
        all.iter().for_each(|e| samplers.write(e, &mut enc).expect("memory takes it"));
        let unnamed: Vec<_> = samplers.unnamed.iter().map(|u| (u.id, u.pid, u.table)).collect();
        assert_eq!(unnamed, [(1, 7, 64), (2, 8, 64)]);
        enc.sampler_name(&SamplerName { id: 1, name: "top-k", why: "" }).expect("memory takes it");
        samplers.forget(7);
        samplers.write(&call(7, 64, 0, 0), &mut enc).expect("memory takes it");
        samplers.feature(&mut enc, &["llama_sampler_apply"], 2, None).expect("memory takes it");
        let trace =
            Trace::from_bytes(enc.finish(&sample::footer()).expect("memory takes it")).expect("a trace");
        let (mut calls, mut names, mut state) = (Vec::new(), Vec::new(), None);
        for i in 0..trace.blocks().len() {
            for record in trace.block(i).expect("a whole block").records() {
                match record.expect("a whole record") {
                    Record::SamplerCall(c) => calls.push((c.sampler, c.t, c.dur, c.within, c.accept)),
                    Record::SamplerName(n) => names.push((n.id, n.name)),
                    Record::Feature(f) => state = Some((f.state, f.why.to_owned())),
                    _ => {}
                }
            }
        }
        let want = [
            (1, 100, 800, 0, false),
            (1, 100, 800, 800, true),
            (2, 100, 800, 5, false),
            (0, 100, 800, 5, false),
            (3, 100, 800, 0, false),
        ];
        assert_eq!((calls, names), (want.to_vec(), vec![(1, "top-k")]));
        let why =
            "5 calls of samplers; 2 events lost; a sampler has no name: its functions could not be read";
        assert_eq!(state, Some((Availability::Partly, why.to_owned())));
    }
}
