//! The counters available on a machine with two kinds of Arm cores, according to its kernel's files: here modeled
//! after a board with four Cortex-A55, two online Cortex-A76, and one offline CPU.

use std::fs;
use std::path::Path;

use agent::capture::pmc::pmus::MachinePmus;
use agent::capture::pmc::resolve::{WantedCounter, offered, resolve};

/// Events of a Cortex-A55, and additional ones of a Cortex-A76.
const COMMON: &[(&str, &str)] = &[
    ("cpu_cycles", "0x0011"),
    ("inst_retired", "0x0008"),
    ("br_mis_pred", "0x0010"),
    ("l1d_cache", "0x0004"),
    ("l1d_cache_refill", "0x0003"),
    ("l2d_cache_refill", "0x0017"),
    ("mem_access", "0x0013"),
    ("stall_backend", "0x0024"),
];
const A76: &[(&str, &str)] = &[("l3d_cache_refill", "0x002a"), ("ll_cache_miss_rd", "0x0037")];

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
    fs::write(path, format!("{text}\n")).expect("a file");
}

fn pmu(root: &Path, name: &str, kind: u32, cpus: &str, events: &[&[(&str, &str)]]) {
    let at = format!("bus/event_source/devices/{name}");
    put(root, &format!("{at}/type"), &kind.to_string());
    put(root, &format!("{at}/cpus"), cpus);
    put(root, &format!("{at}/format/event"), "config:0-15");
    put(root, &format!("{at}/format/long"), "config1:0");
    for (event, number) in events.concat() {
        put(root, &format!("{at}/events/{event}"), &format!("event={number}"));
    }
}

fn board() -> (tempfile::TempDir, MachinePmus) {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path();
    pmu(root, "armv8_cortex_a55", 9, "0-3", &[COMMON]);
    pmu(root, "armv8_cortex_a76", 10, "4-6", &[COMMON, A76]);
    // A PMU that belongs to no core: it has a cpumask, and does not count per thread.
    put(root, "bus/event_source/devices/arm_dsu_0/type", "11");
    put(root, "bus/event_source/devices/arm_dsu_0/cpumask", "0");
    put(root, "bus/event_source/devices/arm_dsu_0/events/l3d_cache_refill", "event=0x2a");
    let cpu = "devices/system/cpu";
    put(root, &format!("{cpu}/online"), "0-5");
    put(root, &format!("{cpu}/present"), "0-6");
    put(root, &format!("{cpu}/possible"), "0-7");
    put(root, &format!("{cpu}/cpu0/cache/index0/coherency_line_size"), "64");
    let machine = MachinePmus::read(root);
    (dir, machine)
}

fn places(w: &WantedCounter) -> Vec<(&str, u32, u64)> {
    w.places.iter().map(|p| (p.shown.as_str(), p.event.kind, p.event.config[0])).collect()
}

#[test]
fn each_kind_of_core_has_its_own_number() {
    let (_dir, m) = board();
    assert_eq!((m.online.len(), m.offline.as_slice(), m.possible, m.line), (6, &[6][..], 8, 64));
    let cpus: Vec<_> = m.pmus.iter().map(|p| (p.name.as_str(), p.cpus.as_slice())).collect();
    assert_eq!(cpus, [("armv8_cortex_a55", &[0, 1, 2, 3][..]), ("armv8_cortex_a76", &[4, 5])]);

    let cycles = resolve(&m, "cycles");
    let both = [("armv8_cortex_a55/0x11", 9, 0x11), ("armv8_cortex_a76/0x11", 10, 0x11)];
    assert_eq!((places(&cycles), cycles.lacks.len()), (both.to_vec(), 0));
    let event = cycles.places[0].event;
    assert!(event.user && !event.kernel && cycles.places[0].hardware);
    assert!(resolve(&m, "cycles:uk").places.iter().all(|p| p.event.user && p.event.kernel));
    assert_eq!(places(&resolve(&m, "cpu_cycles")), both);
    // The first alias that a core has.
    assert_eq!(places(&resolve(&m, "branch-misses")).len(), 2);
    assert_eq!(
        places(&resolve(&m, "cache-misses")),
        [("armv8_cortex_a55/0x3", 9, 3), ("armv8_cortex_a76/0x37", 10, 0x37)]
    );
}

#[test]
fn what_a_core_does_not_list_it_does_not_have() {
    let (_dir, m) = board();
    let refill = resolve(&m, "l3d_cache_refill");
    assert_eq!(places(&refill), [("armv8_cortex_a76/0x2a", 10, 0x2a)]);
    assert_eq!(refill.lacks, ["not listed by armv8_cortex_a55 (CPUs 0-3)"]);
    assert_eq!(refill.unit.reported(64), ("bytes", 64));
    // Not listed by any core: to be tried.
    let stores = resolve(&m, "mem_access_wr");
    assert_eq!((places(&stores).len(), stores.unit.reported(64)), (2, ("bytes", 16)));
    let offers = offered(&m.pmus[0]);
    assert!(offers.iter().any(|n| n == "cycles") && offers.iter().any(|n| n == "mem_access_wr"));
    assert!(!offers.iter().any(|n| n == "ll_cache_miss_rd" || n == "stalled-cycles-frontend"));
    let stall = resolve(&m, "stall_frontend");
    assert!(stall.places.is_empty() && stall.lacks.len() == 2, "{stall:?}");
}

#[test]
fn raw_numbers_software_and_names_that_nobody_knows() {
    let (_dir, m) = board();
    let raw = resolve(&m, "r001b");
    assert_eq!(places(&raw), [("armv8_cortex_a55/0x1b", 9, 0x1b), ("armv8_cortex_a76/0x1b", 10, 0x1b)]);
    let faults = resolve(&m, "major-faults");
    assert_eq!(places(&faults), [("software/major-faults", 1, 6)]);
    assert_eq!(faults.places[0].cpus, [0, 1, 2, 3, 4, 5]);
    assert!(faults.places[0].event.user && faults.places[0].event.kernel);
    let own = resolve(&m, "context-switches");
    assert!(own.own.is_some() && own.places.is_empty() && own.lacks.is_empty());
    for (wrong, near) in
        [("l3d_cache_refil", "l3d_cache_refill"), ("cylces", "cycles"), ("page-fault", "page-faults")]
    {
        let w = resolve(&m, wrong);
        assert!(w.places.is_empty() && w.own.is_none());
        assert!(w.lacks[0].contains(near), "{wrong}: {:?}", w.lacks);
    }
    let none = resolve(&MachinePmus { online: vec![0], ..MachinePmus::default() }, "cycles");
    assert!(none.lacks[0].contains("no hardware PMU"), "{none:?}");
}
