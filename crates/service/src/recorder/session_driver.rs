//! Drives a recorder's session: runs that come and go, files that follow each other, triggers of the ring; and
//! reports on them to the service.

mod command;
mod files;

use std::collections::VecDeque;
use std::io;
use std::process::Child;
use std::time::{Duration, Instant};

use self::command::Beginning;
use crate::recorder::channel::{DumpError, RecorderCommand, WorkerEvent};
use crate::recorder::figures::{Figures, RunFigures};
use crate::recorder::limits::ServiceLimits;
use crate::recorder::observed::Observed;
use crate::recorder::trigger::Trigger;
use crate::recorder::{self, Failure};
use crate::rules::Rule;
use crate::rules::settings::ServiceSettings;
use crate::run::{self, Run};
use crate::store::quota;
use crate::store::{Store, StoreError};
use agent::capture::error::RecordError;
use agent::recorder::computing::ComputingChange;
use agent::recorder::meter::Meter;
use agent::recorder::process_tree::{self, ProcessTree};
use agent::recorder::qos;
use agent::recorder::recording::{
    Calibration, ProbedEngine, RecordingProgress, SessionCommand, SessionObserver,
};
use agent::recorder::tally::RequestTally;
use common::order;
use machine::helper::channel::Channel;
use machine::helper::pulse;
use machine::proc;
use machine::{capset, target, usage};
use pfi::Output;
use requests::RequestNow;

/// Interval of reports on the runs to the service.
const TELL: Duration = Duration::from_millis(500);
/// Maximum runs per message.
const TOGETHER: usize = 16;
/// A recorder that waits for its first run gives a sign of life four times per timeout, at most this long.
const MOST_REST: Duration = Duration::from_secs(60);
/// Maximum growth of a file per round: a full kernel buffer of events, encoded, and the last block.
const LOOK: u64 = 2 << 20;

/// The last order.
enum Ordered {
    Follow(u32),
    /// A child, which may have ended by now.
    Also,
    Unfollow,
    /// The file that ends; None: nothing was written.
    Rotate(Option<String>),
    Note,
    Calibrated,
    Dump {
        name: String,
        asked: bool,
    },
}

/// Drives a session on the orders of the service.
pub struct SessionDriver {
    channel: Channel,
    settings: ServiceSettings,
    rule: Rule,
    store: Option<Store>,
    /// Runs to follow.
    waiting: VecDeque<Run>,
    /// Children that existed before their run was followed: (child, run).
    also: VecDeque<(u32, u32)>,
    runs: Vec<Run>,
    /// What was seen of their requests.
    observed: Observed,
    /// What they compute, while somebody watches; and what was not told yet of it.
    figures: Figures,
    computed: Vec<(u32, RunFigures)>,
    /// Runs to stop recording.
    leave: Vec<u32>,
    /// The process that is being attached to.
    at: Option<pulse::At>,
    /// Program, user and pid of the run followed last: a ring outlives it.
    last: (String, u32, u32),
    /// Name and start of the file being written; None: no run is recorded, or recording goes to the ring.
    file: Option<(String, Instant)>,
    ordered: Option<Ordered>,
    /// The ring was requested.
    asked: bool,
    /// The calibration that came after the beginning.
    calibrated: Option<Box<Calibration>>,
    /// Texts for the trace, and their times.
    notes: VecDeque<(u64, String)>,
    /// Lost events when last looked, and when that number last grew.
    lost: (u64, u64),
    trigger: Trigger,
    limits: ServiceLimits,
    /// Targets were added, and a file begun, since the session counted targets and bytes.
    grew: bool,
    turned: bool,
    stop: bool,
    failure: Option<Failure>,
    /// The service knows that this recorder is ending.
    ends: bool,
    beginning: Beginning,
    told: Instant,
    /// Runs that need another recorder and have not been reported to the service yet.
    declined: Vec<(u32, Vec<u32>)>,
    /// Runs that have ended and could not be reported to the service yet.
    untold: usize,
    /// Number of processes reported to the service.
    came: u64,
}

impl SessionDriver {
    pub fn new(settings: &ServiceSettings, rule: &Rule, channel: Channel) -> SessionDriver {
        let now = Instant::now();
        SessionDriver {
            channel,
            settings: settings.clone(),
            rule: rule.clone(),
            store: None,
            waiting: VecDeque::new(),
            also: VecDeque::new(),
            runs: Vec::new(),
            observed: Observed::default(),
            figures: Figures::default(),
            computed: Vec::new(),
            leave: Vec::new(),
            at: None,
            last: (String::new(), 0, 0),
            file: None,
            ordered: None,
            asked: false,
            calibrated: None,
            notes: VecDeque::new(),
            lost: (0, 0),
            trigger: Trigger::new(rule),
            limits: ServiceLimits::new(settings.cpu, settings.memory),
            grew: false,
            turned: false,
            stop: false,
            failure: None,
            ends: false,
            beginning: Beginning::default(),
            told: now.checked_sub(TELL).unwrap_or(now),
            declined: Vec::new(),
            untold: 0,
            came: 0,
        }
    }

    /// Sends the calibration to the service.
    pub fn calibration(&mut self, calibration: Calibration) -> Calibration {
        self.say(&WorkerEvent::Calibration(calibration.clone()));
        calibration
    }

    /// Waits for the first run; false: none comes.
    pub fn first(&mut self) -> bool {
        while self.waiting.is_empty() && !self.stop {
            self.channel.wait(self.settings.recorder_timeout.min(MOST_REST) / 4);
            pulse::beat();
            self.hear();
        }
        !self.stop
    }

    /// The output for the next trace.
    pub fn place(&mut self) -> Result<Box<dyn Output>, StoreError> {
        if self.rule.ring.is_some() {
            return Ok(Box::new(io::sink()));
        }
        let (name, file) = self.create()?;
        self.file = Some((name, Instant::now()));
        Ok(self.figures.tap(file))
    }

    fn create(&mut self) -> Result<(String, Box<dyn Output>), StoreError> {
        let run = self.waiting.front().or_else(|| self.runs.iter().rfind(|r| r.ended.is_none()));
        let last = (self.last.0.as_str(), self.last.1, self.last.2);
        let (program, uid, pid) = run.map_or(last, |r| (r.exe.as_str(), r.uid, r.pid));
        let name = Store::name(program, quota::answerable(uid), pid);
        let s = &self.settings;
        let made = match &self.store {
            Some(store) => store.create(&name),
            None => Store::open(&s.directory, s.quota, s.file_size, s.keep).and_then(|store| {
                let made = store.create(&name);
                self.store = Some(store);
                made
            }),
        };
        let file = made?;
        Ok((file.name().to_owned(), Box::new(file)))
    }

    /// Takes messages of the service.
    fn hear(&mut self) {
        loop {
            match self.channel.receive() {
                Ok(Some(RecorderCommand::Follow(run))) => self.waiting.push_back(*run),
                Ok(Some(RecorderCommand::Leave(pid))) => self.leave.push(pid),
                Ok(Some(RecorderCommand::Dump)) => self.asked = true,
                Ok(Some(RecorderCommand::Note(t, text))) => self.notes.push_back((t, text)),
                Ok(Some(RecorderCommand::Watched(wanted))) => self.figures.want(wanted),
                Ok(Some(RecorderCommand::Calibrated(calibration))) => self.calibrated = Some(calibration),
                Ok(Some(RecorderCommand::Stop)) | Err(_) => {
                    self.stop = true;
                    return;
                }
                Ok(None) => return,
            }
        }
    }

    /// A service that is not reading is too busy, or gone, which shows elsewhere.
    fn say(&mut self, what: &WorkerEvent) -> bool {
        self.channel.send(what).is_ok()
    }

    fn say_message(&mut self, text: &str) {
        self.say(&WorkerEvent::Message(text.into()));
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.stop = true;
    }

    /// The last messages. `ended` is what ended the recording early.
    pub fn end(&mut self, ended: Option<Failure>) {
        let file = self.file.take().filter(|_| ended.is_none());
        let failure = ended.or_else(|| self.failure.take());
        self.end_command(failure.as_ref());
        self.tell_runs();
        self.complete(file.map(|(name, _)| name));
        if !self.ends {
            let full = failure.as_ref().is_some_and(Failure::is_full);
            self.tell_end(failure.map(|why| why.to_string()), full);
        }
    }

    /// A file is complete.
    fn complete(&mut self, name: Option<String>) {
        if let Some(name) = name {
            self.say(&WorkerEvent::File(name));
        }
    }

    fn tell_end(&mut self, why: Option<String>, full: bool) {
        self.ends = self.say(&WorkerEvent::Ends { why, full });
    }

    fn tell_runs(&mut self) {
        if !self.tell_command() {
            return;
        }
        let declined = std::mem::take(&mut self.declined);
        let mut told = |(run, all): &(u32, Vec<u32>)| self.say(&WorkerEvent::Declined(*run, all.clone()));
        self.declined = declined.into_iter().filter(|run| !told(run)).collect();
        for (run, figures) in std::mem::take(&mut self.computed) {
            self.say(&WorkerEvent::Figures(run, Box::new(figures)));
        }
        let runs = std::mem::take(&mut self.runs);
        for some in runs.chunks(TOGETHER) {
            let told = self.say(&WorkerEvent::Runs(some.to_vec()));
            // Unheard reports are sent again, ends above all.
            self.runs.extend(some.iter().filter(|r| !told || r.ended.is_none()).cloned());
        }
        let channel = &mut self.channel;
        self.observed.tell(&mut |seen| channel.send(&WorkerEvent::Observed(Box::new(seen.clone()))).is_ok());
        self.observed.keep(&|pid| self.runs.iter().any(|run| run.pid == pid));
        self.untold = self.runs.iter().filter(|r| r.ended.is_some()).count();
        self.told = Instant::now();
    }

    /// Updates the runs from the session, when there is something to report: quantiles are too expensive for every
    /// round.
    fn note(&mut self, now: &RecordingProgress, process_tree: &ProcessTree) {
        let limit = self.rule.tokens.unwrap_or(u64::MAX);
        let meters = &process_tree.meters;
        let of = |run: u32| meters.iter().filter(move |m| m.run == run);
        let news = self
            .runs
            .iter()
            .filter(|r| r.ended.is_none())
            .any(|r| r.level.is_empty() || of(r.pid).any(|m| m.over) || r.tokens >= limit);
        // Report new processes immediately: a process that is found when a run ends must not be taken for a new
        // run.
        let news = news || process_tree.came > self.came;
        if !news && self.told.elapsed() < TELL {
            return;
        }
        self.update(now, process_tree);
    }

    fn update(&mut self, now: &RecordingProgress, process_tree: &ProcessTree) {
        let meters = &process_tree.meters;
        let of = |run: u32| meters.iter().filter(move |m| m.run == run);
        let level = qos::name(now.level);
        let file = self.file.as_ref().map(|(name, _)| name.clone());
        self.figures.read();
        self.computed.clear();
        for run in self.runs.iter_mut().filter(|r| r.ended.is_none()) {
            let Some(first) = of(run.pid).find(|m| m.pid == run.pid) else { continue };
            let all = Meter::of_run(meters, run.pid);
            run.level.clone_from(&level);
            run.file.clone_from(&file);
            run.processes = process_tree.met_of(run.pid);
            run.ttft_ns = all.ttft_ns();
            // The last known rate stays when the children have ended.
            run.rate = Meter::rate_of_run(meters, run.pid, all.last).or(all.before).or(run.rate);
            run.tpot_ns = [0.5, 0.9, 0.99].map(|q| all.quantile(q));
            run.requests = latest(process_tree.requests.rows(Some(run.pid), usage::now()));
            (run.lost, run.seen, run.cost) = (now.lost, now.totals.events + now.lost, now.cost);
            self.computed.extend(self.figures.of(run.pid, process_tree).map(|figures| (run.pid, figures)));
            if first.over {
                run.requests.clear();
                self.figures.forget(run.pid);
                run.ended = Some("the process has ended".into());
            }
        }
    }

    /// Follows a new run. Its first process may have ended before its children, and its pid may be another's by
    /// now.
    fn follow(&mut self, run: Run) -> Option<SessionCommand> {
        let pid = run.pid;
        let alive = proc::stat(pid).is_some_and(|stat| stat.start == run.start);
        let others = run.processes.iter().filter(|&&child| child != pid && target::alive(child));
        let waiting = self.also.len();
        self.also.extend(others.map(|&child| (child, pid)));
        // Another program in the same process is another run.
        self.runs.retain(|r| r.pid != pid || r.ended.is_some());
        if !alive && self.also.len() == waiting {
            self.runs.push(Run { ended: Some("it ended before it could be recorded".into()), ..run });
            return None;
        }
        self.last = (run.exe.clone(), run.uid, run.pid);
        self.figures.follow(run.pid);
        self.runs.push(run);
        self.grew = true;
        alive.then(|| {
            self.at = Some(pulse::at(pid));
            self.ordered = Some(Ordered::Follow(pid));
            SessionCommand::Follow(pid, pid)
        })
    }

    /// The next run to hand over or drop.
    fn left(&mut self) -> Option<SessionCommand> {
        while let Some(pid) = self.leave.pop() {
            self.waiting.retain(|run| run.pid != pid);
            self.also.retain(|(_, of)| *of != pid);
            let before = self.runs.len();
            self.runs.retain(|r| r.pid != pid || r.ended.is_some());
            if self.runs.len() < before {
                self.ordered = Some(Ordered::Unfollow);
                return Some(SessionCommand::Unfollow(pid));
            }
        }
        None
    }

    /// Shows the service up to when it knows what the engines compute. For a second after an event was lost, that is not
    /// certain.
    fn follow_on(&mut self, now: &RecordingProgress) {
        const DOUBT_NS: u64 = 1_000_000_000;
        let at = usage::now();
        if now.lost != self.lost.0 {
            self.lost = (now.lost, at);
        }
        let certain = self.lost.1 == 0 || at.saturating_sub(self.lost.1) > DOUBT_NS;
        pulse::follows(now.followed.filter(|_| certain).unwrap_or(0));
    }

    fn finished(&mut self) -> Option<SessionCommand> {
        let limit = self.rule.tokens?;
        let run = self.runs.iter_mut().find(|r| r.ended.is_none() && r.tokens >= limit)?;
        run.ended = Some(format!("its first {limit} tokens are recorded"));
        self.ordered = Some(Ordered::Unfollow);
        Some(SessionCommand::Unfollow(run.pid))
    }
}

/// The requests that computed last, in their order.
fn latest(mut rows: Vec<RequestNow>) -> Vec<RequestNow> {
    if rows.len() > run::REQUESTS {
        order::by_key(&mut rows, |r| (r.idle_ns, 0));
        rows.truncate(run::REQUESTS);
        order::by(&mut rows, |a, b| (a.pid, a.context, a.seq).cmp(&(b.pid, b.context, b.seq)));
    }
    rows
}

impl SessionObserver for SessionDriver {
    fn stop(&self) -> bool {
        if self.stop {
            // Probes are removed one by one, and the kernel is slow at each.
            pulse::slow();
        }
        self.stop
    }

    fn tell(&mut self, text: &str) {
        self.say_message(text);
    }

    fn engine(&mut self, pid: u32, engine: &ProbedEngine<'_>) {
        if self.rule.sets_cpus() && !engine.again {
            self.say(&WorkerEvent::Engine(pid, engine.build_id.to_owned()));
        }
    }

    fn computes(&mut self, change: ComputingChange) {
        let of = |run: &&mut Run| run.pid == change.pid || run.processes.contains(&change.pid);
        if let Some(run) = self.runs.iter_mut().filter(|r| r.ended.is_none()).find(of) {
            run.threads[usize::from(!change.prompt)] = Some(change.threads).filter(|n| *n > 0);
        }
        if self.rule.sets_cpus() {
            self.say(&WorkerEvent::Computes(change));
        }
    }

    fn requests(&mut self, run: u32, seen: &RequestTally) {
        if let Some(run) = self.runs.iter_mut().find(|r| r.pid == run && r.ended.is_none()) {
            run.tokens = run.tokens.saturating_add(seen.tokens);
        }
        self.observed.add(run, seen);
    }

    fn progress(&mut self, now: &RecordingProgress) {
        pulse::beat();
        self.follow_on(now);
        (self.grew, self.turned) = (false, false);
        self.hear();
        if let Some(why) = self.limits.exceeded(usage::cpu_us(), || usage::resident().anonymous) {
            self.fail(why.into());
        }
    }

    fn order(&mut self, now: &RecordingProgress, process_tree: &ProcessTree) -> Option<SessionCommand> {
        pulse::beat();
        self.note(now, process_tree);
        let ended = self.runs.iter().filter(|r| r.ended.is_some()).count();
        let came = std::mem::replace(&mut self.came, process_tree.came) != process_tree.came;
        if self.told.elapsed() >= TELL || ended > self.untold || came || !self.declined.is_empty() {
            self.tell_runs();
        }
        // Also at the end: what is undone then is part of the trace.
        if let Some((t, text)) = self.notes.pop_front() {
            self.ordered = Some(Ordered::Note);
            return Some(SessionCommand::Note(t, text));
        }
        if self.stop {
            return None;
        }
        if let Some(calibration) = self.calibrated.take() {
            self.ordered = Some(Ordered::Calibrated);
            return Some(SessionCommand::Calibrated(calibration));
        }
        if let Some(order) = self.left() {
            return Some(order);
        }
        if self.rule.ring.is_none()
            && self.file.is_none()
            && (std::mem::take(&mut self.beginning.file) || !self.waiting.is_empty())
        {
            return self.rotate("no engine left");
        }
        while let Some(run) = self.waiting.pop_front() {
            if let Some(order) = self.follow(run) {
                return Some(order);
            }
        }
        while let Some((pid, run)) = self.also.pop_front() {
            if self.runs.iter().any(|r| r.pid == run && r.ended.is_none()) {
                self.ordered = Some(Ordered::Also);
                return Some(SessionCommand::Follow(pid, run));
            }
        }
        if let Some(order) = self.finished() {
            return Some(order);
        }
        if std::mem::take(&mut self.asked)
            && let Some(order) = self.dump(true)
        {
            return Some(order);
        }
        if let Some(fired) = self.trigger.fired(&process_tree.meters, now.call, usage::now()) {
            self.say_message(&fired.text);
            // The run's state is part of the trigger's event.
            self.update(now, process_tree);
            self.tell_runs();
            self.say(&WorkerEvent::Triggered(fired));
            if let Some(order) = self.dump(false) {
                return Some(order);
            }
        }
        self.files(now)
    }

    fn attached(&mut self, counting: bool) -> bool {
        if let Err(e) = capset::keep_attached(counting) {
            self.say_message(&format!("cannot drop capabilities that are no longer needed: {e}"));
        }
        self.say(&WorkerEvent::Attached);
        true
    }

    fn launching(&mut self, pid: u32) {
        self.begin_command(pid);
    }

    fn launched(&mut self) {
        self.command_runs();
    }

    fn left(&mut self, command: Child) {
        self.command_left(command);
    }

    fn declined(&mut self, run: u32, mut processes: Vec<u32>) {
        processes.truncate(process_tree::MOST);
        self.runs.retain(|r| r.pid != run || r.ended.is_some());
        self.also.retain(|(_, of)| *of != run);
        self.declined.push((run, processes));
    }

    fn done(&mut self, done: Result<(), RecordError>) {
        self.at = None;
        match (self.ordered.take(), done) {
            (Some(Ordered::Follow(pid)), Err(why)) => {
                let of_pid = self.runs.iter_mut().filter(|r| r.pid == pid);
                of_pid.for_each(|r| r.ended = Some(why.to_string()));
            }
            // From here on the kernel reports its children.
            (Some(Ordered::Follow(pid)), Ok(())) => {
                self.also.extend(proc::copies(pid).into_iter().map(|child| (child, pid)));
            }
            (Some(Ordered::Rotate(file)), Ok(())) => self.complete(file),
            (Some(Ordered::Dump { name, asked }), done) => {
                self.complete(done.is_ok().then(|| name.clone()));
                self.dumped(done.map(|()| name).map_err(|why| DumpError::Write(why.to_string())), asked);
            }
            (None | Some(Ordered::Also | Ordered::Note | Ordered::Calibrated), _) | (_, Ok(())) => {}
            (_, Err(why)) => self.say_message(&why.to_string()),
        }
    }

    fn stopping(&mut self, why: Result<&str, &RecordError>) {
        let Err(why) = why else { return };
        pulse::slow();
        // What comes from here on needs another recorder.
        self.tell_end(Some(why.to_string()), recorder::is_full(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::tests::rule;
    use agent::recorder::requests::Requests;
    use pfi::record::Chunk;
    use requests::Call;

    /// Two slots of a server: a prompt of each, then calls with a token of each.
    #[test]
    fn tokens_of_a_run_are_those_that_users_get_and_not_calls() {
        const CALLS: i64 = 200;
        let (ours, _theirs) = Channel::pair().expect("a channel");
        let mut driver = SessionDriver::new(&ServiceSettings::default(), &rule("a"), ours);
        driver.runs.push(Run { pid: 7, ..Run::default() });
        let mut requests = Requests::default();
        let mut id = 0;
        let mut call = |chunks: &[Chunk]| {
            let (start, end) = (id * 1_000_000, id * 1_000_000 + 900_000);
            id += 1;
            let width = chunks.iter().map(|c| c.tokens as u32).sum();
            let call =
                Call { id: id as u64, pid: 7, context: 1, width, start, end, seen: true, encodes: false };
            requests.call(7, &call, chunks);
        };
        for seq in [0, 1] {
            call(&[Chunk { seq, pos: 0, tokens: 20, outputs: 1 }]);
        }
        for n in 1..CALLS {
            call(&[0, 1].map(|seq| Chunk { seq, pos: 19 + n, tokens: 1, outputs: 1 }));
        }
        requests.exit(7);
        let mut counted = 0;
        while let Some((run, seen)) = requests.take() {
            counted += seen.tokens;
            driver.requests(run, &seen);
        }
        assert_eq!(driver.runs.first().map(|run| run.tokens), Some(2 * CALLS as u64), "as for 201 calls");
        assert_eq!(counted, 2 * CALLS as u64, "and as in the metrics");
    }
}
