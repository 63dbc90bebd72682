//! An engine that runs until it is killed, and recorders on it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};

use super::run::{Target, profinfer};
use super::waiting::EventPipe;

/// An engine that runs until it is killed, fast enough that blocks of the trace fill quickly.
pub fn endless(program: &Path) -> Target {
    Target::start(program, &["-n", "1000000", "--op-ns", "1000"])
}

/// Whether the engine's code in memory equals its file. They differ while probes are attached.
pub fn code_is_clean(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let line = maps
        .lines()
        .find(|l| l.contains("r-xp") && l.ends_with("libfakeggml.so"))
        .expect("the engine's code");
    let mut words = line.split_whitespace();
    let (from, to) = words.next().and_then(|r| r.split_once('-')).expect("a range");
    let offset = words.nth(1).expect("an offset");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
    let size = (number(to) - number(from)) as usize;
    let read = |path: &Path, at: u64| {
        let mut bytes = vec![0; size];
        let n = fs::File::open(path).and_then(|f| f.read_at(&mut bytes, at)).expect("readable");
        bytes.truncate(n);
        bytes
    };
    let mine = read(Path::new(&format!("/proc/{pid}/mem")), number(from));
    let file = read(Path::new(line.split_whitespace().last().expect("a path")), number(offset));
    let n = mine.len().min(file.len());
    assert!(n > 100);
    mine[..n] == file[..n]
}

/// A recorder that writes to a pipe of ours, and its events.
pub fn to_pipe(target: &Target) -> (Child, EventPipe) {
    let mut command = profinfer();
    command.args(["record", "-o", "-", "-p", &target.pid().to_string()]);
    let events = EventPipe::given_to(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    (command.spawn().expect("started"), events)
}
