//! The kernel's Energy Model: what the CPUs of a performance domain take at each frequency, as the kernel believes.
//! Times the time that each CPU was busy, that is an estimate of the CPUs' energy, on machines without any meter. It
//! knows nothing of memory, of leakage by temperature, or of what the CPUs do: a model, and named so everywhere.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::cpu_times::CpuTimes;
use super::found::{self, Found, FoundSensor, Roots, entries, file_name, label, number, text};
use super::gauge::{self, Gauge};
use common::order;
use pfi::record::{SensorKind, SensorOrigin};

/// Flags of a domain (include/linux/energy_model.h): the power is in µW (in mW before 6.0, where the same bit is set by
/// 5.19); the power is on an abstract scale.
const MICROWATTS: u64 = 1 << 0;
const ARTIFICIAL: u64 = 1 << 2;
/// Least power of a CPU at its highest frequency, µW. A smaller one that is said to be in µW is in mW.
const LEAST_TOP: u64 = 10_000;
/// More than any CPU takes, µW.
const MOST_TOP: u64 = 100_000_000;
/// Performance states, CPUs of a domain and domains that are read.
const MOST_STATES: usize = 256;
const MOST_CPUS: usize = 1024;
const MOST_DOMAINS: usize = 16;
/// Ticks of /proc/stat and of time_in_state in a second (USER_HZ).
const TICKS: u128 = 100;

/// A domain as the kernel describes it.
#[derive(Debug, PartialEq, Eq)]
struct Domain {
    /// As listed, e.g. `0-3`.
    list: String,
    cpus: Vec<usize>,
    states: Vec<State>,
}

/// What a CPU takes at a frequency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    khz: u64,
    micro_watts: u64,
}

/// Adds a counter of energy for each performance domain, or says why there is none.
pub fn find(roots: &Roots, found: &mut Found) {
    let dir = roots.debugfs.join("energy_model");
    let domains: Vec<PathBuf> =
        entries(&dir, "").into_iter().filter(|d| d.join("cpus").is_file()).take(MOST_DOMAINS).collect();
    if domains.is_empty() {
        return;
    }
    let times = match CpuTimes::open(&roots.proc).and_then(|mut t| t.refresh().map(|()| t)) {
        Ok(times) => Arc::new(Mutex::new(times)),
        Err(e) => {
            return found
                .remark(format!("Energy Model is not used: {}: {e}", roots.proc.join("stat").display()));
        }
    };
    let mut leads = true;
    for path in domains {
        let made = domain(&path).and_then(|domain| {
            let gauge = ModelGauge::new(&domain, &roots.sysfs, Arc::clone(&times), leads)?;
            Ok((domain, gauge))
        });
        match made {
            Ok((domain, gauge)) => {
                leads = false;
                let name = format!("model of CPUs {}", domain.list);
                let sensor = FoundSensor::new(name, SensorKind::Energy, path, Box::new(gauge));
                let sensor = FoundSensor { cpus: domain.list, ..sensor };
                found.sensors.push(sensor.from(SensorOrigin::Model));
            }
            Err(why) => found.remark(format!("Energy Model {} is not used: {why}", file_name(&path))),
        }
    }
}

/// Reads a domain's directory: `cpus`, `flags` or `units` where there is one, and a directory for each state, `ps:KHZ`
/// or `cs:KHZ`.
fn domain(dir: &Path) -> Result<Domain, String> {
    let list = label(dir.join("cpus")).ok_or("no CPUs")?;
    let cpus = cpus(&list).ok_or_else(|| format!("bad list of CPUs '{list}'"))?;
    let state = |at: &PathBuf| {
        let (khz, micro_watts) = (number(at.join("frequency"))?, number(at.join("power"))?);
        (khz > 0).then_some(State { khz, micro_watts })
    };
    let all = [entries(dir, "ps:"), entries(dir, "cs:")].concat();
    let mut states: Vec<State> = all.iter().take(MOST_STATES).filter_map(state).collect();
    order::by_key(&mut states, |s| (s.khz, 0));
    let top = states.last().ok_or("no performance states")?.micro_watts;
    let units = text(dir.join("units"));
    let hex = |t: String| u64::from_str_radix(t.trim_start_matches("0x"), 16).ok();
    let factor = match text(dir.join("flags")) {
        Some(flags) => match hex(flags.clone()).ok_or_else(|| format!("bad flags '{flags}'"))? {
            flags if flags & ARTIFICIAL != 0 || flags & MICROWATTS == 0 => {
                return Err("its power is on an abstract scale".into());
            }
            _ if top < LEAST_TOP => 1000,
            _ => 1,
        },
        None if units.is_some_and(|u| u != "milliWatts") => {
            return Err("its power is on an abstract scale".into());
        }
        // Before 5.19 power is in mW.
        None => 1000,
    };
    states.iter_mut().for_each(|s| s.micro_watts = s.micro_watts.saturating_mul(factor));
    let top = states.iter().map(|s| s.micro_watts).max().unwrap_or(0);
    if top == 0 || top > MOST_TOP {
        return Err(format!("{:.3} W for a CPU is impossible", top as f64 / 1e6));
    }
    Ok(Domain { list, cpus, states })
}

/// The CPUs of a list like `0-3,8`, or of one with blanks.
fn cpus(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split([',', ' ']).filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        let n = last.checked_sub(first)?;
        if n >= MOST_CPUS - all.len() {
            return None;
        }
        all.extend(first..=last);
    }
    (!all.is_empty()).then_some(all)
}

/// A counter of a domain's energy by the model.
struct ModelGauge {
    states: Vec<State>,
    times: Arc<Mutex<CpuTimes>>,
    /// Whether it reads /proc/stat, for itself and for the domains after it.
    leads: bool,
    /// Each CPU, with its busy ticks when last read.
    busy: Vec<(usize, Option<u64>)>,
    /// cpufreq's stats/time_in_state; and how many ticks each frequency had when last read.
    in_state: Option<File>,
    ticks: Vec<(u64, u64)>,
    /// scaling_cur_freq.
    frequency: Option<File>,
    /// µW times ticks.
    total: u128,
}

impl ModelGauge {
    fn new(
        domain: &Domain,
        sysfs: &Path,
        times: Arc<Mutex<CpuTimes>>,
        leads: bool,
    ) -> Result<ModelGauge, String> {
        let owns = |at: &PathBuf| {
            let related = label(at.join("related_cpus")).and_then(|list| cpus(&list)).unwrap_or_default();
            domain.cpus.first().is_some_and(|first| related.contains(first))
        };
        let policy = entries(&sysfs.join("devices/system/cpu/cpufreq"), "policy").into_iter().find(owns);
        let policy = policy.ok_or("its CPUs have no frequency policy")?;
        let in_state = found::open(&policy.join("stats/time_in_state")).ok();
        let frequency = found::open(&policy.join("scaling_cur_freq")).ok();
        if in_state.is_none() && frequency.is_none() {
            return Err(format!("{} shows no frequency", policy.display()));
        }
        let busy = domain.cpus.iter().map(|cpu| (*cpu, None)).collect();
        let states = domain.states.clone();
        let ticks = in_state.as_ref().map(time_in_state).unwrap_or_default();
        Ok(ModelGauge { states, times, leads, busy, in_state, ticks, frequency, total: 0 })
    }

    /// What a CPU takes at a frequency: that of the lowest state that is as fast, as the kernel chooses it.
    fn power(&self, khz: u64) -> u64 {
        let state = self.states.iter().find(|s| s.khz >= khz).or(self.states.last());
        state.map_or(0, |s| s.micro_watts)
    }

    /// Mean power of a CPU since the last call, by the time spent at each frequency, µW.
    fn mean_power(&mut self) -> io::Result<u64> {
        if let Some(file) = &self.in_state {
            let now = time_in_state(file);
            let before = std::mem::replace(&mut self.ticks, now);
            let (mut sum, mut all) = (0u128, 0u128);
            for (khz, ticks) in &self.ticks {
                let old = before.iter().find(|(of, _)| of == khz).map_or(0, |(_, old)| *old);
                let grown = u128::from(ticks.saturating_sub(old));
                all = all.saturating_add(grown);
                sum = sum.saturating_add(grown.saturating_mul(self.power(*khz).into()));
            }
            if let Some(mean) = sum.checked_div(all) {
                return u64::try_from(mean).map_err(io::Error::other);
            }
        }
        // No tick has passed, or there are no statistics.
        let file = self.frequency.as_ref().ok_or_else(|| io::Error::other("no frequency is known"))?;
        let khz = u64::try_from(gauge::number(file)?).map_err(io::Error::other)?;
        Ok(self.power(khz))
    }

    /// Ticks for which its CPUs were busy since the last call.
    fn busy_ticks(&mut self) -> io::Result<u64> {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        if self.leads {
            times.refresh()?;
        }
        let mut sum = 0u64;
        for (cpu, last) in &mut self.busy {
            let Some(now) = times.busy(*cpu) else { continue };
            let old = last.replace(now).unwrap_or(now);
            sum = sum.saturating_add(now.saturating_sub(old));
        }
        Ok(sum)
    }
}

impl Gauge for ModelGauge {
    fn read(&mut self) -> io::Result<i64> {
        let power = self.mean_power()?;
        let ticks = self.busy_ticks()?;
        self.total = self.total.saturating_add(u128::from(power) * u128::from(ticks));
        i64::try_from(self.total / TICKS).map_err(io::Error::other)
    }
}

/// Frequencies, kHz, and the ticks spent at each (Documentation/cpu-freq/cpufreq-stats.rst).
fn time_in_state(file: &File) -> Vec<(u64, u64)> {
    let mut bytes = [0; 4096];
    let len = file.read_at(&mut bytes, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(bytes.get(..len).unwrap_or_default());
    let line = |l: &str| {
        let (khz, ticks) = l.split_once(' ')?;
        Some((khz.parse().ok()?, ticks.trim().parse().ok()?))
    };
    text.lines().filter_map(line).take(MOST_STATES).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    /// A domain of CPUs 0 and 1 with states of 1 and 2 GHz.
    fn made(root: &Path, at: &str, state: &str, powers: [&str; 2]) {
        put(root, &format!("{at}/cpus"), "0-1\n");
        for (khz, power) in ["1000000", "2000000"].iter().zip(powers) {
            put(root, &format!("{at}/{state}:{khz}/frequency"), khz);
            put(root, &format!("{at}/{state}:{khz}/power"), power);
        }
    }

    fn powers(dir: &Path) -> Result<Vec<u64>, String> {
        domain(dir).map(|d| d.states.iter().map(|s| s.micro_watts).collect())
    }

    #[test]
    fn milliwatts_and_microwatts_are_told_apart() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("cpu0");
        made(dir.path(), "cpu0", "ps", ["100", "998"]);
        assert_eq!(powers(&at), Ok(vec![100_000, 998_000]));
        put(dir.path(), "cpu0/units", "milliWatts\n");
        assert_eq!(powers(&at), Ok(vec![100_000, 998_000]));
        put(dir.path(), "cpu0/units", "bogoWatts\n");
        assert!(powers(&at).is_err_and(|e| e.contains("abstract")));
        // 5.19 has the flags and milliwatts.
        put(dir.path(), "cpu0/flags", "0x1\n");
        assert_eq!(powers(&at), Ok(vec![100_000, 998_000]));
        made(dir.path(), "cpu0", "ps", ["100000", "998400"]);
        assert_eq!(powers(&at), Ok(vec![100_000, 998_400]));
        for flags in ["0x0", "0x5", "x", "0x4"] {
            put(dir.path(), "cpu0/flags", flags);
            assert!(powers(&at).is_err(), "{flags}");
        }
        // Early kernels.
        made(dir.path(), "pd0", "cs", ["100", "998"]);
        assert_eq!(powers(&dir.path().join("pd0")), Ok(vec![100_000, 998_000]));
    }

    #[test]
    fn what_is_impossible_is_no_model() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("cpu0");
        for wrong in ["0", "18446744073709551615", "99999999999999999999999", "", "\0\u{1}"] {
            made(dir.path(), "cpu0", "ps", [wrong, wrong]);
            assert!(powers(&at).is_err(), "{wrong:?}");
        }
        made(dir.path(), "cpu0", "ps", ["1", "2"]);
        for wrong in ["", "x", "3-1", "0-99999999999", "18446744073709551615", "0-18446744073709551615"] {
            put(dir.path(), "cpu0/cpus", wrong);
            assert!(powers(&at).is_err() || wrong == "18446744073709551615", "{wrong:?}");
        }
    }

    #[test]
    fn energy_is_power_at_each_frequency_times_busy_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        made(root, "sys/kernel/debug/energy_model/cpu0", "ps", ["100", "900"]);
        let policy = "sys/devices/system/cpu/cpufreq/policy0";
        put(root, &format!("{policy}/related_cpus"), "0 1\n");
        put(root, &format!("{policy}/scaling_cur_freq"), "2000000\n");
        put(root, "proc/stat", "cpu 1 1 1 1\ncpu0 1000 0 0 5\ncpu1 2000 0 0 5\nintr 1\n");
        let mut found = Found::default();
        find(&Roots::of(&root.join("sys")), &mut found);
        assert_eq!(found.remarks, Vec::<String>::new());
        let sensor = &mut found.sensors[0];
        assert_eq!((sensor.name.as_str(), sensor.origin), ("model of CPUs 0-1", SensorOrigin::Model));
        assert_eq!(sensor.gauge.read().ok(), Some(0));
        // Half a second of one CPU and a second of the other, at 0.9 W.
        put(root, "proc/stat", "cpu0 1050 0 0 5\ncpu1 2100 0 0 5\n");
        assert_eq!(sensor.gauge.read().ok(), Some(1_350_000));
        // A CPU that is gone, and one that counts anew.
        put(root, "proc/stat", "cpu1 0 0 0 5\n");
        assert_eq!(sensor.gauge.read().ok(), Some(1_350_000));
        put(root, "proc/stat", "\u{fffd} nothing");
        assert_eq!(sensor.gauge.read().ok(), Some(1_350_000));
        // At a frequency between the states the faster one counts, above them the last.
        put(root, "proc/stat", "cpu0 1050 0 0 5\ncpu1 100 0 0 5\n");
        put(root, &format!("{policy}/scaling_cur_freq"), "1000001\n");
        assert_eq!(sensor.gauge.read().ok(), Some(1_350_000 + 900_000));
        put(root, &format!("{policy}/scaling_cur_freq"), "-5\n");
        assert!(sensor.gauge.read().is_err());
    }

    #[test]
    fn the_time_at_each_frequency_weighs_its_power() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        made(root, "sys/kernel/debug/energy_model/cpu0", "ps", ["100", "900"]);
        let policy = "sys/devices/system/cpu/cpufreq/policy0";
        put(root, &format!("{policy}/related_cpus"), "0 1\n");
        put(root, &format!("{policy}/stats/time_in_state"), "1000000 50\n2000000 70\n");
        put(root, "proc/stat", "cpu0 0 0 0 5\ncpu1 0 0 0 5\n");
        let mut found = Found::default();
        find(&Roots::of(&root.join("sys")), &mut found);
        let gauge = &mut found.sensors[0].gauge;
        assert!(gauge.read().is_err(), "no tick has passed, and no frequency is shown");
        put(root, &format!("{policy}/scaling_cur_freq"), "1000000\n");
        put(root, &format!("{policy}/stats/time_in_state"), "1000000 53\n2000000 71\n");
        assert_eq!(gauge.read().ok(), Some(0));
        put(root, &format!("{policy}/stats/time_in_state"), "1000000 56\n2000000 72\n");
        put(root, "proc/stat", "cpu0 100 0 0 5\ncpu1 0 0 0 5\n");
        // Three quarters at 0.1 W, one at 0.9 W.
        assert_eq!(gauge.read().ok(), Some(300_000));
    }
}
