//! The CPUs to choose from.

/// CPUs that are alike: in capacity, frequency and the cache that they share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// One hardware thread of each core.
    pub cpus: Vec<u32>,
    /// Further hardware threads of the same cores.
    pub siblings: Vec<u32>,
    /// As the kernel scales it, 1024 for the largest core (Documentation/arch/arm/cpu-capacity in the device tree).
    pub capacity: Option<u64>,
    pub max_khz: Option<u64>,
}

/// Clusters, fastest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub clusters: Vec<Cluster>,
}

impl Machine {
    /// The clusters' cores, then their further hardware threads, as groups that are filled from the front.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let all = self.clusters.iter().enumerate();
        let cores = all.clone().map(|(cluster, c)| Group { cluster, cpus: c.cpus.clone(), behind: None });
        let mut groups: Vec<Group> = cores.collect();
        for (cluster, c) in all.filter(|(_, c)| !c.siblings.is_empty()) {
            groups.push(Group { cluster, cpus: c.siblings.clone(), behind: Some(cluster) });
        }
        groups
    }

    /// Speed of a cluster's cores relative to the largest of the machine, by capacity, else by frequency; 1 if neither is
    /// known.
    pub(crate) fn relative(&self, cluster: usize) -> f64 {
        let of = |value: fn(&Cluster) -> Option<u64>| {
            let most = self.clusters.iter().filter_map(value).max().filter(|most| *most > 0)?;
            Some(self.clusters.get(cluster).and_then(value)? as f64 / most as f64)
        };
        of(|c| c.capacity).or_else(|| of(|c| c.max_khz)).unwrap_or(1.0)
    }

    /// Clusters differ in what is known of them, so that a choice among them can be foretold.
    pub fn has_unlike_clusters(&self) -> bool {
        (1..self.clusters.len()).any(|i| self.relative(i) != self.relative(0))
    }
}

/// CPUs that are taken in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub cluster: usize,
    pub cpus: Vec<u32>,
    /// Used only when this group is full.
    pub behind: Option<usize>,
}
