//! What the steps decide about a tensor.

/// What becomes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fate {
    /// It has been computed.
    pub(super) folded: bool,
    /// Nothing needs it.
    pub(super) dead: bool,
    /// The earlier node that it equals.
    pub(super) kept: Option<usize>,
    /// Its users use that one, at the current sizes.
    pub(super) merged: bool,
}

impl Fate {
    /// Not in the graph that runs.
    pub(super) fn is_gone(&self) -> bool {
        // What equals an earlier node is dead as long as its users use that one.
        self.folded || if self.kept.is_some() { self.merged } else { self.dead }
    }
}
