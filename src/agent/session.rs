//! A recording from beginning to end: find the engines, attach, drain, verify, close the books.
//! Uses every other module of `agent`, and `trace`.

mod closing;
mod entering;
mod extras;
mod levels;
mod setup;
mod starting;
mod turn;
mod writing;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use self::extras::Extras;
use self::setup::{header, knobs, roles, source};
use self::writing::{Counted, notice};
use super::attached::{Attached, Role};
use super::discover::{self, DiscoverError, Engine};
use super::drain::{Drain, Shown};
use super::elf::ElfError;
use super::halt::Halts;
use super::machine::{self, AgentCpu};
use super::maps::FileId;
use super::pmc::Counters;
use super::pulse;
use super::qos::Controller;
use super::qos::law::Step;
use super::recording::{Arrivals, Options, Progress, RecordError, Summary, Target, Watch};
use super::refusal;
use super::road::Road;
use super::sensors::Sampler;
use super::skel::types::ev_kind;
use super::source::Source;
use super::structure::{self, MAX_ENGINES, Reading};
use super::verify::{self, OpEnd};
use super::{target, tracefs, usage};
use crate::trace::record::{Availability, Detail, Feature};
use crate::trace::ring::{IntoRing, Ring};
use crate::trace::{Encoder, EncoderConfig, Output, WriteError};

/// Kinds of UNARY and GLU that get a name even where the engine's tables have none.
const KINDS_TOLD: usize = 64;
/// Looking for engines in a process's maps: often until one is found, rarely after.
const SCAN_SOON: Duration = Duration::from_millis(5);
const SCAN_LATE: Duration = Duration::from_millis(500);
/// Often means for so long after a process came: an engine may wait for its first request for days.
const SOON: Duration = Duration::from_secs(10);
/// What a process did has been read so long after its end.
const DOUBT: Duration = Duration::from_secs(1);
/// Waits of the drain loop before and after the rungs are verified.
const WAIT_SOON: Duration = Duration::from_millis(10);
const WAIT_LATE: Duration = Duration::from_millis(50);

pub use self::levels::learn;

struct Session {
    options: Options,
    any: bool,
    /// Processes that begin to run what is recorded, where it is not known beforehand which those are.
    arrivals: Option<Box<dyn Arrivals>>,
    arrived: Vec<u32>,
    /// Halts the command where it begins to run something, while its engine is not known; and the processes that were.
    halts: Option<Halts>,
    halted: BTreeSet<u32>,
    /// Children that ran through probes before they were probed.
    early: u64,
    /// Processes that had the engine before the recording began, and their age then.
    late: Vec<(u32, Duration)>,
    /// The recorder goes where the engine is not.
    roams: bool,
    /// What the command gets, which is not what the recorder takes.
    origin: machine::Origin,
    drain: Rc<RefCell<Drain<Counted>>>,
    source: Box<dyn Source>,
    engines: Vec<Attached>,
    /// Processes followed, with what their maps looked like when last read.
    pids: BTreeMap<u32, u64>,
    /// The command that was started here: its process, its program and how it was called.
    launched: Option<(u32, (String, String))>,
    described: BTreeSet<u32>,
    /// Files that are no part of an engine.
    strangers: HashSet<FileId>,
    last_missing: Option<DiscoverError>,
    sampler: Option<Sampler>,
    counters: Option<Counters>,
    /// How deep the recorder looks just now, and who decides that where it may change.
    detail: Detail,
    qos: Option<Controller>,
    extras: Extras,
    started: u64,
    /// When the last process came.
    came: Instant,
    /// Where the present trace begins in the recording's books.
    base: turn::Base,
    /// Processes that had ended when they were looked at, or are threads, and since when; what they did may be on its way.
    doubtful: Vec<(u32, Instant)>,
    /// It was told that some processes have no meter.
    crowd_told: bool,
    ring: Option<Rc<RefCell<Ring>>>,
    /// What a trace's header needs, and the recording's targets come and go.
    road: Road,
    hit_ns: u32,
    fed: bool,
    /// Nothing is attached any more.
    closed: bool,
}

/// Records into `out` until the target ends, a limit is met or `watch` says stop.
///
/// Any place for a trace is the same code: the recorder is to stay small.
pub fn record(
    target: Target,
    mut options: Options,
    out: Box<dyn Output>,
    watch: &mut dyn Watch,
) -> Result<Summary, RecordError> {
    refusal::hush();
    let pids: &[u32] = if let Target::Pids(pids) = &target { pids } else { &[] };
    pids.iter().try_for_each(|p| target::alive(*p).then_some(()).ok_or(RecordError::NoProcess(*p)))?;
    let road = Road::choose(options.source)?;
    tracefs::sweep().iter().for_each(|swept| watch.tell(swept));
    // Before anything is tried: trials take what a command is not to have.
    let origin = machine::Origin::of_this_thread();
    let hit_ns = options.learnt.as_ref().map_or_else(|| levels::hit_ns(&road), |learnt| learnt.hit_ns);
    let wish = options.agent_cpu;
    machine::huge_pages(false);
    let bound =
        machine::settle(wish).map_err(|source| RecordError::AgentCpu { cpu: format!("{wish:?}"), source })?;
    let ring = options.ring.map(|(span, most)| {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Rc::new(RefCell::new(Ring::new(span, usize::try_from(most).unwrap_or(usize::MAX))))
    });
    let out = ring.as_ref().map_or(out, |ring| Box::new(IntoRing(ring.clone())));
    let out = Counted { out, bytes: 0 };
    let flush_ns = options.flush.as_nanos() as u64;
    let cfg = EncoderConfig { flush_ns, ..EncoderConfig::default() };
    let mut enc = Encoder::new(out, cfg, &header(&options, &road, &machine::read(), hit_ns))?;
    if options.experts && road != Road::Bpf {
        options.experts = false;
        let why = "probe events cannot read them: only BPF programs can";
        enc.feature(&Feature { name: "experts", state: Availability::None, why })?;
        watch.tell(&format!("experts are not recorded: {why}"));
    }
    let drain = Rc::new(RefCell::new(Drain::new(enc)));
    let counters = Counters::open(&options.counters, road == Road::Bpf).map_err(RecordError::Counters)?;
    let shared = counters.as_ref().and_then(Counters::shared);
    drain.borrow_mut().count(shared.as_ref().map_or(0, |s| s.n));
    let (any, fed) = (matches!(target, Target::Exe(_)), matches!(target, Target::Fed));
    drain.borrow_mut().kin.metering = fed;
    let detail = levels::top(options.level, options.structure);
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
        late: Vec::new(),
        source: source(&road, knobs(&options), options.btf.clone(), shared, &drain),
        roams: wish == AgentCpu::Auto && bound.is_none(),
        origin,
        options,
        drain,
        engines: Vec::new(),
        pids: BTreeMap::new(),
        launched: None,
        described: BTreeSet::new(),
        strangers: HashSet::new(),
        last_missing: None,
        sampler: None,
        counters,
        detail,
        qos: None,
        extras: Extras::default(),
        started: usage::now(),
        came: Instant::now(),
        base: turn::Base::default(),
        doubtful: Vec::new(),
        crowd_told: false,
        ring,
        road,
        hit_ns,
        fed,
        closed: false,
    };
    s.keep_budget(watch)?;
    if let Some(sensors) = &s.options.sensors {
        s.sampler = Sampler::start(sensors, &mut s.drain.borrow_mut().enc, watch)?;
    }
    if let Some(notice) = s.road.notice() {
        writing::notice(&s.drain, &notice, watch)?;
        if let Some(btf) = &s.options.btf {
            let unused = format!("{} is not used: only BPF programs want types", btf.path.display());
            writing::notice(&s.drain, &unused, watch)?;
        }
    }
    s.count(watch)?;
    let (mut child, end) = match &target {
        Target::Pids(pids) => {
            for &pid in pids {
                if !target::alive(pid) {
                    return Err(RecordError::Ended(pid));
                }
                s.follow(pid);
                s.add_all(Ok(discover::of_pid(pid)?), Some(pid), watch)?;
                s.came_late(pid);
            }
            (None, s.run(&mut None, watch))
        }
        Target::Command(argv) => {
            let mut child = Some(s.launch(argv, watch)?);
            let end = s.run(&mut child, watch);
            (child, end)
        }
        Target::Fed => {
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
    if let Some(mut command) = child
        && (recorded.is_err() || matches!(command.try_wait(), Ok(None)))
    {
        watch.left(command);
    }
    recorded
}

impl Session {
    fn follow(&mut self, pid: u32) {
        self.forget_namesake(pid);
        self.came = Instant::now();
        self.pids.entry(pid).or_insert(0);
        self.source.add_target(pid);
    }

    fn launch(&mut self, argv: &[OsString], watch: &mut dyn Watch) -> Result<Child, RecordError> {
        let failed =
            |source| RecordError::Command { command: argv[0].to_string_lossy().into_owned(), source };
        let held = target::hold(argv, self.options.streams, self.origin, self.options.user.clone())
            .map_err(failed)?;
        self.follow(held.pid);
        let (pid, called) = (held.pid, target::shown(argv.iter().map(|a| a.as_bytes())));
        let found = discover::of_command(argv);
        // Nothing that it does could be recorded; it has not been started yet.
        if let Err(e @ DiscoverError::Elf(ElfError::Class32 { .. })) = found {
            return Err(e.into());
        }
        // What cannot be told from the files alone is found in the running process's maps.
        self.add_all(found, Some(held.pid), watch)?;
        // The engine may be a child's: children are followed from the first one on, whatever is known by then.
        self.source.start()?;
        self.hear(watch)?;
        if self.engines.is_empty() {
            self.halt(held.pid, watch)?;
        }
        let child = held.start().map_err(failed)?;
        // It may be over before anything of it is read.
        self.launched = Some((pid, (target::describe(pid).0, called)));
        Ok(child)
    }

    /// Attaches to engines not attached yet, and to new modules of those that are, in the process that they were found for.
    fn add_all(
        &mut self,
        found: Result<Vec<Engine>, DiscoverError>,
        of: Option<u32>,
        watch: &mut dyn Watch,
    ) -> Result<(), RecordError> {
        let engines = match found {
            Ok(engines) => engines,
            Err(e @ DiscoverError::WrongMachine { .. }) => return Err(e.into()),
            Err(e) if self.is_beyond(&e) => return Err(RecordError::Beyond),
            Err(e) => {
                // That a process has ended by now says less than what was found in its files before.
                if self.last_missing.is_none() || !matches!(e, DiscoverError::Process { .. }) {
                    self.last_missing = Some(e);
                }
                return Ok(());
            }
        };
        for engine in engines {
            let known = self.engines.iter().position(|a| a.same_base(&engine));
            if self.fed && self.has_no_room_for(&engine, known) {
                return Err(RecordError::Beyond);
            }
            let place = match known {
                Some(i) => {
                    let roles = roles(self.probed(), self.options.phases);
                    self.engines[i].extend(engine.modules, roles);
                    i
                }
                None if self.engines.len() == MAX_ENGINES => {
                    watch.tell("more than 15 different engines: the others are not recorded");
                    continue;
                }
                None => {
                    self.add(engine, watch)?;
                    self.engines.len() - 1
                }
            };
            if let Some(shown) = self.drain.borrow_mut().shown.get_mut(place) {
                shown.waits_on = self.engines[place].probed(Role::Wait);
            }
            if let Some(pid) = of {
                self.enter(pid, place, watch);
            }
        }
        self.write_probes()?;
        Ok(())
    }

    fn add(&mut self, engine: Engine, watch: &mut dyn Watch) -> Result<(), RecordError> {
        let id = self.engines.len() as u16;
        let reading = Reading::new(id, engine.layout.clone(), &engine.tables);
        let prober = self.source.engine(&reading)?;
        self.hear(watch)?;
        self.define(id, &engine)?;
        self.drain.borrow_mut().add_engine(reading);
        let mut attached = Attached::new(engine, prober, self.options.site);
        if self.options.op_end == OpEnd::Interval {
            attached.ladder.op_end.retain(|r| r.how == super::ladder::How::Interval);
        }
        for &role in roles(self.probed(), self.options.phases) {
            attached.attach(role, 0);
        }
        // With nothing to probe yet, the functions may come with a module that is loaded later.
        if let Some(why) = attached.failures.first().filter(|_| attached.attached == 0) {
            self.drain.borrow_mut().drop_engine();
            return Err(RecordError::Attach(why.clone()));
        }
        attached.failures.iter().for_each(|f| watch.tell(&format!("probe not attached: {f}")));
        self.engines.push(attached);
        Ok(())
    }

    /// Passes on what the source has to say.
    fn hear(&mut self, watch: &mut dyn Watch) -> Result<(), WriteError> {
        for text in self.source.news() {
            notice(&self.drain, &text, watch)?;
        }
        self.write_features()
    }

    /// The loop. Gives the reason for its end.
    fn run(&mut self, child: &mut Option<Child>, watch: &mut dyn Watch) -> Result<String, RecordError> {
        let begin = Instant::now();
        let mut scanned = begin.checked_sub(SCAN_LATE).unwrap_or(begin);
        loop {
            let seen = self.drain.borrow().totals.calls > 2 || self.came.elapsed() > SOON;
            let settled = !self.engines.is_empty() && seen;
            self.wait_for_events(self.wait(if settled { WAIT_LATE } else { WAIT_SOON }));
            if let Some(e) = self.drain.borrow_mut().take_error() {
                return Err(e.into());
            }
            self.drain.borrow_mut().enc.tick(usage::now())?;
            self.arrive(watch)?;
            self.attend(watch)?;
            if let Some(sampler) = &mut self.sampler {
                sampler.pass(&mut self.drain.borrow_mut().enc, watch)?;
            }
            self.meet_processes(watch)?;
            self.verify(watch)?;
            self.steer(watch)?;
            self.close(watch);
            let ended = self.ended(child);
            if !ended && scanned.elapsed() >= if settled { SCAN_LATE } else { SCAN_SOON } {
                self.scan(watch)?;
                scanned = Instant::now();
            }
            let progress = self.progress();
            watch.progress(&progress);
            self.obey(&progress, watch)?;
            if ended {
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

    fn progress(&self) -> Progress {
        let drain = self.drain.borrow();
        let lost = self.source.lost() + drain.unplaced().iter().sum::<u64>();
        Progress {
            totals: drain.totals,
            lost,
            bytes: drain.enc.bytes_written(),
            engines: self.engines.iter().filter(|a| a.attached > 0).count(),
            targets: self.pids.len(),
            call: drain.call(),
            level: self.qos.as_ref().map_or(Step { level: self.detail, one_in: 1 }, Controller::now),
            cost: self.qos.as_ref().and_then(Controller::cost),
        }
    }

    fn verify(&mut self, watch: &mut dyn Watch) -> Result<(), RecordError> {
        let ops = self.probed() >= Detail::Op;
        for (i, a) in self.engines.iter_mut().enumerate() {
            let Some(mut shown) = self.drain.borrow().shown.get(i).copied() else { continue };
            for text in verify::verify(a, &mut shown, self.options.op_end, ops) {
                notice(&self.drain, &text, watch)?;
            }
            if let Some(s) = self.drain.borrow_mut().shown.get_mut(i) {
                (s.barrier_on, s.silent, s.scheduler) = (shown.barrier_on, shown.silent, shown.scheduler);
                s.waits_on = a.probed(Role::Wait);
            }
            if let Some(why) = shown.unreadable.filter(|_| shown.graphs > 0 && shown.ops > 0 && !shown.told) {
                let layout = &a.engine.layout;
                watch.tell(&format!(
                    "a tensor does not fit the layout found ({layout}): {why}; its structure is not recorded"
                ));
                if let Some(s) = self.drain.borrow_mut().shown.get_mut(i) {
                    s.told = true;
                }
            }
        }
        Ok(self.write_probes()?)
    }

    fn ended(&mut self, child: &mut Option<Child>) -> bool {
        if self.any || self.fed {
            return false;
        }
        if let Some(c) = child
            && matches!(c.try_wait(), Ok(None))
        {
            return false;
        }
        self.pids.retain(|&pid, _| target::alive(pid));
        self.pids.is_empty()
    }

    /// Looks for engines, and for modules that came since, in the processes followed; moves out of their way.
    fn scan(&mut self, watch: &mut dyn Watch) -> Result<(), RecordError> {
        if self.roams && !self.engines.is_empty() {
            let busy: Vec<u32> = self.pids.keys().flat_map(|&pid| target::running_on(pid)).collect();
            machine::avoid(&busy);
        }
        self.bury()?;
        for text in self.counters.iter_mut().flat_map(Counters::tick) {
            notice(&self.drain, &text, watch)?;
        }
        for pid in self.pids.keys().copied().collect::<Vec<_>>() {
            // It may have been let go with the one before.
            if !self.pids.contains_key(&pid) {
                continue;
            }
            match self.scan_one(pid, watch) {
                // Others are recorded on.
                Err(e) if self.fed && !matches!(e, RecordError::Write(_)) => self.refuse(pid, e, watch)?,
                scanned => scanned?,
            }
        }
        Ok(())
    }

    fn scan_one(&mut self, pid: u32, watch: &mut dyn Watch) -> Result<(), RecordError> {
        let _at = pulse::at(pid);
        let now = target::maps_mark(pid);
        if now != 0 && self.pids.insert(pid, now) != Some(now) {
            self.source.meet(pid);
            // A file that another engine has as well, whose base is not here, is news of this process.
            let here = self.engines_of(pid);
            let engines = &self.engines;
            let known = |id: FileId| here.iter().any(|&place| engines[place].has(id));
            let found = discover::of_pid_again(pid, &known, &mut self.strangers);
            for &place in &here {
                self.enter(pid, place, watch);
            }
            self.add_all(found, Some(pid), watch)?;
        }
        Ok(())
    }

    /// Detaches, takes what is left, writes the books.
    fn finish(
        mut self,
        end: Result<String, RecordError>,
        status: Option<i32>,
        watch: &mut dyn Watch,
    ) -> Result<Summary, RecordError> {
        if let Err(e) = &end {
            watch.failed(e);
        }
        // Whatever is halted goes on.
        self.halts = None;
        // What is under way is cut here: probes go one after the other.
        let stopped = usage::now();
        self.drain.borrow_mut().end_at(stopped);
        self.source.leave_processes();
        // Samples of perf events are taken later, and those that wait are of the recording.
        if self.road == Road::Bpf {
            self.pids.keys().for_each(|&pid| self.source.drop_target(pid));
        }
        // Detaching may take seconds, and a recorder that is killed meanwhile keeps what it had, up to the last event.
        self.source.poll(Duration::ZERO);
        let flushed = self.drain.borrow_mut().enc.flush();
        // Recorders of a service share the kernel's lock with each other: one that ends is not to keep those that begin waiting.
        let at_once = if self.fed { 1 } else { 16 };
        entering::detach(self.engines.iter_mut().flat_map(Attached::take_links).collect(), at_once);
        self.extras_gone(stopped);
        self.source.finish();
        let end = end.and_then(|end| flushed.map(|()| end).map_err(RecordError::from));
        // Whatever ended it, what is recorded gets its books; only a file that cannot be written has no more to take.
        let (end, failure) = match end {
            Ok(end) => (end, None),
            Err(e @ RecordError::Write(_)) => return Err(e),
            Err(e) => (e.to_string(), Some(e)),
        };
        self.meet_processes(watch)?;
        if let Some(sampler) = self.sampler.take() {
            sampler.finish(&mut self.drain.borrow_mut().enc, watch)?;
        }
        self.drain.borrow_mut().close(None, stopped)?;
        // The last graphs have their say as well.
        let ops = self.probed() >= Detail::Op;
        for (a, shown) in self.engines.iter_mut().zip(&mut self.drain.borrow_mut().shown) {
            verify::verify(a, shown, self.options.op_end, ops);
        }
        let books = self.account()?;
        let footer = self.standing(books.clone(), stopped).closing(&self.base.standing, &end, true);
        let engines = self.engines.iter().filter(|a| a.attached > 0).count();
        let missing = self.last_missing.as_ref().filter(|_| engines == 0).map(ToString::to_string);
        // The source holds the other half of the drain.
        drop(self.source);
        let drain =
            Rc::try_unwrap(self.drain).map_err(|_| RecordError::Attach("drain is still in use".into()))?;
        let mut drain = drain.into_inner();
        if let Some(e) = drain.take_error() {
            return Err(e.into());
        }
        let summary = Summary {
            end,
            totals: drain.totals,
            lost: books.lost(),
            seen: books.seen(),
            bytes: 0,
            ops: drain.shown.iter().map(|s| s.ops).sum(),
            worked: drain.shown.iter().any(Shown::worked) || drain.received[ev_kind::EV_AWAY.0 as usize] > 0,
            engines,
            status,
            missing,
        };
        let out = drain.enc.finish(&footer.of())?;
        failure.map_or(Ok(Summary { bytes: out.bytes, ..summary }), Err)
    }
}

const _: () = assert!(MAX_ENGINES * structure::OPS_PER_ENGINE as usize <= u16::MAX as usize + 1);
