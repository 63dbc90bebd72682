//! The harmonic quantisation score H_Q of runs of one model in several quantizations (lm-Meter, arXiv 2510.06126): the
//! harmonic mean of three ratios to the original model, of accuracy, prefill speed and decode speed.
//!
//! A harmonic mean is near its smallest factor. Once one of them has collapsed, it says nothing about the others, so such
//! a run gets no score.

use serde::Serialize;

use crate::questions::advice::check::differences;
use crate::questions::report::{Report, ReportOptions, try_report};
use crate::recorded::calls::Phase;
use crate::recorded::load::LoadProgress;
use crate::recorded::selection::NoPart;
use pfi::Trace;

/// What accuracy is derived from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QualityKind {
    /// Share of answers that are right, as in the paper: the higher, the better.
    Accuracy,
    /// The lower, the better; its ratio is the other way round.
    Perplexity,
}

impl QualityKind {
    pub fn name(self) -> &'static str {
        match self {
            QualityKind::Accuracy => "accuracy",
            QualityKind::Perplexity => "perplexity",
        }
    }
}

/// A run to be scored.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredRun {
    pub file: String,
    /// Type of most of the weights; empty if not recorded.
    pub weights: String,
    pub weight_bytes: Option<u64>,
    /// Tokens per second; `None` if no call of the phase was recorded, or not its tokens.
    pub prefill: Option<f64>,
    pub decode: Option<f64>,
    pub quality: Option<f64>,
    /// What differs from the first run although it should not.
    pub differences: Vec<String>,
}

/// The runs with their scores; the first one is the original.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scores {
    pub quality: QualityKind,
    /// A factor below this has collapsed.
    pub least: f64,
    pub runs: Vec<ScoreRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoreRow {
    pub file: String,
    pub weights: String,
    pub weight_bytes: Option<u64>,
    /// Accuracy (1 = 100 %) or perplexity.
    pub quality: Option<f64>,
    pub prefill_tokens_per_s: Option<f64>,
    pub decode_tokens_per_s: Option<f64>,
    /// Ratios to the original; more is better.
    pub accuracy_ratio: Option<f64>,
    pub prefill_ratio: Option<f64>,
    pub decode_ratio: Option<f64>,
    /// Null: `refused` says why.
    pub h_q: Option<f64>,
    pub refused: Option<String>,
    pub differences: Vec<String>,
}

/// The original has no figure that all others are compared with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoOriginal {
    #[error("there is no run to score")]
    NoRun,
    #[error("{file}, the first run, {why}: every score is relative to it")]
    Missing { file: String, why: String },
}

/// The harmonic mean of three ratios; `None` unless all are numbers above 0.
pub fn harmonic(ratios: [f64; 3]) -> Option<f64> {
    let usable = ratios.iter().all(|r| r.is_finite() && *r > 0.0);
    usable.then(|| 3.0 / ratios.iter().map(|r| r.recip()).sum::<f64>())
}

/// Reads what a trace says about its busiest run.
///
/// # Errors
/// It has no run.
pub fn measured(trace: &Trace, progress: &LoadProgress) -> Result<Report, NoPart> {
    try_report(trace, &ReportOptions { verdict: true, ..ReportOptions::default() }, progress)
}

/// A run to be scored, from what [`measured`] found; `first` is that of the original.
pub fn scored_run(file: String, report: &Report, first: &Report, quality: Option<f64>) -> ScoredRun {
    let of = |phase| report.phases.iter().find(|p| p.phase == phase);
    let speed = |phase| of(phase)?.tokens_per_s.filter(|s| s.is_finite() && *s > 0.0);
    let mut differences = differences(first, report);
    let threads = |r: &Report| r.verdict.as_ref().map(|v| v.threads).filter(|n| *n > 0);
    if let (Some(a), Some(b)) = (threads(first), threads(report))
        && a != b
    {
        differences.push(format!("threads: {a} and {b}"));
    }
    if of(Phase::Prefill).is_some_and(|p| p.batched) {
        differences.push("its calls of several tokens may not be prompts".to_owned());
    }
    let model = &report.model;
    ScoredRun {
        file,
        weights: model.weights.first().map(|w| w.name.clone()).unwrap_or_default(),
        weight_bytes: Some(model.weight_bytes).filter(|n| *n > 0),
        prefill: speed(Phase::Prefill),
        decode: speed(Phase::Decode),
        quality,
        differences,
    }
}

/// Scores runs against the first of them. A factor below `least` of the original's has collapsed.
///
/// # Errors
/// The first run lacks a figure.
pub fn scores(runs: Vec<ScoredRun>, quality: QualityKind, least: f64) -> Result<Scores, NoOriginal> {
    let first = runs.first().cloned().ok_or(NoOriginal::NoRun)?;
    let Some(base) = factors(&first, quality) else {
        let why = missing(&first, quality).unwrap_or_default();
        return Err(NoOriginal::Missing { file: first.file, why });
    };
    let rows = runs.into_iter().map(|run| row(run, base, quality, least)).collect();
    Ok(Scores { quality, least, runs: rows })
}

/// Accuracy (for perplexity: its inverse), prefill and decode speed; `None` if one is missing.
fn factors(run: &ScoredRun, quality: QualityKind) -> Option<[f64; 3]> {
    let usable = run.quality.filter(|q| q.is_finite() && *q > 0.0)?;
    let accuracy = match quality {
        QualityKind::Accuracy => usable,
        QualityKind::Perplexity => usable.recip(),
    };
    Some([accuracy, run.prefill?, run.decode?])
}

/// Which factor a run lacks, as the end of a sentence about it.
fn missing(run: &ScoredRun, quality: QualityKind) -> Option<String> {
    let name = quality.name();
    match (run.quality, run.prefill, run.decode) {
        (None, ..) => Some(format!("has no {name}")),
        (Some(q), ..) if !(q.is_finite() && q > 0.0) => Some(format!("has a useless {name} of {q}")),
        (_, None, _) => Some("has no prefill: record a call of several tokens".to_owned()),
        (_, _, None) => Some("has no decode: record calls of one token".to_owned()),
        _ => None,
    }
}

fn row(run: ScoredRun, base: [f64; 3], quality: QualityKind, least: f64) -> ScoreRow {
    let ratio = |value: Option<f64>, of: f64| value.map(|v| v / of).filter(|r| r.is_finite());
    let accuracy = run.quality.filter(|q| q.is_finite() && *q >= 0.0).map(|q| match quality {
        QualityKind::Accuracy => q,
        QualityKind::Perplexity => q.recip(),
    });
    let [a, p, d] = base;
    let ratios = [ratio(accuracy, a), ratio(run.prefill, p), ratio(run.decode, d)];
    let names = ["accuracy", "prefill speed", "decode speed"];
    let low =
        ratios.iter().zip(names).find_map(|(r, name)| Some((*r.as_ref().filter(|r| **r < least)?, name)));
    let collapsed = low.map(|(r, name)| {
        format!(
            "{name} has collapsed to {:.1} % of the first run's (limit {:.1} %)",
            r * 100.0,
            least * 100.0
        )
    });
    let refused = missing(&run, quality).or(collapsed);
    let [accuracy_ratio, prefill_ratio, decode_ratio] = ratios;
    let all = accuracy_ratio.zip(prefill_ratio).zip(decode_ratio);
    let h_q = all.filter(|_| refused.is_none()).and_then(|((a, p), d)| harmonic([a, p, d]));
    ScoreRow {
        file: run.file,
        weights: run.weights,
        weight_bytes: run.weight_bytes,
        quality: run.quality,
        prefill_tokens_per_s: run.prefill,
        decode_tokens_per_s: run.decode,
        accuracy_ratio,
        prefill_ratio,
        decode_ratio,
        h_q,
        refused,
        differences: run.differences,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file: &str, quality: Option<f64>, prefill: Option<f64>, decode: Option<f64>) -> ScoredRun {
        ScoredRun {
            file: file.to_owned(),
            weights: String::new(),
            weight_bytes: None,
            prefill,
            decode,
            quality,
            differences: Vec::new(),
        }
    }

    fn scored(runs: Vec<ScoredRun>, kind: QualityKind) -> Scores {
        scores(runs, kind, 0.5).expect("the first is complete")
    }

    #[test]
    fn the_score_is_the_harmonic_mean_of_the_ratios() {
        // By hand: 3 / (1/1 + 1/2 + 1/4) = 12/7; 3 / (10/9 + 1/5 + 1/3) = 135/74.
        for (ratios, score) in [
            ([1.0, 2.0, 4.0], 12.0 / 7.0),
            ([0.9, 5.0, 3.0], 135.0 / 74.0),
            ([1.0; 3], 1.0),
            ([0.5, 0.5, 0.5], 0.5),
        ] {
            assert!((harmonic(ratios).expect("a score") - score).abs() < 1e-12, "{ratios:?}");
        }
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(harmonic([1.0, wrong, 1.0]), None);
        }
    }

    #[test]
    fn ratios_are_to_the_first_run() {
        let f16 = run("f16", Some(0.6), Some(100.0), Some(10.0));
        let q4 = run("q4", Some(0.54), Some(500.0), Some(30.0));
        let s = scored(vec![f16.clone(), q4.clone()], QualityKind::Accuracy);
        assert_eq!((s.runs[0].h_q, s.runs[0].accuracy_ratio), (Some(1.0), Some(1.0)));
        assert!((s.runs[1].h_q.expect("a score") - 135.0 / 74.0).abs() < 1e-12, "{s:?}");
        // A perplexity counts the other way round: 5.4 to 6.0 is a ratio of 0.9 as well.
        let with = |run: &ScoredRun, ppl| ScoredRun { quality: Some(ppl), ..run.clone() };
        let s = scored(vec![with(&f16, 5.4), with(&q4, 6.0)], QualityKind::Perplexity);
        assert!((s.runs[1].h_q.expect("a score") - 135.0 / 74.0).abs() < 1e-12, "{s:?}");
    }

    #[test]
    fn missing_and_collapsed_factors_are_refused() {
        let base = run("f16", Some(0.6), Some(100.0), Some(10.0));
        let cases = [
            (run("a", None, Some(1e3), Some(1e2)), "has no accuracy"),
            (run("b", Some(0.6), None, Some(1e2)), "has no prefill"),
            (run("c", Some(0.6), Some(1e3), None), "has no decode"),
            (run("d", Some(0.29), Some(1e3), Some(1e2)), "accuracy has collapsed to 48.3 %"),
            (run("e", Some(0.6), Some(49.0), Some(1e2)), "prefill speed has collapsed to 49.0 %"),
            (run("f", Some(0.6), Some(1e3), Some(4.0)), "decode speed has collapsed to 40.0 %"),
            (run("g", Some(0.0), Some(1e3), Some(1e2)), "useless accuracy of 0"),
            (run("h", Some(f64::NAN), Some(1e3), Some(1e2)), "useless accuracy"),
        ];
        let runs = std::iter::once(base.clone()).chain(cases.iter().map(|(run, _)| run.clone())).collect();
        let s = scored(runs, QualityKind::Accuracy);
        for (row, (_, why)) in s.runs.iter().skip(1).zip(&cases) {
            let refused = row.refused.as_deref().unwrap_or_default();
            assert!(row.h_q.is_none() && refused.contains(why), "{why}: {row:?}");
        }
        // On the limit is not below it.
        let half = run("half", Some(0.3), Some(50.0), Some(5.0));
        assert_eq!(scored(vec![base, half], QualityKind::Accuracy).runs[1].h_q, Some(0.5));
        for (first, _) in cases.iter().filter(|(run, _)| "abcgh".contains(&run.file)) {
            assert!(scores(vec![first.clone()], QualityKind::Accuracy, 0.5).is_err(), "{first:?}");
        }
        assert_eq!(scores(Vec::new(), QualityKind::Accuracy, 0.5), Err(NoOriginal::NoRun));
    }
}
