//! A recording under sudo: the command runs as the user who called sudo, who also owns the file.

use crate::common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::run::{Run, profinfer, run};
use common::seen::Seen;
use common::{fixture, live};

const NOBODY: u32 = 65534;

/// profinfer as sudo starts it for a user, with supplementary groups of root that the user does not have.
fn under_sudo(uid: &str, gid: &str) -> Command {
    let mut command = profinfer();
    command.env("SUDO_UID", uid).env("SUDO_GID", gid).env("HOME", "/root").env("USER", "root");
    // SAFETY: between fork and exec only one plain system call.
    unsafe {
        command.pre_exec(|| match libc::setgroups(2, [1, 2].as_ptr()) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    command
}

/// A directory of root's with this mode.
fn directory(mode: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("its mode");
    dir
}

const WHO: &str = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; exec \"$0\" -n 3";

fn record(mut command: Command, way: &[&str], file: &Path, engine: &Path) -> Run {
    command.args(way).arg("-o").arg(file).args(["--", "sh", "-c", WHO]).arg(engine);
    run(&mut command)
}

#[test]
fn under_sudo_the_command_is_the_users_who_called_it() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    let groups = Command::new("id").args(["-G", "nobody"]).output().expect("id");
    let groups = String::from_utf8(groups.stdout).expect("text");
    let open = directory(0o777);
    for (n, way) in [&["record"][..], &["top", "--lines"]].iter().enumerate() {
        let file = open.path().join(format!("{n}.pfi"));
        let r = record(under_sudo("65534", "65534"), way, &file, &engine);
        assert_eq!(r.status.code(), Some(0), "{way:?}: {}", r.stderr);
        // The output of top's command goes to standard error.
        let said = format!("{}{}", r.stdout, r.stderr);
        let wanted = format!("65534\n65534\n{groups}/nonexistent nobody nobody\n");
        assert!(said.contains(&wanted), "{way:?}: {said}");
        assert!(r.stderr.contains("the command runs as user nobody (65534)"), "{way:?}: {}", r.stderr);
        let made = fs::metadata(&file).expect("a recording");
        assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (NOBODY, NOBODY, 0o600), "{way:?}");
    }
}

#[test]
fn as_root_and_without_sudo_the_command_is_roots() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    let open = directory(0o777);
    let of_root = under_sudo("0", "0");
    for (n, (command, way)) in
        [(under_sudo("65534", "65534"), &["record", "--as-root"][..]), (of_root, &["record"])]
            .into_iter()
            .enumerate()
    {
        let file = open.path().join(format!("{n}.pfi"));
        let r = record(command, way, &file, &engine);
        assert_eq!(r.status.code(), Some(0), "{way:?}: {}", r.stderr);
        assert!(r.stdout.starts_with("0\n0\n") && r.stdout.contains("/root root"), "{way:?}: {}", r.stdout);
        assert!(!r.stderr.contains("runs as user"), "{}", r.stderr);
        assert_eq!(fs::metadata(&file).expect("a recording").uid(), 0, "{way:?}");
    }
}

#[test]
fn a_file_where_the_user_could_make_none_stays_roots() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    let closed = directory(0o755);
    let file = closed.path().join("run.pfi");
    let r = record(under_sudo("65534", "65534"), &["record"], &file, &engine);
    assert_eq!(r.status.code(), Some(0), "{}", r.stderr);
    assert!(r.stderr.contains("run.pfi is owned by root: user 65534"), "{}", r.stderr);
    assert_eq!(fs::metadata(&file).expect("a recording").uid(), 0);
}

/// The engine cannot be determined from its own files: it is stopped at each exec until it is known.
#[test]
fn a_command_whose_engine_is_found_late_is_recorded_in_full() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    let open = directory(0o777);
    let file = open.path().join("run.pfi");
    let r = record(under_sudo("65534", "65534"), &["record"], &file, &engine);
    assert_eq!(r.status.code(), Some(0), "{}", r.stderr);
    let seen = Seen::read(&file);
    seen.books_close();
    seen.complete();
}

#[test]
fn what_is_no_user_is_an_error_and_nothing_runs() {
    let _turn = live!(beside others);
    let open = directory(0o777);
    let (file, ran) = (open.path().join("run.pfi"), open.path().join("ran"));
    for (uid, gid, said) in [
        ("x", "1", "SUDO_UID 'x' is not a user or group ID"),
        ("1", "", "SUDO_GID '' is not a user or group ID"),
        ("3999999999", "1", "user 3999999999 (SUDO_UID) does not exist on this machine"),
    ] {
        let mut command = under_sudo(uid, gid);
        let r = run(command.arg("record").arg("-o").arg(&file).args(["--", "touch"]).arg(&ran));
        assert_eq!(r.status.code(), Some(1), "{}", r.stderr);
        assert!(r.stderr.contains(said) && r.stderr.contains("--as-root"), "{}", r.stderr);
        assert!(!ran.exists() && !file.exists(), "{uid}");
    }
}

/// Each start of the command: its help text, and its runs.
#[test]
fn tune_runs_the_command_as_the_user_too() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    for (more, uid) in [(None, "65534"), (Some("--as-root"), "0")] {
        let open = directory(0o777);
        let (script, ids) = (open.path().join("llama-cli"), open.path().join("ids"));
        let text = format!(
            "#!/bin/sh\necho $(id -u) $1 >>{}\n[ $1 = --help ] || exec {} -n 20\n",
            ids.display(),
            engine.display()
        );
        fs::write(&script, text).expect("a script");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
        let mut command = under_sudo("65534", "65534");
        command.args(["tune", "--time", "1s", "--knobs", "none", "--no-energy", "--no-keep"]).args(more);
        let r = run(command.arg("--").arg(&script).args(["-m", "x"]));
        let said = fs::read_to_string(&ids).unwrap_or_else(|e| panic!("{e}: {}", r.stderr));
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some(&*format!("{uid} --help")), "{}", r.stderr);
        let runs: Vec<_> = lines.collect();
        assert!(
            !runs.is_empty() && runs.iter().all(|line| *line == format!("{uid} -m")),
            "{said}: {}",
            r.stderr
        );
    }
}
