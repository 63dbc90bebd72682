//! `--btf`: children are followed with kernel types if a file provides them, and through tracefs with a missing or
//! foreign file; files that are not BTF are rejected before anything starts. Needs root and BPF.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::run::{Recorder, Run, profinfer, run};
use common::seen::Seen;
use common::{expect, fixture, live, skip};
use machine::kernel::btf::{Btf, KERNEL, TaskOffsets};

/// This kernel's BTF, if any.
fn of_kernel() -> Option<Btf> {
    Btf::of_kernel().map(|btf| btf.expect("the kernel's own is sound"))
}

/// A file in its own directory.
struct Made(tempfile::TempDir);

impl Made {
    fn new(bytes: &[u8]) -> Made {
        let made = Made(tempfile::tempdir().expect("a directory"));
        std::fs::write(made.path(), bytes).expect("written");
        made
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("kernel.btf")
    }
}

/// Records a shell whose only child is an engine with three threads; hides the kernel's own BTF if `hidden`. Without
/// the scheduler: a switch that the kernel does not report, as it may on a busy machine, is lost where types do not tell
/// how long a thread has run.
fn family(program: &Path, btf: Option<&Path>, hidden: bool) -> (Run, Seen) {
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    let mut command = Command::new("unshare");
    let hide = if hidden { "mount -t tmpfs none /sys/kernel/btf && " } else { "" };
    command.args(["--mount", "sh", "-c", &format!("{hide}exec \"$@\""), "sh"]);
    command.arg(profinfer().get_program()).env_remove("SUDO_UID");
    let engine = format!("{} -t 3 -n 20 --hold-for {}; true", program.display(), go.display());
    let btf = btf.map(|file| ["--btf", file.to_str().expect("a path")]);
    let btf = btf.iter().flatten().copied();
    let args: Vec<&str> = ["--no-sched"].into_iter().chain(btf).chain(["--", "sh", "-c", &engine]).collect();
    let recorder = Recorder::start_as(command, &args);
    recorder.wait_for_probes();
    std::fs::write(&go, "").expect("go");
    let run = recorder.finish();
    let seen = run.seen();
    seen.complete();
    let engine = run.said()["pid"].as_u64().expect("a pid") as u32;
    assert!(!seen.graphs(engine).is_empty(), "the child was recorded: {}", run.stderr);
    (run, seen)
}

/// Reported children: with kernel types only processes, otherwise also threads.
fn announced(seen: &Seen) -> u64 {
    seen.kind("fork").seen
}

#[test]
fn the_types_of_the_kernel_tell_processes_from_threads() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    if of_kernel().is_none() {
        skip!("this kernel has no BTF");
    }
    let copy = Made::new(&std::fs::read(KERNEL).expect("readable"));
    for (btf, hidden) in [(None, false), (Some(copy.path()), false), (Some(copy.path()), true)] {
        let (run, seen) = family(&program, btf.as_deref(), hidden);
        assert_eq!(announced(&seen), 1, "{btf:?}, hidden: {hidden}");
        assert!(seen.all.notices.is_empty(), "{}", run.stderr);
    }
}

#[test]
fn without_types_tracefs_serves() {
    let _turn = live!(beside others);
    let (run, seen) = family(&fixture!("modern"), None, true);
    assert!(announced(&seen) > 1, "threads are announced as well");
    assert!(seen.all.notices.is_empty(), "nothing is lost by it: {}", run.stderr);
}

#[test]
fn types_of_another_kernel_are_found_out() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let Some(Btf { task, .. }) = of_kernel() else { skip!("this kernel has no BTF") };
    let other = [
        TaskOffsets { pid: task.pid + 64, tgid: task.tgid + 64, ran: None },
        TaskOffsets { pid: task.tgid, tgid: task.pid, ran: None },
        TaskOffsets { pid: 0, tgid: 4, ran: None },
        TaskOffsets { pid: 1 << 20, tgid: (1 << 20) + 4, ran: None },
    ];
    for (i, other) in other.into_iter().enumerate() {
        let file = Made::new(&other.to_btf());
        let hidden = i % 2 == 0;
        let (run, seen) = family(&program, Some(&file.path()), hidden);
        let [notice] = &seen.all.notices[..] else { panic!("{} notices", seen.all.notices.len()) };
        assert!(notice.text.contains("not of the running kernel"), "{}", notice.text);
        let by = if hidden { "by formats of tracefs" } else { KERNEL };
        assert!(notice.text.ends_with(by), "{}", notice.text);
        assert!(run.stderr.contains(notice.text), "{}", run.stderr);
    }
}

#[test]
fn what_is_no_btf_is_refused_before_anything_starts() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let of_this = TaskOffsets { pid: 1192, tgid: 1196, ran: None }.to_btf();
    let cut = Made::new(&of_this[..of_this.len() - 3]);
    let version = Made::new(&[&of_this[..2], &[7], &of_this[3..]].concat());
    let text = Made::new(b"# a text\n");
    let empty = Made::new(b"");
    let locked = "/nonexistent/vmlinux".into();
    for (path, says) in [
        (cut.path(), "damaged"),
        (version.path(), "version 7"),
        (text.path(), "neither a BTF nor an ELF file"),
        (empty.path(), "neither a BTF nor an ELF file"),
        (locked, "No such file"),
        ("/".into(), "a directory"),
        ("/dev/null".into(), "not a regular file"),
        (program.clone(), "without a .BTF section"),
    ] {
        let name = path.display().to_string();
        let trace = cut.0.path().join("run.pfi");
        let mut record = profinfer();
        record.args(["record", "--btf", &name, "-o"]).arg(&trace).arg("--").arg(&program);
        let run_ = run(&mut record);
        expect::one_line_error(&run_, &[&name, says]);
        assert!(run_.stdout.is_empty() && !trace.exists(), "nothing was started");
        for command in ["doctor", "selftest"] {
            expect::one_line_error(&run(profinfer().args([command, "--btf", &name])), &[&name, says]);
        }
    }
}

#[test]
fn a_vmlinux_serves_as_well() {
    let _turn = live!(beside others);
    if of_kernel().is_none() {
        skip!("this kernel has no BTF");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let vmlinux = dir.path().join("vmlinux");
    let add = format!(".BTF={KERNEL}");
    let made =
        Command::new("objcopy").args(["--add-section", &add]).arg(fixture!("modern")).arg(&vmlinux).status();
    if !made.is_ok_and(|s| s.success()) {
        skip!("no objcopy here");
    }
    let said = run(profinfer().args(["doctor", "--btf"]).arg(&vmlinux));
    assert!(said.stdout.contains(&format!("by task_struct as in {}", vmlinux.display())), "{}", said.stdout);
}

/// Mutations of a kernel's BTF, the same in every run.
fn changed(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as usize % below
    };
    let mut out = bytes.to_vec();
    for _ in 0..=next(2000) {
        let at = next(out.len());
        out[at] = next(256) as u8;
    }
    if seed.is_multiple_of(4) {
        out.truncate(next(bytes.len()));
    }
    out
}

#[test]
fn damaged_types_harm_nobody() {
    let _turn = live!(beside others);
    if of_kernel().is_none() {
        skip!("this kernel has no BTF");
    }
    let good = std::fs::read(KERNEL).expect("readable");
    for seed in 1..=12 {
        let file = Made::new(&changed(&good, seed));
        let said = run(profinfer().args(["doctor", "--btf"]).arg(file.path()));
        match said.status.code() {
            Some(0) => assert!(said.stdout.contains("by task_struct"), "seed {seed}: {}", said.stdout),
            Some(1) => expect::one_line_error(&said, &["kernel.btf"]),
            other => panic!("seed {seed}: {other:?} {}", said.stderr),
        }
    }
}
