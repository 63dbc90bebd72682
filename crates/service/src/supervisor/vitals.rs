//! When the service ends a recorder: it shows no sign of life, or takes more CPU time or memory than allowed. The
//! numbers are the kernel's, the signs of life the recorder's own. For sysconf(3) see [`machine::usage`].

use std::fs;
use std::time::Duration;

use crate::rules::settings::ServiceSettings;
use machine::helper::pulse::Signs;
use machine::proc::StatFields;

/// Maximum time counted between two checks: the service itself may have been held up.
const LONGEST: Duration = Duration::from_secs(2);
/// Silence counts only one part in this many while the recorder announces a long step, or waits for a disk.
const LENIENT: u32 = 4;
/// A recorder may exceed its CPU limit for this many times its timeout: normally it ends itself sooner.
const BUSY: u32 = 2;
/// Number of checks at which it may have too much memory: normally it ends itself sooner. With twice the limit it
/// is ended immediately.
const LOOKS: u32 = 5;

/// The kernel's numbers for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessVitals {
    /// proc_pid_stat(5), field 3.
    pub state: u8,
    /// CPU time so far, user and system.
    pub cpu: Duration,
    /// Anonymous memory, bytes.
    pub memory: u64,
}

impl ProcessVitals {
    /// None: it is gone.
    pub fn of(pid: i32) -> Option<ProcessVitals> {
        let (stat, statm) = (format!("/proc/{pid}/stat"), format!("/proc/{pid}/statm"));
        parse(&fs::read(stat).ok()?, &fs::read_to_string(statm).ok()?)
    }
}

fn parse(stat: &[u8], statm: &str) -> Option<ProcessVitals> {
    let fields = StatFields::parse(stat)?;
    let pages: Vec<u64> = statm.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    // SAFETY: only returns a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    Some(ProcessVitals {
        state: u8::try_from(fields.state()?).ok()?,
        cpu: fields.cpu()?,
        memory: pages.get(1)?.saturating_sub(*pages.get(2)?).saturating_mul(page),
    })
}

/// What was seen of a recorder so far.
#[derive(Debug, Default)]
pub struct Vitals {
    beats: u64,
    silent: Duration,
    cpu: Option<Duration>,
    busy: Duration,
    over: u32,
}

impl Vitals {
    /// `passed` since the last check. Returns the reason to stop it, if any.
    pub fn look(
        &mut self,
        passed: Duration,
        signs: Signs,
        sample: ProcessVitals,
        bounds: &ServiceSettings,
    ) -> Option<String> {
        let counted = passed.min(LONGEST);
        let patience = bounds.recorder_timeout;
        let lenient = signs.slow || sample.state == b'D';
        self.silent = match signs.beats == self.beats {
            true => self.silent + if lenient { counted / LENIENT } else { counted },
            false => Duration::ZERO,
        };
        self.beats = signs.beats;
        let taken =
            self.cpu.replace(sample.cpu).map_or(Duration::ZERO, |then| sample.cpu.saturating_sub(then));
        let share = taken.as_secs_f64() / passed.as_secs_f64().max(1e-3);
        self.busy = match share > bounds.cpu && !signs.slow {
            true => self.busy + counted,
            false => self.busy.saturating_sub(counted),
        };
        self.over = if sample.memory > bounds.memory { self.over + 1 } else { 0 };
        if self.silent >= patience {
            let s = self.silent.as_secs();
            return Some(format!("it has shown no sign of life for {s} s (recorder-timeout)"));
        }
        if self.busy >= patience * BUSY {
            let (taken, allowed) = (share * 100.0, bounds.cpu * 100.0);
            return Some(format!(
                "it uses {taken:.0} % of a core, the limit is {allowed:.0} % (cpu), and it does not end by \
                 itself"
            ));
        }
        let far = sample.memory > bounds.memory.saturating_mul(2);
        (far || self.over >= LOOKS).then(|| {
            let (has, allowed) = (sample.memory >> 20, bounds.memory >> 20);
            format!("it uses {has} MB of memory, the limit is {allowed} MB (memory)")
        })
    }

    /// Whether the last check saw activity.
    pub fn is_moving(&self) -> bool {
        self.silent.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn sample(cpu_ms: u64, memory: u64) -> ProcessVitals {
        ProcessVitals { state: b'S', cpu: Duration::from_millis(cpu_ms), memory }
    }

    /// Runs checks until it must be stopped, at most this many.
    fn looks(
        most: u32,
        mut at: impl FnMut(u32) -> (Duration, Signs, ProcessVitals),
    ) -> (u32, Option<String>) {
        let (bounds, mut vitals) =
            (ServiceSettings { memory: 100 << 20, ..ServiceSettings::default() }, Vitals::default());
        for n in 1..=most {
            let (passed, signs, sample) = at(n);
            if let Some(why) = vitals.look(passed, signs, sample, &bounds) {
                return (n, Some(why));
            }
        }
        (most, None)
    }

    #[test]
    fn one_that_is_silent_is_ended_and_one_in_a_long_step_later() {
        let quiet = Signs { beats: 7, ..Signs::default() };
        let (n, why) = looks(1000, |_| (SECOND, quiet, sample(0, 0)));
        // The first check saw activity.
        assert_eq!(n, 31, "{why:?}");
        assert!(why.expect("a reason").contains("no sign of life for 30 s"));
        assert_eq!(looks(1000, |_| (SECOND, Signs { slow: true, ..quiet }, sample(0, 0))).0, 121);
        let disk = ProcessVitals { state: b'D', ..sample(0, 0) };
        assert_eq!(looks(1000, |_| (SECOND, quiet, disk)).0, 121);
        // A service that was held up for a minute has not seen a minute of silence.
        assert_eq!(looks(10, |_| (60 * SECOND, quiet, sample(0, 0))), (10, None));
        let beating = |n: u32| Signs { beats: u64::from(n / 20), ..Signs::default() };
        assert_eq!(looks(1000, |n| (SECOND, beating(n), sample(0, 0))), (1000, None));
    }

    #[test]
    fn one_that_takes_too_much_for_long_is_ended() {
        let beating = |n: u32| Signs { beats: n.into(), ..Signs::default() };
        let (n, why) = looks(1000, |n| (SECOND, beating(n), sample(u64::from(n) * 900, 0)));
        assert_eq!(n, 61);
        let why = why.expect("a reason");
        assert!(why.contains("90 % of a core, the limit is 25 %"), "{why}");
        assert_eq!(looks(1000, |n| (SECOND, beating(n), sample(u64::from(n) * 200, 0))), (1000, None));
        // Not for occasional periods of less than a minute.
        let bursts = |n: u32| sample(u64::from(n / 100 * 40 + (n % 100).min(40)) * 1000, 0);
        assert_eq!(looks(1000, |n| (SECOND, beating(n), bursts(n))), (1000, None));
        let (n, why) = looks(1000, |n| (SECOND, beating(n), sample(0, 150 << 20)));
        assert_eq!((n, why.is_some_and(|w| w.contains("150 MB of memory, the limit is 100 MB"))), (5, true));
        assert_eq!(looks(1000, |n| (SECOND, beating(n), sample(0, 250 << 20))).0, 1, "far too much");
    }

    #[test]
    fn the_kernels_numbers_are_read() {
        let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20";
        let page = 4096;
        let read = parse(stat.as_bytes(), "1000 300 100 1 0 2 0").expect("a sample");
        assert_eq!((read.state, read.cpu), (b'S', Duration::from_secs(2)));
        assert_eq!(read.memory % (200 * page), 0);
        assert_eq!(
            (parse(b"", ""), parse(stat.as_bytes(), ""), parse(b"1 (x) R", "1 2 3")),
            (None, None, None)
        );
        assert!(ProcessVitals::of(std::process::id() as i32).is_some_and(|s| s.memory > 0));
        assert_eq!(ProcessVitals::of(i32::MAX), None);
    }
}
