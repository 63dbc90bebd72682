//! Tests of the sampler, on synthetic sysfs trees.

use std::fs::{self, File};
use std::path::Path;

use super::*;
use pfi::record::{Record, SensorKind};
use pfi::{EncoderConfig, Trace};

/// Writes a file that a gauge may have open and read at any moment: it is never empty.
fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a path in a tree")).expect("a directory");
    let mut file = File::options().write(true).create(true).truncate(false).open(path).expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    file.set_len(text.len() as u64).expect("cut");
}

/// A board with a battery, a shunt at its supply, two clusters, and a SoC with RAPL-like zones.
fn board(root: &Path) {
    put(root, "class/power_supply/battery/type", "Battery\n");
    put(root, "class/power_supply/battery/status", "Discharging\n");
    put(root, "class/power_supply/battery/current_now", "-500000\n");
    put(root, "class/power_supply/battery/voltage_now", "4000000\n");
    put(root, "class/power_supply/usb/type", "USB\n");
    put(root, "class/power_supply/usb/online", "1\n");
    put(root, "class/hwmon/hwmon0/name", "ina226\n");
    put(root, "class/hwmon/hwmon0/update_interval", "35\n");
    put(root, "class/hwmon/hwmon0/power1_input", "2500000\n");
    put(root, "class/hwmon/hwmon0/power1_label", "VDD_CPU\n");
    put(root, "class/hwmon/hwmon1/name", "pmic\n");
    put(root, "class/hwmon/hwmon1/curr2_input", "300\n");
    put(root, "class/hwmon/hwmon1/in2_input", "900\n");
    put(root, "class/powercap/intel-rapl:0/name", "package-0\n");
    put(root, "class/powercap/intel-rapl:0/energy_uj", "123456789\n");
    put(root, "class/powercap/intel-rapl:0:1/name", "core\n");
    put(root, "class/powercap/intel-rapl:0:1/energy_uj", "5\n");
    put(root, "devices/system/cpu/cpufreq/policy0/related_cpus", "0 1 2 3\n");
    put(root, "devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "1800000\n");
    put(root, "devices/system/cpu/cpufreq/policy4/related_cpus", "4\n");
    put(root, "devices/system/cpu/cpufreq/policy4/scaling_cur_freq", "<unknown>\n");
    put(root, "class/thermal/thermal_zone0/type", "soc\n");
    put(root, "class/thermal/thermal_zone0/temp", "-1500\n");
}

#[test]
fn a_board_shows_what_it_has_in_the_trace_units() {
    let tree = tempfile::tempdir().expect("a directory");
    board(tree.path());
    let found = find(tree.path());
    let seen: Vec<_> = found
        .iter()
        .map(|f| (f.name.as_str(), f.kind, f.gauge.read().ok(), f.interval_ns, f.cpus.as_str()))
        .collect();
    let expected = [
        ("battery", SensorKind::Power, Some(2_000_000), 0, ""),
        ("ina226 VDD_CPU", SensorKind::Power, Some(2_500_000), 35_000_000, ""),
        ("pmic curr2", SensorKind::Power, Some(270_000), 0, ""),
        ("package-0", SensorKind::Energy, Some(123_456_789), 0, ""),
        ("package-0/core", SensorKind::Energy, Some(5), 0, ""),
        ("CPUs 0,1,2,3", SensorKind::Frequency, Some(1_800_000), 0, "0,1,2,3"),
        ("soc", SensorKind::Temperature, Some(-1_500), 0, ""),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_battery_that_charges_tells_nothing() {
    let tree = tempfile::tempdir().expect("a directory");
    board(tree.path());
    let battery = find(tree.path()).swap_remove(0);
    put(tree.path(), "class/power_supply/battery/status", "Charging\n");
    assert!(battery.gauge.read().is_err());
}

fn header() -> record::Header<'static> {
    record::Header {
        tool: "",
        command: "",
        kernel: "",
        arch: "",
        host: "",
        cpu_model: "",
        topology: "",
        mono_ns: 1,
        boot_ns: 1,
        real_ns: 1,
        level: record::Level::Op,
        structure: false,
        transport: record::TransportKind::Ring,
        buffer_bytes: 0,
        hit_ns: 0,
        source: record::SourceKind::Bpf,
    }
}

fn footer() -> record::Footer<'static> {
    record::Footer {
        end: "",
        kinds: Vec::new(),
        lost_cpu: Vec::new(),
        orphans: 0,
        read_errors: 0,
        agent_user_us: 0,
        agent_sys_us: 0,
        agent_peak_rss: 0,
        wall_ns: 0,
        bpf_ns: 0,
        bpf_runs: 0,
    }
}

/// Samples `sysfs` until there are enough samples, calling `change` after the first ones.
fn record(sysfs: &Path, change: impl FnOnce()) -> (Vec<u8>, Vec<String>) {
    let cfg = EncoderConfig::default();
    let mut enc = Encoder::new(Vec::new(), cfg, &header()).expect("a writer");
    let mut told = Vec::new();
    let mut tell = |text: &str| told.push(text.to_string());
    let options = SensorOptions { sysfs: sysfs.into(), interval: Duration::from_millis(1) };
    let sampler = Sampler::start(&options, &mut enc, &mut tell).expect("a trace");
    if let Some(mut sampler) = sampler {
        let records = |enc: &Encoder<Vec<u8>>| enc.stats().records[25];
        while records(&enc) < 3 {
            sampler.pass(&mut enc, &mut tell).expect("a trace");
        }
        change();
        let until = records(&enc) + 50;
        while records(&enc) < until {
            sampler.pass(&mut enc, &mut tell).expect("a trace");
        }
        sampler.finish(&mut enc, &mut tell).expect("a trace");
    }
    (enc.finish(&footer()).expect("a trace"), told)
}

#[test]
fn samples_come_into_the_trace_and_what_vanishes_is_told() {
    let tree = tempfile::tempdir().expect("a directory");
    board(tree.path());
    let change = || {
        put(tree.path(), "class/power_supply/battery/status", "Full\n");
        put(tree.path(), "class/thermal/thermal_zone0/temp", "41000\n");
    };
    let (bytes, told) = record(tree.path(), change);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("battery") && told[0].contains("not discharging"), "{told:?}");
    let trace = Trace::from_bytes(bytes).expect("a trace");
    let (mut samples, mut intervals) = (Vec::new(), Vec::new());
    for i in 0..trace.blocks().len() {
        for r in trace.block(i).expect("whole").records() {
            match r.expect("readable") {
                Record::Sample(s) => samples.push(pfi::sensor_values(&s).collect::<Vec<_>>()),
                Record::Sensor(s) if s.name == "soc" => intervals.push(s.interval_ns),
                _ => {}
            }
        }
    }
    assert_eq!(samples[0].len(), 7);
    assert_eq!(samples[0][0], (0, 2_000_000));
    let last = samples.last().expect("samples");
    assert!(last.iter().all(|(id, _)| *id != 0), "the battery's value is left out: {last:?}");
    assert!(last.contains(&(6, 41_000)));
    assert!(intervals[0] == 0 && *intervals.last().expect("told again") > 0, "{intervals:?}");
}

#[test]
fn a_machine_without_sensors_says_so() {
    let tree = tempfile::tempdir().expect("a directory");
    let (bytes, _) = record(tree.path(), || ());
    let trace = Trace::from_bytes(bytes).expect("a trace");
    let says = |r: &Record| matches!(r, Record::Feature(f) if f.name == "sensors" && f.state == Availability::None && f.why.contains("has no power"));
    assert!(trace.block(0).expect("whole").records().any(|r| says(&r.expect("readable"))));
}
