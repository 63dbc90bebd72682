//! The removal of probes.

use std::thread;

use crate::capture::source::Guard;
use machine::helper::pulse;

/// Removes probes. The kernel waits for all CPUs on each, some 30 ms, and once for those that are removed at a time: `at_once`.
pub fn remove(links: Vec<Guard>, at_once: usize) {
    let mut parts: Vec<Vec<Guard>> = (0..at_once).map(|_| Vec::new()).collect();
    links.into_iter().enumerate().for_each(|(i, link)| parts[i % at_once].push(link));
    thread::scope(|s| {
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            // If no thread can be started, the closure is dropped here, and the probes with it.
            let drop_all = || part.into_iter().for_each(|link| (drop(link), pulse::beat()).1);
            drop(thread::Builder::new().name("detach".into()).spawn_scoped(s, drop_all));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    /// Waits until all are being removed.
    struct Slow(Arc<Barrier>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.wait();
        }
    }

    #[test]
    fn nobody_waits_for_the_one_before() {
        let all = Arc::new(Barrier::new(4));
        remove((0..4).map(|_| Box::new(Slow(all.clone())) as Guard).collect(), 8);
    }
}
