//! Measures what the machine reaches, once, while no engine runs and the CPUs are idle, so that later recordings contain
//! it. `profinfer doctor --peaks` measures, as a process of its own with the lowest priority.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, setpriority_process};

use machine::peaks;

/// After a measurement, and where the peaks are known, they are looked at again after this time.
const AGAIN: Duration = Duration::from_secs(86_400);
/// A measurement takes seconds; one that takes this long is ended.
const LONGEST: Duration = Duration::from_secs(120);
/// Least share of the time in which all CPUs together must be idle.
const IDLE: f64 = 0.9;

/// The one reason to end a measurement after which it is tried again at the next calm, not a day later.
const ENGINE: &str = "an engine runs";

/// When to measure, and the process that does.
pub struct IdlePeaks {
    /// No engine has run, and the CPUs have been idle, since then.
    calm: Instant,
    /// The next look at the known peaks is not before this.
    next: Instant,
    /// All CPUs' time so far, and the idle part of it, in the kernel's ticks.
    cpus: Option<(u64, u64)>,
    measuring: Option<Measurement>,
}

struct Measurement {
    child: Child,
    since: Instant,
    /// Why it was ended.
    ended: Option<&'static str>,
}

impl IdlePeaks {
    pub fn new(now: Instant) -> IdlePeaks {
        IdlePeaks { calm: now, next: now, cpus: None, measuring: None }
    }

    /// Called about once a second; `after`: measure when it was calm for this long, `None`: never; `proc`: `/proc`, or
    /// another machine's. Returns what to say.
    pub fn tick(
        &mut self,
        after: Option<Duration>,
        proc: &Path,
        engines: bool,
        now: Instant,
    ) -> Option<String> {
        if let Some(of) = &self.measuring {
            match (engines, now.duration_since(of.since) > LONGEST) {
                (true, _) => self.end(ENGINE),
                (_, true) => self.end("it took too long"),
                _ => {}
            }
            return None;
        }
        let cpus = fs::read_to_string(proc.join("stat")).ok().and_then(|text| cpu_time(&text));
        let idle = self.cpus.zip(cpus).is_some_and(|(before, now)| is_idle(before, now));
        self.cpus = cpus;
        if engines || !idle {
            self.calm = now;
        }
        if after.is_none_or(|after| now.duration_since(self.calm) < after) || now < self.next {
            return None;
        }
        self.next = now + AGAIN;
        if !peaks::find(&mut |_| {}).is_empty() {
            return None;
        }
        Some(match start() {
            Ok(child) => {
                self.measuring = Some(Measurement { child, since: now, ended: None });
                "no engine runs: measuring what this machine reaches (profinfer doctor --peaks)".into()
            }
            Err(e) => format!("cannot measure what this machine reaches: {e}"),
        })
    }

    /// Ends a measurement. The service learns of its end as of any other process's.
    pub fn end(&mut self, why: &'static str) {
        if let Some(of) = self.measuring.as_mut().filter(|of| of.ended.is_none()) {
            // It may have ended by itself.
            let _ = of.child.kill();
            of.ended = Some(why);
        }
    }

    /// A process of the service has ended. Returns what to say, if it is the one that measured.
    pub fn reaped(&mut self, pid: i32, now: Instant) -> Option<String> {
        let of = self.measuring.take_if(|of| i32::try_from(of.child.id()) == Ok(pid))?;
        self.calm = now;
        if let Some(why) = of.ended {
            if why == ENGINE {
                self.next = now;
            }
            return Some(format!("what this machine reaches was not measured: {why}"));
        }
        Some(match peaks::find(&mut |_| {}).is_empty() {
            true => "what this machine reaches could not be measured: run profinfer doctor --peaks".into(),
            false => "measured what this machine reaches: later recordings contain it".into(),
        })
    }
}

impl Drop for IdlePeaks {
    fn drop(&mut self) {
        self.end("the service ends");
    }
}

fn start() -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["doctor", "--peaks"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn()?;
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // On idle CPUs any priority will do.
        let _ = setpriority_process(Some(pid), 19);
    }
    Ok(child)
}

/// All CPUs' time, and the idle part of it, from /proc/stat (proc_stat(5)).
fn cpu_time(stat: &str) -> Option<(u64, u64)> {
    let mut words = stat.lines().next()?.split_ascii_whitespace();
    words.next().filter(|name| *name == "cpu")?;
    // Guests' time is part of the users'.
    let times: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
    let idle = times.get(3)?.saturating_add(times.get(4).copied().unwrap_or(0));
    Some((times.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)), idle))
}

fn is_idle(before: (u64, u64), now: (u64, u64)) -> bool {
    let [all, idle] = [now.0.saturating_sub(before.0), now.1.saturating_sub(before.1)];
    all > 0 && idle as f64 >= IDLE * all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_nine_tenths_of_all_cpus_time() {
        let at = |text: &str| cpu_time(text).expect("a line of all CPUs");
        let before = at("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n");
        assert_eq!(before, (1000, 850));
        assert!(is_idle(before, at("cpu 105 0 55 880 60 0 0 0 9 9\n")));
        assert!(!is_idle(before, at("cpu 115 0 55 870 60 0 0 0 0 0\n")));
        assert!(!is_idle(before, before), "no time in between");
        for damaged in ["", "cpu", "cpu 1 2 3", "cpu0 1 2 3 4 5"] {
            assert_eq!(cpu_time(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn nothing_is_measured_while_engines_run_or_if_told_so() {
        let begin = Instant::now();
        let mut peaks = IdlePeaks::new(begin);
        let hour = Duration::from_secs(3600);
        let proc = Path::new("/proc");
        assert_eq!(peaks.tick(Some(Duration::from_secs(1)), proc, true, begin + hour), None);
        assert_eq!(peaks.tick(None, proc, false, begin + 2 * hour), None);
        assert!(peaks.measuring.is_none());
        assert_eq!(peaks.reaped(1, begin), None, "another process");
    }
}
