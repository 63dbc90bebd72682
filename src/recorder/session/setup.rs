//! The start of a recording: its header, the roles to probe, the source.

use std::cell::RefCell;
use std::rc::Rc;

use super::output::Counted;
use crate::capture::backend::CaptureBackend;
use crate::capture::pmc::follow::SharedCounters;
use crate::capture::source::{CaptureOptions, GpuDetail, Sink, Source, Structure};
use crate::recorder::drain::Drain;
use crate::recorder::recording::RecordOptions;
use engine::probes::{ROLES, Role};
use machine::kernel::btf::Btf;
use machine::{hardware, usage};
use pfi::record::{self, Detail};

pub(super) fn header<'a>(
    o: &'a RecordOptions,
    backend: &CaptureBackend,
    m: &'a hardware::Machine,
    hit_ns: u32,
) -> record::Header<'a> {
    let (source, transport) = backend.told(o.capture.pbuf);
    record::Header {
        tool: &o.tool,
        command: &o.command_line,
        kernel: &m.kernel,
        arch: &m.arch,
        host: &m.host,
        cpu_model: &m.cpu_model,
        topology: &m.topology,
        mono_ns: usage::clock_ns(libc::CLOCK_MONOTONIC),
        boot_ns: usage::clock_ns(libc::CLOCK_BOOTTIME),
        real_ns: usage::clock_ns(libc::CLOCK_REALTIME),
        level: o.level,
        structure: o.capture.structure != Structure::Off,
        transport,
        buffer_bytes: o.capture.buffer_bytes,
        hit_ns,
        source,
    }
}

/// The roles to probe at a level, the innermost first.
pub(super) fn roles(detail: Detail, options: &RecordOptions) -> heapless::Vec<Role, ROLES> {
    let wanted = |role: &Role| match role {
        Role::OpEnd | Role::Op => detail >= Detail::Op,
        Role::Kernel => detail >= Detail::Op && options.capture.gpu >= GpuDetail::Kernel,
        Role::Node | Role::Dispatch | Role::Batch => {
            detail >= Detail::Op && options.capture.gpu >= GpuDetail::Op
        }
        Role::CpuGraph | Role::Split | Role::Graph => detail >= Detail::Graph,
        Role::Wait | Role::Token | Role::Ubatch | Role::Memory | Role::Task => detail >= Detail::Token,
        Role::Phase => detail >= Detail::Token && options.phases,
    };
    Role::ALL.into_iter().filter(wanted).collect()
}

pub(super) fn source(
    backend: &CaptureBackend,
    options: CaptureOptions,
    btf: Option<Btf>,
    counters: Option<Rc<SharedCounters>>,
    drain: &Rc<RefCell<Drain<Counted>>>,
) -> Box<dyn Source> {
    let drain = drain.clone();
    let sink: Sink = Rc::new(RefCell::new(move |bytes: &[u8]| drain.borrow_mut().event(bytes)));
    backend.open(options, btf, counters, sink)
}
