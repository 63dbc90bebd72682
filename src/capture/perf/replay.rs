//! Turns samples, in order of time, into the events that the BPF programs would have sent: the state machine of
//! src/bpf/ops.bpf.c in user space.

use std::collections::HashMap;

use super::fields::FetchArg;
use super::graph::PerfGraphs;
use super::sample::{EventOut, Meaning, ProbeSample};
use super::samplers::{SamplerCalls, SamplerFrame};
use super::sched::PerfSched;
use super::snapshot::Snapshot;
use crate::capture::event::{Call, FLAG_FUSED, Head, KINDS, Op, Sampler, cpu_flags};
use crate::capture::skel::types::ev_kind;
use crate::capture::source::Sink;
use engine::probes::{self, Prog, WAITS};

/// Maximum number of threads tracked, the size of the BPF side's table; when it is reached, all are forgotten.
const MAX_THREADS: usize = 16384;

/// What a thread is doing: `struct thread_state` of src/bpf/send.h.
#[derive(Debug, Clone, Copy, Default)]
struct ThreadState {
    pool: u64,
    /// Current op, 0: none.
    tensor: u64,
    start: u64,
    /// Its end, 0: not seen yet.
    end: u64,
    last_ra: u64,
    last_ts: u64,
    /// Threads of its graph, 0: not known.
    nth: u32,
    in_graph: bool,
}

/// The outermost call of a thread: `struct phase_call` of src/bpf/phases.h.
#[derive(Debug, Clone, Copy)]
struct OutermostCall {
    start: u64,
    sp: u64,
    what: usize,
}

/// `struct wait_call` of src/bpf/waits.h.
#[derive(Debug, Clone, Copy, Default)]
struct WaitCall {
    sp: u64,
    start: u64,
    object: u64,
}

/// Return addresses of the barrier's call sites, learned: see `barrier_enter` of src/bpf/ops.bpf.c.
#[derive(Debug, Clone, Copy, Default)]
struct Barriers {
    in_loop: u64,
    at_end: u64,
}

pub struct Replay {
    out: EventOut,
    structure: bool,
    /// Processes that are followed, each with one bit per engine that it has.
    targets: HashMap<u32, u32>,
    barriers: HashMap<u32, Barriers>,
    thread_states: HashMap<u32, ThreadState>,
    phases: HashMap<u32, OutermostCall>,
    samplers: SamplerCalls,
    waits: HashMap<u32, [WaitCall; WAITS.len()]>,
    pub graphs: PerfGraphs,
    pub sched: Option<PerfSched>,
}

fn head(kind: ev_kind, m: &Meaning, s: &ProbeSample<'_>) -> Head {
    Head { ts: s.at, tgid: s.tgid, tid: s.tid, kind: kind.0 as u16, engine: m.engine, ..Default::default() }
}

impl Replay {
    pub fn new(sink: Sink, structure: bool) -> Replay {
        Replay {
            out: EventOut { sink, sent: [0; KINDS] },
            structure,
            targets: HashMap::new(),
            barriers: HashMap::new(),
            thread_states: HashMap::new(),
            phases: HashMap::new(),
            samplers: SamplerCalls::default(),
            waits: HashMap::new(),
            graphs: PerfGraphs::default(),
            sched: None,
        }
    }

    /// Events sent so far, by kind.
    pub fn sent(&self) -> &[u64; KINDS] {
        &self.out.sent
    }

    pub fn add_target(&mut self, pid: u32) {
        self.targets.entry(pid).or_insert(0);
    }

    /// Records that a followed process has this engine.
    pub fn admit(&mut self, pid: u32, engine: u16) {
        if let Some(engines) = self.targets.get_mut(&pid) {
            *engines |= 1 << (engine & 31);
        }
    }

    /// Stops recording a process.
    pub fn drop_target(&mut self, pid: u32) {
        self.targets.remove(&pid);
    }

    /// Whether a process is recorded and has this engine.
    pub fn records(&self, tgid: u32, engine: u16) -> bool {
        self.targets.get(&tgid).is_some_and(|engines| engines & 1 << (engine & 31) != 0)
    }

    /// Whether to read a process's graphs from its memory.
    pub fn reads(&self, tgid: u32, engine: u16) -> bool {
        self.structure && self.records(tgid, engine)
    }

    /// A process or thread started. Called when the record arrives, before it is processed in order.
    pub fn adopt(&mut self, tgid: u32, tid: u32, parent: u32) {
        if tgid == tid {
            self.inherit(tgid, parent);
        }
    }

    /// Follows a child of a followed process, with the same engines. True: the parent is followed.
    fn inherit(&mut self, child: u32, parent: u32) -> bool {
        let Some(&engines) = self.targets.get(&parent) else { return false };
        self.targets.entry(child).or_insert(engines);
        true
    }

    /// A process or thread started.
    pub fn fork(&mut self, tgid: u32, tid: u32, parent: u32, at: u64) {
        if let Some(sched) = self.sched.as_mut().filter(|_| self.targets.contains_key(&parent)) {
            sched.begins(tgid, tid);
        }
        if tgid != tid || tgid == parent || !self.inherit(tgid, parent) {
            return;
        }
        let kind = ev_kind::EV_FORK;
        let h = Head { ts: at, tgid: parent, tid: parent, kind: kind.0 as u16, ..Default::default() };
        self.out.send(kind, &Call { h, a: tgid.into(), ..Default::default() });
    }

    /// A thread ended. If it is the first thread, the process ended.
    pub fn exit(&mut self, tgid: u32, tid: u32, at: u64) {
        self.thread_states.remove(&tid);
        self.phases.remove(&tid);
        self.samplers.forget(tid);
        self.waits.remove(&tid);
        self.graphs.leave(tid);
        if tgid != tid || self.targets.remove(&tgid).is_none() {
            return;
        }
        self.barriers.remove(&tgid);
        self.graphs.forget(tgid);
        let kind = ev_kind::EV_EXIT;
        let h = Head { ts: at, tgid, tid, kind: kind.0 as u16, ..Default::default() };
        self.out.send(kind, &Call { h, ..Default::default() });
    }

    /// What was read of the graph that a thread has entered. It is validated when the graph ends.
    pub fn snapshot(&mut self, snapshot: Snapshot) {
        self.graphs.hold(snapshot);
    }

    /// A thread was switched in or out, or woken.
    pub fn scheduled(&mut self, cpu: usize, s: &ProbeSample<'_>) {
        if let Some(sched) = &mut self.sched {
            sched.sample(cpu, s, &mut self.out);
        }
    }

    /// Reports the threads that are still off-CPU.
    pub fn close(&mut self) {
        if let Some(sched) = &mut self.sched {
            sched.close(&mut self.out);
        }
    }

    /// A probe was hit.
    pub fn sample(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        match m.prog {
            Prog::TokenProcess => self.token(m, s, |b| if b as u32 == 0 { 2 } else { 0 }),
            Prog::TokenDecode => self.token(m, s, |_| 1),
            Prog::TokenEncode => self.token(m, s, |_| 2),
            Prog::TokenExit => self.call(ev_kind::EV_TOKEN_EXIT, m, s),
            Prog::SchedEnter => self.call(ev_kind::EV_SCHED_ENTER, m, s),
            Prog::SchedExit => self.call(ev_kind::EV_SCHED_EXIT, m, s),
            Prog::SplitEnter => self.call(ev_kind::EV_SPLIT_ENTER, m, s),
            Prog::SplitExit => self.call(ev_kind::EV_SPLIT_EXIT, m, s),
            Prog::GraphEnter => self.graph_enter(m, s),
            Prog::GraphExit => self.graph_exit(m, s),
            Prog::Op | Prog::Fused => self.op(m, s),
            Prog::OpExit => {
                let kind = ev_kind::EV_THREAD_END;
                let h = Head { ith: u16::MAX, ..head(kind, m, s) };
                self.out.send(kind, &Op { h, ..Default::default() });
            }
            Prog::Barrier => self.barrier(m, s),
            Prog::Tokenize | Prog::Detokenize | Prog::Sampling | Prog::Load => self.phase_enter(m, s),
            Prog::SamplerApply | Prog::SamplerAccept => {
                self.phase_enter(m, s);
                self.sampler_enter(m, s);
            }
            Prog::PhaseExit => {
                self.sampler_exit(m, s);
                self.phase_exit(m, s);
            }
            Prog::WaitBackend | Prog::WaitSched | Prog::WaitContext | Prog::WaitRead => self.wait_enter(m, s),
            Prog::WaitExit => self.wait_exit(m, s),
            // Not placed: only BPF programs read these.
            _ => {}
        }
    }

    fn token(&mut self, m: &Meaning, s: &ProbeSample<'_>, entry: impl Fn(u64) -> u64) {
        let b = m.places.u64(s.raw, FetchArg::B).unwrap_or(0);
        let n = m.places.u32(s.raw, FetchArg::N).map_or(-1, u32::cast_signed);
        let a = m.places.u64(s.raw, FetchArg::A).unwrap_or(0);
        let kind = ev_kind::EV_TOKEN_ENTER;
        self.out.send(kind, &Call { h: head(kind, m, s), a, b: entry(b), n, ..Default::default() });
    }

    /// A call as described by the sample.
    fn call(&mut self, kind: ev_kind, m: &Meaning, s: &ProbeSample<'_>) {
        let word = |field| m.places.u64(s.raw, field).unwrap_or(0);
        let mut e =
            Call { h: head(kind, m, s), a: word(FetchArg::A), b: word(FetchArg::B), ..Default::default() };
        shape(&mut e, m, s);
        if let Some([a, b]) = m.places.words::<2>(s.raw, FetchArg::Guid) {
            e.guid[..8].copy_from_slice(&a.to_ne_bytes());
            e.guid[8..].copy_from_slice(&b.to_ne_bytes());
        }
        self.out.send(kind, &e);
    }

    fn graph_enter(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let kind = ev_kind::EV_GRAPH_ENTER;
        let word = |field| m.places.u64(s.raw, field).unwrap_or(0);
        let mut e =
            Call { h: head(kind, m, s), a: word(FetchArg::A), b: word(FetchArg::Uid), ..Default::default() };
        shape(&mut e, m, s);
        e.threads = m.places.u32(s.raw, FetchArg::Threads).unwrap_or(0);
        if self.structure {
            self.graphs.begin(&e.h, e.a, e.b);
        }
        self.keep(s.tid, ThreadState { in_graph: true, ..ThreadState::default() });
        self.out.send(kind, &e);
    }

    fn graph_exit(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let kind = ev_kind::EV_GRAPH_EXIT;
        let mut e = Call { h: head(kind, m, s), ..Default::default() };
        let barriers = self.barriers.entry(s.tgid).or_default();
        if let Some(thread_state) = self.thread_states.get_mut(&s.tid) {
            // The last barrier that thread 0 entered is the one at the graph's end.
            if thread_state.tensor != 0
                && thread_state.last_ra != 0
                && thread_state.last_ra != barriers.in_loop
            {
                barriers.at_end = thread_state.last_ra;
                e.a = thread_state.last_ts;
            } else {
                // Older engines have one call site for both.
                e.a = thread_state.end;
            }
            (thread_state.in_graph, thread_state.tensor) = (false, 0);
            e.threads = thread_state.nth;
        }
        if self.structure {
            self.graphs.end(&e.h, &mut self.out);
        }
        self.out.send(kind, &e);
    }

    fn op(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let word = |field| m.places.u64(s.raw, field).unwrap_or(0);
        let Some(ith) = m.places.u32(s.raw, FetchArg::Ith) else { return };
        let kind = ev_kind::EV_OP;
        let mut e = Op {
            h: Head { ith: ith.min(u16::MAX.into()) as u16, ..head(kind, m, s) },
            tensor: word(FetchArg::Tensor),
            tensor2: word(FetchArg::Tensor2),
            pool: word(FetchArg::Pool),
            prev_end: 0,
        };
        e.h.flags = cpu_flags(s.cpu) | if e.tensor2 != 0 { FLAG_FUSED } else { 0 };
        let mut thread_state = self.thread_states.get(&s.tid).copied().unwrap_or_default();
        if thread_state.tensor != 0 && thread_state.pool == e.pool {
            let barriers = self.barriers.entry(s.tgid).or_default();
            // The last barrier before thread 0's next op is the one in the node loop.
            if thread_state.in_graph && barriers.in_loop == 0 && thread_state.last_ts > thread_state.start {
                barriers.in_loop = thread_state.last_ra;
                thread_state.end = thread_state.last_ts;
            }
            e.prev_end = thread_state.end;
        }
        (thread_state.pool, thread_state.tensor, thread_state.start, thread_state.end) =
            (e.pool, e.tensor, s.at, 0);
        thread_state.nth = m.places.u32(s.raw, FetchArg::Nth).unwrap_or(0);
        self.keep(s.tid, thread_state);
        if self.structure && thread_state.in_graph {
            let first = [FetchArg::Op, FetchArg::Type, FetchArg::Ne, FetchArg::Name];
            let second = [FetchArg::Op2, FetchArg::Type2, FetchArg::Ne2, FetchArg::Name2];
            self.graphs.hit(&e.h, e.tensor, &m.places, s.raw, first, &mut self.out);
            if e.tensor2 != 0 {
                self.graphs.hit(&e.h, e.tensor2, &m.places, s.raw, second, &mut self.out);
            }
        }
        self.out.send(kind, &e);
    }

    fn barrier(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let word = |field| m.places.u64(s.raw, field).unwrap_or(0);
        let Some(thread_state) = self.thread_states.get_mut(&s.tid).filter(|l| l.tensor != 0) else { return };
        // Engines without pools do not have one in their ops either.
        if thread_state.pool != 0 && thread_state.pool != word(FetchArg::Pool) {
            return;
        }
        (thread_state.last_ra, thread_state.last_ts) = (word(FetchArg::Ra), s.at);
        let barriers = self.barriers.entry(s.tgid).or_default();
        if thread_state.last_ra == barriers.in_loop {
            if thread_state.end == 0 {
                thread_state.end = s.at;
            }
        } else if thread_state.last_ra == barriers.at_end && !thread_state.in_graph {
            let kind = ev_kind::EV_THREAD_END;
            let (tensor, pool) = (thread_state.tensor, thread_state.pool);
            thread_state.tensor = 0;
            self.out.send(kind, &Op { h: head(kind, m, s), tensor, pool, ..Default::default() });
        }
    }

    /// As `phase_enter` of src/bpf/phases.h.
    fn phase_enter(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let Some(what) = probes::phase_of(m.prog) else { return };
        let Some(sp) = m.places.u64(s.raw, FetchArg::Sp) else { return };
        if self.phases.get(&s.tid).is_some_and(|outer| outer.sp > sp) {
            return;
        }
        if self.phases.len() >= MAX_THREADS {
            self.phases.clear();
        }
        self.phases.insert(s.tid, OutermostCall { start: s.at, sp, what });
        if m.prog == Prog::Load {
            self.phase(m, s, what, 0);
        }
    }

    /// When the call of sampling began that the thread is in.
    fn in_sampling(&self, tid: u32) -> Option<u64> {
        let sampling = probes::phase_of(Prog::Sampling);
        self.phases.get(&tid).filter(|c| Some(c.what) == sampling).map(|c| c.start)
    }

    /// As `sampler_enter` of src/bpf/phases.h.
    fn sampler_enter(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let word = |field| m.places.u64(s.raw, field).unwrap_or(0);
        let (sp, table) = (word(FetchArg::Sp), word(FetchArg::B));
        let Some(since) = self.in_sampling(s.tid).filter(|_| word(FetchArg::A) != 0) else { return };
        let does = u32::from(m.prog == Prog::SamplerAccept);
        self.samplers.enter(s.tid, since, SamplerFrame { sp, start: s.at, table, within: 0, does });
    }

    fn sampler_exit(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let (Some(sp), Some(since)) = (entered_at(m, s), self.in_sampling(s.tid)) else { return };
        if let Some(SamplerFrame { start, table, within, does, .. }) =
            self.samplers.exit(s.tid, since, sp, s.at)
        {
            let kind = ev_kind::EV_SAMPLER;
            self.out.send(kind, &Sampler { h: head(kind, m, s), start, table, within, does, unused: 0 });
        }
    }

    fn phase_exit(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let sp = entered_at(m, s);
        if let Some(call) = self.phases.get(&s.tid).copied().filter(|c| Some(c.sp) == sp) {
            self.phases.remove(&s.tid);
            self.phase(m, s, call.what, call.start);
        }
    }

    fn phase(&mut self, m: &Meaning, s: &ProbeSample<'_>, what: usize, start: u64) {
        let kind = ev_kind::EV_PHASE;
        self.out.send(kind, &Call { h: head(kind, m, s), a: start, n: what as i32, ..Default::default() });
    }

    /// As `wait_enter` of src/bpf/waits.h.
    fn wait_enter(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let word = |field| m.places.u64(s.raw, field).unwrap_or(0);
        let Some(what) = WAITS.iter().position(|w| w.prog == m.prog) else { return };
        if self.waits.len() >= MAX_THREADS {
            self.waits.clear();
        }
        let of = self.waits.entry(s.tid).or_default();
        of[what] = WaitCall { sp: word(FetchArg::Sp), start: s.at, object: word(FetchArg::A) };
    }

    /// As `wait_exit` there; the drain reads which backend it is.
    fn wait_exit(&mut self, m: &Meaning, s: &ProbeSample<'_>) {
        let (Some(sp), Some(of)) = (entered_at(m, s), self.waits.get_mut(&s.tid)) else { return };
        let Some(what) = of.iter().position(|w| w.sp == sp) else { return };
        let WaitCall { start, object, .. } = std::mem::take(&mut of[what]);
        let kind = ev_kind::EV_WAIT;
        let (h, n) = (head(kind, m, s), what as i32);
        self.out.send(kind, &Call { h, a: start, b: object, n, ..Default::default() });
    }

    fn keep(&mut self, tid: u32, thread_state: ThreadState) {
        if self.thread_states.len() >= MAX_THREADS {
            self.thread_states.clear();
        }
        self.thread_states.insert(tid, thread_state);
    }
}

/// The stack pointer at the entry of the function that has returned.
fn entered_at(m: &Meaning, s: &ProbeSample<'_>) -> Option<u64> {
    let returned = if cfg!(target_arch = "x86_64") { 8 } else { 0 };
    m.places.u64(s.raw, FetchArg::Sp).map(|sp| sp.wrapping_sub(returned))
}

/// Node count and width of a graph, if they were fetched.
fn shape(e: &mut Call, m: &Meaning, s: &ProbeSample<'_>) {
    if let Some(n) = m.places.u32(s.raw, FetchArg::N) {
        e.n = n.cast_signed();
        e.width = m.places.u32(s.raw, FetchArg::Width).filter(|_| e.n > 0).unwrap_or(0);
    }
}
