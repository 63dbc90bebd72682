//! The event source on kernels with uprobes but without bpf(): events defined in tracefs that fetch what a probe
//! needs, read through perf's rings. What the BPF programs do in the kernel is done here, later, on the samples.

pub(crate) mod event;
mod fields;
mod graph;
mod probes;
mod replay;
pub(crate) mod ring;
mod sample;
mod sched;
mod snapshot;

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use crate::capture::error::RecordError;
use crate::capture::skel::types::{ev_counter, ev_kind};
use crate::capture::source::{EventStats, FeatureStatus, Knobs, Prober, Sink, Source, Structure};
use crate::capture::structure::Reading;
use crate::capture::transport::{Order, SLACK_NS};
use crate::engine::probes::{PHASES, Prog, WAITS};
use crate::host::tracefs::Tracefs;
use crate::host::usage;
use fields::Field;
use pfi::record::Availability;
use probes::{EngineProbes, Probes};
use replay::Replay;
use ring::{Record, Ring};
use sample::Sample;
use sched::Sched;
use snapshot::{Entry, Snapshot};

/// What a recording from this backend lacks, for doctor and the trace.
pub const LACKS: &str = "sources and strides are read from memory while a graph runs, and are unknown \
    where the read came too late; CPU time of the probes is not measured";

pub struct Perf {
    knobs: Knobs,
    open: Option<Open>,
    replay: Replay,
    news: Vec<String>,
    /// Why the scheduler's events are not available.
    unscheduled: Option<String>,
    targets: Vec<u32>,
}

/// State held in the kernel.
struct Open {
    rings: Vec<Ring>,
    cpus: Vec<u32>,
    probes: Rc<RefCell<Probes>>,
    order: Order,
    /// By ring: records lost for lack of space, as reported by the kernel.
    lost: Vec<u64>,
    /// Records of processes that start and end are used.
    follows: bool,
}

/// Bytes before a record's own data while it passes through [`Order`]: time; tgid, tid, which probe, CPU, length, 0.
const HEAD: usize = 32;
/// Not probe numbers: a thread started (followed by its parent's process id) or ended.
const FORK: u32 = u32::MAX;
const EXIT: u32 = u32::MAX - 1;
/// Likewise: a scheduler event.
const SCHED: u32 = u32::MAX - 2;

impl Perf {
    pub fn new(knobs: Knobs, sink: Sink) -> Perf {
        let replay = Replay::new(sink, knobs.structure != Structure::Off);
        Perf { knobs, open: None, replay, news: Vec::new(), unscheduled: None, targets: Vec::new() }
    }

    /// Whether this kernel offers this backend to this user; Err says what is missing.
    pub fn offered() -> Result<(), String> {
        Tracefs::open()?;
        event::tasks(event::online()[0], 0).map(drop).map_err(|e| event::failed(&e))
    }

    fn open(&mut self) -> Result<&mut Open, RecordError> {
        if self.open.is_none() {
            event::allow_files();
            let tracefs = Tracefs::open().map_err(RecordError::Events)?;
            let cpus = event::online();
            let ring = |&cpu: &u32| Ring::open(cpu, self.knobs.buffer);
            let rings = cpus.iter().map(ring).collect::<Result<Vec<_>, _>>();
            let rings = rings.map_err(|e| RecordError::Ring(event::failed(&e)))?;
            let leaders = rings.iter().map(|r| r.as_fd().try_clone_to_owned()).collect::<Result<Vec<_>, _>>();
            let leaders = leaders.map_err(|e| RecordError::Ring(event::failed(&e)))?;
            let lost = vec![0; cpus.len()];
            let leaders = cpus.iter().copied().zip(leaders).collect();
            let probes = Rc::new(RefCell::new(Probes::new(tracefs, leaders, self.knobs.own)));
            if self.knobs.sched {
                self.watch_scheduler(&rings, &cpus);
            }
            self.open = Some(Open { rings, cpus, probes, order: Order::default(), lost, follows: true });
        }
        // Always open at this point.
        self.open.as_mut().ok_or_else(|| RecordError::Events(String::new()))
    }

    fn watch_scheduler(&mut self, rings: &[Ring], cpus: &[u32]) {
        let leader = |r: &Ring| r.as_fd().try_clone_to_owned();
        let leaders = rings.iter().map(leader).collect::<Result<Vec<_>, _>>().map_err(|e| event::failed(&e));
        let watching = leaders.and_then(|leaders| {
            let mut sched = Sched::new(cpus.iter().copied().zip(leaders).collect())?;
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

    fn forgo_scheduler(&mut self, why: String) {
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
        open.order.release(before, &mut |bytes| go_on(&mut self.replay, probes, bytes));
        if let Some(Err(why)) = self.replay.sched.as_mut().map(Sched::renew) {
            self.news.push(format!(
                "off-CPU time of threads that start from now on may not be recorded: \
                {why}"
            ));
        }
    }
}

impl Open {
    /// Merges the records of all rings in order. Returns the graphs just entered that are worth reading.
    fn arrive(&mut self, replay: &mut Replay) -> Vec<(u16, Entry)> {
        let Open { rings, probes, order, lost, follows, .. } = self;
        let (mut entered, mut bytes) = (Vec::new(), Vec::new());
        let probes = &mut *probes.borrow_mut();
        for (cpu, ring) in rings.iter_mut().enumerate() {
            ring.read(&mut |record| {
                match record {
                    Record::Sample { tgid, tid, time, raw }
                        if replay.sched.as_mut().is_some_and(|s| s.received(cpu, raw)) =>
                    {
                        pack(&mut bytes, (time, tgid, tid, SCHED, cpu), raw);
                    }
                    Record::Sample { tgid, tid, time, raw } => {
                        let Some(probe) = probes.received(cpu, raw) else { return };
                        entered.extend(entry(replay, probes, probe, &Sample { at: time, tgid, tid, raw }));
                        pack(&mut bytes, (time, tgid, tid, probe as u32, cpu), raw);
                    }
                    Record::Lost(n) => return lost[cpu] += n,
                    Record::Fork { tgid, tid, parent, time } if *follows => {
                        replay.adopt(tgid, tid, parent);
                        pack(&mut bytes, (time, tgid, tid, FORK, cpu), &parent.to_ne_bytes());
                    }
                    Record::Exit { tgid, tid, time } if *follows => {
                        pack(&mut bytes, (time, tgid, tid, EXIT, cpu), &[]);
                    }
                    _ => return,
                }
                order.push(&bytes, &mut |b| go_on(replay, probes, b));
            });
        }
        entered
    }
}

/// The graph that a sample enters, with its engine, if it should be read.
fn entry(replay: &Replay, probes: &Probes, probe: usize, s: &Sample<'_>) -> Option<(u16, Entry)> {
    let m = probes.meaning(probe).filter(|m| m.prog == Prog::GraphEnter && replay.reads(s.tgid, m.engine))?;
    let word = |field| m.places.u64(s.raw, field);
    let entry = Entry {
        tgid: s.tgid,
        tid: s.tid,
        at: s.at,
        cgraph: word(Field::A)?,
        nodes: word(Field::Nodes)?,
        n_nodes: m.places.u32(s.raw, Field::N)?,
        uid: word(Field::Uid).unwrap_or(0),
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

/// Passes one packed record to the state machine.
fn go_on(replay: &mut Replay, probes: &mut Probes, packed: &[u8]) {
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
        SCHED => replay.scheduled(cpu, &Sample { at, tgid, tid, raw }),
        probe => match probes.meaning(probe as usize) {
            Some(m) if replay.records(tgid, m.engine) => replay.sample(m, &Sample { at, tgid, tid, raw }),
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
        Prog::OpExit | Prog::Barrier => return None,
        Prog::Tokenize | Prog::Detokenize | Prog::Sampling | Prog::Load | Prog::PhaseExit => return None,
        Prog::WaitBackend | Prog::WaitSched | Prog::WaitContext | Prog::WaitRead | Prog::WaitExit => {
            return None;
        }
    })
}

impl Source for Perf {
    fn start(&mut self) -> Result<(), RecordError> {
        self.open().map(drop)
    }

    fn engine(&mut self, reading: &Reading) -> Result<Box<dyn Prober>, RecordError> {
        let structure = self.knobs.structure != Structure::Off;
        let probes = self.open()?.probes.clone();
        self.replay.graphs.add_engine(reading);
        let layout = reading.layout.clone();
        Ok(Box::new(EngineProbes { engine: reading.engine, layout, structure, probes }))
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
            None => (Availability::Partly, blind),
            Some(why) => (Availability::None, why.as_str()),
        };
        self.knobs.sched.then(|| FeatureStatus { state, why: why.to_owned() })
    }

    fn poll(&mut self, timeout: Duration) {
        let rings = self.open.as_ref().map_or(&[][..], |o| &o.rings);
        let wait = |r: &Ring| libc::pollfd { fd: r.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut waits: Vec<libc::pollfd> = rings.iter().map(wait).collect();
        crate::host::wake::poll(&mut waits, timeout);
        self.take(usage::now().saturating_sub(SLACK_NS));
    }

    fn leave_processes(&mut self) {
        if let Some(open) = &mut self.open {
            open.follows = false;
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
        let calls = |p| matches!(p, Prog::PhaseExit) || PHASES.iter().any(|phase| phase.prog == p);
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
