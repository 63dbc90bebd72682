//! Which road a recording takes on this kernel: BPF programs, or perf events where there is no bpf(). Uses `bpf`,
//! `features`, `perf`, `refusal` and `source`.

use std::rc::Rc;

use super::bpf::Bpf;
use super::btf::Btf;
use super::perf::{self, Perf};
use super::pmc::follow::Shared;
use super::recording::RecordError;
use super::refusal::{self, Act};
use super::source::{Knobs, Sink, Source, Wish};
use super::{features, privileges};
use crate::trace::record::{self, Transport};

/// A road.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Road {
    Bpf,
    /// And why not BPF.
    Perf(String),
}

impl Road {
    /// Chooses. A refusal of bpf() that perf events do not mend is left to be met, and told, by whoever loads programs.
    ///
    /// # Errors
    /// The road wished for is not there.
    pub fn choose(wish: Wish) -> Result<Road, RecordError> {
        match wish {
            Wish::Bpf => Ok(Road::Bpf),
            Wish::Perf => {
                Perf::offered().map_err(RecordError::Events)?;
                Ok(Road::Perf("as asked".into()))
            }
            Wish::Auto => Ok(match features::bpf() {
                Ok(()) => Road::Bpf,
                Err(errno) => match Perf::offered() {
                    Ok(()) => Road::Perf(refusal::reason(Act::Map, errno, &privileges::read())),
                    Err(_) => Road::Bpf,
                },
            }),
        }
    }

    /// Opens it; `btf` helps BPF programs to follow processes, and `counters` are told with ops. Nothing is asked of the kernel before the first engine comes.
    pub fn open(
        &self,
        knobs: Knobs,
        btf: Option<Btf>,
        counters: Option<Rc<Shared>>,
        sink: Sink,
    ) -> Box<dyn Source> {
        match self {
            Road::Bpf => Box::new(Bpf::new(knobs, btf, counters, sink)),
            Road::Perf(_) => Box::new(Perf::new(knobs, sink)),
        }
    }

    /// What the trace's header says of it.
    pub fn told(&self, pbuf: bool) -> (record::Source, Transport) {
        match (self, pbuf) {
            (Road::Bpf, false) => (record::Source::Bpf, Transport::Ring),
            (Road::Bpf, true) => (record::Source::Bpf, Transport::Perf),
            (Road::Perf(_), _) => (record::Source::Perf, Transport::Perf),
        }
    }

    /// What the user, and whoever reads the trace, should know.
    pub fn notice(&self) -> Option<String> {
        match self {
            Road::Bpf => None,
            Road::Perf(why) => Some(format!("recorded by perf events, without BPF ({why}): {}", perf::LACKS)),
        }
    }
}
