//! A whole search: the command as it is, decoding and prefill with other CPUs and threads, then the engine's settings.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::both::{self, Choices};
use super::clusters::{self, MachineError};
use super::command::{Lengths, Tuned, Work};
use super::knobs::Knob;
use super::lines::{line, typed};
use super::measure::{Known, Measurer};
use super::scratch::Scratch;
use super::settings::{self, Settings};
use super::store::{Store, key};
use super::trial::Recorder;
use super::{help, huge_pages};
use machine::user::User;
use tune::answer::{Answer, ClusterRow, Line, Measured, TriedRow, WorkAnswer};
use tune::{Basis, Candidate, Ended, Goal, Machine, Measure, Outcome, Refused, Sample, Stage};

/// Time that a metered run should decode for, s, and the most tokens for it.
const METERED_S: f64 = 2.0;
const MOST_TOKENS: u32 = 512;

/// The command as given is run once: a difference below this share may be chance.
const ONE_RUN: f64 = 0.05;

/// What to tune, and how.
pub struct TuneOptions {
    pub tuned: Tuned,
    pub goal: Goal,
    /// How much slower than the fastest a choice for energy may be, 0 to 1.
    pub slack: f64,
    /// Weight of the heuristic in the objective; None: by rule.
    pub alpha: Option<f64>,
    pub exhaustive: bool,
    /// Further runs of the best choices.
    pub rounds: u32,
    /// Nothing new is tried after this time.
    pub time: Duration,
    pub lengths: Lengths,
    /// More tokens may be decoded where a meter needs it.
    pub may_lengthen: bool,
    pub works: Vec<Work>,
    pub knobs: Vec<Knob>,
    /// Settings that change more than speed are not taken.
    pub cautious: bool,
    /// CPUs that other programs may use during a run.
    pub foreign: f64,
    /// `/sys`, or the directory of another machine.
    pub sysfs: PathBuf,
    /// The only CPUs to use.
    pub cpus: Option<BTreeSet<u32>>,
    /// Measure energy.
    pub energy: bool,
    /// Where measurements are kept; None: nowhere.
    pub keep: Option<PathBuf>,
    /// Do not use measurements of earlier calls.
    pub fresh: bool,
    /// The user that the command runs as; None: this process's.
    pub user: Option<User>,
    /// Further flags for `profinfer record`.
    pub record: Vec<std::ffi::OsString>,
}

impl TuneOptions {
    /// Threads can be placed on this machine's CPUs: another machine's directory only describes CPUs.
    pub fn pins(&self) -> bool {
        self.sysfs == std::path::Path::new("/sys")
    }
}

/// Follows a search.
pub trait Watcher {
    /// The search is to end.
    fn stop(&self) -> bool;
    /// A message.
    fn tell(&mut self, text: &str);
    /// A run begins; what is known about the search so far.
    fn progress(&mut self, text: &str);
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(
        "this directory's machine is not this one: put {{cpus}} into the command, which then has to place its threads"
    )]
    CannotPin,
    #[error("cannot make a directory for recordings: {0}")]
    Scratch(io::Error),
    #[error("cannot find this program's own file: {0}")]
    Own(io::Error),
    #[error("{0}")]
    NothingMeasured(String),
}

/// Searches, and returns what was found; a search that was cut short returns what it has.
///
/// # Errors
/// The machine cannot be read, or no run had a result.
pub fn tune(options: &TuneOptions, watch: &mut dyn Watcher) -> Result<Answer, TuneError> {
    let machine = clusters::read(&options.sysfs, options.cpus.as_ref())?;
    if !options.pins() && !options.tuned.places_itself() {
        return Err(TuneError::CannotPin);
    }
    match huge_pages::restore(&options.sysfs) {
        Ok(Some(mode)) => {
            watch.tell(&format!("transparent huge pages are back at {mode}: an earlier search was killed"))
        }
        Ok(None) => {}
        Err(e) => {
            watch.tell(&format!("transparent huge pages may still be changed by an earlier search: {e}"))
        }
    }
    let facts = machine::hardware::read();
    let scratch = Scratch::new().map_err(TuneError::Scratch)?;
    let recorder = Recorder {
        program: std::env::current_exe().map_err(TuneError::Own)?,
        dir: scratch.0.clone(),
        sensors: options.energy.then(|| options.sysfs.clone()),
        flags: options.record.clone(),
    };
    // What holds within them may not hold with others.
    let limits = machine::target_state::limits_here();
    let rest = format!("{:?} {limits}", options.lengths);
    let name = key(&machine, &facts.cpu_model, &options.tuned, rest.trim_end());
    let store = options.keep.as_ref().map(|dir| Store::open(dir, &name, options.fresh));
    let store = store.unwrap_or_else(|| Ok(Store::none())).unwrap_or_else(|e| {
        watch.tell(&format!("measurements are not kept: {e}"));
        Store::none()
    });
    let help = help::of(&options.tuned, options.user.clone(), &|| watch.stop());
    let mut measurer = Measurer::new(options, help, recorder, store, watch);
    if !limits.is_empty() {
        measurer.note(format!("measured within limits, and holds for these: {limits}"));
    }
    let mut found: Vec<Found> = Vec::new();
    for work in &options.works {
        let next = match of_work(&mut measurer, &machine, *work) {
            Ok(next) => next,
            Err(why) if found.is_empty() => return Err(TuneError::NothingMeasured(why)),
            Err(why) => {
                measurer.note(why);
                break;
            }
        };
        let stopped = next.stopped.is_some();
        found.push(next);
        if stopped {
            break;
        }
    }
    if found.iter().all(|f| f.answer.chosen.is_none()) {
        let why = found.first().map(why_nothing).unwrap_or_default();
        return Err(TuneError::NothingMeasured(why));
    }
    let both = one_line(&mut measurer, usable(&machine), &found);
    Ok(answer(measurer, &machine, &facts, (found, both)))
}

/// What was found for one work.
struct Found {
    answer: WorkAnswer,
    fastest: Option<Candidate>,
    chosen: Option<Candidate>,
    settings: Settings,
    stopped: Option<String>,
}

impl Found {
    /// Of the choice.
    fn scatter(&self) -> Option<f64> {
        let row = self.answer.chosen.and_then(|at| self.answer.tried.get(at));
        row.and_then(|row| row.measured.as_ref()).and_then(|m| m.scatter)
    }
}

struct ForWork<'m, 'a> {
    measurer: &'m mut Measurer<'a>,
    work: Work,
    tried: u32,
}

impl Measure for ForWork<'_, '_> {
    fn measure(&mut self, candidate: &Candidate, _: Stage) -> Result<Sample, Refused> {
        self.tried += 1;
        let cpus = common::cpus::ranges(candidate.cpus.iter().copied());
        let threads = candidate.threads;
        let text = format!("{} run {}: CPUs {cpus}, {threads} threads", self.work.name(), self.tried);
        self.measurer.watch.progress(&text);
        let result = self.measurer.measure(Some(candidate), self.work, None, false);
        let said = match &result {
            Ok(s) => {
                let joules = s.joules_per_token.map(|j| format!(", {j:.3} J/token")).unwrap_or_default();
                // A single call has no scatter.
                let scatter =
                    if s.scatter > 0.0 { format!(" ±{:.1} %", s.scatter * 100.0) } else { String::new() };
                format!("{:.2} tok/s{scatter}{joules}", s.tokens_per_s)
            }
            Err(Refused::Candidate(why) | Refused::Stop(why)) => format!("no result: {why}"),
        };
        self.measurer.watch.tell(&format!("{text}: {said}"));
        result
    }
}

/// # Errors
/// The command fails as it was given.
fn of_work(measurer: &mut Measurer<'_>, machine: &Machine, work: Work) -> Result<Found, String> {
    let options = measurer.options;
    let default = if options.tuned.has_default() { as_given(measurer, work)? } else { None };
    let default = match default {
        // A battery is refreshed a few times a second: below half a second its figures mean little (MNN-AECS), and a run
        // has to be longer than that.
        Some(d) if work == Work::Decode && options.may_lengthen && measurer.sources => {
            let wanted = (d.tokens_per_s * METERED_S).min(f64::from(MOST_TOKENS)) as u32;
            if wanted > measurer.lengths.tokens {
                measurer.lengths.tokens = wanted;
                measurer.known.remove(&(None, None, work));
                measurer.note(format!(
                    "runs decode {wanted} tokens, for the meter's sake (--tokens sets another number)"
                ));
                as_given(measurer, work)?
            } else {
                Some(d)
            }
        }
        other => other,
    };
    // For prefill the paper keeps the fastest set, whatever the goal of decoding is.
    let goal = if work == Work::Prefill { Goal::Speed } else { options.goal };
    let search = tune::Options {
        goal,
        slack: options.slack,
        alpha: options.alpha,
        exhaustive: options.exhaustive,
        race_rounds: options.rounds,
        // Nothing places threads on a machine that is only described.
        free: options.pins(),
        ..tune::Options::default()
    };
    let mut for_work = ForWork { measurer, work, tried: 0 };
    let outcome = tune::search(machine, &search, &mut for_work);
    let candidate = |t: Option<&tune::Tried>| t.map(|t| t.candidate.clone());
    let (fastest, chosen) = (candidate(outcome.fastest()), candidate(outcome.chosen()));
    let mut settings = Settings { rows: Vec::new(), taken: Vec::new(), stopped: None };
    if let Some(chosen) = chosen.as_ref().filter(|_| outcome.complete) {
        settings = settings::tried(measurer, chosen, work);
    }
    let stopped = match &outcome.ended {
        Ended::Stopped(why) => Some(why.clone()),
        _ => settings.stopped.clone(),
    };
    let mut answer = work_answer(measurer, work, &outcome, default);
    answer.settings = settings.rows.clone();
    answer.complete &= settings.stopped.is_none();
    Ok(Found { answer, fastest, chosen, settings, stopped })
}

/// In what the recorder says of a command that failed by itself.
const FAILED: &str = "the command exited with status";

/// The command as it was given.
///
/// # Errors
/// It fails by itself: so does every choice.
fn as_given(measurer: &mut Measurer<'_>, work: Work) -> Result<Option<Measured>, String> {
    let text = format!("{}: the command as given", work.name());
    measurer.watch.progress(&text);
    match measurer.measure(None, work, None, false) {
        Ok(s) => measurer.watch.tell(&format!("{text}: {:.2} tok/s", s.tokens_per_s)),
        Err(Refused::Candidate(why)) if why.contains(FAILED) => {
            return Err(format!("{text} fails, and so would all choices: {why}"));
        }
        Err(Refused::Candidate(why) | Refused::Stop(why)) => {
            measurer.note(format!("{text} has no result: {why}"));
        }
    }
    Ok(measurer.known.get(&(None, None, work)).and_then(Known::measured))
}

fn work_answer(
    measurer: &Measurer<'_>,
    work: Work,
    outcome: &Outcome,
    default: Option<Measured>,
) -> WorkAnswer {
    let row = |(i, tried): (usize, &tune::Tried)| {
        let candidate = &tried.candidate;
        let known = measurer.known.get(&(Some(candidate.clone()), None, work));
        TriedRow {
            cpus: common::cpus::ranges(candidate.cpus.iter().copied()),
            threads: candidate.threads,
            free: candidate.is_free(),
            measured: known.and_then(Known::measured),
            refused: known.and_then(|k| k.refused.clone()).or_else(|| tried.refused.clone()),
            pareto: outcome.pareto.contains(&i),
        }
    };
    WorkAnswer {
        work: work.name(),
        fastest: outcome.fastest,
        chosen: outcome.chosen,
        tried: outcome.tried.iter().enumerate().map(row).collect(),
        default,
        complete: outcome.complete,
        ended: ended(outcome),
        sure: sure(outcome),
        settings: Vec::new(),
    }
}

fn ended(outcome: &Outcome) -> String {
    let (choices, tests) = (outcome.tried.len(), outcome.tests.len());
    match &outcome.ended {
        Ended::Stopped(why) => format!("{why}, after {choices} choices in {tests} runs"),
        Ended::Nothing => "no choice could be measured".to_owned(),
        Ended::Settled => format!("{choices} choices in {tests} runs"),
        Ended::Budget => format!("{choices} choices in {tests} runs; the next best is still close"),
    }
}

/// How far the choice is from the one that could most likely be better.
fn sure(outcome: &Outcome) -> String {
    let basis = match outcome.basis {
        Basis::Speed | Basis::Meter => "",
        Basis::Heuristic => "no meter: judged by the cores' capacity and clock alone; ",
        Basis::SpeedOnly => "no meter, and all cores are alike: chosen for speed; ",
    };
    let Some(rival) = &outcome.rival else { return format!("{basis}nothing else could be measured") };
    let cpus = common::cpus::ranges(rival.candidate.cpus.iter().copied());
    let (threads, behind, scatter) = (rival.candidate.threads, rival.behind * 100.0, rival.scatter * 100.0);
    let verdict = if rival.is_clear() { "clearly better than" } else { "as good, within the scatter, as" };
    format!("{basis}{verdict} CPUs {cpus} with {threads} threads: by {behind:.1} %, scatter {scatter:.1} %")
}

/// Both phases in one command line, if that works.
fn one_line(measurer: &mut Measurer<'_>, usable: usize, found: &[Found]) -> Option<Line> {
    let of = |work: Work| found.iter().find(|f| f.answer.work == work.name());
    let (decode, prefill) = (of(Work::Decode)?, of(Work::Prefill)?);
    if decode.stopped.is_some() || prefill.stopped.is_some() {
        return None;
    }
    let choices = Choices {
        decode: decode.chosen.as_ref()?,
        prefill: prefill.chosen.as_ref()?,
        settings: [&decode.settings.taken, &prefill.settings.taken],
        usable,
    };
    let both = match both::tried(measurer, &choices) {
        Ok(both) => both?,
        Err(why) => {
            measurer.note(format!("decode and prefill cannot be had in one line (-C, -Cb): {why}"));
            return None;
        }
    };
    let (over_default, differs) =
        against(decode.answer.default.as_ref(), both.decode_tokens_per_s, decode.scatter());
    Some(Line {
        goal: goal_name(measurer.options.goal),
        work: "both",
        command: typed(&measurer.tuned.changed(&both.flags)),
        tokens_per_s: both.decode_tokens_per_s,
        prefill_tokens_per_s: Some(both.prefill_tokens_per_s),
        joules_per_token: both.joules_per_token,
        over_default,
        differs,
    })
}

/// CPUs that may be used.
fn usable(machine: &Machine) -> usize {
    machine.clusters.iter().map(|c| c.cpus.len() + c.siblings.len()).sum()
}

/// A speed over that of the command as given, and whether that is no chance.
fn against(default: Option<&Measured>, tokens_per_s: f64, scatter: Option<f64>) -> (Option<f64>, bool) {
    let over = default.map(|d| tokens_per_s / d.tokens_per_s);
    let of_default = default.and_then(|d| d.scatter).unwrap_or(0.0);
    let noise = (2.0 * scatter.unwrap_or(0.0).hypot(of_default)).max(ONE_RUN);
    (over, over.is_some_and(|over| (over - 1.0).abs() > noise))
}

fn why_nothing(found: &Found) -> String {
    let refused = found.answer.tried.iter().find_map(|row| row.refused.clone());
    let why = refused.or_else(|| found.stopped.clone()).unwrap_or_else(|| "nothing was tried".to_owned());
    format!("no run had a result: {why}")
}

fn answer(
    measurer: Measurer<'_>,
    machine: &Machine,
    facts: &machine::hardware::Machine,
    (found, both): (Vec<Found>, Option<Line>),
) -> Answer {
    let options = measurer.options;
    let usable = usable(machine);
    let lines =
        found.iter().flat_map(|f| lines_of(&options.tuned, options.goal, usable, f)).chain(both).collect();
    let cluster = |c: &tune::Cluster| ClusterRow {
        cpus: common::cpus::ranges(c.cpus.iter().copied()),
        siblings: common::cpus::ranges(c.siblings.iter().copied()),
        capacity: c.capacity,
        max_khz: c.max_khz,
    };
    let mut notes = measurer.notes;
    if !options.pins() {
        notes.push(format!(
            "{} describes another machine: where the threads ran was not checked",
            options.sysfs.display()
        ));
    }
    Answer {
        schema: 1,
        command: options.tuned.shown(),
        model: measurer.model,
        engine: measurer.engine,
        cpu_model: if options.pins() { facts.cpu_model.clone() } else { String::new() },
        kernel: facts.kernel.clone(),
        clusters: machine.clusters.iter().map(cluster).collect(),
        goal: goal_name(options.goal),
        slack: options.slack,
        energy: measurer.energy,
        no_energy: measurer.no_energy,
        works: found.into_iter().map(|f| f.answer).collect(),
        lines,
        notes,
        runs: measurer.runs,
        kept_runs: measurer.kept_runs,
        seconds: measurer.begin.elapsed().as_secs_f64(),
    }
}

fn goal_name(goal: Goal) -> &'static str {
    match goal {
        Goal::Speed => "speed",
        Goal::Energy => "energy",
        Goal::Balance => "balance",
    }
}

/// For the goal, and for speed if that is another choice.
fn lines_of(tuned: &Tuned, goal: Goal, usable: usize, found: &Found) -> Vec<Line> {
    let Found { answer, fastest, chosen, settings, .. } = found;
    let work_goal = if answer.work == Work::Prefill.name() { Goal::Speed } else { goal };
    let mut choices = vec![(Goal::Speed, fastest, answer.fastest)];
    if work_goal != Goal::Speed {
        choices.push((work_goal, chosen, answer.chosen));
    } else {
        // The choice for speed may need fewer threads than the fastest by a hair.
        choices = vec![(Goal::Speed, chosen, answer.chosen)];
    }
    let mut lines = Vec::new();
    for (goal, candidate, at) in choices {
        let row = at.and_then(|at| answer.tried.get(at)).and_then(|row| row.measured.as_ref());
        let (Some(candidate), Some(measured)) = (candidate, row) else { continue };
        let taken = if Some(candidate) == chosen.as_ref() { &settings.taken[..] } else { &[] };
        let (over_default, differs) =
            against(answer.default.as_ref(), measured.tokens_per_s, measured.scatter);
        lines.push(Line {
            goal: goal_name(goal),
            work: answer.work,
            command: line(tuned, candidate, usable, taken),
            tokens_per_s: measured.tokens_per_s,
            prefill_tokens_per_s: None,
            joules_per_token: measured.joules_per_token,
            over_default,
            differs,
        });
    }
    lines
}
