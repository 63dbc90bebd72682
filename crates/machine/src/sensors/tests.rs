//! Tests of the sampler, on synthetic sysfs trees.

use std::fs::{self, File};
use std::path::Path;

use super::*;
use pfi::record::{Record, SensorOrigin};
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
    put(root, "class/hwmon/hwmon2/device/uevent", "POWER_SUPPLY_NAME=battery\n");
    put(root, "class/hwmon/hwmon2/power1_input", "2000000\n");
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
    put(root, "class/devfreq/dmc/cur_freq", "528000000\n");
    put(root, "class/thermal/cooling_device0/type", "cpufreq-cpu0\n");
    put(root, "class/thermal/cooling_device0/max_state", "7\n");
    put(root, "class/thermal/cooling_device0/cur_state", "2\n");
    put(root, "class/thermal/cooling_device1/max_state", "0\n");
    put(root, "class/thermal/cooling_device1/cur_state", "0\n");
    put(root, "class/thermal/thermal_zone0/type", "soc\n");
    put(root, "class/thermal/thermal_zone0/temp", "-1500\n");
}

#[test]
fn a_board_shows_what_it_has_in_the_trace_units() {
    let tree = tempfile::tempdir().expect("a directory");
    board(tree.path());
    let mut found = find(&Roots::of(tree.path()));
    assert_eq!(found.remarks, Vec::<String>::new());
    let seen: Vec<_> = found
        .sensors
        .iter_mut()
        .map(|f| (f.name.as_str(), f.kind, f.gauge.read().ok(), f.interval_ns, f.cpus.as_str()))
        .collect();
    let expected = [
        ("battery", SensorKind::Power, Some(2_000_000), 0, ""),
        ("battery", SensorKind::Current, Some(500_000), 0, ""),
        ("ina226 VDD_CPU", SensorKind::Power, Some(2_500_000), 35_000_000, ""),
        ("pmic curr2", SensorKind::Power, Some(270_000), 0, ""),
        ("package-0", SensorKind::Energy, Some(123_456_789), 0, ""),
        ("package-0/core", SensorKind::Energy, Some(5), 0, ""),
        ("CPUs 0,1,2,3", SensorKind::Frequency, Some(1_800_000), 0, "0,1,2,3"),
        ("device dmc", SensorKind::Frequency, Some(528_000), 0, ""),
        ("soc", SensorKind::Temperature, Some(-1_500), 0, ""),
        ("cpufreq-cpu0 (cooling_device0, at most 7)", SensorKind::Cooling, Some(2), 0, ""),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn the_source_to_be_preferred_is_named() {
    use crate::check::CheckResult;
    let tree = tempfile::tempdir().expect("a directory");
    let root = tree.path().join("sys");
    let says = || {
        let check = offered(&root);
        (check.state, check.detail)
    };
    let (state, detail) = says();
    assert_eq!(state, CheckResult::Optional);
    assert!(detail.starts_with("none, so joules per token are unknown"), "{detail}");
    put(&root, "class/powercap/intel-rapl:0/name", "package-0\n");
    put(&root, "class/powercap/intel-rapl:0/energy_uj", "7\n");
    put(&root, "class/powercap/intel-rapl:1/name", "package-1\n");
    put(&root, "class/powercap/intel-rapl:1/energy_uj", "7\n");
    let packages = "package-0 + package-1, measured, of the processor package";
    assert_eq!(says(), (CheckResult::Ok, packages.to_owned()));
    put(&root, "class/power_supply/battery/type", "Battery\n");
    put(&root, "class/power_supply/battery/status", "Discharging\n");
    put(&root, "class/power_supply/battery/power_now", "2000000\n");
    let battery = "battery, measured, of the complete device; less preferred: package-0, package-1";
    assert_eq!(says(), (CheckResult::Ok, battery.to_owned()));
    put(&root, "class/power_supply/battery/status", "Charging\n");
    assert_eq!(says().1, packages);
}

#[test]
fn a_battery_that_charges_tells_nothing() {
    let tree = tempfile::tempdir().expect("a directory");
    board(tree.path());
    let mut found = find(&Roots::of(tree.path())).sensors;
    let origins: Vec<_> = found.iter().take(2).map(|s| s.origin).collect();
    assert_eq!(origins, [SensorOrigin::Device; 2]);
    for (status, known) in
        [("Charging", false), ("Full", false), ("Not charging", false), ("Discharging", true)]
    {
        put(tree.path(), "class/power_supply/battery/status", status);
        assert_eq!([found[0].gauge.read().is_ok(), found[1].gauge.read().is_ok()], [known; 2], "{status}");
    }
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
    let options = SensorOptions { sysfs: sysfs.into(), interval: Duration::from_millis(1), meter: None };
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
    assert_eq!(told.len(), 2, "{told:?}");
    let gone = |t: &String| t.contains("battery") && t.contains("not discharging");
    assert!(told.iter().all(gone), "{told:?}");
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
    assert_eq!(samples[0].len(), 10);
    assert_eq!(samples[0][0], (0, 2_000_000));
    let last = samples.last().expect("samples");
    assert!(last.iter().all(|(id, _)| *id > 1), "the battery's value is left out: {last:?}");
    assert!(last.contains(&(8, 41_000)));
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

/// A tree of these files, with what a search finds in it: name, kind, origin and value, and the remarks.
type Seen = (Vec<(String, SensorKind, SensorOrigin, Option<i64>)>, Vec<String>);

fn seen(root: &Path) -> Seen {
    let Found { mut sensors, remarks } = find(&Roots::of(&root.join("sys")));
    let rows = sensors.iter_mut().map(|s| (s.name.clone(), s.kind, s.origin, s.gauge.read().ok()));
    (rows.collect(), remarks)
}

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let tree = tempfile::tempdir().expect("a directory");
    for (path, text) in files {
        put(tree.path(), path, text);
    }
    tree
}

#[test]
fn a_contract_with_a_charger_is_no_power() {
    for kind in ["USB", "USB_C", "USB_PD", "Wireless", "Mains"] {
        let supply = "sys/class/power_supply/tcpm-source-psy-4-0022";
        let at = |file: &str| format!("{supply}/{file}");
        let tree = tree(&[
            (&at("type"), kind),
            (&at("current_now"), "1350000\n"),
            (&at("current_max"), "1350000\n"),
            (&at("voltage_now"), "20000000\n"),
        ]);
        let (sensors, remarks) = seen(tree.path());
        assert_eq!(sensors, [], "{kind}");
        let want = format!("power supply tcpm-source-psy-4-0022 is not read: type {kind}: what was agreed");
        assert!(
            remarks[0].starts_with(&want) && remarks[0].contains("a contract, not a measurement"),
            "{remarks:?}"
        );
    }
}

#[test]
fn the_battery_of_a_mouse_and_impossible_ones_are_left_out() {
    let battery = |files: &[(&str, &str)]| {
        let all: Vec<(String, &str)> =
            files.iter().map(|(f, t)| (format!("sys/class/power_supply/b/{f}"), *t)).collect();
        let all: Vec<(&str, &str)> = all.iter().map(|(f, t)| (f.as_str(), *t)).collect();
        seen(
            tree(
                &[
                    &[
                        ("sys/class/power_supply/b/type", "Battery"),
                        ("sys/class/power_supply/b/status", "Discharging"),
                    ],
                    &all[..],
                ]
                .concat(),
            )
            .path(),
        )
    };
    let (sensors, remarks) = battery(&[("scope", "Device"), ("power_now", "2000000")]);
    assert_eq!((sensors.len(), remarks.len()), (0, 1));
    let (sensors, remarks) = battery(&[("current_now", "-700"), ("voltage_now", "3900")]);
    assert_eq!((sensors[0].3, sensors[1].3), (Some(2_730_000), Some(700_000)));
    assert_eq!(
        remarks,
        [
            "battery b: current_now is taken for mA and voltage_now for mV: in the kernel's unit the value is impossible"
        ]
    );
    // The power is documented; a current beside it counts the charge.
    let (sensors, _) =
        battery(&[("power_now", "-5000000"), ("current_now", "400000"), ("voltage_now", "12000000")]);
    assert_eq!(sensors.iter().map(|s| s.3).collect::<Vec<_>>(), [Some(5_000_000), Some(400_000)]);
    for (current, voltage) in
        [("500000", "400"), ("99000000", "4000000"), ("9223372036854775807", "9223372036854775807")]
    {
        let (sensors, remarks) = battery(&[("current_now", current), ("voltage_now", voltage)]);
        assert!(sensors.is_empty() && remarks[0].contains("is not read"), "{sensors:?} {remarks:?}");
    }
    let (sensors, remarks) = battery(&[("power_now", "-9223372036854775808")]);
    assert!(sensors.is_empty() && remarks[0].contains("more than a battery gives"), "{remarks:?}");
}

#[test]
fn an_ina3221_has_three_channels() {
    let chip = "sys/class/hwmon/hwmon1";
    let at = |file: &str| format!("{chip}/{file}");
    let mut files = vec![(at("name"), "ina3221\n".to_owned())];
    for (i, label) in [(1, "VDD_IN"), (2, "VDD_CPU_GPU_CV"), (3, "VDD_SOC")] {
        files.push((at(&format!("in{i}_label")), label.into()));
        files.push((at(&format!("in{i}_input")), "5000".into()));
        files.push((at(&format!("curr{i}_input")), format!("{i}00")));
        files.push((at(&format!("in{}_input", i + 3)), "8".into()));
    }
    files.push((at("curr4_input"), "600".into()));
    files.push((at("in7_label"), "sum of shunt voltages".into()));
    let files: Vec<(&str, &str)> = files.iter().map(|(f, t)| (f.as_str(), t.as_str())).collect();
    let (sensors, remarks) = seen(tree(&files).path());
    let want = [
        ("ina3221 VDD_IN", SensorOrigin::Device, Some(500_000)),
        ("ina3221 VDD_CPU_GPU_CV", SensorOrigin::Rail, Some(1_000_000)),
        ("ina3221 VDD_SOC", SensorOrigin::Rail, Some(1_500_000)),
    ];
    assert_eq!(sensors.iter().map(|s| (s.0.as_str(), s.2, s.3)).collect::<Vec<_>>(), want);
    assert_eq!(remarks, Vec::<String>::new());
}

#[test]
fn powercap_zones_of_all_kinds_and_their_wraps() {
    let zone = |id: &str, file: &str| format!("sys/class/powercap/{id}/{file}");
    let files = [
        (zone("intel-rapl:0", "name"), "package-0"),
        (zone("intel-rapl:0", "energy_uj"), "262143000000"),
        (zone("intel-rapl:0", "max_energy_range_uj"), "262143328850"),
        (zone("intel-rapl:0:0", "name"), "core"),
        (zone("intel-rapl:0:0", "energy_uj"), "5"),
        (zone("intel-rapl:1", "name"), "psys"),
        (zone("intel-rapl:1", "energy_uj"), "7"),
        (zone("intel-rapl-mmio:0", "name"), "package-0"),
        (zone("intel-rapl-mmio:0", "energy_uj"), "262143000001"),
        (zone("arm-scmi:0", "name"), "soc"),
        (zone("arm-scmi:0", "power_uw"), "1500000"),
        (zone("arm-scmi:0:0", "name"), "big"),
        (zone("arm-scmi:0:0", "power_uw"), "900000"),
        (zone("dtpm:0", "name"), "cpus"),
        (zone("dtpm:0", "power_uw"), "900000"),
    ];
    let tree = tree(&files.each_ref().map(|(f, t)| (f.as_str(), *t)));
    let Found { mut sensors, remarks } = find(&Roots::of(&tree.path().join("sys")));
    let mut rows = Vec::new();
    for s in &mut sensors {
        rows.push((s.name.clone(), s.kind, s.origin, s.gauge.read().ok()));
    }
    use SensorKind::{Energy, Power};
    use SensorOrigin::{Device, Package, Rail};
    let want = [
        ("soc", Power, Package, 1_500_000),
        ("soc/big", Power, Rail, 900_000),
        ("package-0", Energy, Package, 262_143_000_000),
        ("psys", Energy, Device, 7),
        ("package-0/core", Energy, Rail, 5),
    ];
    let want = want.map(|(n, k, o, v)| (n.to_owned(), k, o, Some(v)));
    assert_eq!(rows, want);
    assert_eq!(remarks, ["powercap dtpm is not read: its power is the Energy Model's"]);
    // The counter wraps: 328 850 to its end, one to 0, 1000 more.
    let package = sensors.iter_mut().find(|s| s.name == "package-0").expect("a package");
    put(tree.path(), &files[1].0, "1000\n");
    assert_eq!(package.gauge.read().ok(), Some(262_143_000_000 + 328_850 + 1 + 1000));
    put(tree.path(), &files[1].0, "2000\n");
    assert_eq!(package.gauge.read().ok(), Some(262_143_000_000 + 328_850 + 1 + 2000));
    // It is set to zero: that is no wrap.
    put(tree.path(), &files[1].0, "0\n");
    assert!(package.gauge.read().is_ok_and(|v| v < 262_143_000_000 + 328_850 + 1 + 2000));
}

#[test]
fn waiting_for_a_cpu_is_read_beside_sysfs() {
    let some = "some avg10=1.00 avg60=0.00 avg300=0.00 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
    let tree = tree(&[("proc/pressure/cpu", some), ("sys/x", "")]);
    let want = ("waiting for a CPU".to_owned(), SensorKind::Pressure, SensorOrigin::Unknown, Some(12_345));
    assert_eq!(seen(tree.path()).0, [want]);
}

#[test]
fn no_content_of_a_file_does_harm() {
    let board_files = tempfile::tempdir().expect("a directory");
    let sys = board_files.path().join("sys");
    board(&sys);
    put(board_files.path(), "proc/stat", "cpu0 1 1 1 1\n");
    put(board_files.path(), "proc/pressure/cpu", "some total=1\n");
    for file in ["cpus", "flags", "ps:1/frequency", "ps:1/power"] {
        put(&sys, &format!("kernel/debug/energy_model/cpu0/{file}"), "0x1\n");
    }
    let mut files = Vec::new();
    let mut dirs = vec![board_files.path().to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() { dirs.push(path) } else { files.push(path) }
        }
    }
    let long = "9".repeat(20_000);
    let wild = [
        "",
        "\n",
        "-",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551616",
        "\0\u{1}\u{fffd}",
        "1e308",
        &long,
    ];
    for file in &files {
        let before = fs::read(file).expect("a file");
        // When it is found, and when it is read.
        for text in wild {
            let mut found = find(&Roots::of(&sys)).sensors;
            fs::write(file, text).expect("written");
            for _ in 0..2 {
                found.iter_mut().for_each(|s| drop(s.gauge.read()));
            }
            let mut found = find(&Roots::of(&sys)).sensors;
            found.iter_mut().for_each(|s| drop(s.gauge.read()));
            fs::write(file, &before).expect("written");
        }
    }
}

#[test]
fn a_meter_that_is_bad_is_refused_and_one_that_vanishes_is_told() {
    let tree = tempfile::tempdir().expect("a directory");
    let meter = tree.path().join("meter");
    let cfg = EncoderConfig::default();
    let mut enc = Encoder::new(Vec::new(), cfg, &header()).expect("a writer");
    let mut told = Vec::new();
    let mut tell = |text: &str| told.push(text.to_string());
    let options = SensorOptions {
        sysfs: tree.path().join("sys"),
        interval: Duration::from_millis(1),
        meter: Some(MeterFile::parse(&format!("{}:W", meter.display())).expect("a meter")),
    };
    put(tree.path(), "meter", "much");
    let said = Sampler::start(&options, &mut enc, &mut tell).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("'much' is not a number; its content must be one number, in W"), "{said}");
    put(tree.path(), "meter", "3.5");
    let mut sampler = Sampler::start(&options, &mut enc, &mut tell).expect("a trace").expect("a sensor");
    fs::remove_file(&meter).expect("removed");
    while sampler.known[0].gone.0 == 0 {
        sampler.pass(&mut enc, &mut tell).expect("a trace");
    }
    sampler.finish(&mut enc, &mut tell).expect("a trace");
    assert!(told.iter().any(|t| t.contains("has no value now: No such file")), "{told:?}");
}

#[test]
fn where_an_energy_model_may_hide_is_said_if_there_is_no_other_source() {
    let debugfs = |files: &[(&str, &str)]| {
        let tree = tree(files);
        let mut found = Found::default();
        find::hint(&tree.path().join("sys/kernel/debug"), &mut found);
        found.remarks.len()
    };
    // Not mounted; mounted without a model; with one; no debugfs at all.
    let tree = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(tree.path().join("debug")).expect("a directory");
    let mut found = Found::default();
    find::hint(&tree.path().join("debug"), &mut found);
    assert!(found.remarks[0].contains("mount -t debugfs none"), "{:?}", found.remarks);
    assert_eq!(debugfs(&[("sys/kernel/debug/tracing", "")]), 0);
    assert_eq!(debugfs(&[("sys/kernel/debug/energy_model/cpu0/cpus", "0")]), 0);
    assert_eq!(debugfs(&[("sys/x", "")]), 0);
}
