//! Measures one choice of CPUs, threads and settings: runs it until the result can be trusted, or says why it cannot.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::command::{Engine, FlagChange, Lengths, Tuned, Work};
use super::figures::{Figures, FiguresError};
use super::guards::{BatteryState, Guards};
use super::huge_pages::ChangedMode;
use super::knobs::{Change, Setting};
use super::server::{self, Request};
use super::session::{TuneOptions, Watcher};
use super::store::{Kept, Store};
use super::trial::{Detail, Ran, Recorder, Trial, TrialError};
use common::order::median;
use tune::answer::{EnergySource, Measured};
use tune::{Candidate, Refused, Sample};

/// A run may take this many times as long as the shortest one, and this much longer.
const LIMIT: u32 = 4;
const LIMIT_MORE: Duration = Duration::from_secs(5);
/// How often a run is repeated because other programs disturbed it.
const DISTURBED: u32 = 2;
/// Pause before such a repetition.
const CALM: Duration = Duration::from_secs(2);

/// A choice, with the setting that was added.
type Key = (Option<Candidate>, Option<String>, Work);

/// The measuring part of a search.
pub struct Measurer<'a> {
    pub options: &'a TuneOptions,
    pub tuned: &'a Tuned,
    pub help: String,
    pub recorder: Recorder,
    pub guards: Guards,
    pub store: Store,
    pub watch: &'a mut dyn Watcher,
    pub begin: Instant,
    pub energy: Option<EnergySource>,
    /// Why there are no joules.
    pub no_energy: Option<String>,
    /// Sources of energy were seen.
    pub sources: bool,
    pub lengths: Lengths,
    pub model: Option<String>,
    /// Build id of the engine's base library.
    pub engine: Option<String>,
    pub notes: Vec<String>,
    pub runs: u32,
    pub kept_runs: u32,
    /// Samples of each choice, and what else is known of it.
    pub known: HashMap<Key, Known>,
    /// Samples of each choice that the search has had.
    asked: HashMap<Key, usize>,
    quickest: HashMap<Work, Duration>,
}

/// What is known of a choice.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub samples: Vec<Sample>,
    pub celsius: Option<f64>,
    pub seen_on: String,
    pub refused: Option<String>,
    /// Charge of a battery a token, uAh, of the last run.
    pub uah_per_token: Option<f64>,
}

impl Known {
    /// Medians over the runs; None without one.
    pub fn measured(&self) -> Option<Measured> {
        let of = |field: fn(&Sample) -> Option<f64>| median(self.samples.iter().filter_map(field).collect());
        let speed = of(|s| Some(s.tokens_per_s))?;
        let within = of(|s| Some(s.scatter)).unwrap_or(0.0);
        let between = self.samples.iter().map(|s| (s.tokens_per_s / speed - 1.0).abs()).fold(0.0, f64::max);
        Some(Measured {
            tokens_per_s: speed,
            scatter: Some(within.max(between)).filter(|s| *s > 0.0),
            joules_per_token: of(|s| s.joules_per_token),
            uah_per_token: self.uah_per_token,
            runs: self.samples.len() as u32,
            celsius: self.celsius,
            seen_on: self.seen_on.clone(),
        })
    }
}

impl<'a> Measurer<'a> {
    pub fn new(
        options: &'a TuneOptions,
        help: String,
        recorder: Recorder,
        store: Store,
        watch: &'a mut dyn Watcher,
    ) -> Measurer<'a> {
        Measurer {
            options,
            tuned: &options.tuned,
            help,
            recorder,
            guards: Guards::new(&options.sysfs),
            store,
            watch,
            begin: Instant::now(),
            energy: None,
            no_energy: None,
            sources: false,
            lengths: options.lengths,
            model: None,
            engine: None,
            notes: Vec::new(),
            runs: 0,
            kept_runs: 0,
            known: HashMap::new(),
            asked: HashMap::new(),
            quickest: HashMap::new(),
        }
    }

    /// Measures a choice. A measurement that exists and was not used yet is used, unless `again`.
    ///
    /// # Errors
    /// The choice has no result, or the search has to stop.
    pub fn measure(
        &mut self,
        candidate: Option<&Candidate>,
        work: Work,
        setting: Option<&Setting>,
        again: bool,
    ) -> Result<Sample, Refused> {
        let key = (candidate.cloned(), setting.map(|s| s.shown.clone()), work);
        if !again && let Some(sample) = self.earlier(&key) {
            return Ok(sample);
        }
        self.may_go_on()?;
        let found = self.run(candidate, work, setting);
        if let Err(Refused::Candidate(why)) = &found {
            self.known.entry(key).or_default().refused = Some(why.clone());
        }
        found
    }

    /// The next measurement that exists and was not asked for yet: of this call's, where a run gave two phases, or kept.
    fn earlier(&mut self, key: &Key) -> Option<Sample> {
        let (Some(candidate), None, work) = key else { return None };
        if !self.known.contains_key(key) {
            // Joules of another source cannot be compared.
            let source = self.energy.as_ref().map(|e| e.name.clone());
            let comparable = |k: &&Kept| self.energy.is_none() || k.source == source;
            let kept: Vec<Sample> =
                self.store.of(work.name(), candidate).filter(comparable).map(Kept::sample).collect();
            self.kept_runs += kept.len() as u32;
            self.known.insert(key.clone(), Known { samples: kept, ..Known::default() });
        }
        let asked = self.asked.entry(key.clone()).or_default();
        let next = self.known.get(key)?.samples.get(*asked).copied();
        *asked += 1;
        next
    }

    fn may_go_on(&self) -> Result<(), Refused> {
        if self.watch.stop() {
            return Err(Refused::Stop("interrupted".to_owned()));
        }
        if self.begin.elapsed() >= self.options.time {
            let text = format!("the time given (--time {} s) is over", self.options.time.as_secs());
            return Err(Refused::Stop(text));
        }
        match self.guards.too_low() {
            Some(why) => Err(Refused::Stop(why)),
            None => Ok(()),
        }
    }

    /// Runs it until no other program disturbs.
    fn run(
        &mut self,
        candidate: Option<&Candidate>,
        work: Work,
        setting: Option<&Setting>,
    ) -> Result<Sample, Refused> {
        for round in 0.. {
            let warm = self.guards.cool_down(&|| self.watch.stop());
            if let Some(celsius) = warm {
                self.note(format!("the machine did not cool down below {celsius:.0} °C within a minute"));
            }
            let ran = self.once(candidate, work, setting)?;
            let Some(foreign) = ran.foreign.filter(|cpus| *cpus > self.options.foreign) else {
                return self.judge(candidate, work, setting, &ran);
            };
            if round >= DISTURBED {
                return Err(Refused::Stop(format!(
                    "other programs used {foreign:.2} CPUs during a run, more than {:.2}: stop them, or allow them with \
                     --foreign-load",
                    self.options.foreign
                )));
            }
            self.watch
                .tell(&format!("other programs used {foreign:.2} CPUs during this run: it is repeated"));
            std::thread::sleep(CALM);
            self.may_go_on()?;
        }
        Err(Refused::Stop("interrupted".to_owned()))
    }

    fn once(
        &mut self,
        candidate: Option<&Candidate>,
        work: Work,
        setting: Option<&Setting>,
    ) -> Result<Ran, Refused> {
        let (mut flags, mut changed) = (Vec::new(), None);
        match setting.map(|s| &s.change) {
            Some(Change::Flags(all)) => flags.clone_from(all),
            Some(Change::HugePages(mode)) => {
                let set = ChangedMode::set(&self.options.sysfs, mode);
                changed = Some(set.map_err(|e| Refused::Candidate(e.to_string()))?);
            }
            None => {}
        }
        let ran = self.start((candidate, work), &flags, Detail::Graphs);
        drop(changed);
        ran
    }

    /// Runs the command once with these flags, its threads nowhere bound by us.
    ///
    /// # Errors
    /// It has no result, or the search has to stop.
    pub fn with_flags(&mut self, flags: &[FlagChange], detail: Detail) -> Result<Ran, Refused> {
        self.may_go_on()?;
        self.start((None, Work::Decode), flags, detail)
    }

    fn start(
        &mut self,
        (candidate, work): (Option<&Candidate>, Work),
        flags: &[FlagChange],
        detail: Detail,
    ) -> Result<Ran, Refused> {
        let lengths = self.lengths;
        let port = match self.tuned.engine {
            Engine::Server => {
                Some(server::free_port().map_err(|e| Refused::Stop(format!("no free port: {e}")))?)
            }
            _ => None,
        };
        let pins = self.options.pins() && !self.tuned.places_itself();
        let trial = Trial {
            detail,
            argv: self.tuned.run(candidate, work, lengths, flags, port, &self.help),
            cpus: candidate.filter(|_| pins).map(|c| c.cpus.clone()),
            limit: self.quickest.get(&work).map(|quickest| *quickest * LIMIT + LIMIT_MORE),
            request: port.map(|port| Request { port, lengths, key: self.tuned.key() }),
        };
        self.runs += 1;
        let ran = self.recorder.run(&trial, &|| self.watch.stop());
        ran.map_err(|e| match e {
            TrialError::Interrupted | TrialError::Start(_) => Refused::Stop(e.to_string()),
            TrialError::Failed(why) => Refused::Candidate(why),
        })
    }

    /// The result of a run, if it was what was asked for.
    fn judge(
        &mut self,
        candidate: Option<&Candidate>,
        work: Work,
        setting: Option<&Setting>,
        ran: &Ran,
    ) -> Result<Sample, Refused> {
        let refuse = |e: FiguresError| Refused::Candidate(e.to_string());
        let figures = Figures::read(&ran.trace).map_err(refuse)?;
        if let Some(candidate) = candidate {
            self.obeyed(candidate, &figures, ran)?;
        }
        let comparable = self.learn(&figures);
        let works: &[Work] = if self.tuned.works_apart() { &[work] } else { &[Work::Decode, Work::Prefill] };
        let mut result = None;
        for of in works {
            match figures.speed(*of) {
                Ok(speed) => {
                    let sample = Sample {
                        tokens_per_s: speed.tokens_per_s,
                        scatter: speed.scatter,
                        joules_per_token: speed.joules_per_token.filter(|_| comparable),
                    };
                    self.keep((candidate, *of, setting), (sample, speed.uah_per_token), ran);
                    if *of == work {
                        result = Some(sample);
                    }
                }
                Err(e) if *of == work => {
                    let cut = if ran.cut {
                        "it was ended because it took four times as long as the fastest: "
                    } else {
                        ""
                    };
                    return Err(Refused::Candidate(format!("{cut}{e}")));
                }
                Err(_) => {}
            }
        }
        if !ran.cut {
            let quickest = self.quickest.entry(work).or_insert(ran.took);
            *quickest = (*quickest).min(ran.took);
        }
        result.ok_or_else(|| Refused::Candidate("it has no result".to_owned()))
    }

    /// Whether the engine ran with the threads and on the CPUs that it was given.
    fn obeyed(&self, candidate: &Candidate, figures: &Figures, ran: &Ran) -> Result<(), Refused> {
        if let Some(threads) = figures.threads().filter(|n| *n != candidate.threads) {
            return Err(Refused::Candidate(format!(
                "the engine computed with {threads} threads, not with the {} that it was given",
                candidate.threads
            )));
        }
        if !self.options.pins() || candidate.is_free() {
            return Ok(());
        }
        let mut outside = ran.placement.outside(&candidate.cpus);
        if !self.tuned.places_itself() {
            outside.extend(figures.allowed_outside(&candidate.cpus));
        }
        if outside.is_empty() {
            return Ok(());
        }
        Err(Refused::Candidate(format!(
            "its threads ran or may have run on CPUs {}, which they were not given: the engine sets its own mask",
            common::cpus::ranges(outside.into_iter())
        )))
    }

    /// Learns the model's name and the source of energy. Returns whether this run's energy is of that source.
    fn learn(&mut self, figures: &Figures) -> bool {
        if self.model.is_none() {
            self.model = figures.model().map(str::to_owned);
        }
        if self.engine.is_none() {
            self.engine = figures.engine().map(str::to_owned);
        }
        self.sources |= figures.has_sources();
        let found = figures.energy();
        if self.energy.is_none() {
            self.energy = found.clone();
        }
        match (&found, &self.energy) {
            (Some(found), Some(first)) if found.name == first.name => {
                self.no_energy = None;
                true
            }
            (Some(found), Some(first)) => {
                let text = format!(
                    "in some runs energy is known from {} only, not from {}: it is left out",
                    found.name, first.name
                );
                self.note(text);
                false
            }
            _ => {
                self.no_energy = Some(self.why_no_energy(figures));
                false
            }
        }
    }

    fn why_no_energy(&self, figures: &Figures) -> String {
        match self.guards.battery() {
            _ if !self.options.energy => "it was not to be measured (--no-energy)".to_owned(),
            BatteryState::PluggedIn(status) => {
                format!("the battery's status is {status}: unplug the charger to measure energy")
            }
            _ => figures.why_no_energy().unwrap_or_else(|| {
                "this machine reports no power, and its kernel has no Energy Model".to_owned()
            }),
        }
    }

    fn keep(
        &mut self,
        (candidate, work, setting): (Option<&Candidate>, Work, Option<&Setting>),
        (sample, uah_per_token): (Sample, Option<f64>),
        ran: &Ran,
    ) {
        let shown = setting.map(|s| s.shown.clone());
        let known = self.known.entry((candidate.cloned(), shown.clone(), work)).or_default();
        known.samples.push(sample);
        known.refused = None;
        known.uah_per_token = uah_per_token;
        known.celsius = self.guards.hottest();
        known.seen_on = common::cpus::ranges(ran.placement.seen.iter().copied());
        let source = self.energy.as_ref().map(|e| e.name.as_str());
        let kept = Kept::new(work.name(), candidate, shown.as_deref(), &sample, source);
        if let Err(e) = self.store.add(&kept) {
            self.note(format!("measurements are not kept: {}: {e}", self.store.path().display()));
        }
    }

    /// Adds a note once.
    pub fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.watch.tell(&text);
            self.notes.push(text);
        }
    }
}
