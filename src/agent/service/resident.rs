//! The service's loop: waits for engines, signals, recorders and orders, and brings each to whom it concerns. One thread.
//! Uses the rest of the service.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant, SystemTime};

use super::crew::{Crew, Met};
use super::finder::{Finder, Found};
use super::notify::Notify;
use super::place::PlaceError;
use super::run::Run;
use super::settings::Settings;
use super::signals::Signals;
use super::socket::{self, Answer, Control, Request, SocketError, Token};
use super::status::{self, Files, Phase, State};
use super::store::{Leftovers, Store, StoreError};
use super::{clock, own};
use crate::agent::{capset, tracefs};

/// What is due from time to time is looked at so often.
const TICK: Duration = Duration::from_secs(1);
/// A recorder has so long to write its ring.
const DUMPED: Duration = Duration::from_secs(30);
/// Recorders that are told to end have so long for their books.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// Why the service does not begin.
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
    #[error("cannot wait for {what}: {source}")]
    Wait { what: &'static str, source: std::io::Error },
}

/// Somebody who waits for rings to be written out.
struct Asked {
    token: Token,
    /// Recorders that have not answered.
    left: usize,
    files: Vec<String>,
    why_not: Option<String>,
    since: Instant,
}

/// The service.
pub struct Service<'a> {
    load: &'a dyn Fn() -> Result<Settings, Vec<String>>,
    log: &'a mut dyn FnMut(&str),
    settings: Settings,
    store: Store,
    _only: std::fs::File,
    finder: Finder,
    signals: Signals,
    crew: Crew,
    control: Control,
    notify: Notify,
    files: Files,
    state: State,
    asked: Option<Asked>,
    /// What was last wrong with the directory.
    trouble: String,
    tick: Instant,
    stopping: Option<Instant>,
}

impl<'a> Service<'a> {
    /// Makes ready. `file` is that of the configuration, for those who ask. `load` gives the settings, and is asked again when they are to be read again; `log` takes lines.
    ///
    /// # Errors
    /// The settings are wrong, the directory cannot be used or another service does, the system has no descriptors left.
    pub fn begin(
        version: &str,
        file: Option<String>,
        load: &'a dyn Fn() -> Result<Settings, Vec<String>>,
        log: &'a mut dyn FnMut(&str),
    ) -> Result<Service<'a>, ServiceError> {
        let settings = load().map_err(ServiceError::Settings)?;
        let wait = |what| move |source| ServiceError::Wait { what, source };
        let signals = Signals::take().map_err(wait("signals"))?;
        let store = Store::open(&settings.directory, settings.quota, settings.file_size, settings.keep)?;
        let only = store.only()?;
        let control = Control::bind(&settings.socket)?;
        let (files, unfinished) = Files::new(&settings.status, settings.metrics.as_deref())?;
        let finder = Finder::new().map_err(wait("engines"))?;
        let mut service = Service {
            load,
            log,
            settings,
            store,
            _only: only,
            finder,
            signals,
            crew: Crew::default(),
            control,
            notify: Notify::new(),
            files,
            state: State {
                configuration: status::Configuration { file, ..status::Configuration::default() },
                ..State::new(version)
            },
            asked: None,
            trouble: String::new(),
            tick: Instant::now(),
            stopping: None,
        };
        service.welcome(&unfinished);
        Ok(service)
    }

    fn welcome(&mut self, unfinished: &[String]) {
        let road = self.finder.road();
        self.state.finder = status::Found { road: road.clone(), ..status::Found::default() };
        self.read_now(Vec::new());
        self.say(&format!(
            "waiting for engines, by {road}; recordings in {}",
            self.settings.directory.display()
        ));
        if let Err(e) = capset::give_up() {
            self.say(&format!("capabilities that are not needed could not be given up: {e}"));
        }
        for warning in self.settings.warnings.clone() {
            self.say(&warning);
        }
        for name in unfinished {
            self.say(&format!(
                "{name} had not been written to its end before: what was there of the new one is removed"
            ));
        }
        if let Some(swept) = tracefs::sweep() {
            self.say(&swept);
        }
        if self.crew.lessons.recall(self.store.place(), &self.state.version) > 0 {
            self.say("what hits cost here is known from an earlier start: ready to record");
        }
        match self.store.leftovers() {
            Ok(left) => leftovers(&left).into_iter().for_each(|line| self.say(&line)),
            Err(e) => self.say(&e.to_string()),
        }
    }

    fn say(&mut self, text: &str) {
        (self.log)(text);
        self.state.say(text);
    }

    /// The configuration was read just now, and this is wrong with it.
    fn read_now(&mut self, errors: Vec<String>) {
        let file = self.state.configuration.file.take();
        self.state.configuration =
            status::Configuration { file, read: clock::rfc3339(SystemTime::now()), errors };
        self.state.directory = self.settings.directory.display().to_string();
    }

    /// Runs until a signal or somebody asks it to stop.
    pub fn run(&mut self) {
        self.notify.ready();
        while !self.done() {
            self.wait();
            self.listen();
            self.look();
            if Instant::now() >= self.tick {
                self.tick();
                self.tick = Instant::now() + TICK;
            }
            for line in self.crew.news() {
                self.say(&line);
            }
        }
        self.say("stopped");
        self.tell();
        // Who reads the metrics is to see that there is no service any more; the status says that it has stopped.
        self.files.remove();
    }

    fn done(&mut self) -> bool {
        let Some(since) = self.stopping else { return false };
        let late = since.elapsed() > LAST_WORDS;
        if late {
            self.crew.kill();
        }
        late || self.crew.recorders() == 0
    }

    fn wait(&self) {
        let mut fds: Vec<libc::pollfd> = Vec::with_capacity(16);
        let mut add = |fd: BorrowedFd<'_>, events| {
            fds.push(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 });
        };
        add(self.signals.fd(), libc::POLLIN);
        self.crew.fds().for_each(|fd| add(fd, libc::POLLIN));
        self.finder.fds().into_iter().for_each(|fd| add(fd, libc::POLLIN));
        self.control.fds(&mut add);
        let left = self.tick.saturating_duration_since(Instant::now());
        let ms = left.as_millis().min(TICK.as_millis()) as i32 + 1;
        // SAFETY: as many entries as said; all descriptors are open for as long as self is borrowed.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
    }

    fn listen(&mut self) {
        let came = self.signals.read();
        self.crew.hear();
        self.remember();
        if came.child {
            self.crew.reap(&mut |pid| self.finder.knows(pid));
        }
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
        if came.stop {
            self.stop();
        }
    }

    /// A service that begins anew need not learn what this one has.
    fn remember(&mut self) {
        if self.crew.lessons.news
            && let Err(e) = self.crew.lessons.keep(self.store.place(), &self.state.version)
        {
            self.complain(format!("what was learnt of this machine could not be kept: {e}"));
        }
    }

    fn answer(&mut self, request: Request, token: Token) -> Option<Answer> {
        match request {
            Request::Status => {
                self.look_at_store();
                self.refresh();
                Some(self.state.json())
            }
            Request::Reload => Some(match self.reload() {
                true => Ok("{}".into()),
                false => Err(self.state.configuration.errors.join("; ")),
            }),
            Request::Stop => {
                self.stop();
                Some(Ok("{}".into()))
            }
            Request::Dump(_) if self.asked.is_some() => Some(Err("another dump is being written".into())),
            Request::Dump(pid) => {
                let left = self.crew.dump(pid);
                if left == 0 {
                    return Some(Err(match pid {
                        Some(pid) => format!(
                            "nothing of process {pid} is kept in memory: it does not run, or no rule with 'ring' has it"
                        ),
                        None => "no run is kept in memory: no rule with 'ring' has one".into(),
                    }));
                }
                self.asked =
                    Some(Asked { token, left, files: Vec::new(), why_not: None, since: Instant::now() });
                None
            }
        }
    }

    fn answer_dumps(&mut self) {
        for (rule, done) in std::mem::take(&mut self.crew.dumped) {
            let Some(asked) = &mut self.asked else { continue };
            asked.left = asked.left.saturating_sub(1);
            match done {
                Ok(name) => asked.files.push(name),
                Err(why) => asked.why_not = Some(format!("rule {rule}: {why}")),
            }
        }
        if let Some(asked) = self.asked.take_if(|asked| asked.left == 0) {
            let answer = match (asked.files.is_empty(), asked.why_not) {
                (true, Some(why)) => Err(why),
                (_, why) => {
                    why.into_iter().for_each(|why| self.say(&why));
                    socket::dumped(&self.settings.directory, &asked.files)
                }
            };
            self.control.answer(asked.token, &answer);
        }
    }

    fn stop(&mut self) {
        if self.stopping.is_none() {
            self.say("stopping: recordings are being ended");
            self.notify.stopping();
            self.stopping = Some(Instant::now());
            self.crew.stop();
        }
    }

    fn look(&mut self) {
        let found = self.finder.poll();
        self.finder.news().iter().for_each(|line| self.say(line));
        if self.stopping.is_some() {
            return;
        }
        for one in found {
            self.crew.meet(met(one), &self.settings);
        }
        self.crew.assign(&self.settings);
        if std::mem::take(&mut self.crew.left) {
            self.finder.look_again();
        }
    }

    fn tick(&mut self) {
        self.crew.tick(&self.settings);
        self.look_at_store();
        self.forget_asked();
        self.notify.alive();
        self.tell();
    }

    fn look_at_store(&mut self) {
        match self.store.tidy() {
            Ok(usage) => self.state.store = usage,
            Err(e) => self.complain(e.to_string()),
        }
    }

    /// Says what is wrong with the directory, once.
    fn complain(&mut self, trouble: String) {
        if self.trouble != trouble {
            self.say(&trouble);
            self.trouble = trouble;
        }
    }

    /// A dump that no recorder has told of is over.
    fn forget_asked(&mut self) {
        if let Some(asked) = self.asked.take_if(|asked| asked.since.elapsed() > DUMPED) {
            self.control.answer(asked.token, &Err("the recorder does not answer".into()));
        }
    }

    /// Brings the state to where all is.
    fn refresh(&mut self) {
        let crew = &mut self.crew;
        for run in crew.ended.drain(..) {
            self.state.run(&run);
        }
        crew.runs().for_each(|run| self.state.run(run));
        // One that was taken from its recorder, and not ended, is nobody's.
        let going = |r: &Run| crew.runs().any(|k| (k.pid, k.start) == (r.pid, r.start));
        self.state.runs.retain(|r| r.ended.is_some() || going(r));
        let c = crew.counts;
        self.state.counts = status::Counts {
            seen: c.seen,
            recorded: c.recorded,
            by_rule: c.ignored,
            one_in: c.left_out,
            at_once: c.too_many,
            missed: c.missed,
            over_budget: c.over_budget,
            waiting: crew.waiting(),
        };
        self.state.shunned = crew.shunned();
        let rule = |rule: &super::rules::Rule| status::Rule {
            name: rule.name.clone(),
            runs: crew.runs_of(&rule.name),
            recorder: crew.recorder_for(&rule.name),
        };
        self.state.rules = self.settings.rules.iter().map(rule).collect();
        let (held_back, files_put_off) = self.finder.held_back();
        let (road, files_too_large) = (self.finder.road(), self.finder.large);
        let why = self.state.finder.why.take();
        self.state.finder = status::Found { road, why, held_back, files_put_off, files_too_large };
        let own = own::together(crew.pids().chain(self.finder.pids()));
        self.state.own = status::Own { resident_bytes: own.map(|o| o.0), cpu_seconds: own.map(|o| o.1) };
        let going = self.state.going().next().is_some();
        self.state.state = match (self.stopping.is_some(), going) {
            (true, _) => Phase::Stopping,
            (_, true) => Phase::Recording,
            _ => Phase::Waiting,
        };
    }

    /// Tells how the service stands, whoever looks.
    fn tell(&mut self) {
        self.refresh();
        let n = self.state.going().count();
        self.notify.status(&match n {
            0 => format!("waiting for engines; {} runs recorded so far", self.state.counts.recorded),
            n => format!("recording {n} runs; {} so far", self.state.counts.recorded),
        });
        if let Err(why) = self.files.tell(&mut self.state) {
            self.say(&why);
        }
    }

    /// Reads the configuration again; false: it is wrong, or cannot be used.
    fn reload(&mut self) -> bool {
        self.notify.reloading();
        let wrong = match (self.load)() {
            Err(wrong) => wrong,
            Ok(settings) if settings == self.settings => Vec::new(),
            Ok(settings) => self.take(settings).err().map(|e| e.to_string()).into_iter().collect(),
        };
        let holds = wrong.is_empty();
        match holds {
            true => {
                self.say("the configuration was read again, and holds");
                self.settings.warnings.clone().iter().for_each(|warning| self.say(warning));
            }
            false => {
                self.say("the configuration was read again and is wrong; the one before holds:");
                wrong.iter().for_each(|line| self.say(line));
            }
        }
        self.read_now(wrong);
        self.notify.ready();
        holds
    }

    fn take(&mut self, settings: Settings) -> Result<(), ServiceError> {
        let old = &self.settings;
        let moved = old.directory != settings.directory;
        let sizes = |s: &Settings| (s.quota, s.file_size, s.keep);
        // First all that may fail: either all of it holds or nothing.
        let control = (old.socket != settings.socket).then(|| Control::bind(&settings.socket)).transpose()?;
        let elsewhere = (&old.status, &old.metrics) != (&settings.status, &settings.metrics);
        let files =
            elsewhere.then(|| Files::new(&settings.status, settings.metrics.as_deref())).transpose()?;
        if moved || sizes(old) != sizes(&settings) {
            let store = Store::open(&settings.directory, settings.quota, settings.file_size, settings.keep)?;
            if moved {
                self._only = store.only()?;
            }
            self.store = store;
        }
        if let Some(control) = control {
            self.control = control;
        }
        if let Some((files, _)) = files {
            self.files.remove();
            self.files = files;
        }
        let of_recorders = |s: &Settings| (sizes(s), s.file_age, s.memory, s.cpu.to_bits());
        let same = !moved && of_recorders(old) == of_recorders(&settings);
        self.settings = settings;
        self.crew.change(&self.settings, same);
        Ok(())
    }
}

/// What another service has left, in words.
fn leftovers(left: &Leftovers) -> Vec<String> {
    let removed = left.empty.iter().map(|name| format!("{name} had nothing in it, and is removed"));
    let temporary = left.temporary.iter().map(|name| format!("{name} was never finished, and is removed"));
    let mut words: Vec<String> = removed.chain(temporary).collect();
    if left.unfinished > 0 {
        words.push(format!(
            "{} recordings did not end cleanly: they are whole up to their last block, and stay",
            left.unfinished
        ));
    }
    words
}

fn met(found: Found) -> Met {
    let Found { pid, start, exe, uid, cgroup, base, parent, .. } = found;
    Met { pid, start, exe: exe.as_os_str().as_bytes().to_vec(), uid, cgroup, base, parent }
}
