//! `profinfer html` as a command: which files it reads, what it writes, what opens the page, and its errors.

use crate::html::check;
use crate::html_support::*;

#[test]
fn a_page_is_opened_in_the_browser_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.pfi"), rich(3)).unwrap();
    let (browser, seen) = (dir.path().join("browser"), dir.path().join("seen"));
    std::fs::write(&browser, format!("#!/bin/sh\necho \"$1\" >{}\n", seen.display())).unwrap();
    std::fs::set_permissions(&browser, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let with = |browser: &std::path::Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_profinfer"));
        command.current_dir(dir.path()).env("BROWSER", browser).env("PATH", "/nowhere");
        command.env_remove("SUDO_UID");
        command.args(["html", "--open", "--force", "run.pfi"]).output().unwrap()
    };
    let out = with(&browser);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let said = || std::fs::read_to_string(&seen).is_ok_and(|said| said == "run.html\n");
    crate::common::run::wait_until("the browser has the page's name", said);
    let none = with(&dir.path().join("none"));
    assert_eq!(none.status.code(), Some(1));
    assert!(
        text(&none.stderr).contains("no program to open run.html with: set BROWSER"),
        "{}",
        text(&none.stderr)
    );
    let mut sudo = std::process::Command::new(env!("CARGO_BIN_EXE_profinfer"));
    sudo.current_dir(dir.path()).env("BROWSER", &browser).env("SUDO_UID", "1000");
    let sudo = sudo.args(["html", "--open", "--force", "run.pfi"]).output().unwrap();
    assert!(text(&sudo.stderr).contains("starts no browser under sudo"), "{}", text(&sudo.stderr));
}

#[test]
fn without_a_name_the_newest_trace_here_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let here = |args: &[&str]| profinfer(dir.path(), args);
    let none = here(&["report"]);
    assert_eq!(
        (none.status.code(), &*text(&none.stderr)),
        (
            Some(2),
            "profinfer: FILE is required: there is no *.pfi here; for usage, run profinfer report --help\n"
        )
    );
    for (name, second) in [("old.pfi", 1), ("new.pfi", 2)] {
        let file = dir.path().join(name);
        std::fs::write(&file, rich(3)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
        std::fs::File::options().append(true).open(file).unwrap().set_modified(time).unwrap();
    }
    let out = here(&["report", "--json"]);
    assert_eq!(text(&out.stderr), "profinfer: reading new.pfi, the newest trace here\n");
    assert_eq!(out.stdout, here(&["report", "--json", "new.pfi"]).stdout);
    let missing = here(&["report", "none.pfi"]);
    assert!(text(&missing.stderr).contains("no such file; traces there: new.pfi, old.pfi"));
    let two = here(&["report", "new.pfi", "old.pfi"]);
    assert!(text(&two.stderr).contains("report reads one trace; to compare two, run profinfer diff A B"));
}

#[test]
fn errors_are_one_line_and_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.pfi"), rich(3)).unwrap();
    std::fs::write(dir.path().join("text"), "hello").unwrap();
    let cases: [(&[&str], i32, &str); 10] = [
        (&["run.pfi", "run.pfi", "-o", "./run.pfi"], 2, "./run.pfi is the input"),
        (&["-", "-", "-o", "x.html"], 2, "standard input can be used for one trace only"),
        (&["-"], 2, "-o OUT is required"),
        (&["text", "-o", "x.html"], 1, "cannot show text: not a profinfer trace"),
        (&["none", "-o", "x.html"], 1, "cannot show none"),
        (&["run.pfi", "-o", "./run.pfi"], 2, "./run.pfi is the input"),
        (&["run.pfi", "-o", "no/such/x.html"], 1, "cannot write no/such/x.html"),
        (
            &["run.pfi", "-o", "x.html", "--pid", "5"],
            1,
            "process 5 was not recorded; recorded processes: 4242",
        ),
        (
            &["run.pfi", "-o", "x.html", "--tokens", "9.."],
            1,
            "no such engine call: the trace has calls 0 to 3",
        ),
        (&["run.pfi", "-o", "x.html", "--tokens", "3..1"], 2, "the end is before the start"),
    ];
    for (args, code, want) in cases {
        let out = profinfer(dir.path(), &[&["html"], args].concat());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{said}");
        assert!(said.contains(want) && said.lines().count() == 1, "{said}");
        assert!(!dir.path().join("x.html").exists(), "{said}");
    }
    assert_eq!(
        std::fs::read(dir.path().join("run.pfi")).unwrap(),
        rich(3),
        "a recording is not written over"
    );
}

/// Without -o the page has the trace's name and is in the current directory.
#[test]
fn a_page_is_named_after_its_trace() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("traces")).unwrap();
    for name in ["traces/a.pfi", "traces/b.1", "traces/c"] {
        std::fs::write(dir.path().join(name), rich(3)).unwrap();
    }
    for (trace, page) in [("traces/a.pfi", "a.html"), ("traces/b.1", "b.1.html"), ("traces/c", "c.html")] {
        let out = profinfer(dir.path(), &["html", trace]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert_eq!(text(&out.stderr), format!("profinfer: wrote {page}\n"));
        check(&std::fs::read_to_string(dir.path().join(page)).unwrap());
    }
    std::fs::write(dir.path().join("a.html"), "mine").unwrap();
    let out = profinfer(dir.path(), &["html", "traces/a.pfi"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("a.html exists"), "{}", text(&out.stderr));
    assert_eq!(std::fs::read_to_string(dir.path().join("a.html")).unwrap(), "mine");
    let out = profinfer(dir.path(), &["html", "traces/a.pfi", "--force"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    check(&std::fs::read_to_string(dir.path().join("a.html")).unwrap());
}

/// The flag's old name is still accepted.
#[test]
fn the_former_name_of_peak_is_taken_with_a_notice() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.pfi"), rich(8)).unwrap();
    for args in [["html", "run.pfi", "-o", "run.html"].as_slice(), &["stat", "run.pfi", "roofline"]] {
        let out = profinfer(dir.path(), &[args, &["--roof", "100,10"]].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert_eq!(text(&out.stderr), "profinfer: --roof is now called --peak\n");
    }
}
