//! What a choice for energy is judged by: MNN-AECS's objective E_h = (1 - alpha) E + alpha h t.
//!
//! `E` is the measured energy a token, `t` the time a token, and `h` a power foretold from the cores alone:
//! h = sum over clusters i of a_i (n_i + (C_i - n_i) b) (f_i s)^2 + P_s, with n_i of its C_i cores in the set, f_i its
//! highest clock, and s the largest capacity in the set over the largest of the machine. The paper gives neither alpha nor
//! a_i, b and P_s. Here a_i = 1 in every cluster, with f_i relative to the fastest; the other two are below. The sum is over
//! clusters that have a core in the set: the clock of the others falls. With a meter, h is scaled to the watts measured.

use crate::machine::Machine;
use crate::sets::{Set, Sets};

/// Weight of the heuristic where energy is measured: it steadies a meter with a scatter of 5 %.
pub const ALPHA: f64 = 0.25;
/// Share of a busy core's power that an idle core of a cluster in use takes: its clock is up. Ours.
pub(crate) const IDLE_SHARE: f64 = 0.15;
/// Power of everything else, in cores of the fastest cluster. Ours.
const STATIC: f64 = 0.5;

/// The heuristic power of a set, in cores of the fastest cluster.
pub fn heuristic(machine: &Machine, sets: &Sets, set: &Set) -> f64 {
    let mut power = STATIC;
    let selected = |i: usize| sets.of_cluster(set, i) > 0;
    let clusters = machine.clusters.iter().enumerate().filter(|(i, _)| selected(*i));
    let largest = clusters.clone().map(|(i, _)| machine.relative(i)).fold(0.0, f64::max);
    let fastest = machine.clusters.iter().filter_map(|c| c.max_khz).max().unwrap_or(0);
    for (i, cluster) in clusters {
        let clock = match cluster.max_khz {
            Some(khz) if fastest > 0 => khz as f64 / fastest as f64,
            _ => machine.relative(i),
        };
        let used = sets.of_cluster(set, i) as f64;
        let idle = (cluster.cpus.len() as f64 - used).max(0.0);
        power += (used + idle * IDLE_SHARE) * (clock * largest).powi(2);
    }
    power
}

/// Energy of a token by the objective. Without a meter it is in no unit, and compares sets only.
pub fn energy(joules: Option<f64>, tokens_per_s: f64, heuristic_watts: f64, alpha: f64) -> f64 {
    let foretold = heuristic_watts / tokens_per_s;
    match joules {
        Some(joules) => (1.0 - alpha) * joules + alpha * foretold,
        None => foretold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Cluster;

    #[test]
    fn small_cores_take_less_and_idle_ones_a_share() {
        let cluster = |cpus: Vec<u32>, capacity, khz| Cluster {
            cpus,
            siblings: Vec::new(),
            capacity: Some(capacity),
            max_khz: Some(khz),
        };
        let machine = Machine {
            clusters: vec![cluster(vec![0, 1], 1024, 3_000_000), cluster(vec![2, 3], 512, 1_500_000)],
        };
        let sets = Sets::new(&machine);
        let of = |counts: &[usize]| heuristic(&machine, &sets, &Set(counts.to_vec()));
        assert!((of(&[2, 0]) - 2.5).abs() < 1e-9);
        assert!((of(&[1, 0]) - 1.65).abs() < 1e-9);
        // Half the clock, at half the capacity: a sixteenth.
        assert!((of(&[0, 2]) - (0.5 + 2.0 / 16.0)).abs() < 1e-9);
        // Beside a large core the small ones keep their clock.
        assert!(of(&[1, 1]) > of(&[1, 0]));
    }

    #[test]
    fn the_objective_is_between_meter_and_heuristic() {
        assert_eq!(energy(Some(2.0), 10.0, 40.0, 0.0), 2.0);
        assert_eq!(energy(Some(2.0), 10.0, 40.0, 0.5), 3.0);
        assert_eq!(energy(None, 10.0, 40.0, 0.0), 4.0);
    }
}
