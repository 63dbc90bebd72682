//! `profinfer serve` on live engines: which runs it records, when its files end, which failures it survives.

use crate::common;

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::live;
use common::run::{signal_to, wait};
use common::seen::Seen;
use common::service::Service;

/// All ops of all tokens, whatever the cost.
const ALL: &str = "\n[[rule]]\nname = \"all\"\nexe = \"ENGINE\"\nbudget = \"100%\"\n";

/// An engine that reports its work when it exits.
struct Engine(Child);

/// The file that lets an engine of [`released`] begin.
const GO: &str = "go";

impl Engine {
    fn start(program: &Path, args: &[&str]) -> Engine {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Engine(command.spawn().expect("the engine"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its number of llama_decode calls, once it has ended.
    fn calls(mut self) -> u64 {
        assert!(wait(&mut self.0).success());
        let said: serde_json::Value =
            serde_json::from_reader(self.0.stdout.take().expect("its output")).expect("JSON");
        said["calls"]["llama_decode"].as_u64().expect("a number")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One that computes once it is recorded, so that nothing is missed. Like a real one that loads its model first.
fn released(service: &Service, args: &[&str]) -> Engine {
    let go = service.path(GO);
    let _ = fs::remove_file(&go);
    let mut events = service.events();
    let engine = Engine::start(&service.engine(), &[args, &["--wait-for", &go.to_string_lossy()]].concat());
    events.wait_for(|e| e["event"] == "level" && e["pid"] == engine.pid());
    fs::write(go, "").expect("written");
    engine
}

/// `n` tokens of about 10 ms.
fn slow(program: &Path, n: &str) -> Engine {
    Engine::start(program, &["-t", "1", "-p", "4", "-n", n, "--op-ns", "300000", "--sleep"])
}

fn tokens(seen: &Seen, pid: u32) -> u64 {
    seen.all.tokens.iter().filter(|t| t.pid == pid && !t.cut).count() as u64
}

#[test]
fn each_run_is_recorded_from_its_first_call_to_its_end() {
    let _turn = live!(beside others);
    let mut service = Service::start("idle-timeout = \"1h\"", ALL);
    for n in 1..=2 {
        let mut events = service.events();
        let engine = released(&service, &["-t", "1", "-p", "4", "-n", "80", "--op-ns", "300000", "--sleep"]);
        let pid = engine.pid();
        let calls = engine.calls();
        let file = events.wait_for(|e| e["event"] == "file");
        assert_eq!(file["path"].as_str(), service.traces().last().and_then(|t| t.to_str()), "{file}");
        let state = service.wait_for_runs(n);
        let run = &state["runs"][n as usize - 1];
        assert_eq!((run["pid"].as_u64(), run["rule"].as_str()), (Some(pid.into()), Some("all")));
        assert_eq!(run["ended"], "the process has ended");
        let all = service.seen();
        let seen = &all[n as usize - 1];
        seen.books_close();
        assert_eq!((tokens(seen, pid), calls), (81, 81), "nothing is missed: {}", service.log());
        assert_eq!(run["tokens"], 81, "the first comes with the prompt");
        assert_eq!(seen.footer().end, "no engine left");
    }
    assert_eq!(service.traces().len(), 2, "a file for each");
    assert_eq!(service.stop(), Some(0));
    assert!(!service.path("sock/control").exists() && !service.path("status.json").exists());
}

/// Clean pages of a file leave memory.
fn forget(path: &Path) {
    let file = fs::File::open(path).expect("a file");
    file.sync_all().expect("written");
    // SAFETY: plain system call on an open file.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// The service has measured nothing of this machine yet, and neither the engine nor its model is in memory: what a service
/// manager starts after the service is recorded like the second run.
#[test]
fn the_first_run_of_a_cold_machine_is_recorded_like_any_other() {
    let _turn = live!();
    let dir = tempfile::tempdir_in(common::place()).expect("a directory");
    let (program, weights) = (dir.path().join("cold-engine"), dir.path().join("cold.gguf"));
    fs::copy(common::runner(), &program).expect("a copy");
    fs::copy(common::model("llama1b-L4", "q4_0"), &weights).expect("a copy");
    [&program, &weights].into_iter().for_each(|file| forget(file));
    let rule = format!("\n[[rule]]\nname = \"all\"\nexe = \"{}\"\nbudget = \"100%\"\n", program.display());
    let service = Service::start_as_told(dir, "idle-timeout = \"1h\"", &rule);
    for n in 1..=2 {
        let mut engine = Command::new(&program);
        engine.args(["run", "--no-roofline", "-t", "1", "-p", "4", "-n", "12", "-m"]).arg(&weights);
        assert!(engine.stdout(Stdio::null()).status().expect("the engine").success());
        service.wait_for_runs(n);
    }
    let all = service.seen();
    all.iter().for_each(Seen::books_close);
    let calls: Vec<usize> =
        all.iter().map(|seen| seen.all.tokens.iter().filter(|t| !t.cut).count()).collect();
    assert!(calls.len() == 2 && calls[0] == calls[1] && calls[0] > 12, "{calls:?} {}", service.log());
}

#[test]
fn files_follow_each_other_and_nothing_is_between() {
    let _turn = live!(beside others);
    // Twice what a recorder may read at once: one that is late on a busy machine must still find room in its file.
    let service = Service::start("file-size = \"4MiB\"\nquota = \"12MiB\"", ALL);
    let engine = Engine::start(&service.engine(), &["-t", "2", "-p", "4", "-n", "12000", "--op-ns", "20000"]);
    let pid = engine.pid();
    let mut most = 0;
    // Looked at with each event: one of them is that a file is complete, after which the next one grows.
    service.wait_for("the engine has ended", |s| {
        let bytes: u64 = service.traces().iter().filter_map(|t| Some(t.metadata().ok()?.len())).sum();
        most = most.max(bytes);
        s["counts"]["recorded"] == 1 && s["store"]["writing"] == 0
    });
    drop(engine);
    assert!(most <= 12 << 20, "{most} bytes: beyond the quota");
    let all = service.seen();
    assert!(all.len() >= 2, "{} files", all.len());
    let mut next = None;
    for seen in &all {
        seen.books_close();
        for t in seen.all.tokens.iter().filter(|t| t.pid == pid) {
            assert!(next.is_none_or(|n| n == t.seq), "token {} where {next:?} was to come", t.seq);
            next = Some(t.seq + 1);
        }
    }
    let ends: Vec<&str> = all.iter().map(|s| s.footer().end).collect();
    let (last, before) = ends.split_last().expect("files");
    assert!(before.iter().all(|e| *e == "size reached") && *last == "no engine left", "{ends:?}");
}

#[test]
fn a_ring_is_written_when_asked_and_when_decoding_is_slow() {
    let _turn = live!(beside others);
    let rule = "\n[[rule]]\nname = \"ring\"\nexe = \"ENGINE\"\nbudget = \"100%\"\nring = \"1min\"\n";
    let mut service = Service::start("", &format!("{rule}trigger-below = \"1tok/s\"\n"));
    let engine = slow(&service.engine(), "6000");
    service.wait_for("tokens come", |s| s["runs"][0]["tokens"].as_u64() > Some(50));
    assert!(service.traces().is_empty(), "nothing is written before somebody asks");
    let asked = service.ask("dump", &[]);
    assert!(asked.status.success(), "{}", asked.stderr);
    let traces = service.traces();
    assert_eq!(asked.stdout.trim(), traces[0].display().to_string());
    let dumped = Seen::read(&traces[0]);
    dumped.books_close();
    assert!(tokens(&dumped, engine.pid()) > 50);
    assert_eq!(dumped.footer().end, "ring written out");
    // It is never faster than that: the trigger fires.
    service.configure("", &format!("{rule}trigger-below = \"5000tok/s\"\n"));
    service.signal(libc::SIGHUP);
    service.wait_for_log("ring written to ", 1);
    assert_eq!(service.traces().len(), 2, "{}", service.log());
    Seen::read(&service.traces()[1]).books_close();
    assert!(service.log().contains(" below 5000"), "{}", service.log());
    assert!(service.ask("dump", &["-p", "1"]).stderr.contains("process 1 is not in a ring"));
    // A ring outlives its run, and is still named after it.
    let of_it = format!("-{}.pfi", engine.pid());
    drop(engine);
    service.wait_for("the run is over", |s| s["state"] == "waiting");
    let late = service.ask("dump", &[]);
    // The previous recorder may still exist, with its own ring.
    assert!(late.stdout.lines().any(|l| l.ends_with(&of_it)), "{} {}", late.stdout, late.stderr);
    assert_eq!(service.stop(), Some(0));
}

#[test]
fn the_beginning_of_every_other_run_is_recorded() {
    let _turn = live!(beside others);
    let rule = "\n[[rule]]\nname = \"some\"\nexe = \"ENGINE\"\nlevel = \"token\"\n\
                budget = \"100%\"\none-in = 2\ntokens = 10\n";
    let service = Service::start("", rule);
    for _ in 0..4 {
        slow(&service.engine(), "150").calls();
    }
    let count = |s: &serde_json::Value, what: &str| s["counts"][what].as_u64().unwrap_or(0);
    let state = service.wait_for("all are judged", |s| {
        // Other people's engines are recorded too.
        count(s, "seen") == 4 + count(s, "by_rule") && s["state"] == "waiting"
    });
    assert_eq!(
        (&state["counts"]["recorded"], &state["counts"]["sample_one_in"]),
        (&2.into(), &2.into()),
        "{state}"
    );
    for run in state["runs"].as_array().expect("runs") {
        assert_eq!(run["ended"], "its first 10 tokens are recorded", "{state}");
    }
    for seen in service.seen() {
        seen.books_close();
        // At most those that came before the limit was noticed.
        assert!((10..100).contains(&seen.all.tokens.len()), "{}", seen.all.tokens.len());
    }
}

#[test]
fn a_service_that_is_killed_leaves_whole_files_and_its_successor_goes_on() {
    let _turn = live!(beside others);
    let mut service = Service::start("", ALL);
    let engine = slow(&service.engine(), "6000");
    service.wait_for("tokens come", |s| s["runs"][0]["tokens"].as_u64() > Some(20));
    service.succeed();
    assert!(service.log().contains("an earlier start is reused: ready"), "{}", service.log());
    // Longer than data may wait before it is written.
    service.wait_for("the successor records it", |s| s["runs"][0]["tokens"].as_u64() > Some(200));
    let recorder = service.state()["rules"][0]["recorder"].as_u64().expect("a recorder");
    signal_to(recorder as u32, libc::SIGKILL);
    // The run's numbers restart with the file.
    service.wait_for("another recorder follows", |s| {
        let third = service.traces().get(2).and_then(|t| Some(t.file_name()?.to_str()?.to_owned()));
        third.is_some_and(|name| s["runs"][0]["file"] == name.as_str())
            && s["runs"][0]["tokens"].as_u64() > Some(20)
    });
    let pid = engine.pid();
    drop(engine);
    service.wait_for("it has ended", |s| s["state"] == "waiting" && s["store"]["writing"] == 0);
    let traces = service.traces();
    assert_eq!(traces.len(), 3, "{traces:?}");
    // The first: its recorder saw the service exit. The second was killed itself. The third ended with the engine.
    let first = Seen::read(&traces[0]);
    first.books_close();
    assert_eq!(first.footer().end, "signal");
    let second = pfi::Trace::open(&traces[1]).expect("a trace");
    assert!(
        !second.has_footer() && !second.blocks().is_empty() && second.verify().len() <= 1,
        "{:?}",
        second.verify()
    );
    let third = Seen::read(&traces[2]);
    third.books_close();
    assert!(tokens(&third, pid) > 0);
    assert!(
        service.log().contains("its recorder") && service.log().contains("has died"),
        "{}",
        service.log()
    );
}

#[test]
fn a_wrong_configuration_is_told_and_the_one_before_holds() {
    let _turn = live!(beside others);
    let service = Service::start("", ALL);
    let engine = slow(&service.engine(), "3000");
    service.wait_for("tokens come", |s| s["runs"][0]["tokens"].as_u64() > Some(20));
    let before = service.state();
    service.configure("quoter = 3\nquota = \"1\"", ALL);
    service.signal(libc::SIGHUP);
    let state = service
        .wait_for("it was read", |s| !s["configuration"]["errors"].as_array().is_none_or(Vec::is_empty));
    let errors = state["configuration"]["errors"].to_string();
    assert!(errors.contains("quoter") && errors.contains("quota"), "all at once: {errors}");
    assert_eq!(state["rules"][0]["recorder"], before["rules"][0]["recorder"]);
    // Another level means another recorder, and the run continues.
    service.configure("", &ALL.replace("budget", "level = \"token\"\nbudget"));
    for _ in 0..20 {
        service.signal(libc::SIGHUP);
    }
    service.wait_for("the new one records it", |s| {
        s["runs"][0]["level"] == "token" && s["runs"][0]["tokens"].as_u64() > Some(5)
    });
    drop(engine);
    service.wait_for("all have ended", |s| s["state"] == "waiting" && s["store"]["writing"] == 0);
    service.seen().iter().for_each(Seen::books_close);
}

#[test]
fn a_second_instance_and_a_directory_that_is_no_good_are_refused() {
    let _turn = live!(beside others);
    let service = Service::start("", ALL);
    let second =
        common::run::run(common::run::profinfer().arg("serve").arg("--conf").arg(service.path("conf.toml")));
    assert_eq!(second.status.code(), Some(1));
    assert!(second.stderr.contains(&service.child.id().to_string()), "{}", second.stderr);
    let (link, there) = (service.path("link"), service.path("there"));
    std::fs::create_dir(&there).expect("made");
    std::os::unix::fs::symlink(&there, &link).expect("made");
    let mut command = common::run::profinfer();
    command.arg("serve").arg("--conf").arg(service.path("conf.toml")).arg("--directory").arg(&link);
    let linked = common::run::run(&mut command);
    assert_eq!(linked.status.code(), Some(1));
    assert!(linked.stderr.contains("link"), "{}", linked.stderr);
    assert_eq!(service.state()["state"], "waiting", "the first goes on");
}

/// The machine's own peaks, moved away during a test.
struct NoPeaks;

impl NoPeaks {
    const KEPT: [&str; 2] = ["/var/cache/profinfer/peaks.json", "/var/cache/profinfer/peaks.json.aside"];

    fn begin() -> NoPeaks {
        let _ = fs::rename(Self::KEPT[0], Self::KEPT[1]);
        NoPeaks
    }
}

impl Drop for NoPeaks {
    fn drop(&mut self) {
        let _ = fs::rename(Self::KEPT[1], Self::KEPT[0]);
    }
}

/// A machine whose CPUs are idle: whenever its `proc/stat` has been read, all time since is idle time.
fn idle_cpus(dir: &Path) {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    let stat = dir.join("proc/stat");
    fs::create_dir_all(dir.join("sys")).expect("made");
    fs::create_dir_all(dir.join("proc")).expect("made");
    fs::write(&stat, "cpu 0 0 0 0 0 0 0 0\n").expect("written");
    let read = init(CreateFlags::CLOEXEC).expect("inotify");
    add_watch(&read, &stat, WatchFlags::CLOSE_NOWRITE).expect("inotify");
    std::thread::spawn(move || {
        for idle in 1.. {
            let came = rustix::io::read(&read, &mut [0; 4096]);
            // Until the test removes it.
            let file = fs::File::options().write(true).open(&stat);
            let (Ok(_), Ok(mut file)) = (came, file) else { return };
            writeln!(file, "cpu 0 0 0 {idle}00 0 0 0 0").expect("written");
        }
    });
}

/// An engine ends the measurement, whose place is taken when it is calm again; later recordings contain the peaks.
#[test]
fn what_the_machine_reaches_is_measured_while_no_engine_runs() {
    let _turn = live!();
    let _none = NoPeaks::begin();
    let dir = tempfile::tempdir().expect("a directory");
    idle_cpus(dir.path());
    let mut service = Service::start_in(dir, "peaks-after = \"1s\"\nidle-timeout = \"1s\"", ALL);
    let says = |service: &Service, what: &str, n: usize| {
        service.wait_for_log(what, n);
        assert_eq!(service.log().matches(what).count(), n, "{}", service.log());
    };
    says(&service, "no engine runs: measuring what this machine reaches", 1);
    let engine = slow(&service.engine(), "200");
    says(&service, "was not measured: an engine runs", 1);
    let kept = service.path("cache/profinfer/peaks.json");
    assert!(!kept.exists(), "a measurement beside an engine was kept");
    engine.calls();
    service.wait_for_runs(1);
    says(&service, "no engine runs: measuring what this machine reaches", 2);
    says(&service, "measured what this machine reaches: later recordings contain it", 1);
    assert!(kept.exists());
    slow(&service.engine(), "200").calls();
    service.wait_for_runs(2);
    service.stop();
    let peaks: Vec<usize> = service.seen().iter().map(|seen| seen.all.peaks.len()).collect();
    assert!(peaks[0] == 0 && peaks[1] > 0, "peaks in the recordings: {peaks:?}");
}
