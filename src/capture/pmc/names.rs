//! Names of counters, and their event numbers.
//!
//! Numbers of software and generic events are the kernel's (include/uapi/linux/perf_event.h). Arm's are those of
//! the Arm Architecture Reference Manual (DDI 0487, "PMU events and event numbers"): 0x0000 to 0x003f and 0x4000 to
//! 0x403f are common events, which a core announces and the kernel then lists in sysfs; 0x0040 to 0x00bf are
//! recommended and not announced, and a core's manual says which of them it has: Cortex-A55 100442, A76 100798, A78
//! 101430, X1 101433, X2 101803, A720 102530, X4 102484, Neoverse N1 100616, N2 102099, V1 101427.

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterUnit {
    Events,
    /// Cache lines, reported in bytes.
    Lines,
    /// Loads and stores, reported in the bytes that each moves at most.
    Accesses,
    Nanoseconds,
}

/// Bytes of a load or store of one vector register (NEON, 128 bits), as ProfInfer counts `mem_access_wr` (table 3).
const ACCESS: u32 = 16;

impl CounterUnit {
    /// As it is called in a trace, and how many of it one count is. `line`: bytes of a cache line.
    pub fn reported(self, line: u32) -> (&'static str, u32) {
        match self {
            CounterUnit::Events => ("events", 1),
            CounterUnit::Lines => ("bytes", line),
            CounterUnit::Accesses => ("bytes", ACCESS),
            CounterUnit::Nanoseconds => ("ns", 1),
        }
    }
}

/// Counted by our own program at context switches: the kernel's own counters for these change too late, when the
/// next thread is already the one that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnCounter {
    Switches,
    Migrations,
}

/// What to request from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterCode {
    Own(OwnCounter),
    /// PERF_TYPE_SOFTWARE.
    Software(u64),
    /// PERF_TYPE_HARDWARE (0) or PERF_TYPE_HW_CACHE (3); on an Arm core, the first of the listed events that it has.
    Generic(u32, u64, &'static [&'static str]),
    /// An event number of the Arm architecture.
    Arm(u16),
}

/// A counter name.
#[derive(Debug, Clone, Copy)]
pub struct CounterName {
    pub group: &'static str,
    pub name: &'static str,
    pub code: CounterCode,
    pub unit: CounterUnit,
    pub what: &'static str,
}

const fn own(name: &'static str, own: OwnCounter, what: &'static str) -> CounterName {
    CounterName { group: "software", name, code: CounterCode::Own(own), unit: CounterUnit::Events, what }
}

const fn soft(name: &'static str, n: u64, unit: CounterUnit, what: &'static str) -> CounterName {
    CounterName { group: "software", name, code: CounterCode::Software(n), unit, what }
}

const fn hw(name: &'static str, n: u64, arm: &'static [&'static str], what: &'static str) -> CounterName {
    CounterName {
        group: "generic",
        name,
        code: CounterCode::Generic(0, n, arm),
        unit: CounterUnit::Events,
        what,
    }
}

/// Cache, operation (0 read, 1 write) and result (0 access, 1 miss), as encoded for PERF_TYPE_HW_CACHE.
const fn cache(name: &'static str, cache: u64, op: u64, miss: u64, what: &'static str) -> CounterName {
    let code = CounterCode::Generic(3, cache | op << 8 | miss << 16, &[]);
    CounterName { group: "generic", name, code, unit: CounterUnit::Events, what }
}

const fn arm(group: &'static str, n: u16, name: &'static str, what: &'static str) -> CounterName {
    CounterName { group, name, code: CounterCode::Arm(n), unit: CounterUnit::Events, what }
}

const fn lines(group: &'static str, n: u16, name: &'static str, what: &'static str) -> CounterName {
    CounterName { group, name, code: CounterCode::Arm(n), unit: CounterUnit::Lines, what }
}

const fn accesses(n: u16, name: &'static str, what: &'static str) -> CounterName {
    CounterName { group: "memory", name, code: CounterCode::Arm(n), unit: CounterUnit::Accesses, what }
}

/// All names, by group.
pub const NAMES: &[CounterName] = &[
    soft("task-clock", 1, CounterUnit::Nanoseconds, "time on a CPU"),
    soft("page-faults", 2, CounterUnit::Events, "page faults"),
    soft("minor-faults", 5, CounterUnit::Events, "page faults served from memory"),
    soft("major-faults", 6, CounterUnit::Events, "page faults that waited for storage"),
    soft("alignment-faults", 7, CounterUnit::Events, "unaligned accesses fixed up by the kernel"),
    soft("emulation-faults", 8, CounterUnit::Events, "instructions emulated by the kernel"),
    own("context-switches", OwnCounter::Switches, "context switches"),
    own("cpu-migrations", OwnCounter::Migrations, "migrations to another CPU"),
    hw("cycles", 0, &["cpu_cycles"], "core cycles"),
    hw("instructions", 1, &["inst_retired"], "instructions retired"),
    hw("cache-references", 2, &["ll_cache_rd", "l1d_cache"], "cache accesses; the level depends on the CPU"),
    hw("cache-misses", 3, &["ll_cache_miss_rd", "l1d_cache_refill"], "misses of that cache"),
    hw("branches", 4, &["br_retired", "pc_write_retired"], "branches retired"),
    hw("branch-misses", 5, &["br_mis_pred_retired", "br_mis_pred"], "mispredicted branches"),
    hw("bus-cycles", 6, &["bus_cycles"], "bus cycles"),
    hw("stalled-cycles-frontend", 7, &["stall_frontend"], "cycles stalled in the frontend"),
    hw("stalled-cycles-backend", 8, &["stall_backend"], "cycles stalled in the backend"),
    hw("ref-cycles", 9, &["cnt_cycles"], "reference cycles at constant frequency"),
    cache("L1-dcache-loads", 0, 0, 0, "level 1 data cache loads"),
    cache("L1-dcache-load-misses", 0, 0, 1, "level 1 data cache load misses"),
    cache("L1-dcache-stores", 0, 1, 0, "level 1 data cache stores"),
    cache("LLC-loads", 2, 0, 0, "last-level cache loads"),
    cache("LLC-load-misses", 2, 0, 1, "last-level cache load misses"),
    cache("LLC-stores", 2, 1, 0, "last-level cache stores"),
    cache("LLC-store-misses", 2, 1, 1, "last-level cache store misses"),
    cache("dTLB-loads", 3, 0, 0, "data TLB loads"),
    cache("dTLB-load-misses", 3, 0, 1, "data TLB load misses"),
    arm("core", 0x11, "cpu_cycles", "cycles"),
    arm("core", 0x08, "inst_retired", "instructions retired"),
    arm("core", 0x1b, "inst_spec", "instructions executed speculatively"),
    arm("core", 0x3a, "op_retired", "micro-operations retired"),
    arm("core", 0x3b, "op_spec", "micro-operations executed speculatively"),
    arm("core", 0x4004, "cnt_cycles", "constant-frequency timer cycles"),
    arm("stall", 0x23, "stall_frontend", "cycles stalled in the frontend"),
    arm("stall", 0x24, "stall_backend", "cycles stalled in the backend"),
    arm("stall", 0x3c, "stall", "cycles without an instruction issued"),
    arm("stall", 0x3d, "stall_slot_backend", "slots stalled in the backend"),
    arm("stall", 0x3e, "stall_slot_frontend", "slots stalled in the frontend"),
    arm("stall", 0x3f, "stall_slot", "stalled slots"),
    arm("stall", 0x4005, "stall_backend_mem", "cycles stalled on memory"),
    arm("branch", 0x10, "br_mis_pred", "mispredicted branches, speculative included"),
    arm("branch", 0x12, "br_pred", "predictable branches, speculative included"),
    arm("branch", 0x21, "br_retired", "branches retired"),
    arm("branch", 0x22, "br_mis_pred_retired", "mispredicted branches retired"),
    arm("branch", 0x0c, "pc_write_retired", "changes of the program counter by software"),
    arm("level 1", 0x04, "l1d_cache", "accesses"),
    lines("level 1", 0x03, "l1d_cache_refill", "lines fetched"),
    lines("level 1", 0x15, "l1d_cache_wb", "lines written back"),
    arm("level 1", 0x39, "l1d_cache_lmiss_rd", "reads that missed and waited"),
    arm("level 1", 0x14, "l1i_cache", "instruction accesses"),
    lines("level 1", 0x01, "l1i_cache_refill", "instruction lines fetched"),
    arm("level 1", 0x40, "l1d_cache_rd", "reads"),
    arm("level 1", 0x41, "l1d_cache_wr", "writes"),
    lines("level 1", 0x42, "l1d_cache_refill_rd", "lines fetched for reads"),
    lines("level 1", 0x43, "l1d_cache_refill_wr", "lines fetched for writes"),
    arm("level 2", 0x16, "l2d_cache", "accesses"),
    lines("level 2", 0x17, "l2d_cache_refill", "lines fetched"),
    lines("level 2", 0x18, "l2d_cache_wb", "lines written back"),
    arm("level 2", 0x20, "l2d_cache_allocate", "lines allocated without fetching"),
    arm("level 2", 0x50, "l2d_cache_rd", "reads"),
    arm("level 2", 0x51, "l2d_cache_wr", "writes"),
    lines("level 2", 0x52, "l2d_cache_refill_rd", "lines fetched for reads"),
    lines("level 2", 0x53, "l2d_cache_refill_wr", "lines fetched for writes"),
    arm("level 3", 0x2b, "l3d_cache", "accesses"),
    lines("level 3", 0x2a, "l3d_cache_refill", "lines fetched"),
    lines("level 3", 0x2c, "l3d_cache_wb", "lines written back"),
    arm("level 3", 0x29, "l3d_cache_allocate", "lines allocated without fetching"),
    arm("level 3", 0xa0, "l3d_cache_rd", "reads"),
    lines("level 3", 0xa2, "l3d_cache_refill_rd", "lines fetched for reads"),
    arm("last level", 0x32, "ll_cache", "accesses"),
    lines("last level", 0x33, "ll_cache_miss", "accesses that missed"),
    arm("last level", 0x36, "ll_cache_rd", "reads"),
    lines("last level", 0x37, "ll_cache_miss_rd", "reads that missed"),
    accesses(0x13, "mem_access", "loads and stores, 16 bytes each at most"),
    accesses(0x66, "mem_access_rd", "loads, 16 bytes each at most"),
    accesses(0x67, "mem_access_wr", "stores, 16 bytes each at most"),
    arm("memory", 0x19, "bus_access", "beats on the bus"),
    arm("memory", 0x60, "bus_access_rd", "beats that read"),
    arm("memory", 0x61, "bus_access_wr", "beats that write"),
    arm("memory", 0x1d, "bus_cycles", "bus cycles"),
    arm("memory", 0x31, "remote_access", "accesses to another socket"),
    arm("TLB", 0x25, "l1d_tlb", "data address translations"),
    arm("TLB", 0x05, "l1d_tlb_refill", "misses of those"),
    arm("TLB", 0x2f, "l2d_tlb", "translations, level 2"),
    arm("TLB", 0x2d, "l2d_tlb_refill", "misses of those"),
    arm("TLB", 0x34, "dtlb_walk", "page table walks for data"),
    arm("TLB", 0x35, "itlb_walk", "page table walks for instructions"),
    arm("instructions", 0x70, "ld_spec", "loads executed speculatively"),
    arm("instructions", 0x71, "st_spec", "stores executed speculatively"),
    arm("instructions", 0x73, "dp_spec", "integer operations executed speculatively"),
    arm("instructions", 0x74, "ase_spec", "vector operations executed speculatively"),
    arm("instructions", 0x75, "vfp_spec", "scalar floating-point operations executed speculatively"),
];

/// Other spellings of the names above.
const ALIASES: &[(&str, &str)] = &[
    ("cpu-cycles", "cycles"),
    ("branch-instructions", "branches"),
    ("faults", "page-faults"),
    ("cs", "context-switches"),
    ("migrations", "cpu-migrations"),
    ("cpu-clock", "task-clock"),
];

/// The entry of a name or an alias, ignoring case.
pub fn find(name: &str) -> Option<&'static CounterName> {
    let name = ALIASES.iter().find(|a| a.0.eq_ignore_ascii_case(name)).map_or(name, |a| a.1);
    NAMES.iter().find(|n| n.name.eq_ignore_ascii_case(name))
}

/// The number in `rNNN`, hexadecimal as in perf.
pub fn raw(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('r').filter(|d| !d.is_empty() && !d.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok()
}

/// The three of `known` that are most similar to `name`.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let name = name.to_ascii_lowercase().replace('_', "-");
    let mut all: Vec<(usize, &str)> =
        known.map(|k| (distance(&name, &k.to_ascii_lowercase().replace('_', "-")), k)).collect();
    common::order::by(&mut all, |a, b| a.cmp(b));
    all.dedup();
    all.truncate(3);
    all.into_iter().map(|(_, k)| k).collect()
}

/// Edit distance; 1 if `b` contains `a`.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 2 && b.contains(a) {
        return 1;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_once_and_in_any_case() {
        for (i, n) in NAMES.iter().enumerate() {
            assert!(NAMES[..i].iter().all(|o| o.name != n.name && o.code != n.code), "{}", n.name);
        }
        assert_eq!(find("L3D_CACHE_REFILL").map(|n| n.code), Some(CounterCode::Arm(0x2a)));
        assert_eq!(find("cpu-cycles").map(|n| n.name), Some("cycles"));
        assert!(find("cylces").is_none());
        for n in NAMES {
            if let CounterCode::Generic(_, _, arm) = n.code {
                assert!(
                    arm.iter().all(|a| matches!(find(a).map(|n| n.code), Some(CounterCode::Arm(_)))),
                    "{}",
                    n.name
                );
            }
        }
    }

    #[test]
    fn raw_numbers_and_near_names() {
        assert_eq!((raw("r11"), raw("r00C0")), (Some(0x11), Some(0xc0)));
        assert!(raw("r").is_none() && raw("rx").is_none() && raw("r+1").is_none() && raw("11").is_none());
        let near = |name| nearest(name, NAMES.iter().map(|n| n.name));
        assert_eq!(near("cylces")[0], "cycles");
        assert_eq!(near("l3d-cache-refil")[0], "l3d_cache_refill");
        assert_eq!(near("major-fault")[0], "major-faults");
        assert_eq!(nearest("x", ["abc"].into_iter()), ["abc"]);
    }
}
