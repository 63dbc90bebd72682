//! The service's finder on live processes: reports each engine once and before it ends, and nothing else.

use crate::common;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::refuse::refuse;
use common::run::{Target, run, wait, wait_until};
use common::service::children;
use common::{fixture, live, model, runner, skip};
use inspector::finder::{Finder, FoundProcess};

/// The finder's results from a point in time, for the processes of a test: others may run engines at the same time.
struct Finding {
    finder: Finder,
    found: Vec<FoundProcess>,
    /// Known at the start.
    before: usize,
}

impl Finding {
    fn new() -> Finding {
        Finding { finder: Finder::new().expect("descriptors"), found: Vec::new(), before: 0 }
    }

    /// Once it knows the engines that already run, which belong to other tests; `program` is a fake engine.
    fn begin(program: &Path) -> Finding {
        let last = waiting(program);
        let mut all = Finding::new();
        assert!(all.finder.is_told(), "{}", all.finder.backend());
        all.times(last.pid(), 1);
        all.found.clear();
        all.before = all.finder.alive() - 1;
        all
    }

    /// Waits for events, at most a tenth of a second, as a service would.
    fn wait(&mut self) {
        let fds = self.finder.fds();
        let poll = |fd: &dyn AsRawFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<libc::pollfd> = fds.iter().map(|fd| poll(fd)).collect();
        // SAFETY: the length is that of the array, all descriptors are open.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 100) };
        self.found.extend(self.finder.poll());
    }

    /// What happened so far has been looked at: an engine that starts now is found after it.
    fn catch_up(&mut self, program: &Path) {
        let sentinel = waiting(program);
        self.times(sentinel.pid(), 1);
    }

    fn of(&self, pid: u32) -> Vec<&FoundProcess> {
        self.found.iter().filter(|f| f.pid == pid).collect()
    }

    /// Waits until the process was found this many times.
    fn times(&mut self, pid: u32, n: usize) -> FoundProcess {
        wait_until("the process is found", || {
            self.wait();
            self.of(pid).len() >= n
        });
        assert_eq!(self.of(pid).len(), n);
        self.of(pid)[n - 1].clone()
    }
}

/// An engine that computes nothing until it is killed.
fn waiting(program: &Path) -> Target {
    Target::start(program, &["--wait-for", "/nowhere/at/all"])
}

fn id(path: &Path) -> (u64, u64) {
    let meta = fs::metadata(path).expect("a file");
    (meta.dev(), meta.ino())
}

fn quiet(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn each_engine_is_found_once_and_before_it_ends_and_nothing_else() {
    let _turn = live!(beside others);
    let (shared, fixed) = (fixture!("modern"), fixture!("static"));
    let model = model("tiny", "q8_0");
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    let mut all = Finding::begin(&fixed);
    // Ten runners within a second, between short programs that are not engines.
    let mut children = HashMap::new();
    let mut others = Vec::new();
    for _ in 0..10 {
        let mut runner = quiet(runner());
        let child = runner.args(["run", "--no-roofline", "-p", "8", "-n", "128", "-m"]).arg(&model).spawn();
        let child = child.expect("the runner starts");
        children.insert(child.id(), child);
        for _ in 0..10 {
            let mut child = quiet("true").spawn().expect("true starts");
            others.push(child.id());
            all.found.extend(all.finder.poll());
            wait(&mut child);
        }
    }
    let mut fakes = Vec::new();
    for program in [&shared, &fixed] {
        let child = quiet(program).arg("--wait-for").arg(&go).spawn().expect("the fake starts");
        fakes.push(child.id());
        children.insert(child.id(), child);
    }
    let mut running: Vec<u32> = children.keys().copied().collect();
    while !running.is_empty() {
        all.wait();
        if fakes.iter().all(|&pid| !all.of(pid).is_empty()) {
            fs::write(&go, "").expect("written");
        }
        running.retain(|pid| {
            let child = children.get_mut(pid).expect("one of ours");
            let ended = child.try_wait().expect("our own child").is_some();
            assert!(
                !ended || !all.of(*pid).is_empty(),
                "{pid} ended before it was found: {}",
                all.finder.backend()
            );
            !ended
        });
    }
    all.catch_up(&fixed);
    assert!(children.keys().all(|&pid| all.of(pid).len() == 1), "once each: {:?}", all.found);
    assert!(others.iter().all(|&pid| all.of(pid).is_empty()), "no engines: {:?}", all.found);
    let own = user();
    for found in &all.found {
        let Some(program) = children.contains_key(&found.pid).then_some(&found.exe) else { continue };
        let base = if *program == shared { shared.with_file_name("libfakeggml.so") } else { program.clone() };
        assert_eq!((&found.path, found.base, found.uid), (&base, id(&base), own), "{found:?}");
        assert!(found.start > 0 && found.parent.is_none(), "{found:?}");
    }
    wait_until("those that ended are forgotten", || {
        all.wait();
        // With the sentinel.
        all.finder.alive() + children.len() < all.before + all.found.len()
    });
}

/// The user of this test.
fn user() -> u32 {
    // SAFETY: takes no arguments and returns a number.
    unsafe { libc::getuid() }
}

/// Loads a library, forks, executes itself again, on command.
const SCRIPT: &str = r#"
import ctypes, json, os, signal, sys
print('{"up": 1}')
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    said = {}
    if word == "load":
        ctypes.CDLL(rest)
    if word == "exec":
        os.execv(sys.executable, [sys.executable, "-u", *sys.argv])
    if word == "fork":
        said["pids"] = []
        for _ in range(int(rest)):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            said["pids"].append(pid)
    print(json.dumps(said))
"#;

/// A process that runs the script, once it has confirmed that.
fn script(dir: &Path) -> Option<Target> {
    let path = dir.join("script.py");
    fs::write(&path, SCRIPT).expect("written");
    Command::new("python3").arg("-V").output().ok().filter(|o| o.status.success())?;
    let mut target = Target::controlled(Command::new("python3").arg("-u").arg(path));
    target.tell("", 1);
    Some(target)
}

#[test]
fn late_mappings_execs_and_children() {
    let _turn = live!(beside others);
    let fake = fixture!("modern");
    let base = fake.with_file_name("libfakeggml.so");
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut target) = script(dir.path()) else { skip!("no python3") };
    let mut all = Finding::begin(&fake);
    let pid = target.pid();
    all.catch_up(&fake);
    assert!(all.of(pid).is_empty(), "no engine yet");
    target.tell(&format!("load {}\n", base.display()), 2);
    let first = all.times(pid, 1);
    assert_eq!((first.base, first.path.as_path()), (id(&base), base.as_path()));
    // Loading the same file again is not reported.
    target.tell(&format!("load {}\n", base.display()), 3);
    // Another program in the same process, with the same engine.
    target.tell("exec\n", 4);
    target.tell(&format!("load {}\n", base.display()), 5);
    let second = all.times(pid, 2);
    assert_eq!((second.start, second.base), (first.start, first.base));
    // Children are found by a scan of all processes, and only then.
    let said = target.tell("fork 20\n", 6);
    let children: Vec<u32> = serde_json::from_value(said["pids"].clone()).expect("pids");
    all.catch_up(&fake);
    assert!(children.iter().all(|&c| all.of(c).is_empty()));
    all.finder.look_again();
    for &child in &children {
        assert_eq!(all.times(child, 1).parent, Some(pid));
    }
    // One more child is found by the next scan only, which comes to it after the others.
    let said = target.tell("fork 1\n", 7);
    let last: Vec<u32> = serde_json::from_value(said["pids"].clone()).expect("pids");
    all.finder.look_again();
    all.times(last[0], 1);
    assert!(children.iter().all(|&c| all.of(c).len() == 1) && all.of(pid).len() == 2, "{:?}", all.found);
}

#[test]
fn names_do_not_count_nor_do_namespaces() {
    let _turn = live!(beside others);
    let (fake, other) = (fixture!("static"), fixture!("static-pie"));
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().canonicalize().expect("real");
    let program = dir.join("engine");
    let start = |program: &PathBuf| {
        let mut target = waiting(program);
        // The exec is over when Target::start returns; its mappings exist once it sleeps.
        wait_until("it holds", || target.running() && has_mapped(target.pid(), program));
        target
    };
    fs::copy(&fake, &program).expect("copied");
    let was = id(&program);
    let replaced = start(&program);
    let one_more = dir.join("new");
    fs::copy(&other, &one_more).expect("copied");
    fs::rename(&one_more, &program).expect("replaced");
    // This path exists in its mount namespace, but not in ours.
    let hidden = dir.join("hidden");
    fs::create_dir(&hidden).expect("a directory");
    let script = "mount -t tmpfs none $1 && cp $2 $1/inside && exec $1/inside --wait-for /nowhere";
    let mut offcpu = Command::new("unshare");
    offcpu.args(["--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c", script, "sh"]);
    let mut offcpu = Target::spawn(offcpu.arg(&hidden).arg(&fake));
    let inside = hidden.join("inside");
    let mut inner = None;
    wait_until("it runs inside", || {
        inner = children(offcpu.pid()).first().copied().filter(|&pid| has_mapped(pid, &inside));
        inner.is_some() || !offcpu.running()
    });

    // A finder that starts later finds both, ...
    let mut all = Finding::new();
    let old = all.times(replaced.pid(), 1);
    assert_eq!((old.base, old.exe.as_path()), (was, program.as_path()), "not what has its name now");
    let Some(inner) = inner else { skip!("no unshare here") };
    assert_eq!(all.times(inner, 1).path, inside);
    // ... and the name now refers to another file.
    let new = start(&program);
    let found = all.times(new.pid(), 1);
    assert_eq!(found.base, id(&program));
    assert_ne!(found.base, was);
    assert_eq!(all.finder.unseen, 0);
}

fn has_mapped(pid: u32, program: &Path) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().any(|l| l.contains("r-xp") && l.contains(&*program.to_string_lossy()))
}

#[test]
fn what_was_lost_is_looked_for() {
    let _turn = live!(beside others);
    let program = fixture!("static");
    let mut all = Finding::begin(&program);
    // All on one CPU, so that its ring is too small for unread events.
    // SAFETY: takes no arguments and returns a number.
    let here = unsafe { libc::sched_getcpu() };
    let mut command = quiet("sh");
    let script = "i=0; while [ $i -lt 500 ]; do /bin/true; i=$((i+1)); done; exec \"$0\" --wait-for /nowhere";
    // SAFETY: between fork and exec only one system call, on stack memory.
    unsafe {
        command.pre_exec(move || {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(here as usize, &mut set);
            match libc::sched_setaffinity(0, size_of_val(&set), &raw const set) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    let mut target = Target::spawn(command.args(["-c", script]).arg(&program));
    wait_until("the engine runs", || {
        assert!(target.running());
        has_mapped(target.pid(), &program)
    });
    all.times(target.pid(), 1);
    // The kernel reports a loss with its next record.
    wait_until("the loss is told", || {
        let _ = quiet("taskset").arg("-c").arg(here.to_string()).arg("true").status();
        all.wait();
        all.finder.lost > 0
    });
    // A scan of all processes does not report it again. Only a scan finds a child, which it comes to after the others.
    let parent = Target::start(&program, &["--fork", "1", "--child-hold", "1000"]);
    wait_until("it has a child", || !children(parent.pid()).is_empty());
    all.finder.look_again();
    all.times(children(parent.pid())[0], 1);
    assert_eq!(all.of(target.pid()).len(), 1);
}

#[test]
fn the_child_of_a_fork_drops_it_and_leaves_it_whole() {
    let _turn = live!(beside others);
    let program = fixture!("static");
    let mut all = Finding::begin(&program);
    // SAFETY: the child only drops its state, and exits without running other code of the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(all);
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) }
    }
    let mut status = -1;
    // SAFETY: writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    all.catch_up(&program);
}

/// Set for the copy of this test that runs with system calls refused.
const REFUSED: &str = "PROFINFER_TEST_REFUSED";

#[test]
fn where_the_kernel_gives_no_notices_proc_is_looked_through() {
    if std::env::var_os(REFUSED).is_some() {
        return refused();
    }
    let _turn = live!(beside others);
    let mut copy = Command::new(std::env::current_exe().expect("this test"));
    copy.args(["--exact", "finder::where_the_kernel_gives_no_notices_proc_is_looked_through", "--nocapture"]);
    refuse(copy.env(REFUSED, "1"), libc::EPERM, &[libc::SYS_perf_event_open]);
    let ran = run(&mut copy);
    assert!(ran.status.success(), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("1 passed"), "{}", ran.stdout);
}

fn refused() {
    let Some(dir) = common::fixture_dir("modern") else { skip!("fixture modern could not be built here") };
    let (base, fake) = (dir.join("libfakeggml.so"), dir.join("fakellama"));
    let before = waiting(&fake);
    let mut all = Finding::new();
    let backend = all.finder.backend();
    assert!(!all.finder.is_told() && backend.contains("250 ms") && backend.contains("seccomp"), "{backend}");
    all.times(before.pid(), 1);
    let after = waiting(&fake);
    all.times(after.pid(), 1);
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut late) = script(dir.path()) else { skip!("no python3") };
    late.tell(&format!("load {}\n", base.display()), 2);
    all.times(late.pid(), 1);
    late.tell("exec\n", 3);
    late.tell(&format!("load {}\n", base.display()), 4);
    all.times(late.pid(), 2);
    // Two more scans.
    all.catch_up(&fake);
    all.catch_up(&fake);
    assert_eq!([before.pid(), after.pid(), late.pid()].map(|p| all.of(p).len()), [1, 1, 2]);
}
