//! Recordings of llama.cpp's Vulkan backend by the timestamps that it takes itself, without a layer, on a device in software:
//! the times are those of its own tables, row by row, in the same run.

use crate::common;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use analysis::idents::Idents;
use analysis::kernels::{self, Group, PlacedKernel};
use common::reported::{on_backend, report, seen_whole};
use common::run::{Run, record, wait_until};
use common::seen::Seen;
use common::{engine, live, skip};
use pfi::record::{Availability, KernelSource};

const LOGGER: [&str; 4] = ["--gpu", "kernel", "--gpu-times", "logger"];

/// A recording of the engine with these variables; or what is missing.
fn recorded(name: &str, variables: &[&str]) -> Result<Run, String> {
    let (engine, device) = (engine(name)?, super::vulkan::device()?);
    Ok(super::vulkan::run(&LOGGER, &super::vulkan::command(&engine, &device, variables, &[])))
}

/// A row of the engine's table: name, nodes, mean us.
type OwnRow = (String, u64, f64);

/// The engine's tables, one for each graph.
fn own_tables(run: &Run) -> Vec<Vec<OwnRow>> {
    let text = run.stderr.clone() + &run.stdout;
    let row = |line: &str| {
        let (name, rest) = line.rsplit_once(": ")?;
        let (n, us) = rest.split_once(" x ")?;
        let us = us.split_once(" us")?.0;
        Some((name.to_owned(), n.trim().parse().expect("a number"), us.trim().parse().expect("a number")))
    };
    let tables = text.split("Vulkan Timings:").skip(1);
    tables.map(|t| t.lines().take_while(|l| !l.starts_with("Total time")).filter_map(row).collect()).collect()
}

/// What the engine's table has a row for: op, and of products and norms the dimensions, as the table writes them.
fn row_of(all: &Seen, idents: &Idents, group: Group) -> (String, String) {
    let plan = &idents.of_plan(group.plan)[group.first as usize..][..group.nodes as usize];
    let op = plan.iter().map(|i| idents.op(*i)).collect::<Vec<_>>().join("+");
    let tensor = &all.all.tensors[&idents.list()[plan[0]].hit.expect("a tensor").0];
    let [m, n, batches @ ..] = tensor.ne;
    let dims = match op.split('+').next().expect("an op") {
        "MUL_MAT" => {
            let inner = all.all.tensors[&tensor.src[1].expect("a source")].ne[0];
            format!("m={m} n={n} k={inner}")
        }
        "RMS_NORM" => format!("RMS_NORM({m},{n},{},{})", batches[0], batches[1]),
        _ => String::new(),
    };
    (op, dims)
}

/// The recording's times of a graph, as rows like those of the engine's table.
fn rows(all: &Seen, idents: &Idents, kernels: &[&PlacedKernel<'_>]) -> Vec<((String, String), u64, f64)> {
    let mut rows = BTreeMap::<(String, String), (u64, u64)>::new();
    for k in kernels {
        let row = rows.entry(row_of(all, idents, k.group.expect("a node"))).or_default();
        *row = (row.0 + 1, row.1 + k.times.ended - k.times.started);
    }
    rows.into_iter().map(|(row, (n, ns))| (row, n, ns as f64 / n as f64 / 1e3)).collect()
}

fn times_are_those_of_the_engines_tables(name: &str) {
    let _turn = live!(beside others);
    let run = match recorded(name, &["GGML_VK_PERF_LOGGER_FREQUENCY=1"]) {
        Ok(run) => run,
        Err(why) => skip!("{why}"),
    };
    let (seen, report, own) = (run.seen(), report(&run), own_tables(&run));
    seen.books_close();
    let told = seen.all.causes.features.iter().find(|f| f.name == "device kernels").expect("told");
    assert_eq!(told.state, Availability::Whole, "{}", told.why);
    let (placed, idents) = (kernels::placed(&seen.all), Idents::new(&seen.all));
    let mut graphs = BTreeMap::<i64, Vec<&PlacedKernel<'_>>>::new();
    for k in &placed {
        assert_eq!((k.of.source, k.times.name), (KernelSource::VulkanLogger, 0));
        let (t, from, to) = (k.times, k.split.t as u64, k.split.t as u64 + k.split.dur);
        assert!(from <= t.started + k.of.error_ns && t.started <= t.ended && t.ended <= to, "{t:?}");
        graphs.entry(k.split.t).or_default().push(k);
    }
    assert!(own.len() > 8 && graphs.len() == own.len(), "{} graphs, {} tables", graphs.len(), own.len());
    let mut compared = 0;
    for (kernels, own) in graphs.values().zip(&own) {
        let mut ours = rows(&seen, &idents, kernels);
        assert_eq!(ours.len(), own.len(), "{ours:?}\n{own:?}");
        for (theirs, n, us) in own {
            // The row with this number of nodes and this time is of the same op and dimensions. Both are of the same
            // numbers; the engine rounds its own when it prints them.
            let near = |(_, count, mean): &((String, String), u64, f64)| {
                *count == *n && (mean - us).abs() <= us * 0.001
            };
            let named = |((op, dims), ..): &((String, String), u64, f64)| {
                let first = op.split('+').next().expect("an op").replace("SWIGLU", "GLU");
                theirs.starts_with(&first) && theirs.ends_with(dims.as_str())
            };
            let at = ours.iter().position(|row| near(row) && named(row));
            let at = at.unwrap_or_else(|| panic!("{theirs}: {n} x {us} us is none of {ours:?}"));
            ours.swap_remove(at);
            compared += 1;
        }
    }
    println!("{compared} rows of {} tables", own.len());
    for phase in [on_backend(&report, "prefill", "Vulkan"), on_backend(&report, "decode", "Vulkan")] {
        seen_whole(phase);
        let device = &phase["device"];
        assert_eq!(
            (&device["groups_without"], &device["groups"]),
            (&0.into(), &device["kernels"]),
            "{phase:#}"
        );
        // What is not known is no zero.
        assert!(device["idle_ns"].is_null() && device["ops"][0]["queued_ns"].is_null(), "{phase:#}");
        assert_eq!(device["by_kernel"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn times_are_those_of_the_engines_tables_b8390() {
    times_are_those_of_the_engines_tables("vulkan-b8390");
}

#[test]
fn times_are_those_of_the_engines_tables_v0_5_0() {
    times_are_those_of_the_engines_tables("vulkan-v0.5.0");
}

/// Engines whose timestamps are not one a group give no times, and the recording says why.
#[test]
fn timestamps_of_other_things_are_told() {
    let _turn = live!(beside others);
    let cases = [("vulkan-v0.5.0", &["GGML_VK_PERF_LOGGER_CONCURRENT=1"][..]), ("vulkan-b5640", &[])];
    for (name, variables) in cases {
        let run = match recorded(name, variables) {
            Ok(run) => run,
            Err(why) => skip!("{why}"),
        };
        let seen = run.seen();
        let told = seen.all.causes.features.iter().find(|f| f.name == "device kernels").expect("told");
        assert_eq!(told.state, Availability::None, "{name}: {}", told.why);
        assert!(told.why.contains("another number of timestamps"), "{name}: {}", told.why);
        assert!(seen.all.kernels.is_empty());
    }
}

/// A program that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A recording that begins after the engine has asked the device for the length of a tick has no times, and says so; the
/// variables are the user's, and nothing has to be set.
#[test]
fn an_engine_that_runs_already_has_told_its_ticks() {
    let _turn = live!(beside others);
    let (engine, device) = match engine("vulkan-v0.5.0").and_then(|e| Ok((e, super::vulkan::device()?))) {
        Ok(bed) => bed,
        Err(why) => skip!("{why}"),
    };
    let variables = ["GGML_VK_PERF_LOGGER=1", "GGML_VK_PERF_LOGGER_FREQUENCY=1"];
    let command = super::vulkan::command(&engine, &device, &variables, &["-n", "2000"]);
    let dir = tempfile::tempdir().expect("a directory");
    let (out, file) = (dir.path().join("out"), |path: &Path| File::create(path).expect("a file"));
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]).stdout(Stdio::null()).stderr(file(&out));
    let target = Killed(program.spawn().expect("it starts"));
    // The engine has begun to compute.
    wait_until("a table", || {
        std::fs::read_to_string(&out).is_ok_and(|text| text.contains("Vulkan Timings:"))
    });
    let run = record(&["--gpu", "kernel", "--tokens", "5", "-p", &target.0.id().to_string()]);
    drop(target);
    let seen = run.seen();
    let told = seen.all.causes.features.iter().find(|f| f.name == "device kernels").expect("told");
    assert_eq!(told.state, Availability::None, "{}", told.why);
    assert!(told.why.contains("timestampPeriod before the recording began"), "{}", told.why);
}
