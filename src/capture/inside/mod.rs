//! The event source without privilege: the programs of src/bpf run in the engine's own process, in a library that its
//! loader loads (crates/inside), and are called by jumps at the entries of the engine's functions.
//!
//! A process asks at the recorder's door when it starts, and when its loader has mapped something: nothing of the new
//! code has run then. It gets its shared memory, and the jumps for all functions that this recording may probe; which of
//! them have an effect is switched in the shared memory.

pub mod area;
pub mod door;
mod jumps;
pub mod measure;
pub mod moved;
mod prober;
pub mod refused;
mod restore;
pub mod scheduler;
mod state;
mod sums;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::capture::bpf::Bpf;
use crate::capture::error::{RecordError, SchedError};
use crate::capture::event::{self, Call, Head};
use crate::capture::object;
use crate::capture::skel::types::{ev_kind, ops_constants};
use crate::capture::source::{CaptureOptions, EventStats, FeatureStatus, Guard, Prober, Sink, Source};
use crate::capture::structure::Reading;
use crate::capture::transport::SortQueue;
use area::Area;
use door::{Caller, Door, DoorError};
use machine::halt::Halt;
use machine::kernel::btf::Btf;
use machine::maps::{self, Mapping};
use machine::{target, usage, wake};
use prober::InsideProber;
use scheduler::Scheduler;
use state::{Process, State, lock};

/// Whether a process is recorded so, or was and has its jumps still: the kernel knows nothing of them. A probe
/// of the kernel there would run what the file has instead, and go on in the middle of the jump.
pub fn is_recorded_inside(pid: u32) -> bool {
    let area = |m: &&Mapping| {
        m.path.as_os_str().as_encoded_bytes().strip_prefix(b"/memfd:") == Some(area::NAME.to_bytes())
    };
    // What cannot be read may have jumps.
    let restored = |m: &Mapping| {
        let memory = File::open(format!("/proc/{pid}/mem"));
        let mut mark = [0; 8];
        memory.and_then(|memory| memory.read_exact_at(&mut mark, m.start)).is_ok() && mark == area::RESTORED
    };
    maps::read(pid).unwrap_or_default().iter().filter(area).any(|m| !restored(m))
}

/// Such a process that has mapped this file, if there is one.
pub fn recorded_inside_with(inode: u64) -> Option<u32> {
    let has = |pid: &u32| maps::read(*pid).is_ok_and(|maps| maps.iter().any(|m| m.inode == inode));
    machine::proc::all().filter(has).find(|pid| is_recorded_inside(*pid))
}

/// The longest wait: nothing wakes the recorder when a ring fills.
const LONGEST: Duration = Duration::from_millis(10);
/// The longest that a reading takes, ns.
const AHEAD: u64 = 1_000_000_000;
/// Events wait this long for older ones. A thread that loses its CPU between the time of an event and its place in the ring
/// gets it back after tens of milliseconds where several threads share one.
const SLACK_NS: u64 = 250_000_000;

pub struct Inside {
    options: CaptureOptions,
    sink: Sink,
    door: Option<Door>,
    state: Arc<Mutex<State>>,
    order: SortQueue,
    /// Memory for one event.
    event: Vec<u64>,
    /// Of processes that have ended.
    past: EventStats,
    /// Events of processes that began or ended, of which no library tells.
    told: [u64; 2],
    targets: BTreeSet<u32>,
    /// Some process has loaded the library.
    began: bool,
    scheduler: Option<Scheduler>,
}

impl Inside {
    /// `kernel`: whether the kernel's scheduler may be watched. Err says what is missing.
    pub fn new(options: CaptureOptions, btf: Option<Btf>, kernel: Result<(), String>, sink: Sink) -> Inside {
        let scheduler = options.sched.then(|| Scheduler::new(options, btf, kernel));
        Inside {
            options,
            sink,
            door: None,
            state: Arc::default(),
            order: SortQueue::default(),
            event: vec![0; 1024],
            past: EventStats::default(),
            told: [0; 2],
            targets: BTreeSet::new(),
            began: false,
            scheduler,
        }
    }

    fn kernel(&mut self) -> Option<&mut Bpf> {
        self.scheduler.as_mut().and_then(Scheduler::kernel)
    }

    /// Done only once.
    fn watch_scheduler(&mut self) {
        if let Some(why) = self.scheduler.as_mut().and_then(Scheduler::start) {
            lock(&self.state).news.push(format!("off-CPU time is not recorded: {why}"));
        }
    }

    /// Takes what the kernel has told of the scheduler.
    fn take_scheduler(&mut self) {
        let Inside { order, sink, scheduler, .. } = self;
        let mut arrived = Vec::new();
        if let Some(scheduler) = scheduler {
            scheduler.take(&mut |bytes| arrived.push(bytes.to_vec()));
        }
        for bytes in arrived {
            order.push(&bytes, &mut |bytes| pass(scheduler, sink, bytes));
        }
    }

    /// Whether it can be used here; Err says what is missing.
    ///
    /// # Errors
    /// The kernel refuses a socket or a file of memory, or this processor has no library.
    pub fn offered() -> Result<(), DoorError> {
        Door::open().map(drop)
    }

    fn door(&mut self) -> Result<&Door, RecordError> {
        let door = match self.door.take() {
            Some(door) => door,
            None => Door::open().map_err(RecordError::Inside)?,
        };
        Ok(self.door.insert(door))
    }

    /// A process has begun to run a program: gives it its memory.
    fn begin(&mut self, caller: Caller) -> bool {
        let pid = caller.pid;
        let maps = maps::read(pid).unwrap_or_default();
        let (clock, getcpu) = vdso(&maps);
        let start = inside::Start { clock, getcpu, tgid: pid, ..inside::Start::default() };
        let mut area = match Area::new(&start, self.options.buffer_bytes / area::shards() as u64) {
            Ok(area) => area,
            Err(e) => return self.refuse(pid, &format!("no shared memory: {e}")),
        };
        if let Err(e) = caller.order(&inside::Order::area(area.bytes()), area.file.as_ref().map(File::as_fd))
        {
            return self.refuse(pid, &format!("it cannot map the shared memory: {e}"));
        }
        area.file = None;
        self.began = true;
        self.end(pid, false);
        let mut state = lock(&self.state);
        state.engines.iter().enumerate().for_each(|(i, constants)| area.engine(i as u16, constants));
        let process = Process {
            area,
            ended: pidfd(pid),
            caller: Some(caller),
            sites: HashMap::new(),
            patches: BTreeMap::new(),
            free: (0..inside::SITES).rev().collect(),
            follows: false,
            looked_at: None,
        };
        state.processes.insert(pid, process);
        drop(state);
        if !self.targets.contains(&pid)
            && let Some(parent) = target::parent(pid).filter(|parent| self.targets.contains(parent))
        {
            self.tell(ev_kind::EV_FORK, parent, pid.into());
        }
        true
    }

    /// A child by fork has the code of its parent: it gets memory of its own, with the same sites.
    fn fork(&mut self, caller: Caller) -> bool {
        let parent = target::parent(caller.pid);
        let mut state = lock(&self.state);
        let known = parent.and_then(|parent| state.processes.get(&parent));
        let Some(known) = known else { return false };
        let (sites, free, patches) = (known.sites.clone(), known.free.clone(), known.patches.clone());
        let mut table = vec![0; inside::SITES * inside::SITE_BYTES];
        known.area.read_sites(&mut table);
        let pid = caller.pid;
        if let Some(engines) = parent.and_then(|parent| state.admitted.get(&parent)).copied() {
            state.admitted.insert(pid, engines);
        }
        let armed: Vec<_> = state.armed.iter().filter(|(of, ..)| Some(*of) == parent).copied().collect();
        state.armed.extend(armed.into_iter().map(|(_, function, leave)| (pid, function, leave)));
        drop(state);
        if !self.begin(caller) {
            return false;
        }
        if let Some(process) = lock(&self.state).processes.get_mut(&pid) {
            process.area.write(inside::SITES_AT, &table);
            (process.sites, process.free, process.follows) = (sites, free, true);
            process.patches = patches;
        }
        true
    }

    fn refuse(&self, pid: u32, why: &str) -> bool {
        lock(&self.state).news.push(format!("process {pid} is not recorded: {why}"));
        false
    }

    /// An event that the library cannot send.
    fn tell(&mut self, kind: ev_kind, pid: u32, a: u64) {
        let h = Head { ts: usage::now(), tgid: pid, tid: pid, kind: kind.0 as u16, ..Head::default() };
        self.told[usize::from(kind == ev_kind::EV_EXIT)] += 1;
        let Inside { order, sink, scheduler, .. } = self;
        order
            .push(event::bytes(&Call { h, a, ..Call::default() }), &mut |bytes| pass(scheduler, sink, bytes));
    }

    /// Takes what a process has left; it has ended, or runs another program now.
    fn end(&mut self, pid: u32, ended: bool) {
        self.take(&[pid]);
        let mut state = lock(&self.state);
        let Some(process) = state.processes.remove(&pid) else { return };
        process.area.count(&mut self.past);
        if ended {
            state.admitted.remove(&pid);
            state.armed.retain(|(of, ..)| *of != pid);
        }
        drop(state);
        if ended {
            self.targets.remove(&pid);
            self.tell(ev_kind::EV_EXIT, pid, 0);
        }
    }

    /// Reads the rings of these processes.
    fn take(&mut self, pids: &[u32]) {
        let latest = usage::now().saturating_add(AHEAD);
        let mut state = lock(&self.state);
        let Inside { order, sink, scheduler, event, .. } = self;
        for pid in pids {
            let Some(process) = state.processes.get_mut(pid) else { continue };
            let was = process.area.broken;
            process.area.read(event, &mut |words| {
                // It can only speak of itself, and of what has happened by the end of this reading.
                if let [at, who, ..] = words {
                    *at = (*at).min(latest);
                    *who = *who & !0xffff_ffff | u64::from(*pid);
                }
                // SAFETY: any u64 is eight valid bytes, and the borrow keeps them alive.
                let bytes =
                    unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8) };
                if event::parse(bytes).is_some() {
                    order.push(bytes, &mut |bytes| pass(scheduler, sink, bytes));
                }
            });
            if process.area.broken && !was {
                let text =
                    format!("process {pid} has overwritten the memory of its events: the rest is lost");
                state.news.push(text);
            }
        }
    }

    fn processes(&self) -> Vec<u32> {
        lock(&self.state).processes.keys().copied().collect()
    }

    /// The processes that have an engine.
    fn recorded(&self) -> Vec<u32> {
        lock(&self.state).admitted.keys().copied().collect()
    }

    fn release(&mut self, before: u64) {
        let Inside { order, sink, scheduler, .. } = self;
        order.release(before, &mut |bytes| pass(scheduler, sink, bytes));
    }
}

/// Passes an event on; what the kernel has told of switches becomes one first.
fn pass(scheduler: &mut Option<Scheduler>, sink: &Sink, bytes: &[u8]) {
    let mut send = |bytes: &[u8]| sink.borrow_mut()(bytes);
    if !scheduler.as_mut().is_some_and(|scheduler| scheduler.replay(bytes, &mut send)) {
        send(bytes);
    }
}

/// A descriptor that is readable when the process has ended.
fn pidfd(pid: u32) -> Option<OwnedFd> {
    // SAFETY: a plain system call; nothing else owns the new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Addresses in a process of the functions that tell the time and the CPU without a system call: the kernel maps the
/// same file into all processes.
fn vdso(maps: &[Mapping]) -> (u64, u64) {
    let there = maps.iter().find(|m| m.path == Path::new("[vdso]")).map(|m| m.start);
    let own = maps::read(std::process::id()).unwrap_or_default();
    let own = own.iter().find(|m| m.path == Path::new("[vdso]"));
    let (Some(there), Some(own)) = (there, own) else { return (0, 0) };
    let Ok(length) = usize::try_from(own.end - own.start) else { return (0, 0) };
    // SAFETY: the kernel maps it for as long as the process lives, readable, and nothing writes there.
    let image = unsafe { std::slice::from_raw_parts(own.start as *const u8, length) };
    let at = |names: [&str; 2]| symbol(image, names).map_or(0, |offset| there.wrapping_add(offset));
    (at(["__vdso_clock_gettime", "__kernel_clock_gettime"]), at(["__vdso_getcpu", "__kernel_getcpu"]))
}

fn symbol(image: &[u8], names: [&str; 2]) -> Option<u64> {
    use ::object::read::elf::ElfFile64;
    use ::object::{Object, ObjectSymbol};
    let file = ElfFile64::<::object::Endianness>::parse(image).ok()?;
    let mut symbols = file.dynamic_symbols();
    symbols.find(|s| s.name().is_ok_and(|name| names.contains(&name))).map(|s| s.address())
}

impl Source for Inside {
    fn start(&mut self) -> Result<(), RecordError> {
        self.door()?;
        self.watch_scheduler();
        Ok(())
    }

    fn environment(&mut self, wrapped: bool) -> Result<Vec<(&'static str, OsString)>, RecordError> {
        Ok(self.door()?.variables(wrapped))
    }

    fn engine(&mut self, reading: &Reading) -> Result<Box<dyn Prober>, RecordError> {
        let mut constants = ops_constants::default();
        object::fill(&mut constants, &self.options, reading);
        let constants = inside::bytes(&constants).to_vec();
        let mut state = lock(&self.state);
        state.processes.values().for_each(|p| p.area.engine(reading.engine, &constants));
        let at = usize::from(reading.engine);
        if state.engines.len() <= at {
            state.engines.resize(at + 1, Vec::new());
        }
        if let Some(place) = state.engines.get_mut(at) {
            *place = constants;
        }
        drop(state);
        self.watch_scheduler();
        Ok(Box::new(InsideProber { engine: reading.engine, state: self.state.clone() }))
    }

    fn add_target(&mut self, pid: u32) {
        self.targets.insert(pid);
        // What has arrived tells who is followed already.
        self.take_scheduler();
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.add_target(pid);
        }
    }

    fn admit(&mut self, pid: u32, engine: u16) {
        let mut state = lock(&self.state);
        let engines = state.admitted.entry(pid).or_insert(0);
        *engines |= 1 << (engine & 31);
        let engines = *engines;
        if let Some(process) = state.processes.get_mut(&pid) {
            process.looked_at = Some(Instant::now());
            // Of one that waits, when it has its jumps.
            if process.caller.is_none() {
                process.area.admit(engines);
            }
        }
        drop(state);
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.admit(pid, engine);
        }
    }

    fn drop_target(&mut self, pid: u32) {
        let mut state = lock(&self.state);
        state.admitted.remove(&pid);
        if let Some(process) = state.processes.get(&pid) {
            process.area.admit(0);
        }
        drop(state);
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.drop_target(pid);
        }
    }

    fn meet(&mut self, pid: u32) {
        if let Some(kernel) = self.kernel() {
            kernel.meet(pid);
        }
    }

    fn can_unwatch(&self) -> bool {
        self.scheduler.as_ref().is_some_and(Scheduler::is_kernel)
    }

    fn watch(&mut self, pids: &[u32]) -> Result<(), Arc<SchedError>> {
        self.kernel().map_or(Ok(()), |kernel| kernel.watch(pids))
    }

    fn unwatch(&mut self) -> Vec<Guard> {
        self.kernel().map(Bpf::unwatch).unwrap_or_default()
    }

    fn unwatched(&mut self) {
        if let Some(kernel) = self.kernel() {
            kernel.unwatched();
        }
        self.take_scheduler();
    }

    fn run_stats(&self) -> (u64, u64) {
        self.scheduler.as_ref().map(Scheduler::run_stats).unwrap_or_default()
    }

    fn ops_begin(&mut self) {
        lock(&self.state).processes.values().for_each(|p| p.area.forget_graphs());
    }

    fn halted(&mut self) -> Option<Halt> {
        loop {
            let caller = self.door.as_ref()?.next()?;
            let (pid, tid) = (caller.pid, caller.hello.tid);
            let more = caller.hello.why == inside::LOADED_MORE;
            if caller.hello.why == inside::FORKED {
                if self.fork(caller) {
                    return Some(Halt { pid, tid, exec: 0 });
                }
                continue;
            }
            if caller.hello.why == inside::FULL {
                caller.go();
                continue;
            }
            if more && let Some(process) = lock(&self.state).processes.get_mut(&pid) {
                process.caller = Some(caller);
                return Some(Halt { pid, tid, exec: 0 });
            }
            if !more && self.begin(caller) {
                return Some(Halt { pid, tid, exec: 1 });
            }
        }
    }

    fn go_on(&mut self, halt: Halt) {
        lock(&self.state).go_on(halt.pid);
    }

    fn scheduler(&self) -> Option<FeatureStatus> {
        self.scheduler.as_ref()?.status()
    }

    fn poll(&mut self, timeout: Duration) {
        let state = lock(&self.state);
        let readable = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let door = self.door.iter().map(|door| readable(door.fd().as_raw_fd()));
        let ends = state
            .processes
            .iter()
            .filter_map(|(pid, p)| Some((*pid, readable(p.ended.as_ref()?.as_raw_fd()))));
        let (pids, ends): (Vec<u32>, Vec<libc::pollfd>) = ends.unzip();
        let switches = self.scheduler.iter().flat_map(Scheduler::fds).map(readable);
        let mut fds: Vec<libc::pollfd> = ends.into_iter().chain(door).chain(switches).collect();
        drop(state);
        wake::poll(&mut fds, timeout.min(LONGEST));
        let before = usage::now();
        self.take(&self.processes());
        self.take_scheduler();
        for (pid, _) in pids.iter().zip(&fds).filter(|(_, fd)| fd.revents != 0) {
            self.end(*pid, true);
        }
        self.release(before.saturating_sub(SLACK_NS));
        let recorded = self.recorded();
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.pass(recorded.into_iter());
        }
        lock(&self.state).tell_unprobed();
    }

    /// No process asks any more, and no program of theirs runs.
    fn leave_processes(&mut self) {
        self.door = None;
        let recorded = self.recorded();
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.leave(recorded.into_iter());
        }
        if !self.began {
            let why = "no process has loaded the recorder's library: something drops LD_PRELOAD, its loader ignores it, or \
                       may not map the library";
            lock(&self.state).news.push(why.into());
        }
        for process in lock(&self.state).processes.values_mut() {
            process.caller = None;
            process.area.admit(0);
            (0..inside::SITES).for_each(|site| process.area.disarm(site));
        }
        lock(&self.state).restore();
    }

    fn finish(&mut self) {
        self.take(&self.processes());
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.finish();
        }
        self.take_scheduler();
        self.release(u64::MAX);
        let Inside { sink, scheduler, .. } = self;
        if let Some(scheduler) = scheduler {
            scheduler.close(&mut |bytes| sink.borrow_mut()(bytes));
        }
    }

    fn lost(&self) -> u64 {
        self.event_stats().lost()
    }

    fn event_stats(&self) -> EventStats {
        let mut stats = self.past.clone();
        lock(&self.state).processes.values().for_each(|p| p.area.count(&mut stats));
        for (kind, told) in [ev_kind::EV_FORK, ev_kind::EV_EXIT].into_iter().zip(self.told) {
            stats.kinds[kind.0 as usize].seen += told;
        }
        if let Some(scheduler) = &self.scheduler {
            scheduler.count(&mut stats);
        }
        stats
    }

    fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).news)
    }
}
