//! The layers in programs that use a device in ways in which engines do not yet (tests/gpu/load.c, vk_load.c): each kernel
//! that was executed is counted once, with its times or with the reason why it has none, and the program's results are
//! right.

use crate::common;

use std::path::PathBuf;
use std::process::Command;

use common::run::{Recorder, Run, Target, record, signal_to, wait};
use common::seen::Seen;
use common::{engine, live, loads, skip};
use pfi::KernelTimes;
use pfi::record::Availability;

const FAILED: &str = "the device did not execute them, or the driver does not give their times";
const UNTIMED: &str = "their queue has no timestamps";
const NO_ROOM: &str = "more were on their way, or in one command buffer, than the layer keeps";
const UNENDED: &str = "the program ended, or gave up the device, before it had waited for them";
const SECONDARY: &str = "they are in secondary command buffers";
const RESUBMITTED: &str = "their command buffer was submitted again before the program had waited for it";

/// A load with its device: the program, and the environment in which it finds a device in software.
struct Bed {
    program: PathBuf,
    env: Vec<String>,
}

fn opencl() -> Result<Bed, String> {
    let runtime = engine("opencl-v0.5.0")?;
    let at = runtime.display();
    let env = vec![format!("LD_LIBRARY_PATH={at}/runtime"), format!("OCL_ICD_VENDORS={at}/vendors")];
    Ok(Bed { program: loads()?.join("load"), env })
}

fn vulkan() -> Result<Bed, String> {
    let device = super::vulkan::device()?;
    let env = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].map(|name| format!("{name}={}", device.display()));
    Ok(Bed { program: loads()?.join("vk_load"), env: env.into() })
}

/// The same above a layer that behaves like another device.
fn stubbed(how: &str) -> Result<Bed, String> {
    let mut bed = vulkan()?;
    let (program, stub) = (common::profinfer(), loads()?);
    let dirs = format!("{}:{}", program.parent().expect("a directory").display(), stub.display());
    bed.env.extend([
        format!("VK_ADD_LAYER_PATH={dirs}"),
        "VK_INSTANCE_LAYERS=VK_LAYER_PROFINFER_gpu:VK_LAYER_TEST_stub".into(),
        format!("VK_STUB={how}"),
    ]);
    Ok(bed)
}

/// Records a scenario, whose results must be right.
fn recorded(bed: &Bed, scenario: &str, n: usize) -> Run {
    let n = n.to_string();
    let program = bed.program.to_str().expect("a path");
    let env = bed.env.iter().map(String::as_str);
    let command = ["--gpu", "kernel", "--", "env"].into_iter().chain(env).chain([program, scenario, &n]);
    let run = record(&command.collect::<Vec<_>>());
    assert_eq!(run.said()["right"], true, "{scenario}: {}", run.stderr);
    run
}

/// All kernels of a trace with times, in the order in which the host enqueued them.
fn times(seen: &Seen) -> Vec<KernelTimes> {
    let mut all: Vec<KernelTimes> = seen.all.kernels.iter().flat_map(pfi::kernel_times).collect();
    all.sort_by_key(|k| k.host);
    all
}

/// What the recording says about device times.
fn told(seen: &Seen) -> (Availability, String) {
    let found = seen.all.causes.features.iter().find(|f| f.name == "device kernels").expect("told");
    (found.state, found.why.to_string())
}

/// So many kernels have times, and so many have none, for a reason.
fn counts(bed: &Bed, scenario: &str, n: usize, timed: usize, untimed: Option<(usize, &str)>) -> Seen {
    let run = recorded(bed, scenario, n);
    let seen = run.seen();
    seen.books_close();
    let all = times(&seen);
    assert_eq!(all.len(), timed, "{scenario}: {:?}", told(&seen));
    let error = seen.all.kernels.iter().map(|k| k.error_ns).max().unwrap_or_default();
    for k in &all {
        // No time is that of an earlier use of the same event or query.
        assert!(k.host <= k.started + error && k.started <= k.ended, "{scenario}: {k:?}");
    }
    let mut stamps: Vec<_> = seen
        .all
        .kernels
        .iter()
        .flat_map(|of| pfi::kernel_times(of).map(|k| (of.tid, of.queue, k.started, k.ended)))
        .collect();
    stamps.sort_unstable();
    let twice = stamps.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None, "{scenario}: two kernels with the same times");
    let (state, why) = told(&seen);
    let expected = match (timed, untimed) {
        (_, None) => (Availability::Whole, format!("{timed} kernels")),
        (0, Some((lost, because))) => (
            Availability::None,
            format!(
                "none of {lost} kernels has times, only what --gpu op records is there ({lost}: {because})"
            ),
        ),
        (_, Some((lost, because))) => (
            Availability::Partly,
            format!("{lost} of {} kernels have no times ({lost}: {because})", timed + lost),
        ),
    };
    assert_eq!((state, why), expected, "{scenario}");
    seen
}

/// A bed, or the end of the test.
macro_rules! bed {
    ($bed:expr) => {
        match $bed {
            Ok(bed) => bed,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn opencl_counts_each_kernel_once() {
    let _turn = live!(beside others);
    let bed = bed!(opencl());
    counts(&bed, "plain", 300, 300, None);
    // Two threads, each with a device, a context and two queues.
    counts(&bed, "threads", 300, 600, None);
    counts(&bed, "unordered", 300, 300, None);
    // Events, kernel, program and queue are released before the work begins.
    counts(&bed, "released", 300, 300, None);
    counts(&bed, "held", 300, 600, None);
    counts(&bed, "callbacks", 300, 600, None);
    counts(&bed, "plain", 3000, 3000, None);
}

#[test]
fn opencl_times_are_the_programs_own() {
    let _turn = live!(beside others);
    let run = recorded(&bed!(opencl()), "repeat", 200);
    let (said, seen) = (run.said(), run.seen());
    let begin = said["begin"].as_u64().expect("a time");
    let sum: u64 = times(&seen).iter().filter(|k| k.host >= begin).map(|k| k.ended - k.started).sum();
    assert_eq!(sum, said["device_ns"].as_u64().expect("a sum"));
}

#[test]
fn opencl_kernels_that_do_not_end_are_told() {
    let _turn = live!(beside others);
    let bed = bed!(opencl());
    counts(&bed, "failing", 40, 40, Some((40, FAILED)));
    counts(&bed, "abandoned", 40, 40, Some((40, UNENDED)));
}

#[test]
fn opencl_kernels_have_names_however_they_are_made() {
    let _turn = live!(beside others);
    let seen = counts(&bed!(opencl()), "made", 50, 50, None);
    assert!(
        times(&seen).iter().all(|k| seen.all.kernel_names.get(&k.name) == Some(&"load")),
        "{:?}",
        seen.all.kernel_names
    );
}

#[test]
fn an_opencl_layer_that_is_named_twice_counts_once() {
    let _turn = live!(beside others);
    let mut bed = bed!(opencl());
    let layer = common::profinfer().with_file_name("libprofinfer-cl.so");
    bed.env.push(format!("OPENCL_LAYERS={0}:{0}", layer.display()));
    counts(&bed, "plain", 100, 100, None);
}

#[test]
fn vulkan_counts_each_dispatch_once() {
    let _turn = live!(beside others);
    let bed = bed!(vulkan());
    counts(&bed, "repeat", 300, 303, None);
    // The same command buffer again and again, with the same fence.
    counts(&bed, "resubmitted", 100, 100, None);
    counts(&bed, "overlapping", 300, 300, None);
    counts(&bed, "reset", 200, 200, None);
    counts(&bed, "indirect", 50, 50, None);
    // Two threads, each with an instance and a device.
    counts(&bed, "threads", 200, 400, None);
}

#[test]
fn vulkan_times_are_within_the_programs_own() {
    let _turn = live!(beside others);
    let run = recorded(&bed!(vulkan()), "repeat", 200);
    let (said, seen) = (run.said(), run.seen());
    let sum: u64 = times(&seen).iter().skip(3).map(|k| k.ended - k.started).sum();
    // Between two timestamps around the whole batch.
    let truth = said["device_ns"].as_u64().expect("a sum");
    assert!(sum > 0 && sum <= truth, "{sum} ns of {truth}");
}

#[test]
fn vulkan_dispatches_without_times_are_told() {
    let _turn = live!(beside others);
    let bed = bed!(vulkan());
    counts(&bed, "lengthy", 600, 512, Some((88, NO_ROOM)));
    counts(&bed, "many", 200, 128, Some((72, NO_ROOM)));
    counts(&bed, "secondary", 20, 1, Some((40, SECONDARY)));
    counts(&bed, "shared", 50, 50, Some((10, RESUBMITTED)));
}

#[test]
fn a_vulkan_device_without_timestamps_has_no_times() {
    let _turn = live!(beside others);
    let bed = bed!(stubbed("untimed"));
    counts(&bed, "repeat", 50, 0, Some((53, UNTIMED)));
}

#[test]
fn a_lost_vulkan_device_has_no_times() {
    let _turn = live!(beside others);
    counts(&bed!(stubbed("wait")), "lost", 50, 0, Some((50, FAILED)));
    // Nothing was submitted: there is no kernel.
    let run = recorded(&bed!(stubbed("submit")), "lost", 50);
    assert!(told(&run.seen()).1.starts_with("no kernel was handed over"), "{:?}", told(&run.seen()));
}

/// The recorder is killed while the program works.
fn survives(bed: &Bed, layer: &str, variables: &[(&str, String)]) {
    let mut command = Command::new("env");
    command.args(&bed.env).envs(variables.iter().map(|(name, value)| (name, value)));
    let mut target = Target::controlled(command.arg(&bed.program).args(["patient", "20"]));
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--gpu", "kernel", "-p", &pid]);
    recorder.wait_for_probe_in(layer);
    let line = |target: &mut Target| {
        use std::io::Write;
        target.0.stdin.as_mut().expect("a controlled target").write_all(b"\n").expect("it reads");
    };
    (0..20).for_each(|_| line(&mut target));
    signal_to(recorder.child.id(), libc::SIGKILL);
    wait(&mut recorder.child);
    (0..20).for_each(|_| line(&mut target));
    drop(target.0.stdin.take());
    let said = target.said();
    assert_eq!((&said["right"], &said["kernels"]), (&true.into(), &(41 * 20).into()));
}

#[test]
fn a_program_survives_its_recorder() {
    let _turn = live!(beside others);
    let (opencl, vulkan) = (bed!(opencl()), bed!(vulkan()));
    let program = common::profinfer();
    let dir = program.parent().expect("a directory").display().to_string();
    survives(&opencl, "libprofinfer-cl.so", &[("OPENCL_LAYERS", format!("{dir}/libprofinfer-cl.so"))]);
    let layer = ("VK_INSTANCE_LAYERS", "VK_LAYER_PROFINFER_gpu".to_owned());
    survives(&vulkan, "libprofinfer-vk.so", &[("VK_ADD_LAYER_PATH", dir), layer]);
}
