//! Each command that advice and verdict print is one that runs: ours by our own command line, the system's by a shell.

use crate::common;
use crate::synth_trace;

use std::process::{Command, Output, Stdio};

use common::{profinfer, runner};
use synth_trace::{Spec, Synth, footer};

/// How a command is tried.
enum Tried {
    /// It reads a recording, and prints something.
    Reads(&'static [&'static str]),
    /// It would record or measure: its flags are known. One more, that is not, is the only thing it complains about.
    Parsed(&'static [&'static str]),
    /// A shell runs it; PID is a process of ours.
    Shell(&'static str),
    /// A shell reads it: it would change this machine, or its program need not be here.
    Read(&'static str),
}

/// What is printed, and how it is tried. CPUS, PID, FILE and the like stand for what the reader fills in.
const COMMANDS: [(&str, Tried); 22] = [
    ("profinfer tune -- ", Tried::Parsed(&["tune"])),
    ("profinfer stat FILE threads", Tried::Reads(&["stat", "FILE", "threads"])),
    ("profinfer report FILE --all", Tried::Reads(&["report", "FILE", "--all"])),
    ("profinfer export --perfetto OUT.pftrace FILE", Tried::Reads(&["export", "--perfetto", "-", "FILE"])),
    ("measure both: profinfer diff", Tried::Reads(&["diff", "FILE", "FILE"])),
    ("profinfer doctor --peaks", Tried::Parsed(&["doctor", "--peaks"])),
    ("record --phases", Tried::Parsed(&["record", "--phases"])),
    ("record --level graph", Tried::Parsed(&["record", "--level", "graph"])),
    ("or --budget 1%", Tried::Parsed(&["record", "--budget", "1%"])),
    ("use record --level op", Tried::Parsed(&["record", "--level", "op"])),
    ("record --sched", Tried::Parsed(&["record", "--sched"])),
    ("taskset -acp CPUS PID", Tried::Shell("taskset -acp 0 PID")),
    ("taskset -acp 0-{all} PID", Tried::Shell("taskset -acp 0-0 PID")),
    ("taskset -c {list} COMMAND", Tried::Shell("taskset -c 0 true")),
    ("renice -n 19 -p $(pidof {})", Tried::Shell("renice -n 19 -p PID")),
    ("nice -n 19 {}", Tried::Shell("nice -n 19 true")),
    ("cat MODEL.gguf > /dev/null", Tried::Shell("cat FILE > /dev/null")),
    (
        "systemctl set-property",
        Tried::Read("systemctl set-property --runtime system.slice AllowedCPUs=0 CPUQuota=200%"),
    ),
    ("| sudo tee ", Tried::Read("echo 128 | sudo tee /sys/class/bdi/254:0/read_ahead_kb")),
    ("echo ", Tried::Read("echo schedutil > /sys/devices/system/cpu/cpufreq/policy0/scaling_governor")),
    (
        "llama-quantize MODEL.gguf SMALLER.gguf Q4_K_M",
        Tried::Read("llama-quantize MODEL.gguf SMALLER.gguf Q4_K_M"),
    ),
    (
        "llama-export-lora -m MODEL.gguf --lora ADAPTER.gguf -o MERGED.gguf",
        Tried::Read("llama-export-lora -m MODEL.gguf --lora ADAPTER.gguf -o MERGED.gguf"),
    ),
];

/// Words by which a command is found in the sources.
const MARKS: [&str; 11] = [
    "profinfer ",
    "record --",
    "taskset ",
    "renice ",
    "nice -n",
    "systemctl ",
    "echo ",
    "cat MODEL",
    "llama-quantize ",
    "llama-export-lora ",
    "--budget ",
];

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[test]
fn each_command_that_is_printed_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pfi");
    let mut s = Synth::new(std::fs::File::create(&file).unwrap(), Spec::default());
    (0..8).for_each(|_| s.call(1, |_, _| 100_000));
    s.enc.finish(&footer("target exited")).unwrap();
    let mut other = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let filled = |text: &str| {
        let file = file.to_str().expect("a name in UTF-8");
        text.replace("FILE", file).replace("PID", &other.id().to_string())
    };
    for (printed, tried) in &COMMANDS {
        let (out, wanted) = match tried {
            Tried::Reads(args) => {
                let args = args.iter().map(|word| filled(word));
                (Command::new(profinfer()).current_dir(&dir).args(args).output().unwrap(), true)
            }
            Tried::Parsed(args) => {
                let out = Command::new(profinfer()).args(*args).arg("--no-such-flag").output().unwrap();
                assert!(said(&out).contains("unknown option '--no-such-flag'"), "{printed}: {}", said(&out));
                (out, false)
            }
            Tried::Shell(line) => (Command::new("sh").args(["-c", &filled(line)]).output().unwrap(), true),
            Tried::Read(line) => (Command::new("sh").args(["-n", "-c", line]).output().unwrap(), true),
        };
        assert_eq!(out.status.success(), wanted, "{printed}: {}", said(&out));
    }
    drop(other.stdin.take());
    other.wait().unwrap();
}

/// A rule that prints another command needs a row.
#[test]
fn each_command_in_the_rules_is_in_the_table() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/analysis/src/questions");
    let files = ["advice", "verdict", "verdict/graphs"].map(|dir| std::fs::read_dir(root.join(dir)).unwrap());
    let mut found = 0;
    for file in files.into_iter().flatten().map(|f| f.unwrap().path()).filter(|f| f.is_file()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let rules = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = rules.lines().filter(|l| !l.trim_start().starts_with("//") && l.contains('"'));
        for line in lines.filter(|l| MARKS.iter().any(|mark| l.contains(mark))) {
            found += 1;
            let known = COMMANDS.iter().any(|(printed, _)| line.contains(printed));
            assert!(known, "{}: no row for {line}", file.display());
        }
    }
    assert!(found >= COMMANDS.len(), "only {found} lines were read");
}

/// The line for `tune` of a recorded command is one that it takes.
#[test]
fn the_line_for_tune_is_taken() {
    let known = runner();
    for command in [&[known.to_str().unwrap(), "run", "-m", "/nonexistent"][..], &["sh", "-t", "{threads}"]] {
        let out =
            Command::new(profinfer()).args(["tune", "--time", "1s", "--"]).args(command).output().unwrap();
        assert_ne!(out.status.code(), Some(2), "{}", said(&out));
    }
}
