//! How close a run came to the machine's peak.

use runner::engine::RunnerEngine;
use runner::peak::{PeakError, Peaks};
use runner::roofline;
use serde::Serialize;
use std::fmt::Write as _;

/// A measured phase.
pub struct MeasuredPhase {
    pub name: &'static str,
    pub threads: usize,
    pub tokens: usize,
    /// Tokens in the context before it, after which tokens come one by one; `None`: a prompt in an empty context.
    pub past: Option<usize>,
    /// Its duration.
    pub seconds: f64,
}

/// A phase with its roofline.
pub struct Share {
    phase: MeasuredPhase,
    peaks: Peaks,
    /// The minimum time that it could take.
    least: f64,
}

/// The figures of a share.
#[derive(Serialize)]
pub struct Figures {
    percent: f64,
    tok_s: f64,
    read_gb_s: f64,
    int8_gop_s: Option<f64>,
    f32_gflop_s: Option<f64>,
}

/// A figure with this many decimals.
pub fn rounded(v: f64, decimals: i32) -> f64 {
    let unit = 10_f64.powi(decimals);
    (v * unit).round() / unit
}

impl Share {
    /// Measures the machine with the phase's threads. `None`: nothing was run, or there is no peak for this
    /// processor.
    ///
    /// # Errors
    /// No memory to measure with.
    pub fn of(
        engine: &mut RunnerEngine,
        phase: MeasuredPhase,
        known: Option<&Self>,
    ) -> Result<Option<Self>, PeakError> {
        if phase.tokens == 0 || phase.seconds <= 0.0 {
            return Ok(None);
        }
        let peaks = match known.filter(|k| k.phase.threads == phase.threads) {
            Some(known) => known.peaks,
            None => roofline::measure(phase.threads)?,
        };
        let Some(ceilings) = roofline::ceilings(&peaks) else { return Ok(None) };
        let least = match phase.past {
            None => roofline::prefill_seconds(engine, phase.tokens, &ceilings),
            Some(past) => roofline::decode_seconds(engine, past, phase.tokens, &ceilings),
        };
        Ok(Some(Self { phase, peaks, least }))
    }

    fn percent(&self) -> f64 {
        self.least / self.phase.seconds * 100.0
    }

    /// Maximum reachable tokens per second.
    fn ceiling(&self) -> f64 {
        self.phase.tokens as f64 / self.least
    }

    /// One line for users.
    pub fn line(&self) -> String {
        let (p, name, threads) = (&self.peaks, self.phase.name, self.phase.threads);
        let s = if threads == 1 { "" } else { "s" };
        let mut text = format!("{name}: {:.1} % of the roofline, ", self.percent());
        let _ = write!(text, "{:.2} tok/s with {threads} thread{s} (read {:.1} GB/s", self.ceiling(), p.read);
        if let Some(int8) = p.int8() {
            let _ = write!(text, ", int8 {int8:.0} Gop/s");
        }
        if let Some(f32) = p.f32_fma {
            let _ = write!(text, ", f32 {f32:.0} GFLOP/s");
        }
        text.push(')');
        text
    }

    /// For JSON.
    pub fn figures(&self) -> Figures {
        Figures {
            percent: rounded(self.percent(), 3),
            tok_s: rounded(self.ceiling(), 6),
            read_gb_s: rounded(self.peaks.read, 3),
            int8_gop_s: self.peaks.int8().map(|v| rounded(v, 3)),
            f32_gflop_s: self.peaks.f32_fma.map(|v| rounded(v, 3)),
        }
    }
}
