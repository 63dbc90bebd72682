//! Sets of CPUs by number of cores of each cluster, and the steps from one to another.

use crate::machine::{Group, Machine};
use crate::types::Candidate;

/// Up to this many like cores each number is tried; above, numbers that grow by half.
const EACH: usize = 8;

/// The sets of a machine.
#[derive(Debug, Clone)]
pub struct Sets {
    groups: Vec<Group>,
    /// Numbers of CPUs to try of each group, from 0 to all.
    steps: Vec<Vec<usize>>,
    /// Groups from the fastest core to the slowest, further hardware threads last.
    order: Vec<usize>,
}

/// A set: for each group the index in its steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Set(pub Vec<usize>);

fn steps(cpus: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..=cpus.min(EACH)).collect();
    let mut next = EACH;
    while next < cpus {
        // 8, 12, 16, 24, 32, 48, ...
        next = if next.is_power_of_two() { next / 2 * 3 } else { next / 3 * 4 };
        all.push(next.min(cpus));
    }
    all.dedup();
    all
}

impl Sets {
    pub fn new(machine: &Machine) -> Sets {
        let groups = machine.groups();
        let steps = groups.iter().map(|g| steps(g.cpus.len())).collect();
        let order = (0..groups.len()).collect();
        Sets { groups, steps, order }
    }

    /// Number of groups: clusters' cores, then further hardware threads.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The cluster of a group, and whether it has the further hardware threads of its cores.
    pub(crate) fn kind(&self, group: usize) -> (usize, bool) {
        self.groups.get(group).map_or((0, false), |g| (g.cluster, g.behind.is_some()))
    }

    /// CPUs of a group in the set.
    pub(crate) fn count(&self, set: &Set, group: usize) -> usize {
        let step = set.0.get(group).copied().unwrap_or(0);
        self.steps.get(group).and_then(|s| s.get(step)).copied().unwrap_or(0)
    }

    fn top(&self, group: usize) -> usize {
        self.steps.get(group).map_or(0, |s| s.len().saturating_sub(1))
    }

    /// Further hardware threads are used behind full cores only; a set has a CPU.
    fn is_valid(&self, set: &Set) -> bool {
        let behind_full = |(group, g): (usize, &Group)| {
            let used = self.count(set, group) > 0;
            g.behind.is_none_or(|cores| !used || set.0.get(cores).copied() == Some(self.top(cores)))
        };
        self.groups.iter().enumerate().all(behind_full) && set.0.iter().any(|n| *n > 0)
    }

    /// Number of CPUs of a cluster in the set, of its cores and its further threads.
    pub(crate) fn of_cluster(&self, set: &Set, cluster: usize) -> usize {
        let of = self.groups.iter().enumerate().filter(|(_, g)| g.cluster == cluster);
        of.map(|(group, _)| self.count(set, group)).sum()
    }

    /// One thread on each CPU of the set.
    pub fn candidate(&self, set: &Set) -> Candidate {
        let taken = |(group, g): (usize, &Group)| {
            g.cpus.iter().copied().take(self.count(set, group)).collect::<Vec<u32>>()
        };
        let mut cpus: Vec<u32> = self.groups.iter().enumerate().flat_map(taken).collect();
        common::order::by_key(&mut cpus, |cpu| ((*cpu).into(), 0));
        cpus.dedup();
        Candidate { threads: cpus.len() as u32, cpus, free: false }
    }

    /// Every set.
    pub fn all(&self) -> Vec<Set> {
        let mut all = vec![Set(Vec::new())];
        for steps in &self.steps {
            all = all
                .into_iter()
                .flat_map(|set| {
                    (0..steps.len()).map(move |n| Set(set.0.iter().copied().chain([n]).collect()))
                })
                .collect();
        }
        all.retain(|set| self.is_valid(set));
        all
    }

    fn none(&self) -> Set {
        Set(vec![0; self.groups.len()])
    }

    /// From one of the fastest cores to all CPUs, one step at a time, fastest first.
    pub fn growing(&self) -> Vec<Set> {
        let (mut set, mut all) = (self.none(), Vec::new());
        for group in &self.order {
            for n in 1..=self.top(*group) {
                if let Some(slot) = set.0.get_mut(*group) {
                    *slot = n;
                }
                all.push(set.clone());
            }
        }
        all
    }

    /// Each cluster's cores alone, all of them.
    pub fn alone(&self) -> Vec<Set> {
        let clusters = self.order.iter().filter(|g| self.groups.get(**g).is_some_and(|g| g.behind.is_none()));
        let full = clusters.map(|group| {
            let mut set = self.none();
            if let Some(slot) = set.0.get_mut(*group) {
                *slot = self.top(*group);
            }
            set
        });
        full.filter(|set| self.is_valid(set)).collect()
    }

    fn with(&self, set: &Set, changes: &[(usize, isize)]) -> Option<Set> {
        let mut next = set.clone();
        for (group, by) in changes {
            let slot = next.0.get_mut(*group)?;
            *slot = slot.checked_add_signed(*by).filter(|n| *n <= self.top(*group))?;
        }
        self.is_valid(&next).then_some(next)
    }

    /// The slowest group with a CPU in the set.
    fn slowest(&self, set: &Set) -> Option<usize> {
        self.order.iter().rev().copied().find(|g| set.0.get(*g).is_some_and(|n| *n > 0))
    }

    /// The sets around one (MNN-AECS, stage 2): without its smallest core; at the root without its two smallest; a core
    /// swapped for a smaller one of another cluster of the set; a cluster of the set moved to a smaller one outside it.
    pub fn around(&self, set: &Set, root: bool) -> Vec<Set> {
        let mut all: Vec<Set> = Vec::new();
        let fewer = self.slowest(set).and_then(|g| self.with(set, &[(g, -1)]));
        if let Some(fewer) = &fewer {
            if root {
                all.extend(self.slowest(fewer).and_then(|g| self.with(fewer, &[(g, -1)])));
            }
            all.push(fewer.clone());
        }
        for (at, bigger) in self.order.iter().enumerate() {
            if set.0.get(*bigger).is_none_or(|n| *n == 0) {
                continue;
            }
            for smaller in self.order.iter().skip(at + 1) {
                let selected = set.0.get(*smaller).is_some_and(|n| *n > 0);
                let next = if selected {
                    self.with(set, &[(*bigger, -1), (*smaller, 1)])
                } else {
                    let n =
                        self.count(set, *bigger).min(self.groups.get(*smaller).map_or(0, |g| g.cpus.len()));
                    let step = self.steps.get(*smaller).and_then(|s| s.iter().rposition(|count| *count <= n));
                    let out = set.0.get(*bigger).copied().unwrap_or(0) as isize;
                    self.with(set, &[(*bigger, -out), (*smaller, step.unwrap_or(0) as isize)])
                };
                all.extend(next);
            }
        }
        let mut kept: Vec<Set> = Vec::new();
        for next in all {
            if next != *set && !kept.contains(&next) {
                kept.push(next);
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Cluster;
    use proptest::prelude::*;

    pub(crate) fn machine(sizes: &[(usize, u64)]) -> Machine {
        let mut first = 0;
        let cluster = |(n, capacity): &(usize, u64)| {
            let cpus = (first..first + *n as u32).collect();
            first += *n as u32;
            Cluster { cpus, siblings: Vec::new(), capacity: Some(*capacity), max_khz: Some(capacity * 3000) }
        };
        Machine { clusters: sizes.iter().map(cluster).collect() }
    }

    fn shown(sets: &Sets, all: &[Set]) -> Vec<Vec<u32>> {
        all.iter().map(|s| sets.candidate(s).cpus).collect()
    }

    #[test]
    fn a_set_grows_from_the_fastest_core() {
        let sets = Sets::new(&machine(&[(1, 1024), (2, 800)]));
        assert_eq!(shown(&sets, &sets.growing()), [vec![0], vec![0, 1], vec![0, 1, 2]]);
        assert_eq!(shown(&sets, &sets.alone()), [vec![0], vec![1, 2]]);
        assert_eq!(sets.all().len(), 5);
    }

    #[test]
    fn the_sets_around_one_are_those_of_the_paper() {
        let sets = Sets::new(&machine(&[(2, 1024), (2, 800), (4, 300)]));
        let around = sets.around(&Set(vec![2, 1, 0]), true);
        let counts: Vec<Vec<usize>> = around.into_iter().map(|s| s.0).collect();
        // Two fewer, one fewer, a swap between both clusters, each cluster moved to the small one.
        assert_eq!(counts, [vec![1, 0, 0], vec![2, 0, 0], vec![1, 2, 0], vec![0, 1, 2], vec![2, 0, 1]]);
    }

    #[test]
    fn hardware_threads_come_behind_full_cores() {
        let cluster = Cluster { cpus: vec![0, 1], siblings: vec![2, 3], ..Cluster::default() };
        let sets = Sets::new(&Machine { clusters: vec![cluster] });
        assert_eq!(shown(&sets, &sets.growing()), [vec![0], vec![0, 1], vec![0, 1, 2], vec![0, 1, 2, 3]]);
        assert_eq!(sets.all().len(), 4);
    }

    #[test]
    fn many_like_cores_are_tried_in_growing_steps() {
        assert_eq!(steps(3), [0, 1, 2, 3]);
        assert_eq!(steps(20), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20]);
        assert_eq!(steps(64).last(), Some(&64));
        assert_eq!(Sets::new(&machine(&[(64, 1024)])).all().len(), 14);
    }

    proptest! {
        #[test]
        fn threads_never_exceed_cpus(sizes in prop::collection::vec((0usize..12, 1u64..1024), 1..5)) {
            let sets = Sets::new(&machine(&sizes));
            let mut all = sets.all();
            all.extend(sets.growing());
            all.extend(sets.alone());
            for set in sets.growing() {
                all.extend(sets.around(&set, true));
                all.extend(sets.around(&set, false));
            }
            for set in all {
                let c = sets.candidate(&set);
                prop_assert!(c.threads >= 1 && c.threads as usize == c.cpus.len());
                prop_assert!(c.cpus.windows(2).all(|w| w[0] < w[1]));
            }
        }
    }
}
