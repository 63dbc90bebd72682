//! Records that tests write into their own traces.

use pfi::record::{Header, Level, SourceKind, TransportKind};

/// For a recording of all levels, on no machine.
pub fn header() -> Header<'static> {
    Header {
        tool: "test",
        command: "",
        kernel: "",
        arch: "",
        host: "",
        cpu_model: "",
        topology: "",
        mono_ns: 0,
        boot_ns: 0,
        real_ns: 0,
        level: Level::Op,
        structure: true,
        transport: TransportKind::Ring,
        buffer_bytes: 0,
        hit_ns: 0,
        source: SourceKind::Bpf,
    }
}
