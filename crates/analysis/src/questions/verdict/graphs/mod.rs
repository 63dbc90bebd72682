//! What the structure of a phase's graphs says: where its weights lie, which operators an adapter adds, and how many cells of
//! the cache attention reads.

mod adapter;
mod attention;
mod layout;

use std::collections::BTreeMap;

pub use self::adapter::AdapterWork;
pub use self::attention::AttentionWork;
use super::input::FactInput;
use crate::recorded::calls::Phase;
use crate::recorded::load::HitTensors;
use pfi::record::{CpuGraph, Tensor};

/// Each is `None` if there is no such thing in the phase, or it was not recorded.
#[derive(Debug, Clone, Default)]
pub struct GraphFacts {
    /// Part of the bytes of all matrices of products that lie in the mapping of their file as they are stored, though the engine
    /// repacks their types.
    pub plain: Option<f64>,
    pub adapter: Option<AdapterWork>,
    pub attention: Option<AttentionWork>,
}

impl GraphFacts {
    pub fn of(input: &FactInput<'_, '_>, phase: Phase) -> GraphFacts {
        let graphs = PhaseGraphs::of(input, phase);
        GraphFacts {
            plain: layout::plain(&graphs),
            adapter: adapter::work(&graphs),
            attention: attention::work(&graphs),
        }
    }
}

/// The graphs of a phase that ran to their end. One that was cut has executed a part of its plan only.
struct PhaseGraphs<'i, 'r, 'a> {
    input: &'i FactInput<'r, 'a>,
    phase: Phase,
    /// How many have each plan.
    plans: BTreeMap<u32, u64>,
}

impl<'i, 'r, 'a> PhaseGraphs<'i, 'r, 'a> {
    fn of(input: &'i FactInput<'r, 'a>, phase: Phase) -> Self {
        let mut graphs = PhaseGraphs { input, phase, plans: BTreeMap::new() };
        let plans: Vec<u32> = graphs.whole().filter_map(|(_, g)| g.plan).collect();
        plans.into_iter().for_each(|plan| *graphs.plans.entry(plan).or_default() += 1);
        graphs
    }

    /// With their indices in [`crate::recorded::load::Loaded::cpu_graphs`].
    fn whole(&self) -> impl Iterator<Item = (usize, &'r CpuGraph)> {
        let graphs = self.input.loaded.cpu_graphs.iter().zip(&self.input.line.cpu_phase).enumerate();
        graphs.filter(|(_, (g, p))| **p == self.phase && !g.cut).map(|(i, (g, _))| (i, g))
    }

    /// Hits of a plan whose results are known, with the mean of thread 0's time and of its wait at the barrier, ns.
    fn hits(&self, plan: u32) -> impl Iterator<Item = (HitTensors, &'r Tensor, f64)> {
        let loaded = self.input.loaded;
        let hits = loaded.plans.get(&plan).map_or(&[][..], |plan| &plan.hits);
        let stat = self.input.times.plans.get(&(plan, self.phase));
        let positions = stat.map_or(&[][..], |stat| &stat.positions);
        hits.iter().zip(positions).filter_map(|(hit, pos)| {
            let t = loaded.tensors.get(&hit.0).filter(|t| t.known)?;
            let ns = pos.total.saturating_add(pos.wait) as f64 / pos.calls.max(1) as f64;
            Some((*hit, t, ns))
        })
    }
}

#[cfg(test)]
mod tests;
