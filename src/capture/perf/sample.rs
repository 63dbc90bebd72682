//! Input and output of the replay of samples.

use super::fields::SamplePositions;
use crate::capture::event;
use crate::capture::event::KINDS;
use crate::capture::skel::types::ev_kind;
use crate::capture::source::Sink;
use engine::probes::Prog;

/// What must be known of a probe to read its samples.
#[derive(Debug, Clone)]
pub struct Meaning {
    pub prog: Prog,
    pub engine: u16,
    pub places: SamplePositions,
}

/// One sample of a probe.
#[derive(Debug, Clone, Copy)]
pub struct ProbeSample<'a> {
    pub at: u64,
    pub tgid: u32,
    pub tid: u32,
    /// Where it was taken, if its ring is known.
    pub cpu: Option<u16>,
    pub raw: &'a [u8],
}

/// Events on their way out.
pub struct EventOut {
    pub sink: Sink,
    /// By kind.
    pub sent: [u64; KINDS],
}

impl EventOut {
    pub fn send<T: event::Plain>(&mut self, kind: ev_kind, event: &T) {
        if let Some(sent) = self.sent.get_mut(kind.0 as usize) {
            *sent += 1;
        }
        self.sink.borrow_mut()(event::bytes(event));
    }
}
