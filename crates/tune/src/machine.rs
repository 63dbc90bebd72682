//! The CPUs of a machine by cluster, and the sets of them that can be tried.

/// The highest count of a cluster up to which every count of CPUs is tried; above, a ladder (see [`Machine::rungs`]).
const EACH: u32 = 8;
/// The most sets that [`Machine::space`] lists.
pub(crate) const SPACE_LIMIT: usize = 4096;

/// CPUs that are alike: same capacity, frequency and cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Physical cores: one hardware thread of each.
    pub cpus: Vec<u32>,
    /// Further hardware threads (SMT) of the same cores.
    pub siblings: Vec<u32>,
    /// As Linux counts it: 1024 is the machine's largest.
    pub capacity: Option<u64>,
    pub max_khz: Option<u64>,
}

impl Cluster {
    /// Cores first, then their siblings: the order in which CPUs are taken.
    fn units(&self) -> impl Iterator<Item = u32> {
        self.cpus.iter().chain(&self.siblings).copied()
    }

    fn len(&self) -> u32 {
        u32::try_from(self.cpus.len() + self.siblings.len()).unwrap_or(u32::MAX)
    }
}

/// The CPUs that may be used, fastest cluster first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub clusters: Vec<Cluster>,
}

/// What to try. Always `1 <= threads <= cpus.len()`: more spinning threads than CPUs are 40 to 50 times slower.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Sorted, none twice.
    pub cpus: Vec<u32>,
    /// Fewer than CPUs: the scheduler chooses among them ([`Candidate::is_free`]).
    pub threads: u32,
}

impl Candidate {
    /// Sorts the CPUs, and lowers the threads to their number. None without a CPU or a thread.
    pub fn new(cpus: impl IntoIterator<Item = u32>, threads: u32) -> Option<Self> {
        let mut cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        let threads = threads.min(u32::try_from(cpus.len()).unwrap_or(u32::MAX));
        (threads > 0).then_some(Self { cpus, threads })
    }

    /// A thread for each CPU.
    pub fn pinned(cpus: impl IntoIterator<Item = u32>) -> Option<Self> {
        Self::new(cpus, u32::MAX)
    }

    /// Whether the scheduler has a choice where the threads run.
    pub fn is_free(&self) -> bool {
        (self.threads as usize) < self.cpus.len()
    }
}

impl Machine {
    /// So many CPUs of each cluster, a thread for each: cores first, siblings only when all cores are taken.
    pub fn candidate(&self, counts: &[u32]) -> Option<Candidate> {
        let taken = self.clusters.iter().zip(counts);
        Candidate::pinned(taken.flat_map(|(cluster, n)| cluster.units().take(*n as usize)))
    }

    /// All CPUs, with fewer threads than CPUs: the scheduler places them.
    pub fn free(&self, threads: u32) -> Option<Candidate> {
        Candidate::new(self.clusters.iter().flat_map(Cluster::units), threads).filter(Candidate::is_free)
    }

    /// How many CPUs of each cluster a candidate has.
    pub fn counts(&self, candidate: &Candidate) -> Vec<u32> {
        let within =
            |cluster: &Cluster| cluster.units().filter(|c| candidate.cpus.binary_search(c).is_ok()).count();
        self.clusters.iter().map(|c| u32::try_from(within(c)).unwrap_or(u32::MAX)).collect()
    }

    /// The counts of a cluster that are tried, rising: every one up to eight; above, 1, 2, 3, 4, 6, 8, 12, 16, 24, ... (no
    /// step is more than half again, so the best count is at most a third off), all cores, and all with their siblings.
    pub fn rungs(&self, cluster: usize) -> Vec<u32> {
        let Some(c) = self.clusters.get(cluster) else { return Vec::new() };
        let (cores, all) = (u32::try_from(c.cpus.len()).unwrap_or(u32::MAX), c.len());
        if all <= EACH {
            return (1..=all).collect();
        }
        let ladder = std::iter::successors(Some(4u32), |n| n.checked_mul(2))
            .flat_map(|n| [n, n.saturating_add(n / 2)]);
        let mut rungs: Vec<u32> = (1..4).chain(ladder.take_while(|n| *n < all)).chain([cores, all]).collect();
        rungs.retain(|n| (1..=all).contains(n));
        rungs.sort_unstable();
        rungs.dedup();
        rungs
    }

    /// All sets that can be tried, at most 4096. On a machine with more, every other rung of the longest ladder is left
    /// out until they fit; with very many clusters, the first of them in order.
    pub fn space(&self) -> Vec<Candidate> {
        let mut ladders: Vec<Vec<u32>> = (0..self.clusters.len()).map(|i| self.rungs(i)).collect();
        let size = |l: &[Vec<u32>]| l.iter().fold(1usize, |n, r| n.saturating_mul(r.len() + 1));
        while size(&ladders) > SPACE_LIMIT {
            let Some(longest) = ladders.iter_mut().max_by_key(|l| l.len()).filter(|l| l.len() > 1) else {
                break;
            };
            let last = longest.len() - 1;
            let mut at = 0;
            // The first rung stays if there are others, and the last always.
            longest.retain(|_| {
                at += 1;
                at - 1 == last || ((at - 1) % 2 == 0 && last > 1)
            });
        }
        let mut counts = vec![vec![0; ladders.len()]];
        for (i, ladder) in ladders.iter().enumerate() {
            let before = counts.len();
            for k in 0..before * ladder.len() {
                if counts.len() >= SPACE_LIMIT {
                    break;
                }
                let mut more = counts[k % before].clone();
                more[i] = ladder[k / before];
                counts.push(more);
            }
        }
        counts.iter().filter_map(|c| self.candidate(c)).collect()
    }

    /// Relative speed of each cluster's core by capacity, else by frequency: 1 is the largest. None if unknown of any.
    pub fn weights(&self) -> Option<Vec<f64>> {
        let by = |of: fn(&Cluster) -> Option<u64>| {
            let all: Vec<u64> = self.clusters.iter().map(of).collect::<Option<_>>()?;
            let top = all.iter().copied().max().filter(|n| *n > 0)?;
            all.iter().all(|n| *n > 0).then(|| all.iter().map(|n| *n as f64 / top as f64).collect())
        };
        by(|c| c.capacity).or_else(|| by(|c| c.max_khz))
    }

    /// Whether capacities or frequencies tell clusters apart, so that a heuristic for energy has something to go by.
    pub(crate) fn unequal(&self) -> bool {
        self.weights().is_some_and(|w| w.iter().any(|x| (x - w[0]).abs() > 1e-3))
    }
}
