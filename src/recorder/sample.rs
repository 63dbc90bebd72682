//! An empty header and footer, for the tests of this room that write a trace.

use pfi::record::{Footer, Header, Level, SourceKind, TransportKind};

pub const HEADER: Header<'static> = Header {
    tool: "",
    command: "",
    kernel: "",
    arch: "",
    host: "",
    cpu_model: "",
    topology: "",
    mono_ns: 0,
    boot_ns: 0,
    real_ns: 0,
    level: Level::Token,
    structure: false,
    transport: TransportKind::Ring,
    buffer_bytes: 0,
    hit_ns: 0,
    source: SourceKind::Bpf,
};

pub fn footer() -> Footer<'static> {
    Footer::default()
}
