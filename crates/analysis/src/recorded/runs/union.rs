//! Disjoint sets of numbers (union-find), joined one pair at a time.

/// Disjoint sets of numbers.
#[derive(Default)]
pub(super) struct Union(Vec<usize>);

impl Union {
    pub fn add(&mut self) -> usize {
        self.0.push(self.0.len());
        self.0.len() - 1
    }

    /// Halves the path on the way up, so that no order of joins makes it long.
    pub fn root(&mut self, mut of: usize) -> usize {
        while let Some(&up) = self.0.get(of).filter(|up| **up != of) {
            let next = self.0.get(up).copied().unwrap_or(up);
            if let Some(slot) = self.0.get_mut(of) {
                *slot = next;
            }
            of = next;
        }
        of
    }

    /// The root of each number, once all are joined: a root is lower than all other members of its set.
    pub fn roots(mut self) -> Vec<usize> {
        for i in 0..self.0.len() {
            let root = self.root(i);
            if let Some(slot) = self.0.get_mut(i) {
                *slot = root;
            }
        }
        self.0
    }

    /// The lower root stays, so that the result does not depend on the order of joins.
    pub fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if let Some(slot) = self.0.get_mut(a.max(b)) {
            *slot = a.min(b);
        }
    }
}
