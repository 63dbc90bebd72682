//! How a unit test waits for what has no event.

/// In tests: waits for what must become true and sends no event.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !done() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(120), "in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
