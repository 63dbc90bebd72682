//! What the runs of a recorder compute, added up from the trace as it is written: only while somebody watches, since it takes
//! about as long as writing it.

use serde::{Deserialize, Serialize};

use crate::lines::plain;
use crate::run::real;
use agent::recorder::process_tree::ProcessTree;
use analysis::streams::live::{EnergyNow, Live, Work, combined};
use pfi::{Output, Tail};

/// Longest text, characters.
const TEXT: usize = 200;
/// Processes that are known to belong to a run.
const OWNED: usize = 1024;

/// Sums of a run since its recorder began to add up, and the energy of its last seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFigures {
    /// The recorder added up before it followed the run: nothing is missing.
    pub whole: bool,
    pub work: Option<Work>,
    /// Why there are none; null if there are.
    pub unknown: Option<String>,
    pub energy: EnergyNow,
}

impl RunFigures {
    /// With bounded texts, and without energy that cannot be: a recorder reads data made by users.
    pub fn plausible(mut self) -> RunFigures {
        let texts =
            [&mut self.unknown, &mut self.energy.source, &mut self.energy.origin, &mut self.energy.unknown];
        texts.into_iter().flatten().for_each(|text| *text = plain(text, TEXT));
        let of = &mut self.energy;
        for value in [&mut of.joules, &mut of.watts, &mut of.decode_j_per_token, &mut of.prefill_j_per_token]
        {
            *value = value.filter(real);
        }
        if !real(&of.seconds) {
            self.energy = EnergyNow::default();
        }
        self
    }
}

/// Adds up while it is wanted.
#[derive(Default)]
pub struct Figures {
    /// Where traces are read: that of the current one last.
    tails: Vec<Tail>,
    live: Option<Live>,
    /// Processes and the runs that they belong to.
    owned: Vec<(u32, u32)>,
    /// Runs that were followed while it added up.
    whole: Vec<u32>,
}

impl Figures {
    /// A trace's output, from which it is read.
    pub fn tap(&mut self, file: Box<dyn Output>) -> Box<dyn Output> {
        let tail = Tail::default();
        let tap = tail.tap(Some(file));
        self.tails.push(tail);
        Box::new(tap)
    }

    /// Somebody watches, or nobody.
    pub fn want(&mut self, wanted: bool) {
        if wanted == self.live.is_some() {
            return;
        }
        // What is in the current block already is read first: sums begin with whole blocks.
        self.read();
        self.live = wanted.then(Live::default);
        self.owned.clear();
        self.whole.clear();
    }

    /// A run is recorded from now on.
    pub fn follow(&mut self, run: u32) {
        self.forget(run);
        if self.live.is_some() {
            self.whole.push(run);
        }
    }

    /// Reads what was written.
    pub fn read(&mut self) {
        let last = self.tails.len().saturating_sub(1);
        for (i, tail) in self.tails.iter().enumerate() {
            match &mut self.live {
                Some(live) => tail.read(&mut |block| live.feed(block)),
                None => tail.read(&mut |_| ()),
            }
            if let Some(live) = self.live.as_mut().filter(|_| i < last && tail.ended()) {
                live.next_trace();
            }
        }
        let mut at = 0;
        self.tails.retain(|tail| {
            at += 1;
            at > last || !tail.ended()
        });
    }

    /// The sums of a run. None: nobody watches.
    pub fn of(&mut self, run: u32, tree: &ProcessTree) -> Option<RunFigures> {
        let live = self.live.as_ref()?;
        for pid in tree.of(run) {
            if self.owned.len() < OWNED && !self.owned.contains(&(pid, run)) {
                self.owned.push((pid, run));
            }
        }
        let pids: Vec<u32> = self.owned.iter().filter(|(_, of)| *of == run).map(|(pid, _)| *pid).collect();
        let mut sums = Work::default();
        pids.iter()
            .filter_map(|pid| live.work(*pid))
            .for_each(|more| sums = combined(&sums, &more, u64::saturating_add));
        let unknown = match (self.tails.is_empty(), live.is_crowded()) {
            (true, _) => Some("its rule has a ring: events are only kept, and not added up"),
            (_, true) => Some("its recorder follows more processes than have sums of their own"),
            _ => None,
        };
        Some(RunFigures {
            whole: self.whole.contains(&run),
            work: unknown.is_none().then_some(sums),
            unknown: unknown.map(str::to_owned),
            energy: live.energy(&pids),
        })
    }

    /// A run has ended.
    pub fn forget(&mut self, run: u32) {
        if let Some(live) = &mut self.live {
            self.owned.iter().filter(|(_, of)| *of == run).for_each(|(pid, _)| live.forget(*pid));
        }
        self.owned.retain(|(_, of)| *of != run);
        self.whole.retain(|of| *of != run);
    }
}
