//! The PMUs of the cores, as listed in sysfs: one for each kind of core.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::order;

/// Limit on CPU numbers in a kernel list.
const MAX_CPU: u32 = 4096;

/// The PMU of one kind of core.
#[derive(Debug, Clone, Default)]
pub struct Pmu {
    /// E.g. `armv8_cortex_a55`, `cpu`.
    pub name: String,
    /// Number for perf_event_attr.type.
    pub kind: u32,
    /// Online CPUs that have it.
    pub cpus: Vec<u32>,
    /// Events that it lists, e.g. `cpu_cycles` as `event=0x11`.
    pub events: BTreeMap<String, String>,
    /// Bit positions of an event's parts, e.g. `event` at `config:0-15`.
    formats: BTreeMap<String, String>,
}

/// What is available for counting on this machine.
#[derive(Debug, Clone, Default)]
pub struct MachinePmus {
    pub pmus: Vec<Pmu>,
    /// CPUs that are online; that are present and offline; one more than the highest possible CPU number.
    pub online: Vec<u32>,
    pub offline: Vec<u32>,
    pub possible: u32,
    /// Bytes of a cache line.
    pub line: u32,
}

/// CPUs of a list in the kernel's format (`0-3,6`).
pub fn cpus(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last < MAX_CPU).then_some(first..=last)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// The same list for people.
pub fn shown(cpus: &[u32]) -> String {
    let mut text = String::new();
    let mut i = 0;
    while i < cpus.len() {
        let mut last = i;
        while cpus.get(last + 1) == Some(&(cpus[last] + 1)) {
            last += 1;
        }
        let comma = if text.is_empty() { "" } else { "," };
        match last - i {
            0 => text += &format!("{comma}{}", cpus[i]),
            _ => text += &format!("{comma}{}-{}", cpus[i], cpus[last]),
        }
        i = last + 1;
    }
    text
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

/// Files of a directory with their contents.
fn files(dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(dir) else { return BTreeMap::new() };
    let named = entries
        .filter_map(|e| Some((e.as_ref().ok()?.file_name().into_string().ok()?, text(&e.ok()?.path())?)));
    // Files such as `mem-loads.scale` describe events and are not events themselves.
    let mut files = BTreeMap::new();
    files.extend(named.filter(|(name, _)| !name.contains('.')));
    files
}

impl Pmu {
    fn read(dir: &Path, online: &[u32]) -> Option<Pmu> {
        let name = dir.file_name()?.to_str()?.to_owned();
        // PMUs of cores name their CPUs; on x86 one PMU serves all CPUs and names none.
        let cpus = match text(&dir.join("cpus")) {
            Some(list) => cpus(&list).into_iter().filter(|c| online.contains(c)).collect(),
            None if name == "cpu" => online.to_vec(),
            None => return None,
        };
        let kind = text(&dir.join("type"))?.parse().ok()?;
        Some(Pmu {
            name,
            kind,
            cpus,
            events: files(&dir.join("events")),
            formats: files(&dir.join("format")),
        })
    }

    /// Whether its event numbers are those of the Arm architecture.
    pub fn arm(&self) -> bool {
        self.name.starts_with("armv") || self.events.contains_key("cpu_cycles")
    }

    /// config, config1 and config2 of an event in sysfs syntax (`event=0x3c,umask=0x01`). None: not understood.
    pub fn encode(&self, event: &str) -> Option<[u64; 3]> {
        let mut out = [0; 3];
        for term in event.split(',') {
            let (name, value) = term.trim().split_once('=').unwrap_or((term.trim(), "1"));
            let value = match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok()?,
                None => value.parse().ok()?,
            };
            let (word, bits) = self.formats.get(name)?.split_once(':')?;
            let word = ["config", "config1", "config2"].iter().position(|w| *w == word)?;
            out[word] |= spread(value, bits)?;
        }
        Some(out)
    }
}

/// Puts the value's bits at the positions of a format such as `0-7,32-35`.
fn spread(mut value: u64, bits: &str) -> Option<u64> {
    let mut out = 0;
    for range in bits.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let width = last.checked_sub(first)? + 1;
        let mask = u64::MAX.checked_shr(64u32.checked_sub(width)?)?;
        out |= (value & mask).checked_shl(first)?;
        value = value.checked_shr(width).unwrap_or(0);
    }
    Some(out)
}

impl MachinePmus {
    /// Reads everything under `root`, which is `/sys` except in tests.
    pub fn read(root: &Path) -> MachinePmus {
        let cpu = root.join("devices/system/cpu");
        let list = |name: &str| text(&cpu.join(name)).map(|t| cpus(&t)).unwrap_or_default();
        let mut online = list("online");
        if online.is_empty() {
            online.push(0);
        }
        let offline = list("present").into_iter().filter(|c| !online.contains(c)).collect();
        let possible = list("possible").into_iter().chain(online.iter().copied()).max().unwrap_or(0) + 1;
        let devices = fs::read_dir(root.join("bus/event_source/devices"));
        let dirs = devices.into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
        let mut pmus: Vec<Pmu> = dirs.filter_map(|d| Pmu::read(&d, &online)).collect();
        order::by(&mut pmus, |a, b| (&a.cpus, &a.name).cmp(&(&b.cpus, &b.name)));
        let line = (0..4)
            .find_map(|i| text(&cpu.join(format!("cpu{}/cache/index{i}/coherency_line_size", online[0]))));
        let line = line.and_then(|t| t.parse().ok()).filter(|l| *l > 0).unwrap_or(64);
        MachinePmus { pmus, online, offline, possible, line }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_both_ways() {
        assert_eq!(cpus("0-3,6\n"), [0, 1, 2, 3, 6]);
        assert!(cpus("").is_empty() && cpus("x,-,3-99999999").is_empty());
        for list in ["0-3,6", "0", "0,2,4-5", ""] {
            assert_eq!(shown(&cpus(list)), list);
        }
    }

    #[test]
    fn events_are_put_together_as_the_format_says() {
        let of =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let formats = of(&[
            ("event", "config:0-7,32-35"),
            ("umask", "config:8-15"),
            ("edge", "config:18"),
            ("ldlat", "config1:0-15"),
            ("odd", "config9:1"),
        ]);
        let p = Pmu { formats, ..Pmu::default() };
        assert_eq!(p.encode("event=0x1c2,umask=0x03"), Some([0x1_0000_03c2, 0, 0]));
        assert_eq!(p.encode("event=0xcd,ldlat=3,edge"), Some([0x400cd, 3, 0]));
        for bad in ["", "event=", "what=1", "odd=1", "event=zz"] {
            assert_eq!(p.encode(bad), None, "{bad}");
        }
        assert!(spread(1, "9-3").is_none() && spread(1, "0-64").is_none() && spread(1, "70").is_none());
    }
}
