//! Which backend a recording uses on this kernel: BPF programs, or perf events where bpf() is not available.

use std::rc::Rc;

use crate::capture::bpf::Bpf;
use crate::capture::error::RecordError;
use crate::capture::features;
use crate::capture::perf::{self, Perf};
use crate::capture::pmc::follow::Shared;
use crate::capture::source::{BackendChoice, Knobs, Sink, Source};
use crate::host::btf::Btf;
use crate::host::diagnose::{self, Act};
use crate::host::privileges;
use pfi::record::{self, Transport};

/// A backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    Bpf,
    /// With the reason why BPF is not used.
    Perf(String),
}

impl Backend {
    /// Chooses a backend. If bpf() is refused for a reason that perf events do not avoid, the result is `Bpf`, and
    /// loading the programs reports the error.
    ///
    /// # Errors
    /// The requested backend is not available.
    pub fn choose(wish: BackendChoice) -> Result<Backend, RecordError> {
        match wish {
            BackendChoice::Bpf => Ok(Backend::Bpf),
            BackendChoice::Perf => {
                Perf::offered().map_err(RecordError::Events)?;
                Ok(Backend::Perf("as requested".into()))
            }
            BackendChoice::Auto => Ok(match features::bpf() {
                Ok(()) => Backend::Bpf,
                Err(errno) => match Perf::offered() {
                    Ok(()) => Backend::Perf(diagnose::reason(Act::Map, errno, &privileges::read())),
                    Err(_) => Backend::Bpf,
                },
            }),
        }
    }

    /// Opens it. `btf` helps BPF programs follow processes; `counters` are recorded with ops. Makes no request to
    /// the kernel before the first engine is added.
    pub fn open(
        &self,
        knobs: Knobs,
        btf: Option<Btf>,
        counters: Option<Rc<Shared>>,
        sink: Sink,
    ) -> Box<dyn Source> {
        match self {
            Backend::Bpf => Box::new(Bpf::new(knobs, btf, counters, sink)),
            Backend::Perf(_) => Box::new(Perf::new(knobs, sink)),
        }
    }

    /// How the trace's header describes it.
    pub fn told(&self, pbuf: bool) -> (record::Source, Transport) {
        match (self, pbuf) {
            (Backend::Bpf, false) => (record::Source::Bpf, Transport::Ring),
            (Backend::Bpf, true) => (record::Source::Bpf, Transport::Perf),
            (Backend::Perf(_), _) => (record::Source::Perf, Transport::Perf),
        }
    }

    /// What the user and readers of the trace should know.
    pub fn notice(&self) -> Option<String> {
        match self {
            Backend::Bpf => None,
            Backend::Perf(why) => {
                Some(format!("recorded by perf events, without BPF ({why}): {}", perf::LACKS))
            }
        }
    }
}
