//! Events as sent by the BPF programs, made by a test.

use std::io::Write;

use agent::capture::event::{self, Call, Head, KIND_NAMES, Op};
use agent::recorder::drain::Drain;
use pfi::record::Footer;

pub const PID: u32 = 1 << 30;
pub const MS: u64 = 1_000_000;

/// Feeds a drain.
pub struct Fake<W: Write>(pub Drain<W>);

impl<W: Write> Fake<W> {
    fn head(ms: u64, tid: u32, kind: &str) -> Head {
        let kind = KIND_NAMES.iter().position(|k| *k == kind).expect("a kind of event") as u16;
        Head { ts: ms * MS, tgid: PID, tid, kind, engine: 0, ith: 0, flags: 0 }
    }

    /// On the first thread, like ops.
    pub fn call(&mut self, ms: u64, kind: &str) {
        self.call_on(ms, PID, kind);
    }

    pub fn call_on(&mut self, ms: u64, tid: u32, kind: &str) {
        let h = Self::head(ms, tid, kind);
        let e = Call {
            h,
            a: 1,
            b: 2,
            n: 3,
            threads: 1,
            width: 1,
            nodes_changed: 0,
            kernels: 0,
            launches: 0,
            guid: [0; 16],
        };
        self.0.event(event::bytes(&e));
    }

    pub fn op(&mut self, ms: u64, node: u64) {
        let h = Self::head(ms, PID, "op");
        let e = Op { h, tensor: 0x1000 * node, tensor2: 0, pool: 0x30_0000, prev_end: 0 };
        self.0.event(event::bytes(&e));
    }
}

/// For a recording without any other metadata.
pub fn footer(wall_ns: u64) -> Footer<'static> {
    Footer {
        end: "duration",
        kinds: Vec::new(),
        lost_cpu: Vec::new(),
        orphans: 0,
        read_errors: 0,
        agent_user_us: 0,
        agent_sys_us: 0,
        agent_peak_rss: 0,
        wall_ns,
        bpf_ns: 0,
        bpf_runs: 0,
    }
}
