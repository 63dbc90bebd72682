//! The start of a recording: its header, the roles to probe, the knobs, the source.

use std::cell::RefCell;
use std::rc::Rc;

use super::output::Counted;
use crate::capture::backend::Backend;
use crate::capture::pmc::follow::Shared;
use crate::capture::source::{Knobs, Sink, Source, Structure};
use crate::capture::transport;
use crate::engine::probes::{Role, Site};
use crate::host::btf::Btf;
use crate::host::{machine, usage};
use crate::recorder::drain::Drain;
use crate::recorder::recording::Options;
use pfi::record::{self, Detail, Level};

pub(super) fn header<'a>(
    o: &'a Options,
    backend: &Backend,
    m: &'a machine::Machine,
    hit_ns: u32,
) -> record::Header<'a> {
    let (source, transport) = backend.told(o.pbuf);
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
        structure: o.structure && o.level == Level::Op,
        transport,
        buffer_bytes: o.buffer_bytes,
        hit_ns,
        source,
    }
}

/// The roles to probe at a level, the innermost first.
pub(super) fn roles(detail: Detail, phases: bool) -> &'static [Role] {
    // Role::ALL goes from the inside out and ends with the phases.
    let from = match detail {
        Detail::Nothing => return &[],
        Detail::Token => 5,
        Detail::Graph => 2,
        _ => 0,
    };
    &Role::ALL[from..if phases { 8 } else { 7 }]
}

pub(super) fn knobs(o: &Options) -> Knobs {
    Knobs {
        pbuf: o.pbuf,
        buffer: transport::ring_bytes(o.buffer_bytes),
        structure: match (o.structure && o.level == Level::Op, o.site) {
            (false, _) => Structure::Off,
            (true, Site::FirstAndReturn) => Structure::EveryHit,
            (true, _) => Structure::Changes,
        },
        experts: o.experts && o.structure && o.level == Level::Op,
        sched: o.sched,
        own: false,
    }
}

pub(super) fn source(
    backend: &Backend,
    knobs: Knobs,
    btf: Option<Btf>,
    counters: Option<Rc<Shared>>,
    drain: &Rc<RefCell<Drain<Counted>>>,
) -> Box<dyn Source> {
    let drain = drain.clone();
    let sink: Sink = Rc::new(RefCell::new(move |bytes: &[u8]| drain.borrow_mut().event(bytes)));
    backend.open(knobs, btf, counters, sink)
}
