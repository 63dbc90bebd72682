//! The event source on kernels with bpf(): BPF programs on uprobes, with their ring or perf buffers.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::capture::error::{ProbeError, RecordError, SchedError};
use crate::capture::multi;
use crate::capture::object::{LoadedObject, Maps};
use crate::capture::pmc::follow::SharedCounters;
use crate::capture::process::{self, FollowOutcome, Following};
use crate::capture::sched::Scheduler;
use crate::capture::skel::types::{ev_counter, ev_kind};
use crate::capture::source::{CaptureOptions, EventStats, FeatureStatus, Guard, Probe, Prober, Sink, Source};
use crate::capture::structure::Reading;
use crate::capture::transport::Transport;
use crate::capture::uprobe::Uprobes;
use engine::layout::Layout;
use engine::probes::Prog;
use engine::tables::Tables;
use machine::diagnose::{Act, KernelError};
use machine::kernel::btf::{Btf, TaskOffsets};
use pfi::record::Availability;

/// Poll interval while there is no engine to get events from.
const IDLE: Duration = Duration::from_millis(5);

/// The source. Makes no request to the kernel before [`Source::start`] or [`Source::engine`].
pub struct Bpf {
    options: CaptureOptions,
    /// Probes are uprobe_multi links.
    links: bool,
    sink: Sink,
    open: Option<(Maps, Transport)>,
    targets: Vec<u32>,
    btf: Option<Btf>,
    counters: Option<Rc<SharedCounters>>,
    following: Option<Following>,
    /// Err: why there is none.
    sched: Option<Result<Scheduler, Arc<SchedError>>>,
    /// The scheduler is not watched for now.
    unwatched: bool,
    /// Requested with the first engine.
    uprobes: Option<Arc<Uprobes>>,
    news: Vec<String>,
}

fn unloaded(e: libbpf_rs::Error) -> RecordError {
    RecordError::Load(KernelError::libbpf(Act::Load, e))
}

impl Bpf {
    /// `btf` is the running kernel's, if one is given.
    pub fn new(
        options: CaptureOptions,
        btf: Option<Btf>,
        counters: Option<Rc<SharedCounters>>,
        sink: Sink,
    ) -> Bpf {
        let (targets, news) = (Vec::new(), Vec::new());
        Bpf {
            links: options.few && multi::links_work(),
            options,
            sink,
            btf,
            counters,
            open: None,
            targets,
            following: None,
            sched: None,
            unwatched: false,
            uprobes: None,
            news,
        }
    }

    fn load(&self, reading: &Reading, maps: Option<&Maps>) -> Result<LoadedObject, RecordError> {
        LoadedObject::load(&self.options, reading, maps, self.counters.as_deref(), self.links)
            .map_err(unloaded)
    }

    fn open(&mut self, loaded: &LoadedObject) -> Result<(), RecordError> {
        let maps = loaded.maps().map_err(unloaded)?;
        let transport = match self.options.pbuf {
            true => Transport::perf(maps.perf_events, self.options.buffer(), self.sink.clone()),
            false => Transport::ring(maps.events, self.sink.clone()),
        };
        let transport = transport.map_err(|e| RecordError::Buffer(KernelError::libbpf(Act::Map, e)))?;
        for &pid in &self.targets {
            maps.add_target(pid).map_err(unloaded)?;
        }
        let task = self.follow(&maps);
        if self.options.sched {
            self.watch_scheduler(&maps, task);
        }
        self.open = Some((maps, transport));
        Ok(())
    }

    fn uprobes(&mut self) -> Arc<Uprobes> {
        let (links, news) = (self.links, &mut self.news);
        let uprobes = self.uprobes.get_or_insert_with(|| {
            let uprobes = Uprobes::new(links);
            if let Some(why) = uprobes.lacks() {
                news.push(format!("processes are probed one by one, and detaching takes longer: {why}"));
            }
            Arc::new(uprobes)
        });
        uprobes.clone()
    }

    fn watch_scheduler(&mut self, maps: &Maps, task: Option<TaskOffsets>) {
        let watching = Scheduler::load(maps, &self.options, task).and_then(|mut sched| {
            if !self.unwatched {
                sched.watch()?;
            }
            Ok(sched)
        });
        match &watching {
            Ok(_) if self.unwatched => self.targets.clear(),
            // After this first pass, new processes are followed as they are added.
            Ok(sched) => self.targets.drain(..).for_each(|pid| sched.follow(pid)),
            Err(why) => self.news.push(format!("off-CPU time is not recorded: {why}")),
        }
        self.sched = Some(watching.map_err(Arc::new));
    }

    fn follow(&mut self, maps: &Maps) -> Option<TaskOffsets> {
        let FollowOutcome { task, following, passed_over } =
            process::follow(maps, &self.options, self.btf.as_ref());
        self.news.extend(passed_over);
        match following {
            Ok(following) => {
                if let Some(last) = self.news.last_mut() {
                    last.push_str(&format!("; children are followed by {}", following.by));
                }
                self.following = Some(following);
            }
            Err(why) => self.news.push(format!("children of the target are not followed: {why}")),
        }
        task
    }
}

impl Source for Bpf {
    fn start(&mut self) -> Result<(), RecordError> {
        if self.open.is_none() {
            let reading = Reading::new(0, Layout::latest(), &Tables::default());
            let follower = self.load(&reading, None)?;
            self.open(&follower)?;
        }
        Ok(())
    }

    fn engine(&mut self, reading: &Reading) -> Result<Box<dyn Prober>, RecordError> {
        let maps = self.open.as_ref().map(|o| &o.0);
        let loaded = self.load(reading, maps)?;
        if self.open.is_none() {
            self.open(&loaded)?;
        }
        Ok(Box::new(EngineProbes { loaded, uprobes: self.uprobes() }))
    }

    fn add_target(&mut self, pid: u32) {
        match &self.open {
            Some((maps, _)) => {
                // The table of targets holds 16384 processes.
                if let Err(e) = maps.add_target(pid) {
                    self.news.push(format!("process {pid} is not recorded: {e}"));
                }
            }
            None => self.targets.push(pid),
        }
        self.meet(pid);
    }

    fn admit(&mut self, pid: u32, engine: u16) {
        let admitted = self.open.as_ref().map_or(Ok(()), |(maps, _)| maps.admit(pid, engine));
        if let Err(e) = admitted {
            self.news.push(format!("process {pid} is not recorded: {e}"));
        }
    }

    fn drop_target(&mut self, pid: u32) {
        self.targets.retain(|&p| p != pid);
        if let Some((maps, _)) = &self.open {
            maps.drop_target(pid);
        }
    }

    fn meet(&mut self, pid: u32) {
        if let Some(Ok(sched)) = self.sched.as_ref().filter(|_| !self.unwatched) {
            sched.follow(pid);
        }
    }

    fn can_unwatch(&self) -> bool {
        true
    }

    fn watch(&mut self, pids: &[u32]) -> Result<(), Arc<SchedError>> {
        self.unwatched = false;
        let done = match &mut self.sched {
            Some(Ok(sched)) => sched.watch().map_err(|e| Arc::new(e.into())),
            Some(Err(why)) => Err(why.clone()),
            // Starts with the first engine.
            None => Ok(()),
        };
        pids.iter().for_each(|&pid| self.meet(pid));
        done
    }

    fn unwatch(&mut self) -> Vec<Guard> {
        self.unwatched = true;
        self.sched.iter_mut().flatten().flat_map(Scheduler::leave).collect()
    }

    fn unwatched(&mut self) {
        self.poll(Duration::ZERO);
        if let Some(Ok(sched)) = &mut self.sched {
            sched.close(&self.sink);
        }
    }

    fn scheduler(&self) -> Option<FeatureStatus> {
        let unfollowed = self.event_stats().counters[ev_counter::CNT_UNFOLLOWED.0 as usize];
        match &self.sched {
            Some(Ok(sched)) => Some(sched.feature_status(unfollowed)),
            Some(Err(why)) => Some(FeatureStatus { state: Availability::None, why: why.to_string() }),
            None => None,
        }
    }

    fn run_stats(&self) -> (u64, u64) {
        self.sched.iter().flatten().map(Scheduler::run_stats).next().unwrap_or_default()
    }

    fn ops_begin(&mut self) {
        if let Some((maps, ..)) = &self.open {
            maps.forget_graphs();
        }
    }

    fn poll(&mut self, timeout: Duration) {
        match &mut self.open {
            Some((_, transport)) => transport.poll(timeout),
            None => std::thread::sleep(timeout.min(IDLE)),
        }
    }

    fn leave_processes(&mut self) {
        self.following = None;
        drop(self.unwatch());
    }

    fn finish(&mut self) {
        if let Some((_, transport)) = &mut self.open {
            transport.finish();
        }
        if let Some(Ok(sched)) = &mut self.sched {
            sched.close(&self.sink);
        }
    }

    fn lost(&self) -> u64 {
        self.event_stats().lost()
    }

    fn event_stats(&self) -> EventStats {
        let mut event_stats =
            self.open.as_ref().and_then(|(maps, _)| maps.event_stats().ok()).unwrap_or_default();
        if let Some(Ok(sched)) = &self.sched {
            event_stats.kinds[ev_kind::EV_OFFCPU.0 as usize].seen += sched.cut();
        }
        event_stats
    }

    fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }
}

/// Places the probes of one engine.
struct EngineProbes {
    loaded: LoadedObject,
    uprobes: Arc<Uprobes>,
}

impl Prober for EngineProbes {
    fn place(&self, prog: Prog, file: &Path, offset: u64) -> Result<Box<dyn Probe>, ProbeError> {
        Uprobes::place(&self.uprobes, self.loaded.program(prog), prog.is_return(), file, offset)
    }

    fn clears_inherited(&self) -> bool {
        !self.uprobes.are_links()
    }

    fn place_markers(&self, sites: &[(PathBuf, u64)]) -> Result<Vec<Box<dyn Probe>>, ProbeError> {
        self.uprobes.place_markers(sites)
    }

    fn place_empty(&self, file: &Path, offset: u64) -> Option<Result<Box<dyn Probe>, ProbeError>> {
        Some(Uprobes::place(&self.uprobes, self.loaded.nothing(), false, file, offset))
    }

    fn enters_freely(&self) -> bool {
        self.uprobes.are_shared()
    }

    fn run_stats(&self) -> (u64, u64) {
        self.loaded.run_stats()
    }
}
