//! The experts of one layer over the tokens of decode: which were in memory, and which had to be read.

use std::collections::HashSet;

use super::missed::Missed;
use crate::recorded::calls::Phase;
use crate::sums::attribution::expert_ops::LayerOps;
use ggml::expert_cache::{ExpertPolicy, ExpertSlots};

/// Ops that are drawn, from the first on.
const MOST: usize = 600;

/// Places of a map: number of the op in decode, and expert.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Raster {
    pub layer: u32,
    /// Where hits and misses are from.
    pub of: String,
    pub hits: Vec<(u64, u16)>,
    pub misses: Vec<(u64, u16)>,
}

/// As it was.
pub fn as_it_was(layer: &LayerOps, number: u32, read: &Missed) -> Raster {
    let mut found = Raster { layer: number, of: "as it was".into(), ..Raster::default() };
    let ops = layer.ops.iter().filter(|op| op.phase != Phase::Prefill);
    for (at, op) in (0..).zip(ops).take(MOST) {
        for expert in layer.needed(op) {
            let to = if read.contains_key(&(op.graph, number, *expert)) {
                &mut found.misses
            } else {
                &mut found.hits
            };
            to.push((at, *expert));
        }
    }
    found
}

/// In `slots` slots of which the least recently used goes.
pub fn simulated(layer: &LayerOps, number: u32, slots: u32) -> Raster {
    let mut found = Raster { layer: number, of: format!("lru with {slots} slots"), ..Raster::default() };
    let mut cache = ExpertSlots::new(ExpertPolicy::Lru, slots as usize, layer.experts);
    let (mut reads, mut at) = (Vec::new(), 0);
    for op in &layer.ops {
        let needed = layer.needed(op);
        reads.clear();
        cache.need(needed, &mut reads);
        if op.phase == Phase::Prefill {
            continue;
        }
        let read: HashSet<u16> = reads.iter().map(|read| read.expert).collect();
        for expert in needed {
            let to = if read.contains(expert) { &mut found.misses } else { &mut found.hits };
            to.push((at, *expert));
        }
        at += 1;
        if at as usize == MOST {
            break;
        }
    }
    found
}
