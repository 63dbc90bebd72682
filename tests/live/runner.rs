//! Recordings of ggml-runner compared with its own account: the recorder treats it as a GGML engine, with no
//! special case.

use crate::common;

use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use analysis::questions::agreement::{self, AgreementResult};
use analysis::questions::ground_truth::{self, GroundTruth};
use analysis::recorded::calls::Phase;
use common::run::{Recorder, profinfer, record, run};
use common::seen::Seen;
use common::{live, model, runner};
use pfi::Trace;

const OPS: &str = "ggml_compute_forward + ggml_compute_forward_rms_norm_mul_fused";

/// A recording and the runner's own account of it.
struct Both {
    seen: Seen,
    trace: PathBuf,
    truth: GroundTruth,
    _run: common::run::Run,
    _dir: tempfile::TempDir,
}

fn both(model: &Path, recorder: &[&str], options: &[&str]) -> Both {
    let program = runner();
    let program = program.to_str().expect("a path");
    let dir = tempfile::tempdir().expect("a directory");
    let truth = dir.path().join("truth.tsv");
    let (model, file) = (model.to_str().expect("a path"), truth.to_str().expect("a path"));
    let mut args = recorder.to_vec();
    args.extend([
        "--",
        program,
        "run",
        "--no-roofline",
        "-m",
        model,
        "-p",
        "7",
        "-n",
        "4",
        "--ground-truth",
        file,
    ]);
    args.extend(options);
    let run = record(&args);
    let seen = run.seen();
    let truth = ground_truth::read(BufReader::new(File::open(truth).expect("the runner wrote it")));
    Both { seen, trace: run.trace.clone(), truth: truth.expect("ground truth"), _run: run, _dir: dir }
}

fn agree(what: &str, answer: AgreementResult) {
    if let Err(why) = answer {
        panic!("{what}: {why}");
    }
}

/// Everything that both sides report about calls, graphs, ops and tensors is the same.
fn whole(b: &Both, threads: u32) {
    let (all, truth) = (&b.seen.all, &b.truth);
    assert_eq!(truth.dropped, 0);
    b.seen.complete();
    assert_eq!(b.seen.footer().read_errors, 0, "failed reads of the target's memory");
    agree("calls", agreement::calls(all, truth));
    agree("graphs", agreement::graphs(all, truth));
    agree("order", agreement::order(all, truth));
    agree("structure", agreement::structure(all, truth));
    agree(
        "complete",
        agreement::complete(&agreement::quality(&Trace::open(&b.trace).expect("a trace")), true),
    );
    let hits = truth.ops.len() as u64;
    assert_eq!((b.seen.slices(), b.seen.kind("op").seen), (hits, hits), "op hits");
    for g in &all.cpu_graphs {
        assert_eq!((g.n_threads, g.expected), (threads, Some(g.seen)), "CPU graph {}", g.seq);
        assert!(!g.cut);
    }
    assert_eq!(b.seen.used("op").map(|r| r.name), Some(OPS), "rung of ops");
    assert!(b.seen.used("split").is_some_and(|r| r.name == "ggml_backend_graph_compute_async"));
}

/// Both are the time in the same calls: the probes at a call's entry and return are between the two.
#[test]
fn its_own_speed_is_that_of_the_verdict() {
    let _turn = live!();
    let (program, model) = (runner(), model("tiny", "q4_0"));
    let command =
        [program.as_path(), Path::new("run"), Path::new("-m"), &model].map(|p| p.to_str().expect("a path"));
    let options = ["--no-roofline", "-p", "32", "-n", "100", "-t", "1", "--slow", "MUL_MAT:1000%", "--json"];
    for more in [&["--no-warmup"][..], &[]] {
        let run = record(&[&["--level", "token", "--"][..], &command, &options, more].concat());
        let own: serde_json::Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
        let report = analysis::questions::report::report(
            &Trace::open(&run.trace).expect("a trace"),
            &analysis::questions::report::ReportOptions::default(),
            &Default::default(),
        );
        for (phase, name) in [(Phase::Prefill, "prefill"), (Phase::Decode, "decode")] {
            let of = report.phases.iter().find(|p| p.phase == phase).expect("the phase");
            // The report leaves a warm-up out only where the rest is 5 % faster without it; it is one of the two prompts.
            let apart = of.first_call.filter(|_| more.is_empty()).map(|f| f.others_tokens_per_s);
            let within = match (apart, more.is_empty(), phase) {
                (None, true, Phase::Prefill) => continue,
                (None, true, _) => 0.06,
                _ => 0.01,
            };
            let told = apart.or(of.tokens_per_s).expect("known");
            let own = own[name]["tok_s"].as_f64().expect("a number");
            assert!(
                (told / own - 1.0).abs() < within,
                "{name}: {told} tok/s, by its own account {own}: {}",
                run.stdout
            );
        }
    }
}

/// Warm-up (prompt and one token), prompt, four tokens.
const CALLS: [u32; 7] = [7, 1, 7, 1, 1, 1, 1];

#[test]
fn every_op_of_every_architecture() {
    let _turn = live!(beside others);
    for (preset, ty) in [("tiny", "q4_0"), ("tiny", "f16"), ("gemma2", "q4_0"), ("moe", "q4_0")] {
        for threads in [1, 2] {
            println!("{preset} {ty}, {threads} threads");
            let b = both(&model(preset, ty), &[], &["-t", &threads.to_string()]);
            whole(&b, threads);
            let tokens: Vec<u32> = b.seen.all.tokens.iter().filter_map(|t| t.n_tokens).collect();
            assert_eq!(tokens, CALLS);
            let widths: Vec<u32> = b.seen.all.graphs.iter().map(|g| g.ubatch).collect();
            assert_eq!(widths, CALLS, "widths of the ubatches");
            if preset == "moe" {
                agree("experts", agreement::experts(&b.seen.all, &b.truth));
            }
            // After the first graph, which shows where the barriers are, every op has an end.
            assert!(b.seen.all.cpu_graphs.iter().skip(1).all(|g| g.barrier == (threads > 1)));
        }
    }
}

#[test]
fn a_graph_with_and_without_its_steps_is_seen_as_it_is_dumped() {
    let _turn = live!(beside others);
    for off in ["plan", "fuse,plan"] {
        let file = model("gemma2", "q4_0");
        let b = both(&file, &[], &["-t", "2", "--ablate", off]);
        whole(&b, 2);
        let trace = b.trace.to_str().expect("a path");
        let dag = run(profinfer().args(["dag", trace, "--format", "json"]));
        let dag: serde_json::Value = serde_json::from_str(&dag.stdout).expect("JSON");
        let mut ops: Vec<&serde_json::Value> = dag["nodes"].as_array().expect("nodes").iter().collect();
        ops.retain(|n| n["order"].is_u64());
        ops.sort_by_key(|n| n["order"].as_u64());
        let text = |v: &serde_json::Value| v.as_str().expect("a text").to_owned();
        let label = |n: &&serde_json::Value| {
            let tensors = n["tensors"].as_array().expect("tensors");
            let op = tensors.iter().map(|t| text(&t["op"])).collect::<Vec<_>>().join("+");
            [vec![op], tensors.iter().map(|t| text(&t["name"])).collect()].concat()
        };
        let seen: Vec<Vec<String>> = ops.iter().map(label).collect();
        let mut command = Command::new(runner());
        command.args(["run", "--graph-dump", "after", "--ablate", off, "-m"]).arg(&file);
        let dump = String::from_utf8(command.output().expect("it runs").stdout).expect("UTF-8");
        let boxes = dump.lines().filter(|l| l.contains("[label=\"") && !l.contains("shape="));
        let drawn: Vec<Vec<String>> = boxes
            .filter_map(|l| l.split('"').nth(1))
            .map(|l| {
                let lines: Vec<&str> = l.split("\\n").collect();
                let op = lines[0].split_once("  ").map_or("", |(_, op)| op);
                [&[op], &lines[1..lines.len() - 1]].concat().into_iter().map(str::to_owned).collect()
            })
            .collect();
        assert_eq!(seen, drawn, "{off}");
        assert_eq!(drawn.iter().any(|l| l[0] == "RMS_NORM+MUL"), off == "plan");
    }
}

#[test]
fn a_graph_on_two_backends_is_seen_cut() {
    let _turn = live!(beside others);
    for threads in [1, 2] {
        let b = both(&model("tiny", "q4_0"), &[], &["--two-backends", "-t", &threads.to_string()]);
        whole(&b, threads);
        let all = &b.seen.all;
        let layers = 6;
        assert_eq!(all.splits.len(), CALLS.len() * (layers + 1));
        let guids = |graph: u64| {
            let of_graph = all.splits.iter().filter(move |s| s.graph == Some(graph));
            of_graph.map(|s| all.backends[&s.backend].guid).collect::<Vec<_>>()
        };
        for graph in &all.graphs {
            let guids = guids(graph.seq);
            assert_eq!(guids.len(), layers + 1);
            assert!(guids.windows(2).all(|w| w[0] != w[1]), "in turn: {guids:?}");
            assert!(guids.iter().step_by(2).all(|g| *g == guids[0]), "two: {guids:?}");
        }
        let mut names: Vec<&str> = all.backends.values().map(|b| b.name).collect();
        names.sort_unstable();
        assert_eq!(names, ["CPU", "ggml-runner 2"]);
    }
}

#[test]
fn fewer_threads_decode_than_prefill() {
    let _turn = live!(beside others);
    let b = both(&model("tiny", "q4_0"), &[], &["-t", "2", "--decode-threads", "1"]);
    agree("order", agreement::order(&b.seen.all, &b.truth));
    let threads: Vec<u32> = b.seen.all.cpu_graphs.iter().map(|g| g.n_threads).collect();
    assert_eq!(threads, CALLS.map(|tokens| if tokens > 1 { 2 } else { 1 }));
}

#[test]
fn the_lower_levels_count_the_same_calls_and_graphs() {
    let _turn = live!(beside others);
    let model = model("tiny", "q4_0");
    let b = both(&model, &["--level", "token"], &["-t", "1"]);
    agree("calls", agreement::calls(&b.seen.all, &b.truth));
    assert!(b.seen.all.graphs.is_empty() && b.seen.slices() == 0);
    let b = both(&model, &["--level", "graph"], &["-t", "1"]);
    agree("graphs", agreement::graphs(&b.seen.all, &b.truth));
    assert_eq!(b.seen.slices(), 0);
}

#[test]
fn selftest_finds_nothing_wrong() {
    let _turn = live!();
    let out = run(profinfer().args(["selftest", "--json"]));
    let answer: serde_json::Value = serde_json::from_str(&out.stdout).expect("JSON");
    for r in answer["recordings"].as_array().expect("recordings") {
        assert_eq!((&r["lost"], &r["hits_seen"]), (&0.into(), &r["hits_expected"]), "{r}");
    }
    let checks = answer["checks"].as_array().expect("checks");
    assert!(checks.len() > 30, "{answer}");
    // The accuracy of the times depends on other load on the machine.
    let wrong = |c: &&serde_json::Value| {
        c["verdict"] != "ok" && !c["check"].as_str().is_some_and(|n| n.ends_with(": accuracy"))
    };
    assert_eq!(checks.iter().find(wrong), None);
    let ok = checks.iter().all(|c| c["verdict"] != "failed");
    assert_eq!((answer["ok"].as_bool(), out.status.success()), (Some(ok), ok));
}

/// The first message of the selftest about an unusable runner or directory.
fn refused(command: &mut Command) -> String {
    let out = run(command);
    assert_eq!(out.status.code(), Some(1), "{}{}", out.stdout, out.stderr);
    assert!(!out.stderr.contains("panicked"), "{}", out.stderr);
    format!("{}{}", out.stdout, out.stderr)
}

#[test]
fn selftest_without_a_runner_fails() {
    let said = refused(profinfer().args(["selftest", "--runner", "/nonexistent/ggml-runner"]));
    assert!(said.starts_with("FAILED   runner") && said.contains("--runner"), "{said}");
    let said = refused(profinfer().args(["selftest", "--runner", "/bin/false", "--json"]));
    assert!(said.contains("\"ok\": false"), "{said}");
}

#[test]
fn selftest_refuses_a_runner_for_another_machine() {
    let dir = tempfile::tempdir().expect("a directory");
    let other = dir.path().join("ggml-runner");
    let mut program = fs::read(runner()).expect("the runner");
    // e_machine: 0x3e x86-64, 0xb7 AArch64.
    program[18] ^= 0x3e ^ 0xb7;
    fs::write(&other, &program).expect("a copy");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).expect("mode");
    let other = other.to_str().expect("a path");
    let said = refused(profinfer().args(["selftest", "--runner", other]));
    assert!(said.starts_with("FAILED   runner") && said.contains("this machine is"), "{said}");
    fs::set_permissions(other, fs::Permissions::from_mode(0o644)).expect("mode");
    fs::copy(runner(), other).expect("a copy");
    fs::set_permissions(other, fs::Permissions::from_mode(0o644)).expect("mode");
    let said = refused(profinfer().args(["selftest", "--runner", other]));
    assert!(said.contains("chmod +x"), "{said}");
}

#[test]
fn selftest_says_where_it_found_no_room() {
    let said = refused(profinfer().arg("selftest").env("TMPDIR", "/nonexistent"));
    assert!(said.contains("TMPDIR") && said.contains("/nonexistent"), "{said}");
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let mut small = Command::new("unshare");
    small.args(["-m", "sh", "-c", "mount -t tmpfs -o size=1m none \"$TMPDIR\" && exec \"$0\" selftest"]);
    let said = refused(small.arg(common::profinfer()).env("TMPDIR", dir.path()));
    let model = said.lines().find(|l| l.starts_with("FAILED   model tiny")).unwrap_or_default();
    assert!(model.contains("No space left") && model.contains("TMPDIR"), "{said}");
    assert!(!said.contains("FAILED   token"), "{said}");
}

#[test]
fn sensors_of_the_machine_are_sampled_beside_the_run() {
    let _turn = live!();
    let tree = tempfile::tempdir().expect("a directory");
    let zone = tree.path().join("class/thermal/thermal_zone0");
    fs::create_dir_all(&zone).expect("a directory");
    fs::write(zone.join("type"), "soc\n").expect("a file");
    fs::write(zone.join("temp"), "41000\n").expect("a file");
    let sysfs = tree.path().to_str().expect("a path");
    let b = both(&model("tiny", "q4_0"), &["--sensors", "--sysfs", sysfs], &["-t", "1"]);
    let causes = &b.seen.all.causes;
    assert_eq!(causes.sensors.iter().map(|s| s.name).collect::<Vec<_>>(), ["soc"]);
    assert!(!causes.samples.is_empty());
    for sample in &causes.samples {
        assert_eq!(pfi::sensor_values(sample).collect::<Vec<_>>(), [(0, 41_000)]);
    }
    let empty = tempfile::tempdir().expect("a directory");
    let sysfs = empty.path().to_str().expect("a path");
    let b = both(&model("tiny", "q4_0"), &["--sensors", "--sysfs", sysfs], &["-t", "1"]);
    assert!(
        b.seen.all.causes.samples.is_empty()
            && b._run.stderr.contains("no power, frequency or temperature sensors")
    );
    b.seen.complete();
}

/// Writes a file that the recorder may read at any moment: it is never empty.
fn rewrite(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a file");
    fs::rename(new, path).expect("renamed");
}

/// Values of a meter until it is known how often it has new ones: three times what is needed (CHANGES in
/// crates/analysis/src/sums/attribution/energy/track.rs).
const REFRESHES: u32 = 12;

#[test]
fn joules_of_a_token_come_from_a_meter_that_is_refreshed_seldom() {
    let _turn = live!();
    let tree = tempfile::tempdir().expect("a directory");
    let battery = tree.path().join("sys/class/power_supply/battery");
    let usb = tree.path().join("sys/class/power_supply/usb");
    for (dir, file, text) in [
        (&battery, "type", "Battery\n"),
        (&battery, "status", "Charging\n"),
        (&battery, "current_now", "500000\n"),
        (&battery, "voltage_now", "4000000\n"),
        (&usb, "type", "USB\n"),
        (&usb, "current_now", "1350000\n"),
        (&usb, "voltage_now", "20000000\n"),
    ] {
        fs::create_dir_all(dir).expect("a directory");
        fs::write(dir.join(file), text).expect("a file");
    }
    // 2 W, with a wobble of a millionth by which refreshes are known, every 250 ms: as seldom as that of a meter.
    let meter = tree.path().join("meter");
    rewrite(&meter, "2000000");
    let sysfs = tree.path().join("sys");
    let flags = ["--level", "token", "--sysfs", sysfs.to_str().expect("a path"), "--meter"];
    let named = format!("{}:uW", meter.display());
    let (program, tiny) = (runner(), model("tiny", "q4_0"));
    let command =
        [program.as_path(), Path::new("run"), Path::new("-m"), &tiny].map(|p| p.to_str().expect("a path"));
    let options =
        ["--no-roofline", "--no-warmup", "-p", "7", "-n", "1000000", "-t", "1", "--slow", "MUL_MAT:1000%"];
    let recorder = Recorder::start(&[&flags[..], &[&named, "--"], &command, &options].concat());
    recorder.wait_for_tokens(10);
    for wobble in 0..REFRESHES {
        std::thread::sleep(std::time::Duration::from_millis(250));
        rewrite(&meter, &format!("{}", 2_000_002 - wobble % 2 * 2));
    }
    // It hands the signal on.
    recorder.signal(libc::SIGTERM);
    let run = recorder.finish();
    assert!(
        run.stderr.contains("usb is not read: type USB") && run.stderr.contains("not discharging"),
        "{}",
        run.stderr
    );
    let trace = Trace::open(&run.trace).expect("a trace");
    let report = {
        use analysis::questions::report::{By, ReportOptions, report};
        let options = ReportOptions { tables: By::ALL.to_vec(), ..ReportOptions::default() };
        report(&trace, &options, &Default::default())
    };
    let energy = report.energy.expect("energy");
    let [meter, battery] = &energy.sources[..] else { panic!("{:?}", energy.sources) };
    assert_eq!((meter.origin, battery.name.as_str(), battery.samples), ("meter", "battery", 0));
    // How long it is: crates/analysis, attribution/energy/track.rs.
    assert!(meter.refresh_ns.is_some(), "{meter:?}");
    let p = energy.primary.expect("a source");
    assert!(p.source == meter.name && !p.model, "{p:?}");
    let decode =
        report.phases.iter().find(|p| p.phase == analysis::recorded::calls::Phase::Decode).expect("decode");
    let tokens = decode.tokens.expect("tokens") as f64;
    // Both are from the trace: at constant power, joules follow from the time, however long that was.
    let wanted = 2.0 * decode.in_call_ns as f64 / 1e9 / tokens;
    assert!((p.decode_j_per_token.expect("known") / wanted - 1.0).abs() < 0.01, "{p:?}, {wanted} J");
    assert!(
        energy.remarks.is_some_and(|r| r.contains("battery had no value: the battery is not discharging"))
    );
}
