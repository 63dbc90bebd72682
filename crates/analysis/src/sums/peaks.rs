//! The machine's peaks: as given by the user, else as measured on it before the recording.

use crate::recorded::load::Loaded;
use crate::sums::attribution::verdict::{Ceiling, Peak};

/// The peaks in a trace, of all cores together, by number of threads, and when they were measured (seconds since 1970).
/// None: none were measured.
pub fn measured(loaded: &Loaded<'_>) -> Option<(Vec<Peak>, u64)> {
    let cluster = loaded.peaks.iter().find(|p| p.cluster == "all").or(loaded.peaks.first())?.cluster;
    let giga = |n: u64| (n > 0).then(|| n as f64 / 1e3);
    let of = |p: &pfi::record::Peaks<'_>| {
        Some(Peak {
            threads: Some(p.threads),
            gb_per_s: giga(p.read)?,
            gflop_per_s: p.f32.and_then(giga),
            int8_gop_per_s: p.int8.and_then(giga),
        })
    };
    let mine = || loaded.peaks.iter().filter(|p| p.cluster == cluster);
    let peaks: Vec<Peak> = mine().filter_map(of).collect();
    let at = mine().map(|p| p.measured_s).max()?;
    (!peaks.is_empty()).then_some((peaks, at))
}

/// The peak for a run with this many threads: one of those given, else of those measured. None: neither.
pub fn ceiling(given: &[Peak], loaded: &Loaded<'_>, threads: u32) -> Option<Ceiling> {
    Ceiling::given(given, threads).or_else(|| {
        let (peaks, at) = measured(loaded)?;
        let ceiling = Ceiling::given(&peaks, threads)?;
        Some(Ceiling { source: "measured", measured_s: Some(at), ..ceiling })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfi::record::Peaks;

    fn peaks(cluster: &str, threads: u32, read: u64) -> Peaks<'_> {
        Peaks { cluster, threads, read, measured_s: 1_764_000_000, f32: Some(50_000), ..Peaks::default() }
    }

    #[test]
    fn given_peaks_come_before_measured_ones() {
        let slow = peaks("slow", 1, 900);
        let loaded = Loaded {
            peaks: vec![slow, peaks("all", 1, 10_500), peaks("all", 2, 19_000)],
            ..Loaded::default()
        };
        let of = |given: &[Peak], threads| ceiling(given, &loaded, threads).expect("a ceiling");
        let two = of(&[], 2);
        assert_eq!((two.source, two.measured_s, two.peak.gb_per_s), ("measured", Some(1_764_000_000), 19.0));
        assert_eq!((two.peak.gflop_per_s, two.peak.int8_gop_per_s), (Some(50.0), None));
        assert_eq!(two.origin(), " (measured on this machine on 2025-11-24)");
        assert_eq!(of(&[], 1).peak.gb_per_s, 10.5);
        let given = of(&[Peak { gb_per_s: 3.0, ..Peak::default() }], 2);
        assert_eq!((given.source, given.peak.gb_per_s, &*given.origin()), ("given", 3.0, ""));
    }

    #[test]
    fn without_peaks_or_with_a_rate_of_nothing_there_is_none() {
        let none = Loaded::default();
        assert_eq!(ceiling(&[], &none, 2), None);
        let zero = Loaded { peaks: vec![peaks("all", 1, 0)], ..Loaded::default() };
        assert_eq!(ceiling(&[], &zero, 1), None);
    }
}
