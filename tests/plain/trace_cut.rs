//! A trace that changes while it is read: truncated, or longer than a pipe should deliver. No signal ends the
//! reader, and missing data is reported.

use crate::synth_trace;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pfi::{DamageKind, Trace};
use synth_trace::*;

fn trace(calls: u64) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec::default());
    for i in 0..calls {
        s.call(1, |p, t| 1000 + 10 * p as u64 + 5 * u64::from(t) + i);
    }
    s.enc.finish(&footer("target exited")).expect("a trace")
}

fn report(args: &[&str], file: &Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    c.args(args).arg(file).stdin(Stdio::null());
    c
}

#[test]
fn blocks_that_are_gone_are_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("run.pfi");
    let bytes = trace(3000);
    std::fs::write(&path, &bytes).expect("written");
    let trace = Trace::open(&path).expect("a trace");
    let n = trace.blocks().len();
    assert!(n >= 4 && trace.block(0).is_ok(), "{n} blocks");
    let file = File::options().write(true).open(&path).expect("opened");
    file.set_len(trace.blocks()[n / 2].offset + 50).expect("cut");
    // Blocks already read stay available; the others are gone.
    assert!(trace.block(0).is_ok());
    for i in n / 2..n {
        let damage = trace.block(i).err().expect("gone");
        assert_eq!((damage.offset, &damage.kind), (trace.blocks()[i].offset, &DamageKind::TornTail));
    }
    assert!(!trace.has_footer());
    let lost = trace.verify().iter().filter(|d| d.kind == DamageKind::TornTail).count();
    assert_eq!(lost, n - n / 2);
}

#[test]
fn a_file_cut_short_while_it_is_read_ends_no_view() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("run.pfi");
    let bytes = trace(3000);
    std::fs::write(&path, &bytes).expect("written");
    let file = File::options().write(true).open(&path).expect("opened");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                file.set_len(4096).expect("cut");
                file.write_all_at(&bytes, 0).expect("written");
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        for args in [&["report"][..], &["report", "--json"], &["stat"], &["export", "--chrome"], &["dag"]] {
            for _ in 0..12 {
                let out = report(args, &path).output().expect("it runs");
                assert_eq!(out.status.signal(), None, "{args:?}");
                assert_ne!(out.status.code(), Some(101), "{args:?}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(report(&["report"], &path).output().expect("it runs").status.success());
}

/// Runs report on standard input, with limited address space.
fn through_pipe(input: File, bytes: u64, tmp: Option<&str>) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    c.args(["report", "-"]).stdin(input);
    if let Some(dir) = tmp {
        c.env("TMPDIR", dir);
    }
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: a system call on plain numbers; nothing is allocated.
    unsafe {
        c.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    c.output().expect("it runs")
}

/// A file with this beginning and length, the rest a hole.
fn sparse(begin: &[u8], len: u64) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(begin).expect("written");
    file.set_len(len).expect("a hole");
    file.seek(SeekFrom::Start(0)).expect("at its begin");
    file
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_long_pipe_takes_no_memory() {
    // Data that is not a trace is refused after its first bytes.
    let out = through_pipe(sparse(b"hello", 20 << 30), 512 << 20, None);
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(said(&out).contains("not a profinfer trace"), "{}", said(&out));
    // A trace is read to its end without keeping it in memory.
    let out = through_pipe(sparse(&trace(50), 3 << 30), 512 << 20, None);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("NOT complete: file damaged in 1 place"), "{text}");
}

#[test]
fn where_a_long_pipe_has_no_place_it_says_so() {
    let out = through_pipe(sparse(&trace(50), 100 << 20), 512 << 20, Some("/nonexistent"));
    assert_eq!(out.status.code(), Some(1));
    assert!(said(&out).contains("/nonexistent") && said(&out).contains("TMPDIR"), "{}", said(&out));
}

#[test]
fn a_long_pipe_gives_the_same_as_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("run.pfi");
    // Longer than the in-memory limit: the same blocks, followed by bytes that are not blocks.
    let mut bytes = trace(200);
    bytes.extend(std::iter::repeat_n(0x55, 40 << 20));
    std::fs::write(&path, &bytes).expect("written");
    let from_file = report(&["report", "--json"], &path).output().expect("it runs");
    let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    let from_pipe = c.args(["report", "--json", "-"]).stdin(File::open(&path).expect("opened")).output();
    let from_pipe = from_pipe.expect("it runs");
    assert!(from_file.status.success() && from_pipe.status.success());
    assert_eq!(from_file.stdout, from_pipe.stdout);
}
