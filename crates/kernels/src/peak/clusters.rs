//! Groups cores of the same kind into clusters.

use crate::pin;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Cores of one kind that this process may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreCluster {
    pub name: String,
    pub cpus: Vec<usize>,
}

/// The clusters of this machine, fastest first as far as the kernel reports it; at least one with one CPU.
pub fn of_this_machine() -> Vec<CoreCluster> {
    let mut cpus = pin::cpus();
    if cpus.is_empty() {
        cpus = (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect();
    }
    of(&cpus, Path::new("/sys/devices"))
}

/// Cores are of one kind if the kernel reports the same capacity, the same identification register (arm64) and
/// the same hybrid core type (x86) for them.
fn of(cpus: &[usize], devices: &Path) -> Vec<CoreCluster> {
    let efficient = cpu_list(&read(&devices.join("cpu_atom/cpus")));
    let mut kinds: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for cpu in cpus {
        let at = devices.join(format!("system/cpu/cpu{cpu}"));
        let capacity = read(&at.join("cpu_capacity")).parse::<u32>().unwrap_or(0);
        let midr = read(&at.join("regs/identification/midr_el1"));
        let kind = (efficient.contains(cpu), std::cmp::Reverse(capacity), midr);
        kinds.entry(kind).or_default().push(*cpu);
    }
    let several = kinds.len() > 1;
    let name = |(efficient, capacity, midr): &(bool, std::cmp::Reverse<u32>, String)| {
        if !several {
            return "all".to_owned();
        }
        match (efficient, capacity.0, arm_core(midr)) {
            (_, _, Some(core)) => core.to_owned(),
            (true, 0, _) => "efficient".to_owned(),
            (false, 0, _) => "performance".to_owned(),
            (_, capacity, _) => format!("capacity {capacity}"),
        }
    };
    let cores: Vec<_> = kinds.keys().map(|kind| arm_core(&kind.2)).collect();
    let named = kinds.iter().map(|(kind, cpus)| {
        // A fast and a slow cluster may have the same core type.
        let twins = cores.iter().flatten().filter(|core| Some(**core) == arm_core(&kind.2)).count() > 1;
        let more = if twins { format!(", capacity {}", kind.1.0) } else { String::new() };
        CoreCluster { name: name(kind) + &more, cpus: cpus.clone() }
    });
    named.collect()
}

/// Name of an Arm core, from the part number in its identification register. Source:
/// arch/arm64/include/asm/cputype.h.
fn arm_core(midr: &str) -> Option<&'static str> {
    let midr = u64::from_str_radix(midr.strip_prefix("0x")?, 16).ok()?;
    if midr >> 24 & 0xFF != 0x41 {
        return None;
    }
    Some(match midr >> 4 & 0xFFF {
        0xD03 => "Cortex-A53",
        0xD05 => "Cortex-A55",
        0xD08 => "Cortex-A72",
        0xD09 => "Cortex-A73",
        0xD0B => "Cortex-A76",
        0xD41 => "Cortex-A78",
        0xD44 => "Cortex-X1",
        0xD46 => "Cortex-A510",
        0xD47 => "Cortex-A710",
        0xD48 => "Cortex-X2",
        0xD4D => "Cortex-A715",
        0xD4E => "Cortex-X3",
        0xD80 => "Cortex-A520",
        0xD81 => "Cortex-A720",
        0xD82 => "Cortex-X4",
        _ => return None,
    })
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default()
}

/// A list like `0-3,8`.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse().ok()?..=to.parse::<usize>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn a_board_with_two_kinds_of_cores() {
        let root = tempfile::tempdir().expect("a directory");
        for cpu in 0..4 {
            let big = cpu >= 2;
            let (capacity, midr) =
                if big { ("1024\n", "0x00000000414fd0b1\n") } else { ("414\n", "0x412fd050") };
            write(root.path(), &format!("system/cpu/cpu{cpu}/cpu_capacity"), capacity);
            write(root.path(), &format!("system/cpu/cpu{cpu}/regs/identification/midr_el1"), midr);
        }
        let big = CoreCluster { name: "Cortex-A76".to_owned(), cpus: vec![2, 3] };
        let little = CoreCluster { name: "Cortex-A55".to_owned(), cpus: vec![0, 1] };
        assert_eq!(of(&[0, 1, 2, 3], root.path()), [big.clone(), little]);
        assert_eq!(of(&[2, 3], root.path()), [CoreCluster { name: "all".to_owned(), ..big }]);
    }

    #[test]
    fn a_prime_core_beside_others_of_its_kind() {
        let root = tempfile::tempdir().expect("a directory");
        for (cpu, capacity) in [(0, "871"), (1, "1024")] {
            write(root.path(), &format!("system/cpu/cpu{cpu}/cpu_capacity"), capacity);
            write(root.path(), &format!("system/cpu/cpu{cpu}/regs/identification/midr_el1"), "0x414fd0b1");
        }
        let names: Vec<String> = of(&[0, 1], root.path()).into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["Cortex-A76, capacity 1024", "Cortex-A76, capacity 871"]);
    }

    #[test]
    fn a_laptop_with_efficient_cores() {
        let root = tempfile::tempdir().expect("a directory");
        write(root.path(), "cpu_atom/cpus", "2-3,5\n");
        let fast = CoreCluster { name: "performance".to_owned(), cpus: vec![0, 1, 4] };
        let slow = CoreCluster { name: "efficient".to_owned(), cpus: vec![2, 3, 5] };
        assert_eq!(of(&[0, 1, 2, 3, 4, 5], root.path()), [fast, slow]);
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!(of_this_machine().iter().all(|c| !c.cpus.is_empty()));
        assert!(!of_this_machine().is_empty());
    }
}
