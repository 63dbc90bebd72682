//! `profinfer record --on`: over ssh against a real sshd on the loopback, with interruptions on both sides; over adb and
//! hdc against stand-ins in tests/remote, which check the calls and run them on this machine.

use crate::common;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::endless::{code_is_clean, endless};
use common::run::{Recorder, Run, profinfer, run, signal_to, wait, wait_until};
use common::seen::Seen;
use common::{fixture, live};

/// A machine that is reached by ssh on the loopback, with its files in a directory of the test.
struct Board {
    dir: tempfile::TempDir,
    sshd: Child,
    port: u16,
}

/// Where Debian has it; it must be started by its full path.
const SSHD: &str = "/usr/sbin/sshd";

/// A board; skips the test if there is no sshd.
macro_rules! board {
    () => {
        match Board::start() {
            Ok(board) => board,
            Err(why) => common::skip!("{why}"),
        }
    };
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
}

impl Board {
    fn start() -> Result<Board, String> {
        let there = |name: &str| Command::new(name).arg("-?").output().is_ok();
        if !there(SSHD) || !there("ssh") {
            return Err(format!(
                "no {SSHD} or no ssh: the packages openssh-server and openssh-client are missing"
            ));
        }
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "user", "stranger"] {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]).status();
            assert!(made.expect("ssh-keygen").success());
        }
        // Privilege separation needs it; the package's service creates it at boot.
        fs::create_dir_all("/run/sshd").expect("/run/sshd");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             UsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             SetEnv XDG_CACHE_HOME={}\n",
            at("host"),
            at("user.pub"),
            at("cache")
        );
        write(&dir.path().join("sshd_config"), &config, 0o600);
        let log = fs::File::create(dir.path().join("sshd.log")).expect("a log");
        let mut command = Command::new(SSHD);
        command
            .args(["-D", "-e", "-f", &at("sshd_config")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let sshd = command.process_group(0).spawn().expect("sshd");
        let board = Board { dir, sshd, port };
        board.client("ssh", "user");
        board.client("stranger-ssh", "stranger");
        wait_until("sshd listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Ok(board)
    }

    /// A client with this key, and nothing of the user's configuration.
    fn client(&self, name: &str, key: &str) {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        let script = format!(
            "#!/bin/sh\nSTAND_IN={}\n. {}\nlog \"$@\"\n\
             exec ssh -F none -i {} -o IdentitiesOnly=yes -o IdentityAgent=none -o StrictHostKeyChecking=no \
             -o UserKnownHostsFile={} \"$@\"\n",
            self.dir.path().display(),
            common::source("remote/verb.sh").display(),
            at(key),
            at("known")
        );
        write(&self.dir.path().join(name), &script, 0o755);
    }

    fn on(&self) -> String {
        format!("ssh:root@127.0.0.1:{}", self.port)
    }

    fn base(&self) -> PathBuf {
        self.dir.path().join("cache/profinfer")
    }

    fn command(&self) -> Command {
        let mut command = profinfer();
        command.env("SSH", self.dir.path().join("ssh")).env("XDG_RUNTIME_DIR", self.dir.path());
        command.process_group(0);
        command
    }

    /// `record --on` of this machine, with these arguments.
    fn start_recording(&self, args: &[&str]) -> Recorder {
        let (on, program) = (self.on(), common::profinfer_to_copy().display().to_string());
        let own = ["--on", &on, "--remote-program", &program];
        Recorder::start_as(self.command(), &[&own, args].concat())
    }

    fn record(&self, args: &[&str]) -> Run {
        self.start_recording(args).finish()
    }

    /// Waits until neither a trace, nor a recorder, nor a probe definition of it is left.
    fn nothing_is_left(&self) {
        nothing_is_left(&self.base());
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: a signal to the group of our own child.
        unsafe { libc::kill(-(self.sshd.id() as i32), libc::SIGKILL) };
        let _ = self.sshd.wait();
    }
}

/// Processes whose command line contains this text.
fn processes(text: &str) -> Vec<u32> {
    let own = std::process::id();
    let all =
        fs::read_dir("/proc").expect("/proc").filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    };
    all.filter(|pid| *pid != own && has(pid)).collect()
}

/// Processes that this one has started.
fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(')').map(|(_, after)| after).unwrap_or_default();
        after.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    processes("").into_iter().filter(is_child).collect()
}

fn runs(base: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(base).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    all.filter(|p| !p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("profinfer-"))).collect()
}

fn nothing_is_left(base: &Path) {
    let programs = base.join("profinfer-").display().to_string();
    wait_until("nothing of the recording is left", || {
        runs(base).is_empty() && processes(&programs).is_empty() && !a_definition_is_left()
    });
}

/// Whether there is a probe definition of a recorder that has ended; others may record beside it.
fn a_definition_is_left() -> bool {
    let events = fs::read_to_string("/sys/kernel/tracing/uprobe_events").expect("tracefs");
    let recorders = events.split("profinfer_").skip(1).map(|rest| rest.split('_').next().unwrap_or_default());
    recorders.into_iter().any(|pid| !Path::new("/proc").join(pid).exists())
}

#[test]
fn a_command_on_another_machine_is_recorded_in_full() {
    let _turn = live!(beside others);
    let engine = fixture!("modern").display().to_string();
    let board = board!();
    for (n, first) in [true, false].into_iter().enumerate() {
        let r = board.record(&["--", &engine, "-n", "5"]);
        let seen = r.seen();
        seen.books_close();
        seen.complete();
        assert!(r.said()["calls"].is_object(), "the command's output is ours: {}", r.stdout);
        assert_eq!(r.stderr.contains("copying "), first, "{n}: {}", r.stderr);
        for wanted in ["profinfer: ready: recording ", " none lost; ", " bytes in ", "Details "] {
            assert_eq!(r.stderr.matches(wanted).count(), 1, "{wanted}: {}", r.stderr);
        }
        assert_eq!(fs::metadata(&r.trace).expect("a trace").permissions().mode() & 0o777, 0o600);
        board.nothing_is_left();
        assert_eq!(fs::read_dir(board.base()).expect("a directory").count(), 1, "the program stays");
    }
}

#[test]
fn words_arrive_whole_and_the_status_comes_back() {
    let _turn = live!(beside others);
    let engine = fixture!("modern").display().to_string();
    let board = board!();
    let odd = "it's \"$HOME\" `id`\n\\ *  é";
    let script = "printf %s \"$2\"; \"$1\" -n 2 >/dev/null; exit 7";
    let r = board.record(&["--no-sched", "--", "sh", "-c", script, "x", &engine, odd]);
    assert_eq!(r.status.code(), Some(7), "{}", r.stderr);
    assert_eq!(r.stdout, odd);
    assert!(r.stderr.contains("the command exited with status 7"), "{}", r.stderr);
    Seen::read(&r.trace).complete();
    board.nothing_is_left();
    // To standard output: the command's own output goes to standard error.
    let mut command = board.command();
    command.args(["record", "--on", &board.on(), "--remote-program"]).arg(common::profinfer_to_copy());
    let dir = tempfile::tempdir().expect("a directory");
    let out = command.args(["-o", "-", "--", &engine, "-n", "2"]).output().expect("it runs");
    let trace = dir.path().join("a b\n.pfi");
    fs::write(&trace, &out.stdout).expect("written");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Seen::read(&trace).complete();
    board.nothing_is_left();
}

#[test]
fn the_first_signal_ends_the_recording_and_the_trace_is_fetched() {
    let _turn = live!(beside others, looking at code);
    let engine = fixture!("modern");
    let board = board!();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut target = endless(&engine);
        let recorder = board.start_recording(&["-p", &target.pid().to_string()]);
        let there = || runs(&board.base()).into_iter().map(|run| run.join("run.pfi"));
        wait_until("tokens have come", || there().any(|t| fs::metadata(t).is_ok_and(|m| m.len() > 100_000)));
        // A terminal sends Ctrl-C to the clients, too.
        let group = if signal == libc::SIGINT { -1 } else { 1 };
        // SAFETY: a signal to our own child, or to its group.
        unsafe { libc::kill(group * recorder.child.id() as i32, signal) };
        let r = recorder.finish();
        let seen = r.seen();
        seen.books_close();
        assert!(seen.slices() > 0 && !seen.all.tokens.is_empty());
        assert!(r.stderr.contains("stopping the recording on 127.0.0.1"), "{}", r.stderr);
        board.nothing_is_left();
        assert!(code_is_clean(target.pid()) && target.running());
    }
}

#[test]
fn a_second_signal_gives_up_and_leaves_nothing() {
    let _turn = live!(beside others, looking at code);
    let engine = fixture!("modern");
    let board = board!();
    let mut target = endless(&engine);
    let recorder = board.start_recording(&["-p", &target.pid().to_string()]);
    recorder.wait_for_probes();
    recorder.signal(libc::SIGINT);
    wait_until("it is noticed", || recorder.stderr().contains("stopping the recording"));
    recorder.signal(libc::SIGINT);
    let r = recorder.finish();
    // The recording may have been fetched already.
    assert!(matches!(r.status.code(), Some(130 | 0)), "{}: {}", r.status, r.stderr);
    board.nothing_is_left();
    assert!(code_is_clean(target.pid()) && target.running());
}

/// What is killed while it records.
enum Victim {
    /// The program that the user started.
    Ours,
    /// The client that holds the connection.
    Client,
    /// The processes of sshd for the connection.
    Server,
}

#[test]
fn a_lost_connection_leaves_neither_probes_nor_files_nor_processes() {
    let _turn = live!(beside others, looking at code);
    let engine = fixture!("modern");
    let board = board!();
    for victim in [Victim::Ours, Victim::Client, Victim::Server] {
        let mut target = endless(&engine);
        let mut recorder = board.start_recording(&["-p", &target.pid().to_string()]);
        recorder.wait_for_probes();
        let pids = match victim {
            Victim::Ours => vec![recorder.child.id()],
            Victim::Client => processes(&format!("-M -S {}", board.dir.path().display())),
            Victim::Server => children(board.sshd.id()),
        };
        assert!(!pids.is_empty());
        pids.into_iter().for_each(|pid| signal_to(pid, libc::SIGKILL));
        if matches!(victim, Victim::Ours) {
            let _ = recorder.child.wait();
        } else {
            let r = recorder.finish();
            assert_eq!(r.status.code(), Some(1), "{}", r.stderr);
            assert!(r.stderr.contains("the connection to 127.0.0.1 was lost"), "{}", r.stderr);
            assert!(!r.trace.exists(), "nothing was fetched");
        }
        board.nothing_is_left();
        wait_until("the engine's code is as before", || code_is_clean(target.pid()));
        assert!(target.running());
    }
}

/// From the connection to the fetched trace, at each step of the session: wherever the kill falls, nothing stays, and a
/// command that was started there ends.
#[test]
fn killed_at_any_moment_it_leaves_nothing() {
    let _turn = live!(beside others);
    let engine = fixture!("modern").display().to_string();
    let board = board!();
    // At these calls of the client it is killed, and the call goes on (tests/remote/verb.sh); last, while it records: no
    // call has that word.
    for verb in ["HOLD", "RECEIVE", "ADOPT", "CHECK", "RECORD", "RECORDED", "TRACE", "PROBES"] {
        fs::write(board.dir.path().join("kill"), verb).expect("written");
        let mut recorder = board.start_recording(&["--", &engine, "-n", "400", "--op-ns", "20007"]);
        if verb == "PROBES" {
            recorder.wait_for_probes();
            signal_to(recorder.child.id(), libc::SIGKILL);
        }
        let status = wait(&mut recorder.child);
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{verb}: {}", recorder.stderr());
        board.nothing_is_left();
        wait_until("the command has ended", || processes("-n 400 --op-ns 20007").is_empty());
    }
}

/// A file system of this many KiB in this directory, unmounted in the end.
struct Small(PathBuf);

impl Small {
    fn mount(dir: &Path, kib: u64) -> Small {
        fs::create_dir_all(dir).expect("a directory");
        let size = format!("size={kib}k");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir).status();
        assert!(done.expect("mount").success());
        Small(dir.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_there_is_reported_and_what_was_recorded_is_fetched() {
    let _turn = live!(beside others);
    let engine = fixture!("modern").display().to_string();
    let board = board!();
    let disk = board.dir.path().join("disk");
    let place = disk.display().to_string();
    let size = fs::metadata(common::profinfer_to_copy()).expect("a program").len() / 1024;
    {
        let _disk = Small::mount(&disk, size / 2);
        let r = board.record(&["--remote-dir", &place, "--", &engine, "-n", "2"]);
        assert_eq!(r.status.code(), Some(1), "{}", r.stderr);
        assert!(r.stderr.contains("No space left") || r.stderr.contains("bytes arrived"), "{}", r.stderr);
        assert!(!r.trace.exists());
        nothing_is_left(&disk.join("profinfer"));
        assert_eq!(fs::read_dir(disk.join("profinfer")).expect("a directory").count(), 0);
    }
    let _disk = Small::mount(&disk, size + 400);
    let mut target = endless(&fixture!("modern"));
    let r = board.record(&["--remote-dir", &place, "--duration", "60s", "-p", &target.pid().to_string()]);
    assert_eq!(r.status.code(), Some(1), "{}", r.stderr);
    assert!(r.stderr.contains("No space left"), "{}", r.stderr);
    assert!(Seen::damaged(&r.trace).slices() > 0, "{}", r.stderr);
    nothing_is_left(&disk.join("profinfer"));
    assert!(target.running());
}

#[test]
fn what_keeps_a_machine_from_recording_is_told() {
    let _turn = live!(beside others);
    let board = board!();
    let (on, own) = (board.on(), common::profinfer_to_copy().display().to_string());
    let arm = board.dir.path().join("arm");
    write(&arm, "\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\u{7f}\0", 0o755);
    let arm = arm.display().to_string();
    let (none, stranger) =
        ("/nonexistent/ssh".to_owned(), board.dir.path().join("stranger-ssh").display().to_string());
    let closed = format!(
        "ssh:127.0.0.1:{}",
        TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port()
    );
    let hello = board.dir.path().join("hello");
    fs::copy("/bin/true", &hello).expect("copied");
    let hello = hello.display().to_string();
    let old = board.dir.path().join("old");
    let source = board.dir.path().join("old.c");
    let text =
        "#include <stdio.h>\nint main(int n, char **a) { if (n > 2) return 2; puts(\"profinfer 0.0.1\"); }\n";
    fs::write(&source, text).expect("written");
    assert!(Command::new("cc").arg("-o").arg(&old).arg(&source).status().expect("cc").success());
    let old = old.display().to_string();
    let default = board.dir.path().join("ssh").display().to_string();
    for (ssh, on, program, code, said) in [
        (&none, &on, &own, 1, "cannot run /nonexistent/ssh: install an OpenSSH client"),
        (&stranger, &on, &own, 1, "Permission denied"),
        (&default, &closed, &own, 1, "Connection refused"),
        (&default, &"ssh:-oProxyCommand=x".to_owned(), &own, 2, "cannot begin with '-'"),
        (&default, &"ssh:a b".to_owned(), &own, 2, "cannot contain ' '"),
        (&default, &on, &arm, 1, "is for another processor"),
        (&default, &on, &hello, 1, "is not profinfer: its version is 'true "),
        (&default, &on, &old, 1, "is too old (profinfer 0.0.1)"),
        (&default, &on, &"/nonexistent".to_owned(), 1, "cannot read /nonexistent"),
    ] {
        let mut command = profinfer();
        let out = board.dir.path().join("run.pfi");
        command.env("SSH", ssh).args(["record", "--on", on, "--remote-program", program, "-o"]).arg(&out);
        let r = run(command.args(["--", "true"]));
        assert_eq!(r.status.code(), Some(code), "{said}: {}", r.stderr);
        assert!(r.stderr.contains(said), "{said}: {}", r.stderr);
        assert!(!out.exists(), "{said}");
        board.nothing_is_left();
        assert!(fs::read_dir(board.base()).into_iter().flatten().next().is_none(), "{said}");
    }
    // What the recorder there says comes through.
    let r = board.record(&["-p", "999999999"]);
    assert_eq!(r.status.code(), Some(1), "{}", r.stderr);
    assert!(r.stderr.contains("process 999999999 does not exist"), "{}", r.stderr);
    assert!(
        r.stderr.contains("nothing was recorded on 127.0.0.1, see above") && !r.trace.exists(),
        "{}",
        r.stderr
    );
    let r = board.record(&["--", "true"]);
    assert_eq!(r.status.code(), Some(1), "{}", r.stderr);
    board.nothing_is_left();
}

/// A device that a stand-in of a client plays on this machine.
struct Device {
    dir: tempfile::TempDir,
    client: &'static str,
}

impl Device {
    fn new(client: &'static str, devices: &str) -> Device {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("device")).expect("made");
        fs::create_dir(dir.path().join("bin")).expect("made");
        let script = common::source("remote").join(client);
        std::os::unix::fs::symlink(script, dir.path().join("bin").join(client)).expect("a link");
        fs::write(dir.path().join("devices"), devices).expect("written");
        Device { dir, client }
    }

    fn command(&self) -> Command {
        let mut command = profinfer();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.dir.path().join("bin").display()));
        command.env("STAND_IN", self.dir.path()).env_remove("ADB").env_remove("HDC");
        command
    }

    fn start(&self, name: &str, args: &[&str]) -> Recorder {
        let (on, program) =
            (format!("{}:{name}", self.client), common::profinfer_to_copy().display().to_string());
        Recorder::start_as(self.command(), &[&["--on", &on, "--remote-program", &program], args].concat())
    }

    fn base(&self) -> PathBuf {
        self.dir.path().join("device/profinfer")
    }

    /// The calls of the client since the last time: session, digest and program replaced, scripts cut to their verb.
    fn calls(&self) -> Vec<String> {
        let log = self.dir.path().join("log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn adb_is_called_as_it_must_be() {
    let _turn = live!(beside others);
    let engine = fixture!("modern").display().to_string();
    let device = Device::new("adb", "List of devices attached\nS1\tdevice\n\n");
    let program = common::profinfer_to_copy().display().to_string();
    for copied in [true, false] {
        let r = device.start("", &["--", &engine, "-n", "3"]).finish();
        r.seen().complete();
        assert!(r.said()["calls"].is_object(), "{}", r.stdout);
        nothing_is_left(&device.base());
        let run = "/data/local/tmp/profinfer/run.ID";
        let mut wanted = vec!["devices".to_owned(), "-s S1 shell -T HOLD".to_owned()];
        if copied {
            wanted.extend([format!("-s S1 push {program} {run}/new"), "-s S1 shell -T ADOPT".to_owned()]);
        }
        wanted.extend(["CHECK", "RECORD", "RECORDED"].map(|verb| format!("-s S1 shell -T {verb}")));
        wanted.push(format!("-s S1 exec-out cat {run}/run.pfi"));
        assert_eq!(device.calls(), wanted);
    }
}

#[test]
fn hdc_is_called_as_it_must_be() {
    let _turn = live!(beside others);
    let engine = fixture!("modern").display().to_string();
    let device = Device::new("hdc", "K1\n");
    let program = common::profinfer_to_copy().display().to_string();
    for copied in [true, false] {
        let r = device.start("K1", &["--", "sh", "-c", "\"$0\" -n 3; exit 4", &engine]).finish();
        assert_eq!(r.status.code(), Some(4), "{}", r.stderr);
        Seen::read(&r.trace).complete();
        assert!(r.stderr.contains("\"calls\"") && !r.stderr.contains("code="), "{}", r.stderr);
        nothing_is_left(&device.base());
        let run = "/data/local/tmp/profinfer/run.ID";
        let mut wanted = vec!["list targets".to_owned()];
        wanted.extend(["HOLD", "BEAT"].map(|verb| format!("-t K1 shell {verb}")));
        if copied {
            wanted.extend([format!("-t K1 file send {program} {run}/new"), "-t K1 shell ADOPT".to_owned()]);
        }
        wanted.extend(["CHECK", "RECORD", "RECORDED"].map(|verb| format!("-t K1 shell {verb}")));
        wanted.extend([format!("-t K1 file recv {run}/run.pfi LOCAL"), "-t K1 shell END".to_owned()]);
        let mut calls = device.calls();
        // Asked until it is so, and sent again if the recording takes long.
        let first = calls.iter().position(|call| call.ends_with(" BEAT"));
        let mut n = 0..;
        calls.retain(|call| {
            let n = n.next();
            !call.ends_with(" GONE") && (n == first || !call.ends_with(" BEAT"))
        });
        assert_eq!(calls, wanted);
    }
}

/// A login that is not root, on a machine whose sudo asks for no password; both are scripts.
#[test]
fn sudo_is_used_where_the_login_is_not_root() {
    let _turn = live!(beside others);
    let engine = fixture!("modern").display().to_string();
    let device = Device::new("adb", "List of devices attached\nS1\tdevice\n");
    let bin = device.dir.path().join("bin");
    write(&bin.join("id"), "#!/bin/sh\necho 1000\n", 0o755);
    let sudo = "#!/bin/sh\n[ \"$1\" = -n ] || exit 1\nshift\necho \"${1##*/} $2\" >>\"$STAND_IN/sudo\"\nexec \"$@\"\n";
    write(&bin.join("sudo"), sudo, 0o755);
    let r = device.start("", &["--as-root", "--", &engine, "-n", "3"]).finish();
    r.seen().complete();
    nothing_is_left(&device.base());
    let calls = fs::read_to_string(device.dir.path().join("sudo")).expect("called");
    let verbs: Vec<&str> = calls.lines().map(|line| line.split('-').next().unwrap_or_default()).collect();
    // Whether it asks for a password; the recorder; the trace's size; the trace.
    let [asked, recorder, size, trace] = verbs.as_slice() else { panic!("{calls}") };
    assert!(*asked == "true " && *recorder == "profinfer", "{calls}");
    assert!(size.starts_with("cat ") && trace.starts_with("cat "), "{calls}");
    assert!(calls.lines().nth(1).is_some_and(|line| line.ends_with(" record")), "{calls}");
}

#[test]
fn signals_end_a_recording_on_a_device_too() {
    let _turn = live!(beside others, looking at code);
    let engine = fixture!("modern");
    for (client, devices) in [("adb", "List of devices attached\nS1\tdevice\n"), ("hdc", "K1\r\n")] {
        let device = Device::new(client, devices);
        let mut target = endless(&engine);
        let recorder = device.start("", &["-p", &target.pid().to_string()]);
        recorder.wait_for_probes();
        recorder.signal(libc::SIGINT);
        let r = recorder.finish();
        r.seen().books_close();
        nothing_is_left(&device.base());
        assert!(code_is_clean(target.pid()) && target.running(), "{client}");
        if client == "adb" {
            let mut recorder = device.start("", &["-p", &target.pid().to_string()]);
            recorder.wait_for_probes();
            signal_to(recorder.child.id(), libc::SIGKILL);
            let _ = recorder.child.wait();
            nothing_is_left(&device.base());
        }
    }
}

#[test]
fn devices_that_cannot_be_recorded_are_told() {
    let _turn = live!(beside others);
    for (client, devices, name, said) in [
        ("adb", "List of devices attached\n\n", "", "adb lists no device"),
        (
            "adb",
            "List of devices attached\nA\tdevice\nB\tdevice\n",
            "",
            "several devices: give one, as --on adb:NAME: A, B",
        ),
        ("adb", "List of devices attached\nA\tdevice\n", "C", "adb lists no device C, only A"),
        ("adb", "List of devices attached\nA\tunauthorized\n", "", "the device A is unauthorized"),
        ("hdc", "[Empty]\n", "", "hdc lists no device"),
        ("hdc", "A\nB\n", "", "several devices: give one, as --on hdc:NAME: A, B"),
    ] {
        let device = Device::new(client, devices);
        let r = device.start(name, &["--", "true"]).finish();
        assert_eq!(r.status.code(), Some(1), "{}", r.stderr);
        assert!(r.stderr.contains(said), "{said}: {}", r.stderr);
    }
    // Without root there: the recorder's reason comes through, with what to do.
    let device = Device::new("adb", "List of devices attached\nS1\tdevice\n");
    fs::write(device.dir.path().join("nobody"), "").expect("written");
    for dir in ["", "device"] {
        fs::set_permissions(device.dir.path().join(dir), fs::Permissions::from_mode(0o777))
            .expect("its mode");
    }
    let r = device.start("", &["--", "true"]).finish();
    assert_eq!(r.status.code(), Some(1), "{}", r.stderr);
    assert!(r.stderr.contains("CAP_BPF") && r.stderr.contains("recording needs root there"), "{}", r.stderr);
    assert!(!r.trace.exists());
    nothing_is_left(&device.base());
}
