//! Which backend a recording uses on this kernel: BPF programs, or perf events where bpf() is not available.

use std::rc::Rc;

use crate::capture::bpf::Bpf;
use crate::capture::error::RecordError;
use crate::capture::features;
use crate::capture::inside::Inside;
use crate::capture::inside::scheduler::Beside;
use crate::capture::perf::{self, Perf};
use crate::capture::pmc::follow::SharedCounters;
use crate::capture::source::{BackendChoice, CaptureOptions, Sink, Source};
use machine::diagnose::{self, Act};
use machine::kernel::btf::Btf;
use machine::kernel::namespaces;
use machine::{privileges, tracing};
use pfi::record::{self, TransportKind};

/// A backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaptureBackend {
    Bpf,
    /// With the reason why BPF is not used.
    Perf(String),
    /// From inside the engine's process, with the reason why the kernel's probes are not used.
    Inside(String),
}

impl CaptureBackend {
    /// Chooses a backend for a recording that starts its target, or not. If bpf() is refused for a reason that perf events do not avoid, the result is `Bpf`, and
    /// loading the programs reports the error.
    ///
    /// # Errors
    /// The kernel's tracing does not answer, this is not the kernel's namespace, or the requested backend is not available.
    pub fn choose(wish: BackendChoice, starts: bool) -> Result<CaptureBackend, RecordError> {
        if wish == BackendChoice::Inside {
            if !starts {
                return Err(RecordError::InsideRunning);
            }
            return Ok(CaptureBackend::Inside("as requested".into()));
        }
        let kernel = CaptureBackend::of_kernel(wish);
        let why = match &kernel {
            _ if wish != BackendChoice::Auto || !starts => None,
            // A kernel whose tracing has died is not touched, but nothing of it is needed either.
            Err(e) => Some(e.to_string()),
            Ok(CaptureBackend::Bpf) => refusal(&privileges::read()),
            Ok(_) => None,
        };
        match why.filter(|_| Inside::offered().is_ok()) {
            Some(why) => Ok(CaptureBackend::Inside(why)),
            None => kernel,
        }
    }

    /// Whether the kernel's scheduler can be watched beside a recording from inside. Err says what is missing.
    ///
    /// # Errors
    /// The rights for BPF are missing, or the kernel refuses it here.
    pub fn scheduler_allowed() -> Result<(), String> {
        match CaptureBackend::of_kernel(BackendChoice::Bpf) {
            Ok(_) => refusal(&privileges::read()).map_or(Ok(()), Err),
            Err(e) => Err(e.to_string()),
        }
    }

    fn of_kernel(wish: BackendChoice) -> Result<CaptureBackend, RecordError> {
        tracing::answers()?;
        namespaces::are_initial()?;
        match wish {
            BackendChoice::Inside => Ok(CaptureBackend::Inside("as requested".into())),
            BackendChoice::Bpf => Ok(CaptureBackend::Bpf),
            BackendChoice::Perf => {
                Perf::offered().map_err(RecordError::Events)?;
                Ok(CaptureBackend::Perf("as requested".into()))
            }
            BackendChoice::Auto => Ok(match features::bpf() {
                Ok(()) => CaptureBackend::Bpf,
                Err(errno) => match Perf::offered() {
                    Ok(()) => CaptureBackend::Perf(diagnose::reason(Act::Map, errno, &privileges::read())),
                    Err(_) => CaptureBackend::Bpf,
                },
            }),
        }
    }

    /// Opens it. `btf` helps BPF programs follow processes; `counters` are recorded with ops. Makes no request to
    /// the kernel before the first engine is added.
    pub fn open(
        &self,
        options: CaptureOptions,
        btf: Option<Btf>,
        counters: Option<Rc<SharedCounters>>,
        sink: Sink,
    ) -> Box<dyn Source> {
        match self {
            CaptureBackend::Bpf => Box::new(Bpf::new(options, btf, counters, sink)),
            CaptureBackend::Perf(_) => Box::new(Perf::new(options, sink)),
            CaptureBackend::Inside(_) => {
                let kernel = CaptureBackend::scheduler_allowed();
                Box::new(Inside::new(options, btf, kernel, sink))
            }
        }
    }

    /// How the trace's header describes it.
    pub fn told(&self, pbuf: bool) -> (record::SourceKind, TransportKind) {
        match (self, pbuf) {
            (CaptureBackend::Bpf, false) => (record::SourceKind::Bpf, TransportKind::Ring),
            (CaptureBackend::Bpf, true) => (record::SourceKind::Bpf, TransportKind::Perf),
            (CaptureBackend::Perf(_), _) => (record::SourceKind::Perf, TransportKind::Perf),
            (CaptureBackend::Inside(_), _) => (record::SourceKind::Inside, TransportKind::Ring),
        }
    }

    /// What the user and readers of the trace should know.
    pub fn notice(&self) -> Option<String> {
        match self {
            CaptureBackend::Bpf => None,
            CaptureBackend::Perf(why) => {
                Some(format!("recorded by perf events, without BPF ({why}): {}", perf::LACKS))
            }
            CaptureBackend::Inside(why) => {
                let lacks = Beside::of(CaptureBackend::scheduler_allowed().is_ok()).lacks();
                Some(format!("recorded from inside the engine's process ({why}): {lacks}"))
            }
        }
    }
}

/// Why this process may not load BPF programs and run them at probes; None: it may.
pub fn refusal(rights: &privileges::Privileges) -> Option<String> {
    if let Err(errno) = features::bpf() {
        return Some(diagnose::short_reason(Act::Map, errno, rights));
    }
    let lacking = rights.lacking();
    (!lacking.is_empty()).then(|| format!("{} missing", lacking.join(" and ")))
}
