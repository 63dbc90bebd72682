//! One of several sources for figures of one line, by a rule that does not depend on their values: a meter of the user,
//! then the complete device, an estimate of it, processor packages, rails, and the Energy Model last.

use serde::Serialize;

use super::{PhaseEnergy, SourceRow};
use crate::recorded::calls::Phase;
use pfi::record::SensorOrigin;

/// Energy per token by the source that is preferred.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrimaryEnergy {
    /// Its name. Where several are added up, as of two packages, all their names.
    pub source: String,
    /// What it covers: `meter`, `device`, `estimate`, `package`, `rail`, `model`, or `unknown`.
    pub origin: &'static str,
    /// Computed by the kernel's Energy Model, not measured.
    pub model: bool,
    pub decode_j_per_token: Option<f64>,
    pub prefill_j_per_token: Option<f64>,
    /// The charge that a battery gave, uAh; null without a battery that tells its current.
    pub decode_uah_per_token: Option<f64>,
    pub prefill_uah_per_token: Option<f64>,
    /// Time between two refreshes if that is longer than between two samples: this much of the beginning of a phase is
    /// not counted.
    pub refresh_ns: Option<u64>,
}

/// The preferred one of those that have energy per token for a phase. None if no source has.
pub fn primary(sources: &[SourceRow]) -> Option<PrimaryEnergy> {
    let known = |s: &&SourceRow| s.phases.iter().any(|p| p.joules_per_token.is_some());
    SensorOrigin::PREFERENCE.into_iter().find_map(|origin| {
        let of: Vec<&SourceRow> = sources.iter().filter(|s| s.from == origin).filter(known).collect();
        match origin {
            // Each is a part, and no part is in another.
            SensorOrigin::Package | SensorOrigin::Model => (!of.is_empty()).then(|| together(&of)),
            // Rails may contain each other.
            SensorOrigin::Rail | SensorOrigin::Unknown => {
                of.into_iter().max_by(|a, b| a.joules.total_cmp(&b.joules)).map(|most| together(&[most]))
            }
            _ => of.first().map(|first| together(&[first])),
        }
    })
}

/// Adds up the sources; a phase that one of them does not know is unknown.
fn together(all: &[&SourceRow]) -> PrimaryEnergy {
    let sum = |phase: Phase, of: fn(&PhaseEnergy) -> Option<f64>| {
        let one = |s: &&SourceRow| of(s.phases.iter().find(|p| p.phase == phase)?);
        all.iter().map(one).sum::<Option<f64>>()
    };
    let first = all.first();
    PrimaryEnergy {
        source: all.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(" + "),
        origin: first.map_or("unknown", |s| s.origin),
        model: first.is_some_and(|s| s.model),
        decode_j_per_token: sum(Phase::Decode, |p| p.joules_per_token),
        prefill_j_per_token: sum(Phase::Prefill, |p| p.joules_per_token),
        decode_uah_per_token: sum(Phase::Decode, |p| p.uah_per_token),
        prefill_uah_per_token: sum(Phase::Prefill, |p| p.uah_per_token),
        refresh_ns: all.iter().filter_map(|s| s.refresh_ns).max(),
    }
}
