//! Caches of experts request by request: does a list that was made of some prompts serve others?

use serde::Serialize;

use super::simulate::{Held, Replay, ranked};
use super::{POLICIES, Parts};
use crate::sums::attribution::expert_ops::{LayerOp, LayerOps};

/// Parts that are shown; with more, those in which most experts were needed.
const MOST: usize = 32;

/// A request, or a tenth of the tokens, at one number of slots.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExpertPart {
    /// Per layer.
    pub slots: u32,
    /// Its number in the recording, from 1 on.
    pub part: u64,
    /// Experts that its tokens of decode needed.
    pub needed: u64,
    /// Hit rates of the policies, in the order of `policies`.
    pub hit_rates: Vec<f64>,
    /// Hit rate with the experts pinned that it needed most itself, and the lowest and highest with those of another part.
    pub own_list: f64,
    pub other_lists: Option<[f64; 2]>,
}

/// The parts at one number of slots; `held` is what each policy held, by part.
pub(super) fn parts(
    layers: &[LayerOps],
    slots: u32,
    parts: &Parts,
    held: &[(&'static str, Vec<Held>)],
) -> Vec<ExpertPart> {
    let needed = |part: usize| held.first().and_then(|(_, h)| h.get(part)).map_or(0, |h| h.needed);
    let mut shown: Vec<usize> = (0..parts.count).filter(|part| needed(*part) > 0).collect();
    common::order::by_key(&mut shown, |part| (u64::MAX - needed(*part), 0));
    shown.truncate(MOST);
    shown.sort_unstable();
    let lists: Vec<Vec<Held>> = shown.iter().map(|of| pinned(layers, slots as usize, parts, *of)).collect();
    let rate = |held: &[Held], part: usize| held.get(part).and_then(Held::hit_rate);
    let row = |(at, part): (usize, &usize)| {
        let others = lists.iter().enumerate().filter(|(i, _)| *i != at).filter_map(|(_, h)| rate(h, *part));
        let range = others.fold(None, |range: Option<[f64; 2]>, rate| {
            let [least, most] = range.unwrap_or([rate, rate]);
            Some([least.min(rate), most.max(rate)])
        });
        Some(ExpertPart {
            slots,
            part: *part as u64 + 1,
            needed: needed(*part),
            hit_rates: held.iter().map(|(_, h)| rate(h, *part).unwrap_or_default()).collect(),
            own_list: rate(lists.get(at)?, *part)?,
            other_lists: range,
        })
    };
    debug_assert!(held.len() == POLICIES.len());
    shown.iter().enumerate().filter_map(row).collect()
}

/// What all parts would have had of the experts that one part needed most.
fn pinned(layers: &[LayerOps], slots: usize, parts: &Parts, of: usize) -> Vec<Held> {
    let part = |op: &LayerOp| parts.of_op(op);
    let mut sum = vec![Held::default(); parts.count];
    for layer in layers {
        let list = ranked(layer, |op| parts.number(op) == of).into_iter().map(|(expert, _)| expert).collect();
        let replay =
            Replay { layer, slots, parts: parts.count, part: &part, times: &NOTHING, compute_ns: 0.0 };
        sum.iter_mut().zip(&replay.pinned(|_| 0, &[list])).for_each(|(sum, held)| sum.merge(held));
    }
    sum
}

static NOTHING: super::simulate::ReadTimes = super::simulate::ReadTimes { ns: Vec::new() };
