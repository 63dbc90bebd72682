//! What the steps decide about a tensor.

use super::fixed::Tensors;
use crate::abi::GgmlTensor;

/// What becomes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Fate {
    /// It has been computed.
    pub(super) folded: bool,
    /// A view whose source is the source of the view that it was made from.
    pub(super) hops: bool,
    /// A view that only such views used.
    pub(super) passed: bool,
    /// Nothing needs it.
    pub(super) dead: bool,
    /// The division at the end of a norm that was written as its parts; the norm's epsilon.
    pub(super) norm: Option<f32>,
    /// A part of such a norm.
    pub(super) part: bool,
    /// The earlier node that its users can use instead.
    pub(super) twin: Option<Twin>,
}

/// An earlier node that gives the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Twin {
    pub(super) of: usize,
    /// True for every size; otherwise it depends on the dimensions of a view.
    pub(super) always: bool,
    /// True at the current sizes.
    pub(super) now: bool,
}

impl Fate {
    /// Not in the graph that runs.
    pub(super) fn is_gone(&self) -> bool {
        // What equals an earlier node is dead as long as its users use that one.
        self.folded || self.passed || self.part || self.twin.map_or(self.dead, |twin| twin.now)
    }

    /// Not in the graph at any size.
    pub(super) fn is_always_gone(&self) -> bool {
        self.is_gone() && self.twin.is_none_or(|twin| twin.always || self.folded || self.passed)
    }

    /// Replaced by another tensor at the current sizes.
    pub(super) fn replaced(&self) -> Option<usize> {
        self.twin.filter(|twin| twin.now).map(|twin| twin.of)
    }
}

/// Replaces the sources of a tensor that others replace.
pub(super) fn redirect(tensors: &mut Tensors, i: usize, fates: &[Fate]) {
    let other = |tensors: &Tensors, s: *mut GgmlTensor| {
        let of = fates.get(tensors.place(s)?)?.replaced()?;
        Some(tensors.at(of))
    };
    for slot in 0..tensors.get(i).src.len() {
        if let Some(other) = other(tensors, tensors.get(i).src[slot]) {
            tensors.get_mut(i).src[slot] = other;
        }
    }
    // The owner of data is no view, and neither is the one that replaces it.
    if let Some(other) = other(tensors, tensors.get(i).view_src) {
        tensors.get_mut(i).view_src = other;
    }
}

/// For each tensor, how many nodes that are not gone at every size use it, as a source or as the data of a view.
pub(super) fn uses(tensors: &Tensors, fates: &[Fate]) -> Vec<usize> {
    let mut uses = vec![0; tensors.len()];
    let stays = |i: &usize| !fates.get(*i).is_some_and(Fate::is_always_gone);
    for t in (0..tensors.len()).filter(stays).map(|i| tensors.get(i)) {
        let mut seen: [Option<usize>; 11] = [None; 11];
        for (n, s) in t.src.iter().chain([&t.view_src]).enumerate() {
            let place = tensors.place(*s);
            if place.is_none() || seen[..n].contains(&place) {
                continue;
            }
            seen[n] = place;
            if let Some(count) = place.and_then(|p| uses.get_mut(p)) {
                *count += 1;
            }
        }
    }
    uses
}
