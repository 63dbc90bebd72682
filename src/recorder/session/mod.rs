//! A recording from beginning to end: find engines, attach, drain, verify, write the event statistics.

mod calibration;
mod closing;
mod entering;
mod extras;
mod finding;
mod layers;
mod levels;
mod output;
mod requests;
mod rotate;
mod samplers;
mod setup;
mod starting;
mod states;
mod writing;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use self::extras::Extras;
use self::output::{Counted, notice};
use self::setup::{header, roles, source};
use crate::capture::backend::CaptureBackend;
use crate::capture::error::RecordError;
use crate::capture::inside::is_recorded_inside;
use crate::capture::pmc::Counters;
use crate::capture::skel::types::ev_kind;
use crate::capture::source::{CaptureOptions, Source};
use crate::capture::structure::{self, MAX_ENGINES};
use crate::recorder::attached::{AttachedEngine, removal};
use crate::recorder::computing::ComputingWatch;
use crate::recorder::drain::{Drain, Shown};
use crate::recorder::file_reads::FileReads;
use crate::recorder::qos::Controller;
use crate::recorder::qos::policy::DetailStep;
use crate::recorder::recording::{
    Arrivals, RecordOptions, RecordingProgress, SessionObserver, Summary, Target,
};
use crate::recorder::submissions::DeviceWatch;
use crate::recorder::verify::{self, Wanted};
use crate::recorder::watched_states::States;
use engine::discover::{self, DiscoverError};
use engine::probes::{Role, Site};
use engine::samplers::Makers;
use machine::diagnose;
use machine::halt::Halts;
use machine::hardware::{self, AgentCpu};
use machine::kernel::tracefs;
use machine::maps::{FileId, Mapping};
use machine::sensors::Sampler;
use machine::{target, tracing, usage};
use pfi::record::{Availability, Detail, Feature};
use pfi::ring::{BlockRing, IntoRing};
use pfi::{Encoder, EncoderConfig, Output, WriteError};

/// Intervals between searches for engines in a process's maps: short until one is found, long afterwards.
const SCAN_SOON: Duration = Duration::from_millis(5);
const SCAN_LATE: Duration = Duration::from_millis(500);
/// How long after a process appeared its searches stay frequent: an engine may wait days for its first request.
const SOON: Duration = Duration::from_secs(10);
/// Everything that a process did has been read this long after its end.
const DOUBT: Duration = Duration::from_secs(1);
/// Waits of the drain loop before and after the rungs are verified.
const WAIT_SOON: Duration = Duration::from_millis(10);
const WAIT_LATE: Duration = Duration::from_millis(50);

pub use self::calibration::learn;

struct Session {
    options: RecordOptions,
    any: bool,
    /// Reports processes that begin to run what is recorded, if they are not known beforehand.
    arrivals: Option<Box<dyn Arrivals>>,
    arrived: Vec<u32>,
    /// Stops the command where it begins to run something, while its engine is unknown; and the stopped processes.
    halts: Option<Halts>,
    halted: BTreeSet<u32>,
    /// Children that ran through probes before they were probed.
    early: u64,
    /// Children that ran while they were probed, and their parents: until the first event of each.
    uncertain: BTreeMap<u32, u32>,
    /// Processes that had the engine before the recording began, and their age at that time.
    late: Vec<(u32, Duration)>,
    /// The recorder moves to CPUs that the engine does not use.
    roams: bool,
    /// The settings that the command gets instead of the recorder's.
    origin: hardware::InheritedSettings,
    drain: Rc<RefCell<Drain<Counted>>>,
    source: Box<dyn Source>,
    engines: Vec<AttachedEngine>,
    /// Followed processes, with the state of their maps when last read.
    pids: BTreeMap<u32, u64>,
    /// The command started here: its process, its program and its name as given.
    launched: Option<(u32, (String, String))>,
    described: BTreeSet<u32>,
    /// Files that are not part of an engine.
    strangers: HashSet<FileId>,
    /// Processes that are left alone because they are recorded from inside.
    recorded_inside: BTreeSet<u32>,
    /// Where each process has the engines' files, to name its samplers.
    mapped: HashMap<u32, Vec<Mapping>>,
    /// By file and address in it of a sampler's functions; Err: why its name is not known.
    sampler_names: HashMap<(u64, u64, u64), Result<String, String>>,
    sampler_makers: HashMap<FileId, Makers>,
    last_missing: Option<DiscoverError>,
    /// Whether any process was followed so far.
    followed: bool,
    sampler: Option<Sampler>,
    submissions: DeviceWatch,
    file_reads: FileReads,
    states: States,
    counters: Option<Counters>,
    /// The current detail level, and the controller if it may change.
    detail: Detail,
    qos: Option<Controller>,
    extras: Extras,
    started: u64,
    /// When events were last waited for.
    polled: u64,
    /// When the last process arrived.
    came: Instant,
    /// The start of the current trace in the recording's event statistics.
    base: rotate::Base,
    /// Processes that had ended when checked, or that are threads, and the time of the check; their events may
    /// still be in flight.
    doubtful: Vec<(u32, Instant)>,
    /// The user was notified that some processes have no meter.
    crowd_told: bool,
    ring: Option<Rc<RefCell<BlockRing>>>,
    /// Needed for a trace's header, and when targets come and go.
    backend: CaptureBackend,
    hit_ns: u32,
    managed: bool,
    /// Nothing is attached any longer.
    closed: bool,
    /// Lost events when requests were last passed on.
    lost_before: u64,
}

/// Records into `out` until the target ends, a limit is reached or `watch` asks to stop.
///
/// `Output` is dynamic so that all kinds share this code: the recorder is to stay small.
pub fn record(
    target: Target,
    mut options: RecordOptions,
    out: Box<dyn Output>,
    watch: &mut dyn SessionObserver,
) -> Result<Summary, RecordError> {
    diagnose::capture_libbpf_log();
    let pids: &[u32] = if let Target::Pids(pids) = &target { pids } else { &[] };
    pids.iter().try_for_each(|p| target::alive(*p).then_some(()).ok_or(RecordError::NoProcess(*p)))?;
    let starts = matches!(target, Target::Command(_) | Target::Managed(Some(_)));
    let backend = CaptureBackend::choose(options.source, starts)?;
    let inside = matches!(backend, CaptureBackend::Inside(_));
    if inside {
        // A jump has its place, whatever an instruction costs the kernel.
        options.site = Site::First;
    } else {
        tracing::oops().into_iter().for_each(|oops| watch.tell(oops));
        tracefs::sweep().iter().for_each(|swept| watch.tell(swept));
    }
    // Before any trial: trials use what a command must not inherit.
    let mut origin = hardware::InheritedSettings::of_this_thread();
    if let Some(cpus) = &options.cpus {
        let refused = |cpus: Vec<u32>| RecordError::CommandCpus(common::cpus::ranges(cpus.into_iter()));
        origin = origin.on(cpus).map_err(refused)?;
    }
    let hit_ns = match &options.calibration {
        Some(calibration) => calibration.hit_ns,
        None if options.calibrated_later => 0,
        None => calibration::hit_ns(&backend),
    };
    let wish = options.agent_cpu;
    hardware::huge_pages(false);
    let bound = hardware::settle(wish)
        .map_err(|source| RecordError::AgentCpu { cpu: format!("{wish:?}"), source })?;
    let ring = options.ring.map(|(span, most)| {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Rc::new(RefCell::new(BlockRing::new(span, usize::try_from(most).unwrap_or(usize::MAX))))
    });
    let out = ring.as_ref().map_or(out, |ring| Box::new(IntoRing(ring.clone())));
    let out = Counted { out, bytes: 0 };
    let flush_ns = options.flush.as_nanos() as u64;
    let cfg = EncoderConfig { flush_ns, ..EncoderConfig::default() };
    let mut enc = Encoder::new(out, cfg, &header(&options, &backend, &hardware::read(), hit_ns))?;
    // Perf events of the scheduler are of all threads of the machine: too many to be read by default.
    options.capture.sched &= options.sched_requested || !matches!(backend, CaptureBackend::Perf(_));
    if options.capture.experts && matches!(backend, CaptureBackend::Perf(_)) {
        options.capture.experts = false;
        let why = "only BPF programs can read them, probe events cannot";
        enc.feature(&Feature { name: "experts", state: Availability::None, why })?;
        watch.tell(&format!("experts are not recorded: {why}"));
    }
    let drain = Rc::new(RefCell::new(Drain::new(enc)));
    let counters = Counters::open(&options.counters, backend == CaptureBackend::Bpf)?;
    let shared = counters.as_ref().and_then(Counters::shared);
    drain.borrow_mut().count(shared.as_ref().map_or(0, |s| s.n));
    let (any, managed) = (matches!(target, Target::Exe(_)), matches!(target, Target::Managed(_)));
    drain.borrow_mut().process_tree.metering = managed;
    drain.borrow_mut().process_tree.listing = watch.lists_requests();
    drain.borrow_mut().computing = managed.then(ComputingWatch::default);
    let detail = calibration::top(options.level, options.capture.structure);
    let arrivals = match &target {
        Target::Exe(launch) => Some(watch.arrivals(&launch.program)?),
        _ => None,
    };
    let mut s = Session {
        any,
        arrivals,
        arrived: Vec::new(),
        halts: None,
        halted: BTreeSet::new(),
        early: 0,
        uncertain: BTreeMap::new(),
        late: Vec::new(),
        source: source(
            &backend,
            CaptureOptions { few: options.capture.few && !managed, ..options.capture },
            options.btf.clone(),
            shared,
            &drain,
        ),
        roams: wish == AgentCpu::Auto && bound.is_none(),
        origin,
        options,
        drain,
        engines: Vec::new(),
        pids: BTreeMap::new(),
        launched: None,
        described: BTreeSet::new(),
        strangers: HashSet::new(),
        recorded_inside: BTreeSet::new(),
        mapped: HashMap::new(),
        sampler_names: HashMap::new(),
        sampler_makers: HashMap::new(),
        last_missing: None,
        followed: false,
        sampler: None,
        submissions: DeviceWatch::default(),
        file_reads: FileReads::default(),
        states: States::default(),
        counters,
        detail,
        qos: None,
        extras: Extras::default(),
        started: usage::now(),
        polled: 0,
        came: Instant::now(),
        base: rotate::Base::default(),
        doubtful: Vec::new(),
        crowd_told: false,
        ring,
        backend,
        hit_ns,
        managed,
        closed: false,
        lost_before: 0,
    };
    s.keep_budget(watch)?;
    s.write_peaks(watch)?;
    if let Some(sensors) = &s.options.sensors {
        s.sampler = Sampler::start(sensors, &mut s.drain.borrow_mut().enc, &mut |text| watch.tell(text))?;
    }
    if let Some(text) = s.backend.notice() {
        notice(&s.drain, &text, watch)?;
        if let Some(btf) = &s.options.btf {
            let unused = format!("{} is not used: only BPF programs need types", btf.path.display());
            notice(&s.drain, &unused, watch)?;
        }
    }
    s.count(watch)?;
    let (mut child, end) = match &target {
        Target::Pids(pids) => {
            for &pid in pids {
                if !target::alive(pid) {
                    return Err(RecordError::Ended(pid));
                }
                if is_recorded_inside(pid) {
                    return Err(RecordError::RecordedInside(pid));
                }
                s.follow(pid);
                s.add_all(Ok(discover::of_pid(pid)?), Some(pid), watch)?;
                s.came_late(pid);
            }
            (None, s.run(&mut None, watch))
        }
        Target::Command(argv) | Target::Managed(Some(argv)) => {
            let mut child = Some(s.launch(argv, watch)?);
            let end = s.run(&mut child, watch);
            (child, end)
        }
        Target::Managed(None) => {
            s.source.start()?;
            s.hear(watch)?;
            (None, s.run(&mut None, watch))
        }
        Target::Exe(launch) => {
            s.add_all(Ok(discover::of_launch(launch)?), None, watch)?;
            (None, s.run(&mut None, watch))
        }
    };
    let status = child.as_mut().and_then(|c| c.try_wait().ok().flatten()).map(target::shell_code);
    let recorded = s.finish(end, status, watch);
    if let Some(command) = child
        && (recorded.is_err() || status.is_none())
    {
        // It goes on, or has ended meanwhile, and its status is known to nobody yet.
        watch.left(command);
    }
    recorded
}

impl Session {
    /// Forwards messages of the source.
    fn hear(&mut self, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        for text in self.source.news() {
            notice(&self.drain, &text, watch)?;
        }
        self.write_features()
    }

    /// The main loop. Returns the reason for its end.
    fn run(
        &mut self,
        child: &mut Option<Child>,
        watch: &mut dyn SessionObserver,
    ) -> Result<String, RecordError> {
        let begin = Instant::now();
        let mut scanned = begin.checked_sub(SCAN_LATE).unwrap_or(begin);
        loop {
            let seen = self.drain.borrow().totals.calls > 2 || self.came.elapsed() > SOON;
            let settled = !self.engines.is_empty() && seen;
            self.polled = usage::now();
            self.wait_for_events(self.wait(if settled { WAIT_LATE } else { WAIT_SOON }));
            self.tell_computing(watch);
            if let Some(e) = self.drain.borrow_mut().take_error() {
                return Err(e.into());
            }
            self.drain.borrow_mut().enc.tick(usage::now())?;
            self.arrive(watch)?;
            self.attend(watch)?;
            if let Some(sampler) = &mut self.sampler {
                sampler.pass(&mut self.drain.borrow_mut().enc, &mut |text| watch.tell(text))?;
            }
            self.submissions.write(&mut self.drain.borrow_mut().enc, false)?;
            self.file_reads.pass(&mut self.drain.borrow_mut(), false)?;
            self.name_samplers()?;
            self.meet_processes(watch)?;
            self.watch_states()?;
            self.verify(watch)?;
            self.steer(watch)?;
            self.close(watch);
            let ended = self.ended(child);
            if !ended && scanned.elapsed() >= if settled { SCAN_LATE } else { SCAN_SOON } {
                self.scan(watch)?;
                scanned = Instant::now();
            }
            let progress = self.progress();
            if watch.lists_requests() {
                self.tell_requests(&progress, watch);
                watch.requests_now(&self.drain.borrow().process_tree.requests);
            }
            watch.progress(&progress);
            self.obey(&progress, watch)?;
            if ended {
                // That a process has ended is an event, too.
                self.source.poll(Duration::ZERO);
                return Ok("target exited".into());
            }
            if watch.stop() {
                return Ok("signal".into());
            }
            if self.options.duration.is_some_and(|d| begin.elapsed() >= d) {
                return Ok("duration".into());
            }
            if self.options.tokens.is_some_and(|n| progress.totals.decoded >= n) {
                return Ok("tokens".into());
            }
        }
    }

    fn progress(&self) -> RecordingProgress {
        let drain = self.drain.borrow();
        let lost = self.source.lost() + drain.unplaced().iter().sum::<u64>();
        RecordingProgress {
            totals: drain.totals,
            lost,
            bytes: drain.enc.bytes_written(),
            engines: self.engines.iter().filter(|a| a.attached > 0).count(),
            targets: self.pids.len(),
            call: drain.call(),
            level: self.qos.as_ref().map_or(DetailStep { level: self.detail, one_in: 1 }, Controller::now),
            followed: (self.probed() >= Detail::Graph && drain.reconfiguring_since().is_none())
                .then_some(self.polled),
            cost: self.qos.as_ref().and_then(Controller::cost),
        }
    }

    /// Reports what the processes compute from now on.
    fn tell_computing(&self, watch: &mut dyn SessionObserver) {
        // One by one: the drain is free again while the change is reported.
        loop {
            let change = self.drain.borrow_mut().computing.as_mut().and_then(ComputingWatch::take);
            let Some(change) = change else { return };
            watch.computes(change);
        }
    }

    fn verify(&mut self, watch: &mut dyn SessionObserver) -> Result<(), RecordError> {
        let roles = roles(self.probed(), &self.options);
        let wanted = Wanted { ops: self.probed() >= Detail::Op, nodes: roles.contains(&Role::Node) };
        for (i, a) in self.engines.iter_mut().enumerate() {
            let Some(mut shown) = self.drain.borrow().shown.get(i).copied() else { continue };
            for text in verify::verify(a, &mut shown, self.options.op_end, wanted) {
                notice(&self.drain, &text, watch)?;
            }
            if let Some(s) = self.drain.borrow_mut().shown.get_mut(i) {
                (s.barrier_on, s.silent, s.scheduler) = (shown.barrier_on, shown.silent, shown.scheduler);
                a.tell(s);
            }
            if let Some(why) = shown.unreadable.filter(|_| shown.graphs > 0 && shown.ops > 0 && !shown.told) {
                let layout = &a.engine.layout;
                watch.tell(&format!(
                    "a tensor does not match the detected layout ({layout}): {why}; its structure is not \
                     recorded"
                ));
                if let Some(s) = self.drain.borrow_mut().shown.get_mut(i) {
                    s.told = true;
                }
            }
        }
        Ok(self.write_probes()?)
    }

    fn ended(&mut self, child: &mut Option<Child>) -> bool {
        if self.any || self.managed && child.is_none() {
            return false;
        }
        if let Some(c) = child
            && matches!(c.try_wait(), Ok(None))
        {
            return false;
        }
        if self.managed {
            return true;
        }
        self.pids.retain(|&pid, _| target::alive(pid));
        self.pids.is_empty()
    }

    /// Detaches, takes the remaining events, writes the event statistics.
    fn finish(
        mut self,
        end: Result<String, RecordError>,
        status: Option<i32>,
        watch: &mut dyn SessionObserver,
    ) -> Result<Summary, RecordError> {
        watch.stopping(end.as_deref());
        // Let everything that is stopped continue.
        self.halts = None;
        self.engines.iter().filter_map(AttachedEngine::own_missing).for_each(|text| watch.tell(&text));
        // Cut what is in progress here: probes are removed one after the other.
        let stopped = usage::now();
        self.drain.borrow_mut().end_at(stopped);
        self.source.leave_processes();
        let heard = self.hear(watch);
        // Samples of perf events are read later, and those still waiting belong to the recording.
        if !matches!(self.backend, CaptureBackend::Perf(_)) {
            self.pids.keys().for_each(|&pid| self.source.drop_target(pid));
        }
        // Detaching may take seconds; a recorder that is killed meanwhile keeps everything up to the last event.
        self.source.poll(Duration::ZERO);
        let flushed = self.drain.borrow_mut().enc.flush();
        // Recorders of a service share the kernel's lock: one that ends must not keep others that begin waiting.
        // Elsewhere all wait together: an engine with its CPU variants in files of their own has some eighty.
        let at_once = if self.managed { 1 } else { 128 };
        removal::remove(self.engines.iter_mut().flat_map(AttachedEngine::take_links).collect(), at_once);
        self.extras_gone(stopped);
        self.source.finish();
        let end = end.and_then(|end| heard.and(flushed).map(|()| end).map_err(RecordError::from));
        // Whatever ended the recording, write its statistics; only a file that failed to write gets nothing more.
        let (end, failure) = match end {
            Ok(end) => (end, None),
            Err(e @ RecordError::Write(_)) => return Err(e),
            Err(e) => (e.to_string(), Some(e)),
        };
        self.name_samplers()?;
        self.meet_processes(watch)?;
        if self.managed {
            self.end_requests(watch);
        }
        if let Some(sampler) = self.sampler.take() {
            sampler.finish(&mut self.drain.borrow_mut().enc, &mut |text| watch.tell(text))?;
        }
        self.submissions.write(&mut self.drain.borrow_mut().enc, true)?;
        self.file_reads.pass(&mut self.drain.borrow_mut(), true)?;
        self.end_states()?;
        self.drain.borrow_mut().close(None, stopped)?;
        // Count the last graphs as well.
        let ops = self.probed() >= Detail::Op;
        for (a, shown) in self.engines.iter_mut().zip(&mut self.drain.borrow_mut().shown) {
            verify::verify(a, shown, self.options.op_end, Wanted { ops, nodes: false });
        }
        let event_stats = self.account()?;
        let footer = self.snapshot(event_stats.clone(), stopped).closing(&self.base.snapshot, &end, true);
        let engines = self.engines.iter().filter(|a| a.attached > 0).count();
        let missing = match engines {
            0 => self.last_missing.as_ref().map(ToString::to_string),
            _ => (!self.followed).then(|| "no process that runs or maps the program was seen".to_owned()),
        };
        // The source holds the other reference to the drain.
        drop(self.source);
        let drain = Rc::try_unwrap(self.drain).map_err(|_| RecordError::DrainInUse)?;
        let mut drain = drain.into_inner();
        if let Some(e) = drain.take_error() {
            return Err(e.into());
        }
        let summary = Summary {
            end,
            totals: drain.totals,
            lost: event_stats.lost(),
            seen: event_stats.seen(),
            bytes: 0,
            ops: drain.shown.iter().map(|s| s.ops).sum(),
            worked: drain.shown.iter().any(Shown::worked)
                || self.options.sched_requested && drain.received[ev_kind::EV_OFFCPU.0 as usize] > 0,
            engines,
            status,
            missing,
        };
        let out = drain.enc.finish(&footer.of())?;
        failure.map_or(Ok(Summary { bytes: out.bytes, ..summary }), Err)
    }
}

const _: () = assert!(MAX_ENGINES * structure::OPS_PER_ENGINE as usize <= u16::MAX as usize + 1);
