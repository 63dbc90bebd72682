//! Output that cannot be written: full disks, size limits, closed pipes, bad paths; and standard output, which can.
//! Each error is one line and a failure; nothing recorded is lost, and nothing remains in the kernel.

use crate::common;

use std::io::Read;
use std::process::{Command, Stdio};

use common::endless::{code_is_clean, endless, to_pipe};
use common::run::{profinfer, record, run, signal_to, wait, wait_until};
use common::seen::Seen;
use common::waiting::wait_for_file;
use common::{expect, fixture, live};
use pfi::Trace;

#[test]
fn a_limit_of_sizes_keeps_what_was_written() {
    let _turn = live!(beside others);
    let target = endless(&fixture!("modern"));
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("run.pfi");
    let line = format!("ulimit -f 4096; exec \"$0\" record -p {} -o {}", target.pid(), file.display());
    let mut limited = Command::new("sh");
    let run = run(limited.args(["-c", &line]).arg(common::profinfer()));
    expect::one_line_error(&run, &["File too large", "ulimit -f", "run.pfi"]);
    assert!(Seen::damaged(&file).slices() > 0);
    // The recorded command has the signal's original disposition.
    let ignored = |program: &[&str]| {
        let said = record(&[&["--"], program].concat()).stdout;
        let line = said.lines().find_map(|l| l.strip_prefix("SigIgn:")).map(str::trim).map(str::to_owned);
        u64::from_str_radix(&line.expect("the signals"), 16).expect("a number")
    };
    let program = fixture!("modern");
    let script = format!("grep SigIgn /proc/self/status; exec {} -n 20", program.display());
    assert_eq!(ignored(&["sh", "-c", &script]) & 1 << (libc::SIGXFSZ - 1), 0);
}

#[test]
fn a_command_whose_recording_fails_is_waited_for() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let Some(disk) = SmallDisk::new() else { common::skip!("no tmpfs can be mounted here") };
    let file = disk.0.path().join("run.pfi");
    // Its own account reports how it ended, in a file and through its exit status.
    let dir = tempfile::tempdir().expect("a directory");
    let done = dir.path().join("done");
    let script = format!(
        "trap 'echo term > {0}; kill $!; exit 7' TERM; {1} -n 1000000 --op-ns 1000 > /dev/null & wait; kill $!; exit 8",
        done.display(),
        program.display()
    );
    let mut command = profinfer();
    command.args(["record", "-o"]).arg(&file).args(["--", "sh", "-c", &script]);
    let mut recorder = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    let mut said = std::io::BufReader::new(recorder.stderr.take().expect("piped"));
    let mut line = String::new();
    for before in ["profinfer: ready: ", ""] {
        line.clear();
        std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
        assert!(line.starts_with(before), "{line}");
    }
    assert!(line.contains("No space left") && line.contains("waiting for it to exit"), "{line}");
    assert!(recorder.try_wait().expect("our child").is_none(), "it waits");
    // A signal to the recorder reaches the command.
    signal_to(recorder.id(), libc::SIGTERM);
    wait_for_file(&done, |text| text == "term\n");
    assert_eq!(wait(&mut recorder).code(), Some(1));
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    assert!(rest.contains("the command exited with status 7") && rest.contains("run.pfi"), "{rest}");
    assert!(Seen::damaged(&file).slices() > 0);
}

#[test]
fn output_that_cannot_be_written() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    for place in ["/nonexistent/run.pfi", "/proc/run.pfi", "/"] {
        let run = run(profinfer().args(["record", "-o", place, "--"]).arg(&program));
        expect::one_line_error(&run, &[place]);
        assert!(run.stdout.is_empty(), "the command was not started");
    }
}

/// A file system of a few kilobytes, removed at the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<SmallDisk> {
        let dir = tempfile::tempdir().expect("a directory");
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(dir.path()).status();
        done.is_ok_and(|s| s.success()).then_some(SmallDisk(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_keeps_what_was_written() {
    let _turn = live!(beside others);
    let mut target = endless(&fixture!("modern"));
    let Some(disk) = SmallDisk::new() else { common::skip!("no tmpfs can be mounted here") };
    let file = disk.0.path().join("run.pfi");
    let run = run(profinfer().args(["record", "-p", &target.pid().to_string(), "-o"]).arg(&file));
    expect::one_line_error(&run, &["No space left"]);
    assert!(target.running());
    wait_until("probes leave the code", || code_is_clean(target.pid()));
    let kept = Seen::damaged(&file);
    assert!(kept.all.blocks > 1 && kept.slices() > 0, "{} blocks", kept.all.blocks);
    let whole = kept.all.cpu_graphs.iter().filter(|g| !g.cut).count();
    assert!(whole > 0);
}

#[test]
fn a_broken_pipe_ends_it() {
    let _turn = live!(beside others);
    let mut target = endless(&fixture!("modern"));
    let (mut recorder, _events) = to_pipe(&target);
    let mut out = recorder.stdout.take().expect("piped");
    out.read_exact(&mut [0; 200_000]).expect("a trace comes");
    drop(out);
    let status = wait(&mut recorder);
    let mut text = String::new();
    recorder.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
    let lines = text.lines().filter(|l| !l.starts_with("profinfer: ready: ")).count();
    assert_eq!((status.code(), lines), (Some(1), 1), "{text}");
    assert!(text.contains("Broken pipe") && !text.contains("panicked"), "{text}");
    assert!(target.running());
    wait_until("probes leave the code", || code_is_clean(target.pid()));
}

#[test]
fn standard_output_carries_a_trace() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let out = profinfer().args(["record", "-o", "-", "--"]).arg(&program).output().expect("run");
    assert!(out.status.success());
    assert!(Trace::from_bytes(out.stdout).expect("nothing but a trace").verify().is_empty());
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("\"llama_decode\":9"), "the command's own output goes to standard error: {text}");
}
