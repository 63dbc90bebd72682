//! What an op computes in which round. Uses nothing else.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// No buffer.
const NONE: u32 = u32::MAX;

/// An expert that an op needs, and the buffer in which it is or will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlacedExpert {
    pub expert: u16,
    pub buffer: usize,
}

/// The op of the layer that is being computed.
#[derive(Debug, Default)]
pub(super) struct SlotOp {
    /// Experts that were in a slot when the op began.
    pub hits: Vec<PlacedExpert>,
    /// All others, in the order in which they are read.
    pub absent: Vec<PlacedExpert>,
    /// All reads have been asked for when the op began. Otherwise each node asks for its own, after it has computed the hits,
    /// because reads replace some of those, or because there are not enough buffers for experts that do not stay.
    pub ahead: bool,
    /// Experts of this node that are to be computed after the first round.
    pub later: Vec<PlacedExpert>,
    /// How many of them have been computed or are about to be.
    pub done: usize,
    /// How many of them have been asked for.
    pub asked: usize,
}

/// The experts that all threads compute now. Changed by one thread, between two barriers.
pub(super) struct SlotRound {
    /// Buffer of each expert in this round.
    places: Box<[AtomicU32]>,
    /// The experts of this round.
    experts: Box<[AtomicU32]>,
    count: AtomicUsize,
    last: AtomicBool,
}

// Relaxed everywhere: the barriers order the accesses.
impl SlotRound {
    pub fn new(experts: usize) -> Self {
        let list = |value| (0..experts).map(|_| AtomicU32::new(value)).collect();
        Self {
            places: list(NONE),
            experts: list(NONE),
            count: AtomicUsize::new(0),
            last: AtomicBool::new(true),
        }
    }

    /// Replaces the experts of the last round by these.
    pub fn set(&self, placed: &[PlacedExpert], last: bool) {
        for i in 0..self.count.load(Ordering::Relaxed) {
            if let Some(place) = self.expert(i).and_then(|e| self.places.get(e)) {
                place.store(NONE, Ordering::Relaxed);
            }
        }
        for (slot, p) in self.experts.iter().zip(placed) {
            slot.store(p.expert.into(), Ordering::Relaxed);
            if let Some(place) = self.places.get(usize::from(p.expert)) {
                place.store(u32::try_from(p.buffer).unwrap_or(NONE), Ordering::Relaxed);
            }
        }
        self.count.store(placed.len().min(self.experts.len()), Ordering::Relaxed);
        self.last.store(last, Ordering::Relaxed);
    }

    /// The buffer of an expert, if it is computed in this round.
    pub fn buffer(&self, expert: usize) -> Option<usize> {
        let place = self.places.get(expert)?.load(Ordering::Relaxed);
        usize::try_from(place).ok().filter(|_| place != NONE)
    }

    /// The nth expert of this round.
    pub fn expert(&self, nth: usize) -> Option<usize> {
        let slot = self.experts.get(nth).filter(|_| nth < self.count.load(Ordering::Relaxed))?;
        usize::try_from(slot.load(Ordering::Relaxed)).ok()
    }

    /// No other round of the node follows.
    pub fn is_last(&self) -> bool {
        self.last.load(Ordering::Relaxed)
    }
}
