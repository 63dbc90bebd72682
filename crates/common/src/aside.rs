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
        let done = running.into_iter().map(|(part, thread)| match thread {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => taken(part),
        });
        done.flatten().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
