//! The service's main loop: waits for engines, signals, recorders and requests, and dispatches each.
//! Single-threaded.

mod command;
mod current;
pub mod energy;
pub mod idle_peaks;
pub mod notify;
mod reactions;
pub mod self_usage;
pub mod signals;
mod telling;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{getpid, set_child_subreaper};

use self::energy::EnergyMeter;
use self::idle_peaks::IdlePeaks;
use self::notify::Notify;
use self::signals::{SignalFd, StopSignal};
use super::supervisor::command::CommandEnd;
use super::supervisor::{Met, Supervisor};
use crate::affinity::Affinity;
use crate::hook::HookRunner;
use crate::net::{NetError, Network};
use crate::page_faults::FaultCounts;
use crate::place::PlaceError;
use crate::recorder::channel::DumpError;
use crate::rules::Rule;
use crate::rules::settings::ServiceSettings;
use crate::socket::{self, ClientId, Control, ServiceRequest, ServiceResponse, SocketError};
use crate::status::{self, ServiceState, StateFiles};
use crate::store::{Leftovers, Store, StoreError};
use crate::watch::Watch;
use crate::{clock, watch};
use agent::capture::error::RecordError;
use inspector::finder::{Finder, FoundProcess};
use machine::kernel::tracefs;
use machine::{capset, ready};

/// Interval of periodic work.
const TICK: Duration = Duration::from_secs(1);
/// Time for a recorder to write its ring.
const DUMPED: Duration = Duration::from_secs(30);
/// Time for stopped recorders to finish their traces.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("cannot record a command: {0}")]
    Record(#[from] RecordError),
    #[error("no rule records {}: its 'exe', 'user' and 'cgroup' are compared with COMMAND's own program", .0.display())]
    NoRule(PathBuf),
    #[error("cannot start a recorder: {0}")]
    Start(#[source] std::io::Error),
    #[error("cannot wait for {what}: {source}")]
    Wait { what: &'static str, source: std::io::Error },
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    /// The errors of the configuration.
    #[error("{}", .0.join("; "))]
    Configuration(Vec<String>),
    #[error("another dump is being written")]
    Dumping,
    #[error(
        "process {0} is not in a ring: it is not running, or no rule with 'ring' \
         applies to it"
    )]
    NotInRing(u32),
    #[error("no run is in a ring: no rule with 'ring' applies to one")]
    NoRing,
    #[error("rule {rule}: {source}")]
    Dump { rule: String, source: DumpError },
    #[error("the recorder does not answer")]
    Silent,
}

/// A client that waits for rings to be written.
struct PendingDump {
    token: ClientId,
    /// Recorders that have not answered yet.
    left: usize,
    files: Vec<String>,
    why_not: Option<Refused>,
    since: Instant,
}

/// The service.
pub struct Service<'a> {
    load: &'a dyn Fn() -> Result<ServiceSettings, Vec<String>>,
    log: &'a mut dyn FnMut(&str),
    settings: ServiceSettings,
    store: Store,
    _only: std::fs::File,
    /// None: only the command is recorded.
    finder: Option<Finder>,
    signals: SignalFd,
    supervisor: Supervisor,
    peaks: IdlePeaks,
    affinity: Affinity,
    watch: Watch,
    hooks: HookRunner,
    network: Network,
    faults: FaultCounts,
    energy: EnergyMeter,
    /// When counting began.
    began: SystemTime,
    /// Recordings removed from the current directory before it was used, and from earlier ones while they were.
    removed: (Option<u64>, u64),
    control: Control,
    notify: Notify,
    files: StateFiles,
    state: ServiceState,
    asked: Option<PendingDump>,
    /// The last problem with the directory.
    trouble: String,
    tick: Instant,
    stopping: Option<Instant>,
}

impl<'a> Service<'a> {
    /// Sets the service up. `file` is the configuration file, for clients that ask. `load` returns the settings,
    /// and is called again on a reload; `log` takes lines.
    ///
    /// # Errors
    /// The settings are wrong, the directory cannot be used or another service uses it, or the system has no
    /// descriptors left.
    pub fn begin(
        version: &str,
        file: Option<String>,
        load: &'a dyn Fn() -> Result<ServiceSettings, Vec<String>>,
        log: &'a mut dyn FnMut(&str),
    ) -> Result<Service<'a>, ServiceError> {
        let settings = load().map_err(ServiceError::Settings)?;
        let wait = |what| move |source| ServiceError::Wait { what, source };
        let signals = SignalFd::take().map_err(wait("signals"))?;
        let store = Store::open(&settings.directory, settings.quota, settings.file_size, settings.keep)?;
        let only = store.only()?;
        let hooks = settings.rules.iter().any(|rule| rule.on_trigger.is_some());
        // While nothing else is open, and the privileges for it are still there.
        let hooks = HookRunner::start(hooks).map_err(wait("programs of on-trigger"))?;
        let (affinity, swept) = Affinity::new(store.place_shared());
        let control = Control::bind(&settings.socket)?;
        let (mut files, unfinished) = StateFiles::new(&settings.status, settings.metrics.as_deref())?;
        files.per_process = settings.per_process;
        let network = Network::new();
        let prepared = network.prepare(&settings.net)?;
        let own = settings.command.as_ref().map(|command| command::choose(command, &settings)).transpose()?;
        let finder = own.is_none().then(Finder::new).transpose().map_err(wait("engines"))?;
        let mut service = Service {
            load,
            log,
            settings,
            store,
            _only: only,
            finder,
            signals,
            supervisor: Supervisor::default(),
            peaks: IdlePeaks::new(Instant::now()),
            affinity,
            watch: Watch::default(),
            hooks,
            network,
            faults: FaultCounts::default(),
            energy: EnergyMeter::default(),
            began: SystemTime::now(),
            removed: (None, 0),
            control,
            notify: Notify::new(),
            files,
            state: ServiceState {
                configuration: status::Configuration { file, ..status::Configuration::default() },
                ..ServiceState::new(version)
            },
            asked: None,
            trouble: String::new(),
            tick: Instant::now(),
            stopping: None,
        };
        let known = service.supervisor.calibration_cache.recall(service.store.place(), version);
        if let Some((rule, inside)) = own {
            // Whatever the command leaves behind is waited for here. It gets the privileges of now.
            let adopts = set_child_subreaper(Some(getpid())).map_err(Into::into);
            adopts
                .and_then(|()| service.supervisor.start_command(&service.settings, rule, inside))
                .map_err(ServiceError::Start)?;
        }
        service.welcome(&unfinished, known > 0);
        service.network.apply(prepared).iter().for_each(|line| service.say(line));
        swept.iter().for_each(|line| service.say(line));
        Ok(service)
    }

    fn welcome(&mut self, unfinished: &[String], calibrated: bool) {
        let backend = self.finder.as_ref().map_or_else(|| command::NO_FINDER.to_owned(), Finder::backend);
        self.state.finder =
            status::FinderStatus { backend: backend.clone(), ..status::FinderStatus::default() };
        self.read_now(Vec::new());
        let directory = self.settings.directory.display();
        let text = match &self.settings.command {
            None => format!("waiting for engines, found through {backend}; recordings in {directory}"),
            Some(command) => format!(
                "recording {} and what it starts, nothing else; recordings in {directory}",
                command.program.display()
            ),
        };
        self.say(&text);
        let nice = if self.settings.rules.iter().any(Rule::sets_cpus) { capset::NICE } else { 0 };
        let become_nobody = if self.settings.net.is_wanted() { capset::BECOME } else { 0 };
        if let Err(e) = capset::give_up(nice | become_nobody) {
            self.say(&format!("cannot drop capabilities that are not needed: {e}"));
        }
        for warning in self.settings.warnings.clone() {
            self.say(&warning);
        }
        for name in unfinished {
            self.say(&format!("an earlier update of {name} was not finished: its temporary file is removed"));
        }
        // The recorder of a command does it, if it uses the kernel's probes.
        let swept = if self.finder.is_some() { tracefs::sweep() } else { None };
        swept.iter().for_each(|line| self.say(line));
        if calibrated {
            self.say("the calibration of an earlier start is reused: ready to record");
        }
        match self.store.leftovers() {
            Ok(left) => leftovers(&left).into_iter().for_each(|line| self.say(&line)),
            Err(e) => self.say(&e.to_string()),
        }
    }

    fn say(&mut self, text: &str) {
        (self.log)(text);
        self.state.say(text);
        self.control.show(&watch::message(text));
    }

    /// The configuration was just read, with these errors.
    fn read_now(&mut self, errors: Vec<String>) {
        let file = self.state.configuration.file.take();
        self.state.configuration =
            status::Configuration { file, read: clock::rfc3339(SystemTime::now()), errors };
        self.state.directory = self.settings.directory.display().to_string();
    }

    /// Runs until a signal or a client stops it, or the command has ended: then its end.
    pub fn run(&mut self) -> Option<CommandEnd> {
        self.notify.ready();
        while !self.done() {
            self.wait();
            self.listen();
            self.look();
            if Instant::now() >= self.tick {
                self.tick();
                self.tick = Instant::now() + TICK;
            }
            for line in self.supervisor.news() {
                self.say(&line);
            }
        }
        self.say("stopped");
        self.tell();
        self.control.show(&watch::stop());
        self.end_network();
        // Readers of the metrics must see that there is no service any longer; the status says that it has stopped.
        self.files.remove();
        self.supervisor.command_end()
    }

    fn done(&mut self) -> bool {
        let Some(since) = self.stopping else { return false };
        let late = since.elapsed() > LAST_WORDS;
        if late {
            self.supervisor.kill();
        }
        late || self.supervisor.recorders() == 0
    }

    fn wait(&self) {
        let mut fds = Vec::with_capacity(16);
        let mut add = |fd, events| fds.push(PollFd::from_borrowed_fd(fd, events));
        add(self.signals.fd(), PollFlags::IN);
        self.supervisor.fds().for_each(|fd| add(fd, PollFlags::IN));
        self.finder.iter().flat_map(Finder::fds).for_each(|fd| add(fd, PollFlags::IN));
        self.hooks.fd().into_iter().for_each(|fd| add(fd, PollFlags::IN));
        self.network.fd().into_iter().for_each(|fd| add(fd, PollFlags::IN));
        self.control.fds(&mut add);
        let left = self.tick.saturating_duration_since(Instant::now()).min(self.rest());
        ready::wait(&mut fds, left.min(TICK));
    }

    fn listen(&mut self) {
        let came = self.signals.read();
        self.supervisor.hear();
        self.react();
        self.hear_network();
        self.remember();
        if came.child {
            let mut said = None;
            self.supervisor.reap(&mut |pid| {
                let measured = self.peaks.reaped(pid, Instant::now());
                let known = measured.is_some()
                    || self.finder.as_mut().is_some_and(|finder| finder.knows(pid))
                    || self.hooks.is(pid)
                    || self.network.reaped(pid);
                said = measured.or(said.take());
                known
            });
            said.iter().for_each(|line| self.say(line));
        }
        self.end_with_command();
        self.answer_dumps();
        let mut requests = Vec::new();
        self.control.poll(&mut |request, token| {
            requests.push((request, token));
            None
        });
        for (request, token) in requests {
            if let Some(answer) = self.answer(request, token) {
                self.control.answer(token, &answer);
            }
        }
        if came.reload {
            self.reload();
        }
        if let Some(signal) = came.stop {
            self.stop_by(signal);
        }
    }

    /// Saves calibrations, so that a restarted service need not repeat them.
    fn remember(&mut self) {
        if self.supervisor.calibration_cache.news
            && let Err(e) = self.supervisor.calibration_cache.keep(self.store.place(), &self.state.version)
        {
            self.complain(format!("cannot save the calibration of this machine: {e}"));
        }
    }

    fn answer(&mut self, request: ServiceRequest, token: ClientId) -> Option<ServiceResponse> {
        match request {
            ServiceRequest::Status => {
                self.look_at_store();
                self.refresh();
                Some(self.state.json().map_err(Into::into))
            }
            ServiceRequest::Reload => Some(match self.reload() {
                true => Ok("{}".into()),
                false => Err(Refused::Configuration(self.state.configuration.errors.clone()).into()),
            }),
            ServiceRequest::Watch => {
                self.control.watch(token, &watch::hello(&self.state.version, self.supervisor.runs()));
                None
            }
            ServiceRequest::Stop => {
                self.stop_by(StopSignal::TERM);
                Some(Ok("{}".into()))
            }
            ServiceRequest::Dump(_) if self.asked.is_some() => Some(Err(Refused::Dumping.into())),
            ServiceRequest::Dump(pid) => {
                let left = self.supervisor.dump(pid);
                if left == 0 {
                    return Some(Err(pid.map_or(Refused::NoRing, Refused::NotInRing).into()));
                }
                self.asked = Some(PendingDump {
                    token,
                    left,
                    files: Vec::new(),
                    why_not: None,
                    since: Instant::now(),
                });
                None
            }
        }
    }

    fn answer_dumps(&mut self) {
        for (rule, done) in std::mem::take(&mut self.supervisor.dumped) {
            let Some(asked) = &mut self.asked else { continue };
            asked.left = asked.left.saturating_sub(1);
            match done {
                Ok(name) => asked.files.push(name),
                Err(source) => asked.why_not = Some(Refused::Dump { rule, source }),
            }
        }
        if let Some(asked) = self.asked.take_if(|asked| asked.left == 0) {
            let answer = match (asked.files.is_empty(), asked.why_not) {
                (true, Some(why)) => Err(why.into()),
                (_, why) => {
                    why.into_iter().for_each(|why| self.say(&why.to_string()));
                    socket::dumped(&self.settings.directory, &asked.files)
                }
            };
            self.control.answer(asked.token, &answer);
        }
    }

    fn stop(&mut self) {
        if self.stopping.is_none() {
            self.say("stopping: finishing recordings");
            self.notify.stopping();
            self.stopping = Some(Instant::now());
            // While recorders can still write it into their traces.
            self.affinity.free_all("the service ends");
            self.tell_affinity();
            self.supervisor.stop();
            self.peaks.end("the service ends");
        }
    }

    fn look(&mut self) {
        let (found, news) =
            (self.finder.as_mut()).map(|finder| (finder.poll(), finder.news())).unwrap_or_default();
        news.iter().for_each(|line| self.say(line));
        if self.stopping.is_some() {
            return;
        }
        for one in found {
            self.supervisor.meet(met(one), &self.settings);
        }
        self.supervisor.watched(self.control.watchers() > 0);
        self.supervisor.assign(&self.settings);
        self.watch_begins();
        if std::mem::take(&mut self.supervisor.left)
            && let Some(finder) = &mut self.finder
        {
            finder.look_again();
        }
    }

    fn tick(&mut self) {
        self.supervisor.tick(&self.settings);
        if self.stopping.is_none() {
            let engines = self.supervisor.runs().next().is_some() || self.supervisor.waiting() > 0;
            let (after, proc) = (self.settings.peaks_after, self.settings.proc());
            let said = self.peaks.tick(after, &proc, engines, Instant::now());
            said.iter().for_each(|line| self.say(line));
        }
        self.watch_runs();
        self.look_at_store();
        self.forget_asked();
        self.notify.alive();
        self.measure();
        self.tell();
        self.tell_network();
    }

    fn look_at_store(&mut self) {
        match self.store.tidy() {
            Ok(usage) => {
                let base = *self.removed.0.get_or_insert(usage.removed);
                self.state.files_removed = self.removed.1 + usage.removed.saturating_sub(base);
                self.state.store = usage;
            }
            Err(e) => self.complain(e.to_string()),
        }
    }

    /// Reports a problem with the directory once.
    fn complain(&mut self, trouble: String) {
        if self.trouble != trouble {
            self.say(&trouble);
            self.trouble = trouble;
        }
    }

    /// Gives up on a dump that recorders have not answered.
    fn forget_asked(&mut self) {
        if let Some(asked) = self.asked.take_if(|asked| asked.since.elapsed() > DUMPED) {
            self.control.answer(asked.token, &Err(Refused::Silent.into()));
        }
    }
}

/// What a store needs.
fn sizes(s: &ServiceSettings) -> (u64, u64, Option<Duration>) {
    (s.quota, s.file_size, s.keep)
}

/// What a recorder needs, besides its rule.
fn of_recorders(s: &ServiceSettings) -> impl PartialEq + use<> {
    (sizes(s), s.file_age, s.memory, s.cpu.to_bits())
}

/// What another service has left, as text.
fn leftovers(left: &Leftovers) -> Vec<String> {
    let removed = left.empty.iter().map(|name| format!("{name} was empty and is removed"));
    let temporary = left.temporary.iter().map(|name| format!("{name} was never finished and is removed"));
    let mut words: Vec<String> = removed.chain(temporary).collect();
    if left.unfinished > 0 {
        words.push(format!(
            "{} recordings did not end cleanly: they are kept, and complete up to their last block",
            left.unfinished
        ));
    }
    words
}

fn met(found: FoundProcess) -> Met {
    let FoundProcess { pid, start, exe, uid, cgroup, base, parent, .. } = found;
    Met { pid, start, exe: exe.as_os_str().as_bytes().to_vec(), uid, cgroup, base, parent }
}
