//! Which experts each layer chose. Ids are held until their graph ends, because only then are all of its tensors
//! known. Allocates only when created.

use std::io::Write;

use crate::capture::event;
use crate::capture::skel::types::ev_experts_why as Why;
use crate::capture::structure::TensorTable;
use pfi::record::{Availability, Feature};
use pfi::{Encoder, ExpertRows, WriteError};

/// Maximum ids held, all graphs together: 64 layers of 512 tokens with 8 experts each.
const IDS: usize = 1 << 18;
/// Maximum pieces held: a graph has one per layer, unless other graphs run at the same time.
const PIECES: usize = 4096;

/// Rows of one tensor of ids.
struct IdRows {
    /// seq of the CpuGraph.
    graph: u64,
    tgid: u32,
    ids: u64,
    weights: u64,
    used: u32,
    tokens: u32,
    first: u32,
    rows: u32,
    /// ev_experts.why of src/bpf/event.h.
    why: u32,
    /// Number of ids held; they follow those of the previous piece.
    len: usize,
}

/// Held ids, and totals so far.
pub struct HeldExperts {
    pieces: Vec<IdRows>,
    ids: Vec<i32>,
    /// Tensors of ids, and their rows: all, and those reported.
    tensors: u64,
    rows: u64,
    told: u64,
    /// Splits computed by a backend other than the CPU, and the name of one such backend.
    elsewhere: u64,
    other: &'static str,
}

impl Default for HeldExperts {
    fn default() -> Self {
        HeldExperts {
            pieces: Vec::with_capacity(PIECES),
            ids: Vec::with_capacity(IDS),
            tensors: 0,
            rows: 0,
            told: 0,
            elsewhere: 0,
            other: "",
        }
    }
}

impl IdRows {
    fn goes_on_with(&self, graph: u64, e: &event::Experts) -> bool {
        (self.graph, self.ids, self.used, self.first.checked_add(self.rows))
            == (graph, e.ids, e.used, Some(e.first))
            && self.why == 0
            && e.why == 0
    }
}

/// Why there are no ids, as written to the trace.
fn reason(why: u32) -> &'static str {
    match Why(why) {
        Why::EXPERTS_TOLD => "",
        Why::EXPERTS_UNREAD => "memory that cannot be read: on a device, or not in RAM",
        Why::EXPERTS_NOWHERE => "the tensor of expert IDs has no data",
        _ => "not a tensor of expert IDs (32-bit integers in rows of 1 to 64)",
    }
}

impl HeldExperts {
    /// Takes an event of the graph with this seq.
    pub fn take(&mut self, graph: u64, e: &event::Experts) {
        let n = (e.rows as usize).saturating_mul(e.used as usize);
        let new = e.id.get(..n).filter(|_| e.why == 0).unwrap_or_default();
        if self.ids.len() + new.len() > IDS {
            return;
        }
        let rows = if new.is_empty() { 0 } else { e.rows };
        if let Some(p) = self.pieces.last_mut().filter(|p| p.goes_on_with(graph, e)) {
            p.rows += rows;
            p.len += new.len();
        } else if self.pieces.len() < PIECES {
            let &event::Experts { h, ids, weights, used, tokens, first, why, .. } = e;
            let (tgid, len) = (h.tgid, new.len());
            self.pieces.push(IdRows { graph, tgid, ids, weights, used, tokens, first, rows, why, len });
        } else {
            return;
        }
        self.ids.extend_from_slice(new);
    }

    /// A split begins on the backend of this name.
    pub fn split(&mut self, backend: Option<&'static str>) {
        if let Some(name) = backend.filter(|&n| n != "CPU") {
            self.elsewhere += 1;
            self.other = name;
        }
    }

    /// The graph ends: writes its held ids.
    pub fn write<W: Write>(
        &mut self,
        graph: u64,
        tensors: &mut TensorTable,
        enc: &mut Encoder<W>,
    ) -> Result<(), WriteError> {
        let (mut from, mut kept, mut last) = (0, 0, 0);
        for p in &self.pieces {
            let at = from..from + p.len;
            from = at.end;
            if p.graph != graph {
                self.ids.copy_within(at, kept);
                kept += p.len;
                continue;
            }
            let (ids, weights) =
                (tensors.intern(enc, p.tgid, p.ids)?, tensors.intern(enc, p.tgid, p.weights)?);
            let &IdRows { used, tokens, first, rows, why, .. } = p;
            let run = ExpertRows { graph, ids, weights, used, tokens, first, why: reason(why) };
            enc.experts(&run, self.ids.get(at).unwrap_or_default())?;
            self.told += u64::from(rows);
            if std::mem::replace(&mut last, p.ids) != p.ids {
                self.tensors += 1;
                self.rows += u64::from(tokens);
            }
        }
        self.ids.truncate(kept);
        self.pieces.retain(|p| p.graph != graph);
        Ok(())
    }

    /// Status of the experts feature for the recording. `known`: one of its engines has the op; `lost`: lost events
    /// of this kind.
    pub fn feature<W: Write>(&self, enc: &mut Encoder<W>, known: bool, lost: u64) -> Result<(), WriteError> {
        let &HeldExperts { tensors, rows, told, elsewhere, other, .. } = self;
        let mut why = match (known, tensors) {
            (false, _) => "no engine here has the op MUL_MAT_ID".to_owned(),
            (true, 0) => "the CPU ran no MUL_MAT_ID".to_owned(),
            (true, _) => format!("{told} of {rows} rows of {tensors} ID tensors, read at MUL_MAT_ID"),
        };
        if lost > 0 {
            why.push_str(&format!("; {lost} events lost"));
        }
        if elsewhere > 0 {
            why.push_str(&format!("; {elsewhere} splits ran on {other}, whose IDs are in device memory"));
        }
        let state = match (known, told == rows && lost == 0 && elsewhere == 0) {
            (false, _) => Availability::None,
            (true, true) => Availability::Whole,
            (true, false) => Availability::Partly,
        };
        enc.feature(&Feature { name: "experts", state, why: &why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_cannot_be_are_no_run() {
        let mut held = HeldExperts::default();
        let e = event::Experts { ids: 7, used: 1, rows: 2, first: u32::MAX, ..event::Experts::default() };
        held.take(1, &e);
        held.take(1, &event::Experts { first: 1, ..e });
        assert_eq!(held.pieces.len(), 2);
    }
}
