//! A pool thread as an op sees it.

use std::ops::Range;

use crate::abi::ComputeParams;
use crate::pool;

/// One of the threads that work on a node.
#[derive(Clone, Copy)]
pub(crate) struct ComputeThread<'a> {
    pub index: usize,
    pub count: usize,
    pub(super) params: &'a ComputeParams,
}

impl<'a> ComputeThread<'a> {
    pub(super) fn new(params: &'a ComputeParams) -> Self {
        let count = usize::try_from(params.nth).unwrap_or(1).max(1);
        let index = usize::try_from(params.ith).unwrap_or(0).min(count - 1);
        Self { index, count, params }
    }

    /// This thread's part of `n` items, in multiples of `step` except for the last part.
    pub(super) fn share(&self, n: usize, step: usize) -> Range<usize> {
        let part = n.div_ceil(self.count).next_multiple_of(step.max(1));
        let start = (part * self.index).min(n);
        start..(start + part).min(n)
    }

    /// Takes the next part of the work; restarts from 0 with each node and after each barrier.
    pub(super) fn take(&self) -> usize {
        pool::next_chunk(self.params)
    }

    /// Waits for the other threads; taking restarts from 0 in any case.
    pub(super) fn restart(&self) {
        if self.count > 1 {
            pool::barrier(self.params);
        } else {
            pool::restart_chunks(self.params);
        }
    }

    /// Waits for the other threads.
    pub(super) fn barrier(&self) {
        if self.count > 1 {
            pool::barrier(self.params);
        }
    }
}
