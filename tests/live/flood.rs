//! An unprivileged user maps very many files, or very large ones, or opens a thousand connections: the service
//! answers, records other users' engines, and recovers after a restart. Endless signals: everything is recorded.

use crate::common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::run::{Target, wait_until};
use common::service::Service;
use common::{live, skip};

const NOBODY: u32 = 65534;
const RULE: &str = "[[rule]]\nname = \"all\"\nexe = \"ENGINE\"\n";

/// Creates files and maps them executable: `sparse` ones that claim tables of hundreds of megabytes, `full` ones
/// with as many bytes of symbols and names, or one `small` file very many times. Reports this, and stays.
const MAPPER: &str = r#"
import ctypes, mmap, os, struct, sys, time
where, kind, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
machine = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
def section(kind, at, size, link):
    return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 8, 24)
def elf(at, symbols, strings):
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64, 0, 64, 56, 0, 64, 4, 0)
    tables = section(2, at, symbols, 3) + section(11, at, symbols, 3) + section(3, at + symbols, strings, 0)
    return head + b"\0" * 64 + tables
names = b"\0ggml_op_name\0ggml_get_name\0"
rights = dict(flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
keep = []
for i in range(number if kind != "small" else 1):
    fd = os.open(f"{where}/{kind}{i}.so", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o700)
    if kind == "sparse":
        symbols, strings = 192 << 20, 128 << 20
        os.ftruncate(fd, (1 << 20) + symbols + strings)
        os.pwrite(fd, elf(1 << 20, symbols, strings), 0)
        os.pwrite(fd, names, (1 << 20) + symbols + strings - 64)
    else:
        symbols, strings = 24 * 680, 16 << 10
        os.write(fd, elf(4096, symbols, strings).ljust(4096, b"\1"))
        os.write(fd, b"\2" * symbols + b"ggml_op_name\0" * 1000 + names)
    if kind != "small":
        keep.append(mmap.mmap(fd, 4096, **rights))
        os.close(fd)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
while kind == "small" and len(keep) < number:
    place = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, fd, 0)
    if place == ctypes.c_void_p(-1).value:
        break
    keep.append(place)
print(len(keep), flush=True)
time.sleep(1000)
"#;

/// A process of user nobody that has mapped these files.
fn mapper(dir: &Path, kind: &str, number: u32) -> Option<Target> {
    Command::new("python3").arg("-V").output().ok().filter(|o| o.status.success())?;
    let place = dir.join(kind);
    fs::create_dir_all(&place).expect("a directory");
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("its mode");
    std::os::unix::fs::chown(&place, Some(NOBODY), Some(NOBODY)).expect("nobody's");
    let mut command = Command::new("python3");
    command.args(["-c", MAPPER]).arg(&place).args([kind, &number.to_string()]);
    let mut target = Target::controlled(command.uid(NOBODY).gid(NOBODY));
    let begin = Instant::now();
    let said = target.tell("", 1);
    println!("{kind}: {said} mapped in {:.1?}", begin.elapsed());
    Some(target)
}

/// Requests the status repeatedly until stopped, and has an answer each time; returns the longest time to one, to be
/// printed: some milliseconds on an idle machine.
fn longest(service: &Service, during: impl FnOnce()) -> Duration {
    /// Also when `during` fails: the scope waits for its threads.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = Over(&over);
        let asker = scope.spawn(|| {
            let mut most = Duration::ZERO;
            while !over.load(Ordering::SeqCst) {
                let begin = Instant::now();
                let said = service.ask("status", &["--json"]);
                assert!(said.status.success(), "{}", said.stderr);
                most = most.max(begin.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            most
        });
        during();
        drop(end);
        asker.join().expect("answers")
    })
}

/// Runs root's engine to its end, from when it is followed; the service must have recorded it.
fn record_one(service: &Service, n: u64) {
    let go = service.path("go");
    // There is none before the first engine.
    drop(fs::remove_file(&go));
    let hold = ["--hold-for", go.to_str().expect("UTF-8")];
    let args = [&["-n", "200", "-t", "2", "--op-ns", "200000", "--sleep"], &hold[..]].concat();
    let mut events = service.events();
    let engine = Target::start(service.engine(), &args);
    events.wait_for(|e| e["event"] == "level" && e["pid"] == engine.pid());
    fs::write(go, "").expect("written");
    let said = engine.said();
    assert!(said["calls"]["llama_decode"].as_u64() > Some(0), "{said}");
    let begin = Instant::now();
    service.wait_for("root's engine is recorded", |s| s["counts"]["recorded"].as_u64() >= Some(n));
    println!("recorded, {:.1?} after its end", begin.elapsed());
}

/// The service's behavior while somebody maps these files, and after a restart.
fn flooded(kind: &str, number: u32) {
    let _turn = live!();
    let mut service = Service::start("idle-timeout = \"1s\"", RULE);
    let flood = tempfile::tempdir().expect("a directory");
    let mut target = None;
    let most = longest(&service, || {
        target = mapper(flood.path(), kind, number);
        record_one(&service, 1);
    });
    let Some(_target) = target else { skip!("no python3") };
    println!("{kind}: the status was answered within {most:.1?}");
    // Killed and restarted, with everything mapped already.
    let begin = Instant::now();
    service.succeed();
    let most = longest(&service, || record_one(&service, 1));
    println!("{kind}: started anew, it was answered within {most:.1?}; all took {:.1?}", begin.elapsed());
    let begin = Instant::now();
    assert_eq!(service.stop(), Some(0), "{}", service.log());
    println!("{kind}: stopped in {:.1?}", begin.elapsed());
}

#[test]
fn large_files_with_holes() {
    flooded("sparse", 200);
}

#[test]
fn many_files_with_many_symbols() {
    flooded("full", 2000);
}

#[test]
fn one_process_with_all_mappings_that_it_may_have() {
    flooded("small", 65_000);
}

#[test]
fn who_asks_and_does_not_listen_keeps_nobody_waiting() {
    let _turn = live!();
    let service = Service::start("idle-timeout = \"1s\"", RULE);
    let half = || {
        let mut stream = UnixStream::connect(service.path("sock/control")).ok()?;
        stream.set_nonblocking(true).ok()?;
        stream.write_all(b"sta").ok()?;
        Some(stream)
    };
    // Only root can cause this: nobody else may connect. More clients wait than there are slots.
    let mut held = Vec::new();
    for _ in 0..300 {
        held.extend(half());
    }
    let most = longest(&service, || record_one(&service, 1));
    println!("beside {} that do not ask on: within {most:.1?}", held.len());
    // Clients that do not read, and clients that leave before the answer.
    for _ in 0..1000 {
        if let Ok(mut stream) = UnixStream::connect(service.path("sock/control")) {
            drop(stream.write_all(b"status\n"));
        }
    }
    service.wait_for("it goes on", |s| s["state"] == "waiting");
}

/// The service's recorders.
fn recorders(service: &Service) -> Vec<u32> {
    let pid = service.child.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let named = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "profinfer-rec")
    };
    children.split_ascii_whitespace().filter_map(|p| p.parse().ok()).filter(named).collect()
}

#[test]
fn signals_without_end_do_not_keep_programs_from_being_loaded() {
    let _turn = live!();
    let service = Service::start("idle-timeout = \"1s\"", RULE);
    wait_until("no recorder is there", || recorders(&service).is_empty());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                for pid in recorders(&service) {
                    // SAFETY: a plain system call; a process that has ended meanwhile does not exist.
                    unsafe { libc::kill(pid as i32, libc::SIGUSR1) };
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let go = service.path("go");
        let wait_for = go.to_str().expect("a path");
        let args = ["--wait-for", wait_for, "-n", "200", "-t", "2", "--op-ns", "200000", "--sleep"];
        let target = Target::start(service.engine(), &args);
        // A run has a level once its engine is probed.
        service.wait_for("it is recorded", |s| s["runs"][0]["level"].as_str().is_some_and(|l| !l.is_empty()));
        fs::write(&go, "").expect("go");
        let said = target.said();
        over.store(true, Ordering::SeqCst);
        assert!(said["calls"]["llama_decode"].as_u64() > Some(0), "{said}");
    });
    let state = service.wait_for_runs(1);
    assert_eq!(state["counts"]["missed"], 0, "{}", service.log());
    assert!(!service.log().contains("do not load"), "{}", service.log());
    assert_eq!(service.seen().len(), 1);
}

/// A recording that is stopped while its programs are being loaded ends cleanly.
#[test]
fn one_signal_that_ends_a_recording_interrupts_nothing_else() {
    let _turn = live!();
    let program = common::fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    let term = libc::SIGTERM.to_string();
    for place in ["bpf:1:entry", "bpf:30:exit", "load:100:entry", "attach:10:inside"] {
        let mut command = Command::new(common::kill_at());
        command
            .args(["-k", place, "-s", &term, "-t", "100", "-o"])
            .arg(&state)
            .arg("--")
            .arg(common::profinfer());
        command.args(["record", "--force", "-o"]).arg(dir.path().join("run.pfi"));
        let run = common::run::run(command.arg("--").arg(&program).args(["-n", "20"]));
        let told = fs::read_to_string(&state).expect("written");
        assert!(told.contains("\"end\":\"killed\""), "{place} was not reached: {told}");
        assert!(told.contains("\"signal\":0"), "it ends by itself: {told}");
        assert!(!run.stderr.contains("do not load"), "{place}: {}", run.stderr);
    }
    // Its children must still be killable by such a signal.
    let said = common::run::record(&["--", "sh", "-c", "grep SigBlk /proc/self/status"]);
    let line = said.stdout.lines().find_map(|l| l.strip_prefix("SigBlk:")).expect("a line");
    let blocked = u64::from_str_radix(line.trim(), 16).expect("a number");
    let ending = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1];
    assert!(ending.iter().all(|signal| blocked & (1 << (signal - 1)) == 0), "{}", said.stdout);
}
