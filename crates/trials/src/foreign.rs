//! CPU time that other programs took during a run: it makes a measurement worthless.

use std::fs;
use std::path::Path;
use std::time::Instant;

use machine::usage;

/// Kernel ticks per second of `/proc/stat`, USER_HZ of every architecture that Linux runs GGML on.
const HZ: f64 = 100.0;

/// From its start on, all CPU time against that of this process and its children.
pub struct ForeignLoad {
    since: Instant,
    busy: Option<f64>,
    own: f64,
}

impl ForeignLoad {
    pub fn start() -> ForeignLoad {
        ForeignLoad { since: Instant::now(), busy: busy_seconds(Path::new("/proc/stat")), own: own_seconds() }
    }

    /// CPUs that others kept busy on average, once all children of the run have been waited for; None if the kernel
    /// does not say.
    pub fn cpus(&self) -> Option<f64> {
        let busy = busy_seconds(Path::new("/proc/stat"))? - self.busy?;
        let seconds = self.since.elapsed().as_secs_f64();
        (seconds > 0.0).then(|| ((busy - (own_seconds() - self.own)) / seconds).max(0.0))
    }
}

/// CPU time of this process and of the children that were waited for, s.
fn own_seconds() -> f64 {
    let ((a, b), (c, d)) = (usage::cpu_us(), usage::children_cpu_us());
    (a + b + c + d) as f64 / 1e6
}

/// proc(5): user, nice, system, idle, iowait, irq, softirq, steal. Time stolen by a hypervisor counts as busy: others
/// had it.
fn busy_seconds(stat: &Path) -> Option<f64> {
    let text = fs::read_to_string(stat).ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().take(8).map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, steal] = ticks.try_into().ok()?;
    Some([user, nice, system, irq, softirq, steal].iter().map(|n| *n as f64).sum::<f64>() / HZ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_all_but_idle_and_waiting() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("stat");
        fs::write(&file, "cpu  100 200 300 9000 9000 10 20 70 5 5\ncpu0 1 1").expect("written");
        assert_eq!(busy_seconds(&file), Some(7.0));
        for text in ["", "cpu 1 2 3", "cpu  a b c d e f g h", "intr 1"] {
            fs::write(&file, text).expect("written");
            assert_eq!(busy_seconds(&file), None, "{text}");
        }
    }

    #[test]
    fn a_child_that_was_waited_for_is_not_foreign() {
        let before = own_seconds();
        let done = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])
            .status();
        assert!(done.is_ok_and(|s| s.success()));
        assert!(own_seconds() - before > 0.02);
    }
}
