//! How long a task will take.

use std::time::Duration;

/// `, about 12 s left`, if what is done so far goes on as fast; empty before anything is done.
pub fn left(elapsed: Duration, done: u64, total: u64) -> String {
    if done == 0 {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64() * total.saturating_sub(done) as f64 / done as f64;
    match seconds.round() as u64 {
        s if s < 120 => format!(", about {s} s left"),
        s => format!(", about {} min left", s.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_as_what_is_done() {
        let after = |s, done, total| left(Duration::from_secs(s), done, total);
        assert_eq!(after(3, 0, 100), "");
        assert_eq!(after(3, 25, 100), ", about 9 s left");
        assert_eq!(after(60, 10, 100), ", about 9 min left");
        assert_eq!(after(60, 100, 100), ", about 0 s left");
    }
}
