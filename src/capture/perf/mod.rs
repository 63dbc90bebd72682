//! The event source on kernels with uprobes but without bpf(): events defined in tracefs that fetch what a probe
//! needs, read through perf's rings. What the BPF programs do in the kernel is done here, later, on the samples.

pub mod event;
mod fields;
mod graph;
mod probes;
mod replay;
pub mod ring;
mod sample;
mod samplers;
mod sched;
mod snapshot;
pub(crate) mod switches;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use crate::capture::error::{ProbeError, RecordError, SchedError};
use crate::capture::skel::types::{ev_counter, ev_kind};
use crate::capture::source::{CaptureOptions, EventStats, FeatureStatus, Prober, Sink, Source, Structure};
use crate::capture::structure::Reading;
use crate::capture::transport::{SLACK_NS, SortQueue};
use engine::probes::{Prog, WAITS, phase_of};
use fields::FetchArg;
use machine::kernel::tracefs::Tracefs;
use machine::usage;
use pfi::record::Availability;
use probes::{PerfEngineProbes, Probes};
use replay::Replay;
use ring::{PerfRecord, Ring};
use sample::ProbeSample;
use sched::PerfSched;
use snapshot::{GraphEntry, Snapshot};

/// What a recording from this backend lacks, for doctor and the trace.
pub const LACKS: &str = "sources and strides are read from memory while a graph runs, and are unknown \
    where the read came too late; CPU time of the probes is not measured";

pub struct Perf {
    options: CaptureOptions,
    open: Option<PerfState>,
    replay: Replay,
    news: Vec<String>,
    /// Why the scheduler's events are not available.
    unscheduled: Option<SchedError>,
    targets: Vec<u32>,
}

/// State held in the kernel.
struct PerfState {
    rings: Vec<Ring>,
    cpus: Vec<u32>,
    probes: Rc<RefCell<Probes>>,
    order: SortQueue,
    /// Memory for [`ring::merge`].
    next: Vec<(u64, u64)>,
    /// By ring: records lost for lack of space, as reported by the kernel.
    lost: Vec<u64>,
    /// Records of processes that start and end are used up to here, CLOCK_MONOTONIC ns: rings are read later.
    follows_until: u64,
}

/// The smallest ring that is tried where larger ones are refused, bytes.
const LEAST_RING: u32 = 128 << 10;
/// Bytes before a record's own data while it passes through [`SortQueue`]: time; tgid, tid, which probe, ring, length, 0.
const HEAD: usize = 32;
/// Not probe numbers: a thread started (followed by its parent's process id) or ended.
const FORK: u32 = u32::MAX;
const EXIT: u32 = u32::MAX - 1;
/// Likewise: a scheduler event.
const SCHED: u32 = u32::MAX - 2;

impl Perf {
    pub fn new(options: CaptureOptions, sink: Sink) -> Perf {
        let replay = Replay::new(sink, options.structure != Structure::Off);
        Perf { options, open: None, replay, news: Vec::new(), unscheduled: None, targets: Vec::new() }
    }

    /// Whether this kernel offers this backend to this user; Err says what is missing.
    pub fn offered() -> Result<(), ProbeError> {
        Tracefs::open()?;
        event::tasks(event::online()[0], 0).map_err(event::failed)?;
        Ok(())
    }

    fn open(&mut self) -> Result<&mut PerfState, RecordError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.open_rings()?,
        };
        Ok(self.open.insert(open))
    }

    fn open_rings(&mut self) -> Result<PerfState, RecordError> {
        event::allow_files();
        let tracefs = Tracefs::open().map_err(|e| RecordError::Events(e.into()))?;
        let cpus = event::online();
        let rings = self.rings(&cpus).map_err(|e| RecordError::Ring(event::failed(e)))?;
        let leaders = rings.iter().map(|r| r.as_fd().try_clone_to_owned()).collect::<Result<Vec<_>, _>>();
        let leaders = leaders.map_err(|e| RecordError::Ring(event::failed(e)))?;
        let lost = vec![0; cpus.len()];
        let leaders = cpus.iter().copied().zip(leaders).collect();
        let probes = Rc::new(RefCell::new(Probes::new(tracefs, leaders, self.options.own)));
        if self.options.sched {
            self.watch_scheduler(&rings, &cpus);
        }
        Ok(PerfState {
            rings,
            cpus,
            probes,
            order: SortQueue::default(),
            next: Vec::new(),
            lost,
            follows_until: u64::MAX,
        })
    }

    /// A ring per CPU. The kernel limits the memory that it locks for a user without CAP_IPC_LOCK, in all processes
    /// (`perf_mmap` of kernel/events/core.c): smaller ones are better than none, and said.
    fn rings(&mut self, cpus: &[u32]) -> io::Result<Vec<Ring>> {
        let wanted = self.options.buffer();
        let mut bytes = wanted;
        loop {
            match cpus.iter().map(|&cpu| Ring::open(cpu, bytes)).collect() {
                Err(e) if e.raw_os_error() == Some(libc::EPERM) && bytes > LEAST_RING => bytes /= 2,
                rings => {
                    if bytes < wanted && rings.is_ok() {
                        self.news.push(format!(
                            "event buffers of {} KiB per CPU instead of {} KiB: the kernel locks no more memory for \
                            this user (RLIMIT_MEMLOCK, kernel.perf_event_mlock_kb, other recordings)",
                            bytes >> 10,
                            wanted >> 10
                        ));
                    }
                    return rings;
                }
            }
        }
    }

    fn watch_scheduler(&mut self, rings: &[Ring], cpus: &[u32]) {
        let leader = |r: &Ring| r.as_fd().try_clone_to_owned();
        let leaders = rings.iter().map(leader).collect::<Result<Vec<_>, _>>().map_err(event::failed);
        let watching = leaders.map_err(SchedError::from).and_then(|leaders| {
            let mut sched = PerfSched::new(cpus.iter().copied().zip(leaders).collect())?;
            self.targets.iter().for_each(|&pid| sched.follow(pid));
            sched.renew()?;
            // Threads that started before the filter passed them.
            self.targets.drain(..).for_each(|pid| sched.follow(pid));
            Ok(sched)
        });
        match watching {
            Ok(sched) => self.replay.sched = Some(sched),
            Err(why) => self.forgo_scheduler(why),
        }
    }

    fn forgo_scheduler(&mut self, why: SchedError) {
        self.news.push(format!("off-CPU time is not recorded: {why}"));
        self.replay.sched = None;
        self.unscheduled = Some(why);
    }

    /// Reads the rings; samples older than `before` go to the state machine.
    fn take(&mut self, before: u64) {
        let Some(open) = &mut self.open else { return };
        let entered = open.arrive(&mut self.replay);
        for entry in entered {
            if let Some(reading) = self.replay.graphs.reading(entry.0) {
                let snapshot = Snapshot::take(entry.1, &reading.layout);
                self.replay.snapshot(snapshot);
            }
        }
        let probes = &mut *open.probes.borrow_mut();
        open.order.release(before, &mut |bytes| go_on(&mut self.replay, probes, &open.cpus, bytes));
        if let Some(Err(why)) = self.replay.sched.as_mut().map(PerfSched::renew) {
            self.news.push(format!(
                "off-CPU time of threads that start from now on may not be recorded: \
                {why}"
            ));
        }
    }
}

impl PerfState {
    /// Merges the records of all rings in order. Returns the graphs just entered that are worth reading.
    fn arrive(&mut self, replay: &mut Replay) -> Vec<(u16, GraphEntry)> {
        let PerfState { rings, cpus, probes, order, next, lost, follows_until } = self;
        let (mut entered, mut bytes) = (Vec::new(), Vec::new());
        let probes = &mut *probes.borrow_mut();
        ring::merge(rings, next, &mut |cpu, record| {
            match record {
                PerfRecord::Sample { tgid, tid, time, raw }
                    if replay.sched.as_mut().is_some_and(|s| s.received(cpu, raw)) =>
                {
                    pack(&mut bytes, (time, tgid, tid, SCHED, cpu), raw);
                }
                PerfRecord::Sample { tgid, tid, time, raw } => {
                    let Some(probe) = probes.received(cpu, raw) else { return };
                    entered.extend(entry(
                        replay,
                        probes,
                        probe,
                        &ProbeSample { at: time, tgid, tid, cpu: None, raw },
                    ));
                    pack(&mut bytes, (time, tgid, tid, probe as u32, cpu), raw);
                }
                PerfRecord::Lost(n) => return lost[cpu] += n,
                PerfRecord::Fork { tgid, tid, parent, time, .. } if time < *follows_until => {
                    replay.adopt(tgid, tid, parent);
                    pack(&mut bytes, (time, tgid, tid, FORK, cpu), &parent.to_ne_bytes());
                }
                PerfRecord::Exit { tgid, tid, time } if time < *follows_until => {
                    pack(&mut bytes, (time, tgid, tid, EXIT, cpu), &[]);
                }
                _ => return,
            }
            order.push(&bytes, &mut |b| go_on(replay, probes, cpus, b));
        });
        entered
    }
}

/// The graph that a sample enters, with its engine, if it should be read.
fn entry(replay: &Replay, probes: &Probes, probe: usize, s: &ProbeSample<'_>) -> Option<(u16, GraphEntry)> {
    let m = probes.meaning(probe).filter(|m| m.prog == Prog::GraphEnter && replay.reads(s.tgid, m.engine))?;
    let word = |field| m.places.u64(s.raw, field);
    let entry = GraphEntry {
        tgid: s.tgid,
        tid: s.tid,
        at: s.at,
        cgraph: word(FetchArg::A)?,
        nodes: word(FetchArg::Nodes)?,
        n_nodes: m.places.u32(s.raw, FetchArg::N)?,
        uid: word(FetchArg::Uid).unwrap_or(0),
    };
    replay.graphs.wanted(&entry).then_some((m.engine, entry))
}

fn pack(out: &mut Vec<u8>, (at, tgid, tid, what, cpu): (u64, u32, u32, u32, usize), raw: &[u8]) {
    out.clear();
    out.extend(at.to_ne_bytes());
    out.extend([tgid, tid, what, cpu as u32, raw.len() as u32, 0].iter().flat_map(|v| v.to_ne_bytes()));
    out.extend(raw);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// Passes one packed record to the state machine; `cpus` are the rings' CPUs.
fn go_on(replay: &mut Replay, probes: &mut Probes, cpus: &[u32], packed: &[u8]) {
    let Some((head, rest)) = packed.split_at_checked(HEAD) else { return };
    let word = |i: usize| {
        let bytes = head.get(i * 4..i * 4 + 4).and_then(|b| b.try_into().ok());
        u32::from_ne_bytes(bytes.unwrap_or_default())
    };
    let at = crate::capture::event::word(head, 0);
    let (tgid, tid, what, cpu, len) = (word(2), word(3), word(4), word(5) as usize, word(6) as usize);
    let raw = rest.get(..len).unwrap_or_default();
    match what {
        FORK => replay.fork(tgid, tid, crate::capture::event::word(rest, 0) as u32, at),
        EXIT => replay.exit(tgid, tid, at),
        SCHED => replay.scheduled(cpu, &ProbeSample { at, tgid, tid, cpu: None, raw }),
        probe => match probes.meaning(probe as usize) {
            Some(m) if replay.records(tgid, m.engine) => {
                if let Some(sched) = &mut replay.sched {
                    sched.runs(cpu, tid, at);
                }
                // A CPU's events fire on it only, and write to its ring.
                let cpu = cpus.get(cpu).and_then(|&cpu| u16::try_from(cpu).ok());
                replay.sample(m, &ProbeSample { at, tgid, tid, cpu, raw })
            }
            Some(_) => probes.stranger(cpu, probe as usize),
            None => {}
        },
    }
}

/// Kind of event that a probe's samples turn into.
fn kind(prog: Prog) -> Option<ev_kind> {
    Some(match prog {
        Prog::TokenProcess | Prog::TokenDecode | Prog::TokenEncode => ev_kind::EV_TOKEN_ENTER,
        Prog::TokenExit => ev_kind::EV_TOKEN_EXIT,
        Prog::SchedEnter => ev_kind::EV_SCHED_ENTER,
        Prog::SchedExit => ev_kind::EV_SCHED_EXIT,
        Prog::SplitEnter => ev_kind::EV_SPLIT_ENTER,
        Prog::SplitExit => ev_kind::EV_SPLIT_EXIT,
        Prog::GraphEnter => ev_kind::EV_GRAPH_ENTER,
        Prog::GraphExit => ev_kind::EV_GRAPH_EXIT,
        Prog::Op | Prog::Fused => ev_kind::EV_OP,
        _ => return None,
    })
}

impl Source for Perf {
    fn start(&mut self) -> Result<(), RecordError> {
        self.open().map(drop)
    }

    fn engine(&mut self, reading: &Reading) -> Result<Box<dyn Prober>, RecordError> {
        let structure = self.options.structure != Structure::Off;
        let probes = self.open()?.probes.clone();
        self.replay.graphs.add_engine(reading);
        let layout = reading.layout.clone();
        Ok(Box::new(PerfEngineProbes { engine: reading.engine, layout, structure, probes }))
    }

    fn add_target(&mut self, pid: u32) {
        self.replay.add_target(pid);
        match self.open {
            Some(_) => self.meet(pid),
            None => self.targets.push(pid),
        }
    }

    fn admit(&mut self, pid: u32, engine: u16) {
        self.replay.admit(pid, engine);
    }

    fn drop_target(&mut self, pid: u32) {
        self.targets.retain(|&p| p != pid);
        self.replay.drop_target(pid);
    }

    fn meet(&mut self, pid: u32) {
        if let Some(sched) = &mut self.replay.sched {
            sched.follow(pid);
        }
    }

    fn scheduler(&self) -> Option<FeatureStatus> {
        let blind = "perf events on the tracepoints sched_switch, sched_waking, sched_wakeup; page faults \
            and block I/O cannot be distinguished from other uninterruptible waits";
        let (state, why) = match &self.unscheduled {
            None => (Availability::Partly, blind.to_owned()),
            Some(why) => (Availability::None, why.to_string()),
        };
        self.options.sched.then_some(FeatureStatus { state, why })
    }

    fn poll(&mut self, timeout: Duration) {
        let rings = self.open.as_ref().map_or(&[][..], |o| &o.rings);
        let wait = |r: &Ring| libc::pollfd { fd: r.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut waits: Vec<libc::pollfd> = rings.iter().map(wait).collect();
        machine::wake::poll(&mut waits, timeout);
        self.take(usage::now().saturating_sub(SLACK_NS));
    }

    fn leave_processes(&mut self) {
        if let Some(open) = &mut self.open {
            open.follows_until = usage::now();
        }
        if let Some(sched) = &mut self.replay.sched {
            sched.leave();
        }
    }

    fn finish(&mut self) {
        self.take(u64::MAX);
        self.replay.close();
    }

    fn lost(&self) -> u64 {
        self.open.as_ref().map_or(0, |o| o.lost.iter().sum())
    }

    fn event_stats(&self) -> EventStats {
        let mut event_stats = EventStats::default();
        let Some(open) = &self.open else { return event_stats };
        let probes = open.probes.borrow();
        let mut by_cpu = vec![0; open.cpus.len()];
        // Events generated here, other than one per sample, count as seen when they are sent.
        for (row, &sent) in event_stats.kinds.iter_mut().zip(self.replay.sent()) {
            row.seen = sent;
        }
        for kind in Prog::ALL.into_iter().filter_map(kind) {
            let tally = probes.tally(|p| self::kind(p) == Some(kind), &mut vec![0; open.cpus.len()]);
            if let Some(row) = event_stats.kinds.get_mut(kind.0 as usize) {
                *row = tally;
            }
        }
        let returns = probes.tally(|p| p == Prog::OpExit, &mut vec![0; open.cpus.len()]);
        let ends = &mut event_stats.kinds[ev_kind::EV_THREAD_END.0 as usize];
        (ends.seen, ends.lost) = (ends.seen + returns.lost, returns.lost);
        let calls = |p| matches!(p, Prog::PhaseExit) || phase_of(p).is_some();
        let calls = probes.tally(calls, &mut vec![0; open.cpus.len()]);
        let phases = &mut event_stats.kinds[ev_kind::EV_PHASE.0 as usize];
        (phases.seen, phases.lost) = (phases.seen + calls.lost, calls.lost);
        let waiting = |p| p == Prog::WaitExit || WAITS.iter().any(|w| w.prog == p);
        let calls = probes.tally(waiting, &mut vec![0; open.cpus.len()]);
        let waits = &mut event_stats.kinds[ev_kind::EV_WAIT.0 as usize];
        (waits.seen, waits.lost) = (waits.seen + calls.lost, calls.lost);
        event_stats.barriers = probes.tally(|p| p == Prog::Barrier, &mut vec![0; open.cpus.len()]);
        probes.tally(|_| true, &mut by_cpu);
        if let Some(sched) = &self.replay.sched {
            let lost = sched.lost(&mut by_cpu);
            let offcpu = &mut event_stats.kinds[ev_kind::EV_OFFCPU.0 as usize];
            (offcpu.seen, offcpu.lost) = (offcpu.seen + lost, lost);
        }
        // The kernel reports a ring's total losses. Those not attributed to a probe or the scheduler were records
        // of processes that started or ended.
        for (lost, &all) in by_cpu.iter_mut().zip(&open.lost) {
            let tasks = all.saturating_sub(*lost);
            *lost += tasks;
            let forks = &mut event_stats.kinds[ev_kind::EV_FORK.0 as usize];
            (forks.seen, forks.lost) = (forks.seen + tasks, forks.lost + tasks);
        }
        event_stats.counters[ev_counter::CNT_OP_RETURN.0 as usize] = returns.seen;
        event_stats.counters[ev_counter::CNT_READ_ERROR.0 as usize] = self.replay.graphs.unread;
        event_stats.lost_cpu = vec![0; open.cpus.iter().max().map_or(0, |&c| c as usize + 1)];
        for (&cpu, lost) in open.cpus.iter().zip(by_cpu) {
            event_stats.lost_cpu[cpu as usize] = lost;
        }
        event_stats
    }

    fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }
}
