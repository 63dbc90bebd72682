//! The threads that compute a part of the graphs that other threads call: an engine's team. Allocates nothing.

use heapless::Vec;

/// Threads of all processes; of more, the last ones are known.
const THREADS: usize = 256;

/// Process and thread of each, in the order in which they were first seen.
#[derive(Default)]
pub struct Workers(Vec<(u32, u32), THREADS>);

impl Workers {
    pub fn add(&mut self, pid: u32, tid: u32) {
        if self.0.contains(&(pid, tid)) {
            return;
        }
        if self.0.is_full() {
            self.0.remove(0);
        }
        let _ = self.0.push((pid, tid));
    }

    pub fn of(&self, pid: u32) -> impl Iterator<Item = u32> {
        self.0.iter().filter(move |(of, _)| *of == pid).map(|(_, tid)| *tid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_known_once_and_the_last_ones_stay() {
        let mut workers = Workers::default();
        for tid in 0..300 {
            workers.add(7, tid);
            workers.add(7, tid);
        }
        workers.add(8, 1);
        assert!(workers.of(7).eq(45..300) && workers.of(8).eq([1]) && workers.of(9).next().is_none());
    }
}
