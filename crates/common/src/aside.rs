//! Work on separate threads if they can be started, otherwise on the calling thread: a limit on processes or
//! memory makes the program slower but never ends it.

use std::sync::Mutex;
use std::thread::{self, Builder};

/// Applies `one` to each part and returns the results in order: a thread for each part but the last, which runs
/// here.
pub fn each<T: Send, R: Send>(parts: impl IntoIterator<Item = T>, one: impl Fn(T) -> R + Sync) -> Vec<R> {
    // A thread that cannot be started must not take its part with it.
    let parts: Vec<Mutex<Option<T>>> = parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
    let taken = &|part: &Mutex<Option<T>>| part.lock().ok().and_then(|mut part| part.take()).map(&one);
    thread::scope(|scope| {
        let last = parts.len().saturating_sub(1);
        let start = |part| Builder::new().spawn_scoped(scope, move || taken(part)).ok();
        let all = parts.iter().enumerate();
        let running: Vec<_> =
            all.map(|(i, part)| (part, (i < last).then(|| start(part)).flatten())).collect();
        // Before any is waited for: they run at the same time.
        let here = running.iter().map(|(part, thread)| thread.is_none().then(|| taken(part)).flatten());
        let here: Vec<Option<R>> = here.collect();
        let done = running.into_iter().zip(here).map(|((_, thread), here)| match thread {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => here,
        });
        done.flatten().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part waits for the other.
    #[test]
    fn parts_run_at_the_same_time() {
        let (there, here) = (std::sync::mpsc::sync_channel(0), std::sync::mpsc::sync_channel(0));
        let ends = [(there.0, here.1), (here.0, there.1)];
        let met = each(ends.into_iter().enumerate(), |(i, (to, from))| match i {
            0 => to.send(()).is_ok() && from.recv().is_ok(),
            _ => from.recv().is_ok() && to.send(()).is_ok(),
        });
        assert_eq!(met, [true, true]);
    }

    #[test]
    fn all_is_done_and_in_order() {
        let mut rows = [0; 40];
        let done = each(rows.chunks_mut(7).enumerate(), |(i, part)| {
            part.fill(i);
            i * part.len()
        });
        assert_eq!(done, [0, 7, 14, 21, 28, 25]);
        assert_eq!((rows[0], rows[13], rows[39]), (0, 1, 5));
        assert!(each(Vec::<u8>::new(), |b| b).is_empty());
    }
}
