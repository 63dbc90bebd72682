//! The figures of a run, from its trace: tokens per second of a phase, and whether the run was what was asked for.

use std::collections::BTreeSet;
use std::path::Path;

use analysis::questions::report::{By, Report, ReportOptions, try_report};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use analysis::sums::attribution::energy::PrimaryEnergy;
use analysis::sums::tables::TokenRow;
use common::order::median;
use pfi::Trace;
use tune::answer::EnergySource;

use crate::command::Work;

/// Fewer whole decode calls than this are no measurement.
const LEAST_CALLS: usize = 8;
/// A CPU with a smaller share of the time of a phase's ops is not one that it ran on.
const STRAY: f64 = 0.01;
/// The standard error of a median of normal values over that of their mean, and the standard deviation over the median
/// absolute deviation: sqrt(pi / 2) and 1 / 0.6745 (any textbook of statistics).
const MEDIAN_ERROR: f64 = 1.2533;
const DEVIATION: f64 = 1.4826;

/// Speed of a phase in one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    pub tokens_per_s: f64,
    /// Standard error of it, relative.
    pub scatter: f64,
    /// All tokens over all time; far below the median if some tokens took much longer than most.
    pub mean_tokens_per_s: f64,
    pub joules_per_token: Option<f64>,
    /// Charge of a battery, uAh.
    pub uah_per_token: Option<f64>,
}

/// What a trace shows of a run.
pub struct Figures {
    report: Report,
}

/// Why a trace has no figures.
#[derive(Debug, thiserror::Error)]
pub enum FiguresError {
    #[error("the recording cannot be read: {0}")]
    Read(String),
    #[error("the recording is incomplete: {0}")]
    Incomplete(String),
    #[error("it has no {0} calls that can be told apart: {1}")]
    NoCalls(&'static str, String),
    #[error("only {0} decode calls were recorded: use a larger --tokens")]
    Few(usize),
}

impl Figures {
    /// # Errors
    /// The trace cannot be read.
    pub fn read(trace: &Path) -> Result<Figures, FiguresError> {
        let trace = Trace::open(trace).map_err(|e| FiguresError::Read(e.to_string()))?;
        let options = ReportOptions {
            tables: vec![By::Token, By::Energy, By::Cpu],
            verdict: true,
            ..ReportOptions::default()
        };
        let report = try_report(&trace, &options, &LoadProgress::default());
        Ok(Figures { report: report.map_err(|e| FiguresError::Read(e.to_string()))? })
    }

    /// The speed of decoding or prefill.
    ///
    /// # Errors
    /// Too few calls, or an incomplete recording.
    pub fn speed(&self, work: Work) -> Result<Speed, FiguresError> {
        if !self.report.quality.complete {
            return Err(FiguresError::Incomplete(self.report.quality.verdict.clone()));
        }
        let wanted = phase_of(work);
        let phase = self.report.phases.iter().find(|p| p.phase == wanted);
        let phase = phase.ok_or_else(|| FiguresError::NoCalls(work.name(), self.why_none()))?;
        let rates = rates(phase.by_token.as_deref().unwrap_or_default(), work);
        if work == Work::Decode && rates.len() < LEAST_CALLS {
            return Err(FiguresError::Few(rates.len()));
        }
        let mean = phase.tokens_per_s.unwrap_or(0.0);
        let Some((median, error)) = median_and_error(rates) else {
            return Err(FiguresError::NoCalls(work.name(), self.why_none()));
        };
        Ok(Speed {
            tokens_per_s: median,
            scatter: error / median,
            mean_tokens_per_s: mean,
            joules_per_token: self.primary().and_then(|p| match work {
                Work::Decode => p.decode_j_per_token,
                Work::Prefill => p.prefill_j_per_token,
            }),
            uah_per_token: self.primary().and_then(|p| match work {
                Work::Decode => p.decode_uah_per_token,
                Work::Prefill => p.prefill_uah_per_token,
            }),
        })
    }

    fn why_none(&self) -> String {
        let shown = self.report.runs.iter().find(|r| r.shown).and_then(|r| r.mixed);
        shown.unwrap_or("the engine computed none, or its batches could not be read").to_owned()
    }

    /// Number of threads that computed the graphs; None if it was not recorded.
    pub fn threads(&self) -> Option<u32> {
        let verdict = self.report.verdict.as_ref()?;
        Some(verdict.threads).filter(|n| *n > 0)
    }

    /// CPUs that a thread of the engine was allowed to run on although they were not given.
    pub fn allowed_outside(&self, given: &[u32]) -> Vec<u32> {
        let lists = self.report.state.iter().flat_map(|state| {
            state.affinity.iter().map(String::as_str).chain(state.threads.iter().map(|t| t.cpus.as_str()))
        });
        let all = lists.filter_map(common::cpus::parse).flatten();
        let mut outside: Vec<u32> = all.filter(|cpu| !given.contains(cpu)).collect();
        common::order::by_key(&mut outside, |cpu| ((*cpu).into(), 0));
        outside.dedup();
        outside
    }

    /// CPUs on which ops of a phase started, and the threads that ran them; None: that was not recorded.
    pub fn ran_on(&self, work: Work) -> Option<(BTreeSet<u32>, usize)> {
        let wanted = phase_of(work);
        let phase = self.report.phases.iter().find(|p| p.phase == wanted)?;
        let table = phase.by_cpu.as_ref()?;
        let some = table.cpus.iter().filter(|row| row.share >= STRAY);
        Some((some.filter_map(|row| row.cpu.map(u32::from)).collect(), table.threads.len()))
    }

    /// Build id of the engine's base library.
    pub fn engine(&self) -> Option<&str> {
        let modules = self.report.run.engines.iter().flat_map(|e| &e.modules);
        let base = modules.filter(|m| m.role.split([' ', ',', '+']).any(|role| role == "base"));
        base.map(|m| m.build_id.as_str()).find(|id| !id.is_empty())
    }

    /// Where joules come from; None if no source has energy per token.
    pub fn energy(&self) -> Option<EnergySource> {
        let primary = self.primary()?;
        Some(EnergySource { name: primary.source.clone(), model: primary.model })
    }

    fn primary(&self) -> Option<&PrimaryEnergy> {
        self.report.energy.as_ref()?.primary.as_ref()
    }

    /// There are sources of energy, though maybe none that knows the energy of a token.
    pub fn has_sources(&self) -> bool {
        self.report.energy.as_ref().is_some_and(|e| !e.sources.is_empty())
    }

    /// Why no source has energy per token.
    pub fn why_no_energy(&self) -> Option<String> {
        let energy = self.report.energy.as_ref()?;
        let unknown = energy
            .sources
            .iter()
            .flat_map(|s| s.phases.iter().filter_map(move |p| Some((s, p.unknown.as_ref()?))));
        let why = unknown.map(|(s, why)| format!("{}: {why}", s.name)).next();
        why.or_else(|| energy.remarks.clone())
    }

    /// The model's file name, if the command line names it.
    pub fn model(&self) -> Option<&str> {
        self.report.verdict.as_ref().map(|v| v.model.as_str()).filter(|m| !m.is_empty())
    }
}

fn phase_of(work: Work) -> Phase {
    match work {
        Work::Decode => Phase::Decode,
        Work::Prefill => Phase::Prefill,
    }
}

/// Tokens per second of each whole call. A decode step lasts until the next one begins, sampling included. The first
/// call of each phase may be a warm-up: it is left out if there are others. So are calls for the rest of a prompt, which
/// have few tokens, and are slow for that alone: the widest calls are those that a prompt waits for.
fn rates(calls: &[TokenRow], work: Work) -> Vec<f64> {
    let mut rows: Vec<_> = calls.iter().collect();
    common::order::by_key(&mut rows, |r| (common::order::time(r.start_ns), r.seq));
    if work == Work::Prefill {
        let widest = rows.iter().filter_map(|r| r.tokens).max().unwrap_or(0);
        rows.retain(|r| r.tokens.is_some_and(|n| n >= widest - widest / 2));
    }
    let mut all = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| !row.cut) {
        let next = rows.get(i + 1).filter(|next| next.seq == row.seq + 1 && next.pid == row.pid);
        let gap = next.and_then(|n| n.since_last_ns).filter(|gap| work == Work::Decode && *gap > 0);
        let ns = row.dur_ns.saturating_add_signed(gap.unwrap_or(0));
        if let Some(tokens) = row.tokens.filter(|t| *t > 0 && ns > 0) {
            all.push(tokens as f64 * 1e9 / ns as f64);
        }
    }
    if all.len() > 1 {
        all.remove(0);
    }
    all
}

/// The median and its standard error by the median absolute deviation; None without values.
fn median_and_error(values: Vec<f64>) -> Option<(f64, f64)> {
    let middle = median(values.clone())?;
    let deviation = median(values.iter().map(|v| (v - middle).abs()).collect())? * DEVIATION;
    Some((middle, MEDIAN_ERROR * deviation / (values.len() as f64).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(seq: u64, tokens: u64, dur_ns: u64) -> TokenRow {
        TokenRow {
            seq,
            pid: 1,
            tokens: Some(tokens),
            start_ns: seq as i64 * 1_000_000,
            dur_ns,
            since_last_ns: Some(100),
            graphs: 1,
            op_ns: 0,
            wait_ns: 0,
            slices: 0,
            cut: false,
        }
    }

    #[test]
    fn the_rest_of_a_prompt_is_not_the_speed_of_prefill() {
        // A warm-up of two tokens, and a server's prompt of 516.
        let calls = [call(0, 2, 900), call(1, 512, 1_024), call(2, 4, 800)];
        assert_eq!(rates(&calls, Work::Prefill), [0.5e9]);
        let bench = [call(0, 512, 2_048), call(1, 512, 1_024), call(2, 512, 1_024)];
        assert_eq!(rates(&bench, Work::Prefill), [0.5e9; 2]);
        assert_eq!(rates(&[call(0, 1, 900), call(1, 1, 900), call(2, 1, 900)], Work::Decode).len(), 2);
    }

    #[test]
    fn a_median_has_an_error() {
        assert_eq!(median_and_error(vec![]), None);
        assert_eq!(median_and_error(vec![5.0]), Some((5.0, 0.0)));
        assert_eq!(median_and_error(vec![4.0, 2.0]).map(|(m, _)| m), Some(3.0));
        let (m, e) = median_and_error(vec![9.0, 10.0, 11.0, 10.0, 500.0]).expect("values");
        assert_eq!(m, 10.0);
        assert!((e - MEDIAN_ERROR * DEVIATION / 5f64.sqrt()).abs() < 1e-9, "{e}");
    }
}
