//! What a recorder's session is fed with: runs that come and go, files that follow each other, the ring's triggers; and what
//! it tells of them. Uses `capset`, `channel`, `facts`, `limits`, `pulse`, `settings`, `rules`, `store` and `recording`.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::channel::{Channel, Said, Told};
use super::facts;
use super::limits::Limits;
use super::quota;
use super::recorder::{self, Failure};
use super::rules::Rule;
use super::run::Run;
use super::settings::Settings;
use super::store::Store;
use super::trigger::Trigger;
use crate::agent::kin::{self, Kin};
use crate::agent::meter::Meter;
use crate::agent::qos;
use crate::agent::recording::{Learnt, Order, Progress, RecordError, Watch};
use crate::agent::{capset, pulse, target, usage};
use crate::trace::Output;

/// How often the service is told how the runs stand.
const TELL: Duration = Duration::from_millis(500);
/// Runs in a message.
const TOGETHER: usize = 16;
/// One that waits for its first run shows that it lives four times in the time that it may be silent, or in this.
const MOST_REST: Duration = Duration::from_secs(60);
/// What one look may add to a file: a kernel's buffer full of events, coded, and the last block.
const LOOK: u64 = 2 << 20;

/// What was ordered last.
enum Ordered {
    Follow(u32),
    /// A child may have ended by now.
    Also,
    Unfollow,
    Turn,
    Dump {
        name: String,
        asked: bool,
    },
}

/// The feed.
pub struct Feed {
    channel: Channel,
    settings: Settings,
    rule: Rule,
    store: Option<Store>,
    /// Runs to be followed.
    waiting: VecDeque<Run>,
    /// Children of runs that were there before their run was followed: which, and whose.
    also: VecDeque<(u32, u32)>,
    runs: Vec<Run>,
    /// Runs that are to be recorded no more.
    leave: Vec<u32>,
    /// The process that is being attached to.
    at: Option<pulse::At>,
    /// Program, user and process of the run followed last: a ring outlives it.
    last: (String, u32, u32),
    /// Name of the file being written, and since when; None: no run is recorded, or into the ring.
    file: Option<(String, Instant)>,
    ordered: Option<Ordered>,
    /// Somebody asked for the ring.
    asked: bool,
    trigger: Trigger,
    limits: Limits,
    /// Targets were taken in, and a file begun, since the session counted targets and bytes.
    grew: bool,
    turned: bool,
    stop: bool,
    failure: Option<Failure>,
    /// The service knows that this recorder ends.
    ends: bool,
    told: Instant,
    /// Runs that are another recorder's, of which the service has not been told.
    declined: Vec<(u32, Vec<u32>)>,
    /// Runs that have ended and of which the service could not be told yet.
    untold: usize,
    /// Processes of which the service was told.
    came: u64,
}

impl Feed {
    pub fn new(settings: &Settings, rule: &Rule, channel: Channel) -> Feed {
        let now = Instant::now();
        Feed {
            channel,
            settings: settings.clone(),
            rule: rule.clone(),
            store: None,
            waiting: VecDeque::new(),
            also: VecDeque::new(),
            runs: Vec::new(),
            leave: Vec::new(),
            at: None,
            last: (String::new(), 0, 0),
            file: None,
            ordered: None,
            asked: false,
            trigger: Trigger::new(rule),
            limits: Limits::new(settings.cpu, settings.memory),
            grew: false,
            turned: false,
            stop: false,
            failure: None,
            ends: false,
            told: now.checked_sub(TELL).unwrap_or(now),
            declined: Vec::new(),
            untold: 0,
            came: 0,
        }
    }

    /// Passes on what was learnt of the machine.
    pub fn learnt(&mut self, learnt: Learnt) -> Learnt {
        self.say(&Said::Learnt(learnt.clone()));
        learnt
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

    /// The place for the next trace.
    pub fn place(&mut self) -> Result<Box<dyn Output>, Failure> {
        if self.rule.ring.is_some() {
            return Ok(Box::new(io::sink()));
        }
        let (name, file) = self.create()?;
        self.file = Some((name, Instant::now()));
        Ok(file)
    }

    fn create(&mut self) -> Result<(String, Box<dyn Output>), Failure> {
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
        let file = made.map_err(|e| (e.to_string(), e.is_full()))?;
        Ok((file.name().to_owned(), Box::new(file)))
    }

    /// Takes what the service says.
    fn hear(&mut self) {
        loop {
            match self.channel.receive() {
                Ok(Some(Told::Follow(run))) => self.waiting.push_back(*run),
                Ok(Some(Told::Leave(pid))) => self.leave.push(pid),
                Ok(Some(Told::Dump)) => self.asked = true,
                Ok(Some(Told::Stop)) | Err(_) => {
                    self.stop = true;
                    return;
                }
                Ok(None) => return,
            }
        }
    }

    /// A service that does not listen has too much to do, or is gone, which shows elsewhere.
    fn say(&mut self, what: &Said) -> bool {
        self.channel.send(what).is_ok()
    }

    fn say_message(&mut self, text: &str) {
        self.say(&Said::Message(text.into()));
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.stop = true;
    }

    /// The last words. `ended` is what ended the recording before its time.
    pub fn end(&mut self, ended: Option<Failure>) {
        let failure = ended.or_else(|| self.failure.take());
        self.tell_runs();
        if !self.ends {
            self.tell_end(failure);
        }
    }

    fn tell_end(&mut self, failure: Option<Failure>) {
        let (why, full) = failure.map_or((None, false), |(why, full)| (Some(why), full));
        self.ends = self.say(&Said::Ends { why, full });
    }

    fn tell_runs(&mut self) {
        let declined = std::mem::take(&mut self.declined);
        let mut told = |(run, all): &(u32, Vec<u32>)| self.say(&Said::Declined(*run, all.clone()));
        self.declined = declined.into_iter().filter(|run| !told(run)).collect();
        let runs = std::mem::take(&mut self.runs);
        for some in runs.chunks(TOGETHER) {
            let told = self.say(&Said::Runs(some.to_vec()));
            // What was not heard is told again; an end above all.
            self.runs.extend(some.iter().filter(|r| !told || r.ended.is_none()).cloned());
        }
        self.untold = self.runs.iter().filter(|r| r.ended.is_some()).count();
        self.told = Instant::now();
    }

    /// Brings the runs to where the session has them, when there is something to tell: quantiles are not for every look.
    fn note(&mut self, now: &Progress, kin: &Kin) {
        let limit = self.rule.tokens.unwrap_or(u64::MAX);
        let meters = &kin.meters;
        let of = |run: u32| meters.iter().filter(move |m| m.run == run);
        let news = self.runs.iter().filter(|r| r.ended.is_none()).any(|r| {
            r.level.is_empty()
                || of(r.pid).any(|m| m.over)
                || of(r.pid).map(|m| m.tokens).sum::<u64>() >= limit
        });
        // Which processes there are is told at once: who is looked for when a run ends is not to be taken for a run.
        let news = news || kin.came > self.came;
        if !news && self.told.elapsed() < TELL {
            return;
        }
        let level = qos::name(now.level);
        let file = self.file.as_ref().map(|(name, _)| name.clone());
        for run in self.runs.iter_mut().filter(|r| r.ended.is_none()) {
            let Some(first) = of(run.pid).find(|m| m.pid == run.pid) else { continue };
            let all = Meter::of_run(meters, run.pid);
            run.level.clone_from(&level);
            run.file.clone_from(&file);
            run.processes = kin.met_of(run.pid);
            (run.tokens, run.ttft_ns) = (all.tokens, all.ttft_ns());
            // That of children that have ended is the last known.
            run.rate = Meter::rate_of_run(meters, run.pid, all.last).or(run.rate);
            run.tpot_ns = [0.5, 0.9, 0.99].map(|q| all.quantile(q));
            (run.lost, run.seen, run.cost) = (now.lost, now.totals.events + now.lost, now.cost);
            if first.over {
                run.ended = Some("the process has ended".into());
            }
        }
    }

    /// A run comes. Its first process may have ended before its children, and its number be another's by now.
    fn follow(&mut self, run: Run) -> Option<Order> {
        let pid = run.pid;
        let alive = facts::stat(pid).is_some_and(|stat| stat.start == run.start);
        let others = run.processes.iter().filter(|&&child| child != pid && target::alive(child));
        let waiting = self.also.len();
        self.also.extend(others.map(|&child| (child, pid)));
        // Another program in a process is another run.
        self.runs.retain(|r| r.pid != pid || r.ended.is_some());
        if !alive && self.also.len() == waiting {
            self.runs.push(Run { ended: Some("it ended before it could be recorded".into()), ..run });
            return None;
        }
        self.last = (run.exe.clone(), run.uid, run.pid);
        self.runs.push(run);
        self.grew = true;
        alive.then(|| {
            self.at = Some(pulse::at(pid));
            self.ordered = Some(Ordered::Follow(pid));
            Order::Follow(pid, pid)
        })
    }

    /// The next file, if it can be had.
    fn turn(&mut self, why: &'static str) -> Option<Order> {
        match self.place() {
            Ok(out) => {
                self.ordered = Some(Ordered::Turn);
                self.turned = true;
                Some(Order::Turn(out, why))
            }
            Err(failure) => {
                self.fail(failure);
                None
            }
        }
    }

    /// What the files want: one for a run that comes, the next for one that is full, none where nothing is recorded.
    fn files(&mut self, now: &Progress) -> Option<Order> {
        if self.rule.ring.is_some() {
            return None;
        }
        let (_, since) = self.file.as_ref().filter(|_| !self.turned)?;
        if now.targets == 0 && !self.grew && self.waiting.is_empty() {
            self.file = None;
            self.ordered = Some(Ordered::Turn);
            return Some(Order::Turn(Box::new(io::sink()), "no engine left"));
        }
        if now.bytes.saturating_add(LOOK.min(self.settings.file_size / 2)) >= self.settings.file_size {
            return self.turn("size reached");
        }
        if since.elapsed() >= self.settings.file_age {
            return self.turn("age reached");
        }
        None
    }

    fn dump(&mut self, asked: bool) -> Option<Order> {
        if self.rule.ring.is_none() {
            if asked {
                self.say(&Said::Dumped(Err("its rule has no ring: it is in files".into())));
            }
            return None;
        }
        match self.create() {
            Ok((name, out)) => {
                self.ordered = Some(Ordered::Dump { name, asked });
                Some(Order::Dump(out))
            }
            Err((why, _)) => {
                self.dumped(Err(why), asked);
                None
            }
        }
    }

    fn dumped(&mut self, done: Result<String, String>, asked: bool) {
        if asked {
            self.say(&Said::Dumped(done));
            return;
        }
        match done {
            Ok(name) => self.say_message(&format!("the ring is in {name}")),
            Err(why) => self.say_message(&format!("the ring could not be written: {why}")),
        }
    }

    /// The next run that is another's, or nobody's, from now on.
    fn left(&mut self) -> Option<Order> {
        while let Some(pid) = self.leave.pop() {
            self.waiting.retain(|run| run.pid != pid);
            self.also.retain(|(_, of)| *of != pid);
            let before = self.runs.len();
            self.runs.retain(|r| r.pid != pid || r.ended.is_some());
            if self.runs.len() < before {
                self.ordered = Some(Ordered::Unfollow);
                return Some(Order::Unfollow(pid));
            }
        }
        None
    }

    fn finished(&mut self) -> Option<Order> {
        let limit = self.rule.tokens?;
        let run = self.runs.iter_mut().find(|r| r.ended.is_none() && r.tokens >= limit)?;
        run.ended = Some(format!("its first {limit} tokens are recorded"));
        self.ordered = Some(Ordered::Unfollow);
        Some(Order::Unfollow(run.pid))
    }
}

impl Watch for Feed {
    fn stop(&self) -> bool {
        if self.stop {
            // Probes go one by one, and the kernel takes its time for each.
            pulse::slow();
        }
        self.stop
    }

    fn tell(&mut self, text: &str) {
        self.say_message(text);
    }

    fn progress(&mut self, _: &Progress) {
        pulse::beat();
        (self.grew, self.turned) = (false, false);
        self.hear();
        if let Some(why) = self.limits.exceeded(usage::cpu_us(), || usage::resident().anonymous) {
            self.fail((why, false));
        }
    }

    fn order(&mut self, now: &Progress, kin: &Kin) -> Option<Order> {
        pulse::beat();
        self.note(now, kin);
        let ended = self.runs.iter().filter(|r| r.ended.is_some()).count();
        let came = std::mem::replace(&mut self.came, kin.came) != kin.came;
        if self.told.elapsed() >= TELL || ended > self.untold || came || !self.declined.is_empty() {
            self.tell_runs();
        }
        if self.stop {
            return None;
        }
        if let Some(order) = self.left() {
            return Some(order);
        }
        if self.rule.ring.is_none() && self.file.is_none() && !self.waiting.is_empty() {
            return self.turn("no engine left");
        }
        while let Some(run) = self.waiting.pop_front() {
            if let Some(order) = self.follow(run) {
                return Some(order);
            }
        }
        while let Some((pid, run)) = self.also.pop_front() {
            if self.runs.iter().any(|r| r.pid == run && r.ended.is_none()) {
                self.ordered = Some(Ordered::Also);
                return Some(Order::Follow(pid, run));
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
        if let Some(why) = self.trigger.fired(&kin.meters, now.call, usage::now()) {
            self.say_message(&why);
            if let Some(order) = self.dump(false) {
                return Some(order);
            }
        }
        self.files(now)
    }

    fn attached(&mut self, counting: bool) -> bool {
        if let Err(e) = capset::keep_attached(counting) {
            self.say_message(&format!(
                "capabilities that are not needed any more could not be given up: {e}"
            ));
        }
        self.say(&Said::Attached);
        true
    }

    fn declined(&mut self, run: u32, mut processes: Vec<u32>) {
        processes.truncate(kin::MOST);
        self.runs.retain(|r| r.pid != run || r.ended.is_some());
        self.also.retain(|(_, of)| *of != run);
        self.declined.push((run, processes));
    }

    fn done(&mut self, done: Result<(), String>) {
        self.at = None;
        match (self.ordered.take(), done) {
            (Some(Ordered::Follow(pid)), Err(why)) => {
                self.runs.iter_mut().filter(|r| r.pid == pid).for_each(|r| r.ended = Some(why.clone()));
            }
            // From here on its children are told by the kernel.
            (Some(Ordered::Follow(pid)), Ok(())) => {
                self.also.extend(facts::copies(pid).into_iter().map(|child| (child, pid)));
            }
            (Some(Ordered::Dump { name, asked }), done) => self.dumped(done.map(|()| name), asked),
            (None | Some(Ordered::Also), _) | (_, Ok(())) => {}
            (_, Err(why)) => self.say_message(&why),
        }
    }

    fn failed(&mut self, why: &RecordError) {
        pulse::slow();
        // What comes from here on is another recorder's.
        self.tell_end(Some(recorder::failure(why)));
    }
}
