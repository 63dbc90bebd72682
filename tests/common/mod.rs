//! Shared by the live tests: skipping, running one at a time, fixtures and engines built once, the recorder as a
//! child process, and its trace compared with the target's own account.
#![allow(dead_code, unused_macros, unused_imports, reason = "each test file uses its own part")]

pub mod allocator;
#[cfg(target_os = "linux")]
pub mod busy;
#[cfg(target_os = "linux")]
pub mod cage;
pub mod counted;
pub mod endless;
#[cfg(feature = "agent")]
pub mod events;
pub mod expect;
pub mod made;
pub mod made_text;
pub mod program;
pub mod python;
pub mod refuse;
pub mod reported;
pub mod run;
pub mod seen;
#[cfg(feature = "agent")]
pub mod service;
pub mod skips;
pub mod timeline;
pub mod truth;
pub mod waiting;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// Ends the test without a verdict; a failure if CI or PROFINFER_REQUIRE=1 requires all tests.
macro_rules! skip {
    ($($why:tt)*) => {{
        // Its path is that of the function around it.
        fn here() {}
        let test = std::any::type_name_of_val(&here).trim_end_matches("::here");
        $crate::common::skips::skipped_in(test, &format!($($why)*));
        return;
    }};
}
pub(crate) use skip;

/// Waits for its turn, or skips the test: alone, or beside others whose recordings it cannot disturb and that cannot
/// disturb it. It is alone if it looks at all processes or all probes of the machine, or at who gets the CPUs when. From
/// inside, it needs no privilege, or root for the rest of what it does. Perf events have their probes in all processes of a
/// file, where code can then neither be changed from inside nor be expected to be as in the file: such tests wait for each
/// other.
macro_rules! live {
    () => {
        $crate::common::live!(@ libc::LOCK_EX, None)
    };
    (beside others) => {
        $crate::common::live!(@ libc::LOCK_SH, None)
    };
    (beside others, by perf events) => {
        $crate::common::live!(@ libc::LOCK_SH, Some(libc::LOCK_EX))
    };
    (beside others, from inside) => {
        $crate::common::live!(@ libc::LOCK_SH, Some(libc::LOCK_SH))
    };
    (beside others, looking at code) => {
        $crate::common::live!(beside others, from inside)
    };
    (from inside) => {
        $crate::common::turn_of_anybody(libc::LOCK_SH, Some(libc::LOCK_SH))
    };
    (@ $how:expr, $perf_events:expr) => {
        match $crate::common::turn($how, $perf_events) {
            Ok(Some(turn)) => turn,
            Ok(None) => return,
            Err(why) => $crate::common::skip!("{why}"),
        }
    };
}
pub(crate) use live;

/// The numbers of a list such as `0-3,8`.
pub fn cpus(list: &str) -> Vec<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        number(first)..=number(last)
    };
    list.split(',').flat_map(part).collect()
}

pub fn profinfer() -> PathBuf {
    env!("CARGO_BIN_EXE_profinfer").into()
}

/// The same without debug information, which is two thirds of it: what tests copy to devices.
pub fn profinfer_to_copy() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let to = place().join(format!("profinfer-to-copy-{}", std::process::id()));
        let mut strip = Command::new("strip");
        let out =
            strip.args(["--strip-debug", "-o"]).arg(&to).arg(profinfer()).output().expect("strip starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        // At once, for whoever copies it now.
        let shared = place().join("profinfer-to-copy");
        fs::rename(&to, &shared).expect("renamed");
        shared
    };
    MADE.get_or_init(make).clone()
}

/// A program of another package: cargo does not build it for these tests.
pub fn runner() -> PathBuf {
    runner_name().into()
}

/// Its path.
pub fn runner_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let runner = profinfer().with_file_name("ggml-runner");
        assert!(runner.is_file(), "{} is missing: cargo test --workspace builds it", runner.display());
        runner.into_os_string().into_string().expect("text")
    })
}

/// Directory for everything that tests make: target/tests.
pub fn place() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp has a parent");
    let place = target.join("tests");
    fs::create_dir_all(&place).expect("target/tests");
    place
}

/// A lock between test processes, held until dropped.
pub struct Lock(File);

pub fn lock(name: &str) -> Lock {
    locked(name, libc::LOCK_EX)
}

fn locked(name: &str, how: i32) -> Lock {
    let file = File::options().create(true).append(true).open(place().join(format!(".{name}.lock")));
    let file = file.expect("lock file");
    // SAFETY: a plain system call on an open descriptor.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), how) }, 0, "lock {name}");
    Lock(file)
}

/// A test's turn to record, across all test programs: alone (LOCK_EX), or beside others (LOCK_SH). tests/suite/rust.py
/// takes the time that it waited off the test's.
pub fn turn(how: i32, perf_events: Option<i32>) -> Result<Option<Turn>, String> {
    // SAFETY: takes no arguments and returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return Err("not root".into());
    }
    let uprobes = "/sys/bus/event_source/devices/uprobe/type";
    if !Path::new(uprobes).exists() {
        return Err(format!("this kernel has no uprobes ({uprobes} is not there)"));
    }
    bpf_allowed()?;
    perf_allowed()?;
    if how == libc::LOCK_EX && std::env::var_os("PROFINFER_ALONE_LATER").is_some() {
        println!("later: it records alone");
        return Ok(None);
    }
    Ok(Some(turn_of_anybody(how, perf_events)))
}

/// The same for a test that needs no privilege.
pub fn turn_of_anybody(how: i32, perf_events: Option<i32>) -> Turn {
    let begin = Instant::now();
    // Who waits to be alone is not passed by those that come later.
    let gate = lock("live-gate");
    let turn = locked("live", how);
    drop(gate);
    let perf_events = perf_events.map(|how| locked("live-perf-events", how));
    println!("waited: {:.3}", begin.elapsed().as_secs_f64());
    (turn, perf_events)
}

/// Held while a test records.
pub type Turn = (Lock, Option<Lock>);

/// Asks the kernel for a minimal map (BPF_MAP_CREATE = 0: an array of one word).
fn bpf_allowed() -> Result<(), String> {
    let mut attr = [0u32; 32];
    (attr[0], attr[1], attr[2], attr[3]) = (2, 4, 4, 1);
    // SAFETY: the attributes are a zeroed block larger than any kernel reads, with the matching size.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, 0, attr.as_mut_ptr(), size_of_val(&attr)) };
    if fd < 0 {
        return Err(format!("no BPF here: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was just created and is not shared.
    unsafe { libc::close(fd as i32) };
    Ok(())
}

/// Asks for a perf event that counts nothing: a container may have BPF without what attaches probes.
fn perf_allowed() -> Result<(), String> {
    // The first version of the attributes: type 1 is software, event 9 of it the dummy.
    let mut attr = [0u32; 16];
    (attr[0], attr[1], attr[2]) = (1, 64, 9);
    let (this, any, no) = (0, -1, 0);
    // SAFETY: the attributes are as large as they say, and the numbers are a process, a CPU, a group and no flags.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_mut_ptr(), this, any, any, no) };
    if fd < 0 {
        return Err(format!("no perf events here: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was just created and is not shared.
    unsafe { libc::close(fd as i32) };
    Ok(())
}

fn newest(dir: &Path) -> SystemTime {
    let entries = fs::read_dir(dir).expect("a directory of sources");
    let times = entries.filter_map(|e| e.ok()?.metadata().ok()?.modified().ok());
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

pub fn source(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(part)
}

/// Runs `make` unless `made` is newer than every file of tests/`part`.
fn once(part: &str, made: &Path, make: &mut Command) {
    let _lock = lock(part);
    let fresh = fs::metadata(made).and_then(|m| m.modified()).is_ok_and(|t| t > newest(&source(part)));
    if fresh {
        return;
    }
    let out = make.output().unwrap_or_else(|e| panic!("{make:?}: {e}"));
    assert!(out.status.success(), "{make:?}: {}", String::from_utf8_lossy(&out.stderr));
    File::options()
        .create(true)
        .append(true)
        .open(made)
        .and_then(|f| f.set_modified(SystemTime::now()))
        .expect("mark");
}

/// The program that kills another one, or sends it a signal, at one of its system calls (tests/kill/kill_at.c).
pub fn kill_at() -> PathBuf {
    let made = place().join("kill_at");
    let sources = ["kill/kill_at.c", "kill/stops.c"].map(source);
    once("kill", &made, Command::new("cc").arg("-O1").arg("-o").arg(&made).args(sources));
    made
}

/// Directory of a fixture's variant. None if the machine lacks the compiler for it.
pub fn fixture_dir(variant: &str) -> Option<PathBuf> {
    let dir = place().join("fixtures");
    once("fixtures", &dir.join(".built"), Command::new(source("fixtures/build.sh")).arg(&dir));
    Some(dir.join(variant)).filter(|d| d.join("fakellama").exists())
}

/// A fixture's program; skips the test if there is none. With a directory, which must not exist: a copy there. A recorder of
/// all processes of a file has none of another test then.
macro_rules! fixture {
    ($variant:expr) => {
        match $crate::common::fixture_dir($variant) {
            Some(dir) => dir.join("fakellama"),
            None => $crate::common::skip!("fixture {} could not be built here", $variant),
        }
    };
    ($variant:expr, $to:expr) => {
        $crate::common::copied($crate::common::fixture!($variant), $to)
    };
}
pub(crate) use fixture;

/// A fixture's program with its libraries in a new directory.
pub fn copied(program: PathBuf, to: impl AsRef<Path>) -> PathBuf {
    let from = program.parent().expect("a fixture has a directory");
    let done = Command::new("cp").arg("-r").arg(from).arg(to.as_ref()).status().expect("cp runs");
    assert!(done.success(), "{} is not copied to {}", from.display(), to.as_ref().display());
    to.as_ref().join("fakellama")
}

/// The program that runs a model on a real engine.
pub fn driver() -> PathBuf {
    let dir = place().join("engines");
    let made = dir.join("driver");
    let mut make = Command::new("make");
    make.arg("-B").arg("-C").arg(source("engines")).arg(format!("OUT={}", dir.display()));
    once("engines", &made, &mut make);
    made
}

/// Directory of the loads for tests of the layers (tests/gpu/load.sh); or why there are none.
pub fn loads() -> Result<PathBuf, String> {
    let engine = fixture_dir("modern").ok_or("no fixture 'modern' here")?;
    let dir = place().join("gpu");
    once("gpu", &dir.join(".built"), Command::new(source("gpu/load.sh")).args([&dir, &engine]));
    Ok(dir)
}

/// The argument of `driver --engine` for an engine of tests/engines/fetch.sh or tests/gpu; or why there is none.
pub fn engine(name: &str) -> Result<PathBuf, String> {
    let (script, only): (_, &[&str]) = match name {
        _ if name.starts_with("opencl-") => ("gpu/opencl.sh", &[]),
        _ if name.starts_with("cuda-v") => ("gpu/cuda.sh", &[]),
        _ => ("engines/fetch.sh", &["", name]),
    };
    let out = Command::new(source(script)).args(only).output().map_err(|e| format!("{script}: {e}"))?;
    let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    match said.lines().find_map(|l| l.strip_prefix(&format!("{name} "))) {
        Some(path) if out.status.success() => Ok(path.into()),
        _ => Err(format!("no engine {name}: {}", wrong.trim())),
    }
}

/// A generated model, made once.
pub fn model(preset: &str, ty: &str) -> PathBuf {
    synthesised(&format!("{preset}-{ty}"), &[preset, "--type", ty])
}

/// The same with its graph as an exporter writes it.
pub fn exported_model(preset: &str, ty: &str) -> PathBuf {
    synthesised(&format!("{preset}-exported-{ty}"), &[preset, "--type", ty, "--graph", "exported"])
}

fn synthesised(name: &str, args: &[&str]) -> PathBuf {
    let dir = place().join("models");
    fs::create_dir_all(&dir).expect("target/tests/models");
    let _lock = lock("models");
    let path = dir.join(format!("{name}.gguf"));
    if !path.exists() {
        let part = path.with_extension("part");
        let out = Command::new(runner()).args(["synth", "--force"]).args(args).arg(&part).output();
        let out = out.expect("ggml-runner runs");
        assert!(out.status.success(), "synth {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        fs::rename(&part, &path).expect("the model takes its name");
    }
    path
}
