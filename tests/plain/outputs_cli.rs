//! Output files of all commands: readable by their owner only, never replacing another file unless asked, never
//! written through a link or into somebody else's pipe, complete or not at all; and command lines of earlier
//! recordings without their secrets.

use crate::common::runner_name;
use crate::common::skip;
use crate::synth_trace;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use pfi::record::{Footer, Header, Process};
use pfi::{Encoder, EncoderConfig};
use synth_trace::{Spec, Synth, footer, header};

fn profinfer(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_profinfer")).current_dir(dir).args(args).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A directory with a trace of two calls.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let mut synth = Synth::new(Vec::new(), Spec::default());
    synth.call(4, |_, _| 1000);
    synth.call(1, |_, _| 1000);
    let footer: Footer<'_> = footer("target exited");
    fs::write(dir.path().join("run.pfi"), synth.enc.finish(&footer).expect("written")).expect("written");
    dir
}

/// Each way to write a file of this name from run.pfi.
fn ways(out: &str) -> [Vec<String>; 4] {
    let way = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
    [
        way(&["html", "run.pfi", "-o", out]),
        way(&["dag", "run.pfi", "--format", "svg", "-o", out]),
        way(&["export", "run.pfi", "--perfetto", out]),
        way(&["export", "run.pfi", "--chrome", out]),
    ]
}

fn run(dir: &Path, way: &[String], more: &[&str]) -> Output {
    let args: Vec<&str> = way.iter().map(String::as_str).chain(more.iter().copied()).collect();
    profinfer(dir, &args)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777
}

#[test]
fn what_is_written_is_for_its_owner_unless_asked_otherwise() {
    let dir = place();
    let out = dir.path().join("out");
    for way in ways("out") {
        let done = run(dir.path(), &way, &[]);
        assert!(done.status.success(), "{way:?}: {}", text(&done.stderr));
        assert_eq!(mode(&out), 0o600, "{way:?}");
        let done = run(dir.path(), &way, &["--force", "--mode", "0644"]);
        assert!(done.status.success(), "{way:?}: {}", text(&done.stderr));
        assert_eq!(mode(&out), 0o644, "{way:?}");
        let done = run(dir.path(), &way, &["--mode", "0666"]);
        assert_eq!(done.status.code(), Some(2), "{way:?}");
        assert!(text(&done.stderr).contains("write access for others"), "{}", text(&done.stderr));
        fs::remove_file(&out).expect("removed");
        let done = run(dir.path(), &ways("/dev/null")[0], &[]);
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
}

/// Every command that writes a user-specified file, and the option for another name.
fn writers(out: &str) -> Vec<(&'static str, Vec<String>, &'static str)> {
    let way = |line: &str| line.split(' ').map(|w| w.replace("OUT", out)).collect::<Vec<_>>();
    let (profinfer, runner) = (env!("CARGO_BIN_EXE_profinfer"), runner_name());
    vec![
        (profinfer, way("html run.pfi -o OUT"), " with -o"),
        (profinfer, way("dag run.pfi --format svg -o OUT"), " with -o"),
        (profinfer, way("dag run.pfi --against run.pfi -o OUT"), " with -o"),
        (profinfer, way("export run.pfi --perfetto OUT"), " with --perfetto"),
        (profinfer, way("export run.pfi --chrome OUT"), " with --chrome"),
        (runner, way("synth tiny OUT --type q4_0"), ""),
        (runner, way("run -m tiny.gguf -p 4 -n 2 --no-roofline --logits OUT"), " with --logits"),
        (runner, way("run -m tiny.gguf -p 4 -n 2 --no-roofline --ground-truth OUT"), " with --ground-truth"),
    ]
}

#[test]
fn a_file_that_exists_is_replaced_only_by_force() {
    let dir = place();
    let out = dir.path().join("out");
    let run = |program: &str, args: &[String], more: &[&str]| {
        Command::new(program).current_dir(dir.path()).args(args).args(more).output().expect("it runs")
    };
    let kept = |program: &str, args: &[String], hint: &str| {
        let done = run(program, args, &[]);
        let says = format!("out exists: give another name{hint}, or use --force to replace it\n");
        assert_eq!(done.status.code(), Some(1), "{args:?}");
        assert!(text(&done.stderr).ends_with(&says), "{args:?}: {}", text(&done.stderr));
        assert_eq!(text(&done.stderr).lines().count(), 1, "{args:?}");
        assert_eq!(fs::read(&out).expect("there"), b"old", "{args:?}");
    };
    let synth: Vec<String> = ["synth", "tiny", "tiny.gguf", "--type", "q4_0"].map(str::to_owned).into();
    assert!(run(runner_name(), &synth, &[]).status.success());
    for (program, args, hint) in writers("out") {
        fs::write(&out, "old").expect("written");
        kept(program, &args, hint);
        let done = run(program, &args, &["--force"]);
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
        assert_ne!(fs::read(&out).expect("there"), b"old", "{args:?}");
    }
    // Where no file is replaced, no flag is needed.
    for (program, args, _) in writers("/dev/null") {
        let done = run(program, &args, &[]);
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
    }
    // The recording tests cover replacement.
    fs::write(&out, "old").expect("written");
    #[cfg(feature = "agent")]
    for line in ["record -o out -- true", "top --lines -o out -p 1"] {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        kept(env!("CARGO_BIN_EXE_profinfer"), &args, " with -o");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 3, "nothing else is left");
}

#[test]
fn nothing_is_written_through_a_link() {
    let dir = place();
    let (out, victim) = (dir.path().join("out"), dir.path().join("victim"));
    fs::write(&victim, "precious").expect("written");
    for way in ways("out") {
        symlink(&victim, &out).expect("a link");
        let done = run(dir.path(), &way, &[]);
        assert_eq!(done.status.code(), Some(1), "{way:?}");
        assert!(text(&done.stderr).contains("is a link, which is not followed"), "{}", text(&done.stderr));
        fs::remove_file(&out).expect("removed");
        // A hard link to another user's file: the name is replaced, the file is unchanged.
        fs::hard_link(&victim, &out).expect("a hard link");
        assert!(run(dir.path(), &way, &["--force"]).status.success(), "{way:?}");
        assert_eq!(fs::read(&victim).expect("there"), b"precious", "{way:?}");
        fs::remove_file(&out).expect("removed");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 2, "nothing else is left");
}

#[test]
fn a_pipe_that_somebody_else_planted_is_not_opened() {
    let dir = place();
    let open = dir.path().join("open");
    fs::create_dir(&open).expect("a directory");
    fs::set_permissions(&open, Permissions::from_mode(0o1777)).expect("its mode");
    assert!(Command::new("mkfifo").arg(open.join("out")).status().expect("mkfifo").success());
    if std::os::unix::fs::chown(open.join("out"), Some(65534), None).is_err() {
        skip!("only root can give a file away");
    }
    for way in ways("open/out") {
        let done = run(dir.path(), &way, &[]);
        assert_eq!(done.status.code(), Some(1), "{way:?}");
        assert!(text(&done.stderr).contains("belongs to another user"), "{}", text(&done.stderr));
    }
}

#[test]
fn a_limit_of_sizes_is_told_and_the_old_file_stays() {
    let dir = place();
    let out = dir.path().join("out");
    fs::write(&out, "old").expect("written");
    for way in &ways("out")[..2] {
        let line = format!("ulimit -f 1; exec {} {} --force", env!("CARGO_BIN_EXE_profinfer"), way.join(" "));
        let done = Command::new("sh").current_dir(dir.path()).args(["-c", &line]).output().expect("it runs");
        assert_eq!(done.status.code(), Some(1), "{}: {}", done.status, text(&done.stderr));
        let told = text(&done.stderr);
        assert!(told.lines().count() == 1 && told.contains("File too large"), "{told}");
        assert_eq!(fs::read(&out).expect("there"), b"old");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 2, "nothing else is left");
    }
}

#[test]
fn earlier_recordings_are_told_without_their_secrets() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut synth = Synth::new(Vec::new(), Spec::default());
    synth.call(4, |_, _| 1000);
    synth.call(1, |_, _| 1000);
    let command = "profinfer record -- llama-server --api-key SECRET1 -m model.gguf";
    synth
        .enc
        .process(&Process {
            pid: synth_trace::PID,
            engine: 0,
            exe: "/usr/bin/llama-server",
            cmdline: "llama-server -m model.gguf --hf-token SECRET2 --top-k 40",
        })
        .expect("written");
    let bytes = synth.enc.finish(&footer("target exited")).expect("written");
    fs::write(dir.path().join("run.pfi"), bytes).expect("written");
    let mut encoder = Encoder::new(Vec::new(), EncoderConfig::default(), &Header { command, ..header(true) })
        .expect("begun");
    encoder
        .process(&Process { pid: 1, engine: 0, exe: "/x", cmdline: "x HF_TOKEN=SECRET3" })
        .expect("written");
    fs::write(dir.path().join("head.pfi"), encoder.finish(&footer("signal")).expect("written"))
        .expect("written");
    let mut told = String::new();
    for args in [
        &["report", "run.pfi"][..],
        &["report", "--json", "run.pfi"],
        &["report", "head.pfi"],
        &["report", "--json", "head.pfi"],
        &["html", "run.pfi", "-o", "-"],
        &["export", "run.pfi", "--perfetto", "-"],
        &["export", "run.pfi", "--chrome", "-"],
        &["dag", "run.pfi"],
        &["diff", "run.pfi", "run.pfi", "--json"],
    ] {
        let out = profinfer(dir.path(), args);
        told.push_str(&text(&out.stdout));
        told.push_str(&text(&out.stderr));
        assert!(!told.contains("SECRET"), "{args:?}");
    }
    for kept in ["--api-key ***", "--hf-token *** --top-k 40", "HF_TOKEN=***"] {
        assert!(told.contains(kept), "{kept}");
    }
}
