//! `profinfer config` and `record --conf` as commands: output, errors, exit codes, and invalid files.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cli::args::Flag;
use profinfer::conf::service::{RULE, SERVE};
use profinfer::record::flags::COMMAND as RECORD;

/// With an empty environment.
fn profinfer(args: &[&str], environ: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    let command = command.args(args).env_clear().envs(environ.iter().copied());
    command.stdin(Stdio::null()).output().expect("it runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Its output, which must be free of errors.
fn printed(args: &[&str], environ: &[(&str, &str)]) -> String {
    let out = profinfer(args, environ);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), ""), "{args:?}");
    text(&out.stdout).to_owned()
}

/// Exit code and errors, without the name of the directory.
fn refused(args: &[&str], environ: &[(&str, &str)], dir: &Path) -> (Option<i32>, String) {
    let out = profinfer(args, environ);
    assert_eq!(text(&out.stdout), "", "{args:?}");
    (out.status.code(), text(&out.stderr).replace(&format!("{}/", dir.display()), ""))
}

fn file(dir: &tempfile::TempDir, name: &str, bytes: &[u8]) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("written");
    path.to_str().expect("a name").to_owned()
}

/// Lines of a configuration that are values, without their sources, up to its rules.
fn values(page: &str) -> Vec<&str> {
    let page = page.split("\n## Rules").next().unwrap_or(page);
    let lines =
        page.lines().filter(|l| !l.is_empty() && *l != "#" && !l.starts_with("# ") && !l.starts_with("##"));
    lines.map(|l| l.split("  #").next().unwrap_or(l).trim_end()).collect()
}

const KEYS: &str = "\
# a board
level = \"graph\"
buffer-size = \"64MiB\"
qos = \"5tok/s\"
budget = \"1%\"
duration = \"10min\"
tokens = 200
output = \"a \\\"b\\\".pfi\"
str = false
sched = true
pmc = [\"cycles\",
       \"instructions\"]
";

#[test]
fn the_default_file_is_what_is_built_in() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../conf/profinfer.toml");
    let page = printed(&["config", "--print", "--default"], &[("PROFINFER_LEVEL", "token")]);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &page).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("conf/profinfer.toml");
    assert_eq!(there, page, "a flag of record changed? UPDATE_SNAPSHOTS=1 writes the file anew");
    let name = path.to_str().expect("a name");
    assert_eq!(printed(&["config", "--check", name], &[]), "");
    assert_eq!(
        values(&printed(&["config", "--print", name], &[])),
        values(&printed(&["config", "--print"], &[]))
    );
    assert_eq!(values(&page), values(&printed(&["config", "--print"], &[])));
}

#[test]
fn each_value_is_told_with_its_origin() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = file(&dir, "board.toml", KEYS.replace("level = \"graph\"\n", "\n").as_bytes());
    let environ = [("PROFINFER_QOS", "7"), ("PROFINFER_SCHED", "0"), ("PROFINFER_BUDGET", "2%")];
    let page = printed(&["config", "--print", &name, "--", "--budget", "3%", "--no-duration"], &environ);
    let page = page.replace(&format!("{}/", dir.path().display()), "");
    for line in [
        "level = \"op\"                        # built in",
        "buffer-size = \"64MiB\"               # board.toml:3",
        "qos = 7                             # PROFINFER_QOS",
        "budget = \"3%\"                       # --budget",
        "#duration = \"TIME\"                  # --no-duration",
        "tokens = 200                        # board.toml:7",
        "output = \"a \\\"b\\\".pfi\"              # board.toml:8",
        "str = false                         # board.toml:9",
        "sched = false                       # PROFINFER_SCHED",
        "pmc = [\"cycles\", \"instructions\"]    # board.toml:12",
        "#exe = \"PATH\"                       # not set",
    ] {
        let line = line.split("  #").collect::<Vec<_>>();
        let [value, origin] = line[..] else { panic!("{line:?}") };
        let found = page.lines().find(|l| l.split("  #").next().map(str::trim_end) == Some(value.trim_end()));
        let found = found.unwrap_or_else(|| panic!("{value} in:\n{page}"));
        assert!(found.ends_with(&format!("  #{origin}")), "{found}");
    }
}

#[test]
fn what_is_printed_is_a_file_of_the_same_values() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = KEYS.replace("level = \"graph\"\n", "");
    let first = printed(&["config", "--print", &file(&dir, "first.toml", keys.as_bytes())], &[]);
    let second = printed(&["config", "--print", &file(&dir, "second.toml", first.as_bytes())], &[]);
    assert_eq!(values(&first), values(&second));
    assert!(values(&first).contains(&"buffer-size = \"64MiB\""), "{first}");
    let third = ["--output=\u{7f}\\\"'#", "--exe=--", "--btf=x # y"];
    let third = [&["config", "--print", "--"][..], &third].concat();
    let third = printed(&third, &[]);
    let fourth = printed(&["config", "--print", &file(&dir, "third.toml", third.as_bytes())], &[]);
    assert_eq!(values(&third), values(&fourth));
}

#[test]
fn all_errors_of_a_file_are_told_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = file(
        &dir,
        "board.toml",
        b"level = \"grap\"\nbugdet = \"1%\"\nbuffer-size = 64MiB\n\npmc = [\"a\",\n  true]\nforce = true\nqos = \"5 t\"\n",
    );
    let lines = "\
profinfer: board.toml:1: level 'grap': expected token, graph or op; the nearest is 'graph'
profinfer: board.toml:2: unknown key 'bugdet'; the nearest is 'budget'
profinfer: board.toml:3: 64MiB must be in quotes: \"64MiB\"
profinfer: board.toml:6: pmc 'true': expected, in quotes: LIST
profinfer: board.toml:7: force is allowed on the command line only, not in a file
profinfer: board.toml:8: qos '5 t': expected tokens per second, e.g. 5tok/s or 0.5
";
    let end = |command: &str| format!("profinfer: 6 errors; for usage, run profinfer {command} --help\n");
    let check = refused(&["config", "--check", &name], &[], dir.path());
    assert_eq!(check, (Some(2), format!("{lines}{}", end("config"))));
    let record = refused(&["record", "--conf", &name, "--", "true"], &[], dir.path());
    assert_eq!(record, (Some(2), format!("{lines}{}", end("record"))));
    assert_eq!(refused(&["config", "--print", &name], &[], dir.path()), check);
}

const SERVICE: &str = "\
sched = true
tokens = 9

[service]
quota = \"1GiB\"
keep = \"7d\"

[[rule]]
name = \"server\"
exe = \"/usr/**/llama-*\"
user = 0
str = false
ring = \"10min\"
trigger-below = \"5tok/s\"

[[rule]]
name = \"rest\"
budget = \"3%\"
sample-one-in = 10
level = \"graph\"
";

#[test]
fn the_service_and_its_rules_are_printed_as_a_file_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = file(&dir, "board.toml", SERVICE.as_bytes());
    assert_eq!(printed(&["config", "--check", &name], &[]), "");
    let environ = [("PROFINFER_KEEP", "30d"), ("PROFINFER_LEVEL", "token")];
    let page =
        printed(&["config", "--print", &name], &environ).replace(&format!("{}/", dir.path().display()), "");
    let (_, service) = page.split_once("\n[service]\n").expect("a service");
    let wanted = "\
directory = \"/var/lib/profinfer\"      # built in
quota = \"1GiB\"                        # board.toml:5
file-size = \"64MiB\"                   # built in
file-age = \"1h\"                       # built in
keep = \"30d\"                          # PROFINFER_KEEP
status = \"/run/profinfer/status.json\"  # built in
#metrics = \"FILE\"                     # not set
socket = \"/run/profinfer/control.sock\"  # built in
idle-timeout = \"30s\"                  # built in
peaks-after = \"5min\"                  # built in
memory = \"256MiB\"                     # built in
cpu = \"25%\"                           # built in
max-concurrent = 16                   # built in
recorders = 16                        # built in
recorder-timeout = \"30s\"              # built in

## Metrics over the network

[metrics]
#listen = \"ADDRESS\"                   # not set
listen-remote = false                 # built in
per-process = false                   # built in

[otlp]
#endpoint = \"URL\"                     # not set
#headers = [\"NAME=VALUE\"]             # not set
#attributes = [\"NAME=VALUE\"]          # not set
interval = \"60s\"                      # built in
timeout = \"10s\"                       # built in

## Rules of the service

[[rule]]
name = \"server\"                       # board.toml:9
exe = \"/usr/**/llama-*\"               # board.toml:10
user = 0                              # board.toml:11
ring = \"10min\"                        # board.toml:13
trigger-below = \"5tok/s\"              # board.toml:14
str = false                           # board.toml:12
budget = \"1%\"                         # built in

[[rule]]
name = \"rest\"                         # board.toml:17
sample-one-in = 10                    # board.toml:19
budget = \"3%\"                         # board.toml:18
";
    assert_eq!(service, wanted);
    let again = file(&dir, "again.toml", page.as_bytes());
    let second = printed(&["config", "--print", &again], &[]);
    let only = |page: &str| {
        page.lines().map(|l| l.split("  #").next().unwrap_or(l).trim_end().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(only(&second), only(&page));
    let bare = printed(&["config", "--print"], &[]);
    assert!(
        bare.ends_with("# No rules: everything is recorded, by a rule named default, with a budget of 1%.\n"),
        "{bare}"
    );
}

#[test]
fn errors_of_the_service_are_told_by_every_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = "bugdet = 1\n[service]\nquota = \"1MiB\"\ndirectoy = \"/x\"\n[[rule]]\nuser = \"no\u{1b}\u{202e}ne\"\nduration = 1\n[[rules]]\n";
    let name = file(&dir, "board.toml", text.as_bytes());
    let lines = "\
profinfer: board.toml:1: unknown key 'bugdet'; the nearest is 'budget'
profinfer: board.toml:4: unknown key 'directoy'; the nearest is 'directory'
profinfer: board.toml:6: control character in a string: in double quotes, write \\u and four digits for it
profinfer: board.toml:7: duration is not allowed in a rule: tokens = N records the beginning of a run, ring = TIME keeps its most recent part
profinfer: board.toml:8: unknown table [rules]: use [service], [metrics], [otlp] or [[rule]]
";
    let record = refused(&["record", "--conf", &name, "--", "true"], &[], dir.path());
    let end = "profinfer: 5 errors; for usage, run profinfer record --help\n";
    assert_eq!(record, (Some(2), format!("{lines}{end}")));
    let (code, check) = refused(&["config", "--check", &name], &[], dir.path());
    assert_eq!(code, Some(2));
    assert!(check.starts_with(&format!("{lines}profinfer: 5 errors")), "{check}");
}

#[test]
fn a_quota_smaller_than_one_file_is_told_and_no_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = file(&dir, "a.toml", b"[service]\nquota = \"8MiB\"\n");
    let told = "profinfer: warning: a.toml:2: quota is smaller than one file: file-size is reduced to 4MiB\n";
    assert_eq!(refused(&["config", "--check", &name], &[], dir.path()), (Some(0), told.to_owned()));
}

#[test]
fn headers_that_all_can_read_are_told_and_no_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let name =
        file(&dir, "a.toml", b"[otlp]\nendpoint = \"http://[::1]:4318\"\nheaders = [\"key=secret\"]\n");
    let mode = |mode| std::fs::set_permissions(&name, PermissionsExt::from_mode(mode)).expect("its mode");
    let check = || refused(&["config", "--check", &name], &[], dir.path());
    mode(0o644);
    let told = "profinfer: warning: a.toml:3: all users of this machine can read the file, and headers can be secret: \
                chmod 600\n";
    assert_eq!(check(), (Some(0), told.to_owned()));
    mode(0o600);
    assert_eq!(check(), (Some(0), String::new()));
}

#[test]
fn a_ring_wants_a_file_that_it_fits_into() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = |size: &str| {
        format!("[service]\nfile-size = \"{size}\"\nquota = \"8MiB\"\n[[rule]]\nring = \"1min\"\n")
    };
    let check = |size| {
        let name = file(&dir, "a.toml", config(size).as_bytes());
        refused(&["config", "--check", &name], &[], dir.path())
    };
    assert_eq!(check("3MiB"), (Some(0), String::new()));
    let (code, told) = check("2MiB");
    assert_eq!(code, Some(2));
    assert!(told.starts_with("profinfer: a.toml:5: a ring is written to one file"), "{told}");
}

#[test]
fn what_is_hardly_meant_is_told_and_no_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = file(&dir, "board.toml", b"[[rule]]\nname = \"all\"\n[[rule]]\nname = \"b\"\nuser = 0\n");
    let warning = "profinfer: warning: board.toml:3: rule 'b' is never used: the earlier rule 'all' matches everything it would match\n";
    assert_eq!(refused(&["config", "--check", &name], &[], dir.path()), (Some(0), warning.to_owned()));
}

#[test]
fn what_values_need_of_each_other_is_checked_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = file(&dir, "a.toml", b"level = \"token\"\nexperts = true\nfaults = true\npmc-strict = true\n");
    let (code, told) = refused(&["config", "--check", &name], &[], dir.path());
    let wanted = "\
profinfer: a.toml:4: pmc-strict requires --pmc LIST
profinfer: a.toml:1: counters are recorded for each op: omit --level or use --level op
profinfer: a.toml:2: --experts requires ops and their tensors: omit --no-str, and omit --level or use --level op
profinfer: 3 errors; for usage, run profinfer config --help
";
    assert_eq!((code, told.as_str()), (Some(2), wanted));
}

#[test]
fn record_goes_by_flag_environment_and_file() {
    let dir = tempfile::tempdir().expect("a directory");
    // A recording never replaces a file: the name in the error is the one it would have written to.
    let [a, b, c] = ["a", "b", "c"].map(|name| file(&dir, name, b""));
    let conf = file(&dir, "board.toml", format!("output = \"{a}\"").as_bytes());
    let stops = |args: &[&str], environ: &[(&str, &str)]| {
        let args = [&["record"][..], args, &["--", "true"]].concat();
        let (code, told) = refused(&args, environ, dir.path());
        assert_eq!(code, Some(1), "{told}");
        told.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(stops(&["--conf", &conf], &[]), "a");
    assert_eq!(stops(&["--conf", &conf], &[("PROFINFER_OUTPUT", &b)]), "b");
    assert_eq!(stops(&["--conf", &conf, "-o", &c], &[("PROFINFER_OUTPUT", &b)]), "c");
    assert_eq!(stops(&[], &[("PROFINFER_OUTPUT", &b)]), "b");
    assert_eq!(stops(&[], &[("PROFINFER_CONF", &conf)]), "a");
    let wrong = refused(&["record", "--", "true"], &[("PROFINFER_LEVEL", "grph")], dir.path());
    let why = "profinfer: PROFINFER_LEVEL 'grph': expected token, graph or op; the nearest is 'graph'; for usage, run profinfer \
               record --help\n";
    assert_eq!(wrong, (Some(2), why.to_owned()));
}

#[test]
fn a_command_or_a_process_is_stronger_than_a_program_in_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let conf = file(
        &dir,
        "board.toml",
        format!("exe = \"/none\"\noutput = \"{}\"", file(&dir, "a", b"")).as_bytes(),
    );
    for target in [&["--", "true"][..], &["-p", "1"], &[]] {
        let (code, told) = refused(&[&["record", "--conf", &conf][..], target].concat(), &[], dir.path());
        assert!(code == Some(1) && told.contains("a exists"), "{told}");
    }
    let (code, told) = refused(&["record", "--exe", "/none", "--", "true"], &[], dir.path());
    assert!(code == Some(2) && told.contains("give only one of"), "{told}");
}

#[test]
fn files_that_are_none_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = dir.path().join("fifo");
    let name = CString::new(fifo.as_os_str().as_bytes()).expect("a name");
    // SAFETY: the name is a zero-terminated string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let here = |name: &str| dir.path().join(name).to_str().expect("a name").to_owned();
    let large = vec![b'#'; (1 << 20) + 1];
    for (name, code, why) in [
        (here("fifo"), 1, "cannot read fifo: it is not a regular file"),
        (here(""), 1, ": it is a directory"),
        (here("none"), 1, "cannot read none: No such file or directory"),
        (file(&dir, "large", &large), 1, "cannot read large: it is larger than 1 MiB"),
        (file(&dir, "bytes", b"level = \"op\"\n\xff = 1"), 2, "bytes:2: not valid UTF-8"),
        (file(&dir, "elf", b"\x7fELF\x02\x01\x01\0\0"), 2, "elf:1: invalid key: "),
        (file(&dir, "line", b"a\x1b[2J = 1"), 2, "line:1: invalid key: "),
    ] {
        for args in [["config", "--check", &name].as_slice(), &["record", "--conf", &name, "--", "true"]] {
            let (status, told) = refused(args, &[], dir.path());
            assert_eq!(status, Some(code), "{told}");
            assert!(told.contains(why) && !told.contains('\x1b'), "{told}");
        }
    }
    assert_eq!(printed(&["config", "--check", &file(&dir, "whole", &large[1..])], &[]), "");
    assert_eq!(printed(&["config", "--check", &file(&dir, "empty", b"")], &[]), "");
    assert_eq!(
        printed(&["config", "--check", &file(&dir, "bom", b"\xef\xbb\xbflevel = \"op\"\r\n")], &[]),
        ""
    );
}

#[test]
fn wrong_usage_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    for (args, why) in [
        (&["config"][..], "give --print, or --check FILE"),
        (&["config", "--check"], "FILE is required"),
        (&["config", "--print", "--check", "x"], "--print and --check cannot be combined"),
        (&["config", "--default"], "--default requires --print"),
        (
            &["config", "--print", "--default", "x"],
            "--default prints the built-in defaults: omit FILE and OPTIONS",
        ),
        (&["config", "--print", "--", "--levle", "op"], "unknown option '--levle'; the nearest is '--level'"),
        (&["config", "--print", "--", "--help"], "--help is not a recording option"),
        (&["config", "--print", "--", "--no-sched=1"], "--no-sched takes no value"),
    ] {
        let (code, told) = refused(args, &[], dir.path());
        assert_eq!(code, Some(2), "{told}");
        assert!(
            told.starts_with(&format!("profinfer: {why}; for usage, run profinfer config --help")),
            "{told}"
        );
    }
}

#[test]
fn what_is_no_key_stands_on_the_page() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFIG.md"))
        .expect("there");
    let told = |flag: &Flag| {
        page.contains(&format!("`{}`", flag.name)) || page.contains(&format!("--{}", flag.name))
    };
    for flag in RECORD.flags().filter(|f| !f.is_key()) {
        assert!(told(flag) != flag.hidden, "--{} in docs/CONFIG.md", flag.name);
    }
    for flag in RULE.groups.iter().take(1).chain(&SERVE.groups[..1]).flat_map(|g| g.flags) {
        assert!(page.contains(&format!("| `{}` |", flag.name)), "{} in docs/CONFIG.md", flag.name);
    }
}

/// Old names of keys are still accepted.
#[test]
fn former_names_of_keys_are_taken_with_a_notice() {
    let dir = tempfile::tempdir().expect("a directory");
    let old =
        b"[service]\nlinger = \"7s\"\nat-once = 3\n[[rule]]\nname = \"all\"\nexe = \"/**\"\none-in = 5\n";
    let path = file(&dir, "old.toml", old);
    let out = profinfer(&["config", "--check", &path], &[]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    for (line, old, new) in
        [(2, "linger", "idle-timeout"), (3, "at-once", "max-concurrent"), (7, "one-in", "sample-one-in")]
    {
        assert!(said.contains(&format!("old.toml:{line}: {old} is now called {new}\n")), "{said}");
    }
    let out = profinfer(&["config", "--print", &path], &[]);
    let page = text(&out.stdout);
    for key in ["idle-timeout = \"7s\"", "max-concurrent = 3 ", "sample-one-in = 5 "] {
        assert!(page.contains(key), "{key}: {page}");
    }
    let twice = file(&dir, "twice.toml", b"[service]\nlinger = \"7s\"\nidle-timeout = \"8s\"\n");
    let out = profinfer(&["config", "--check", &twice], &[]);
    assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
}
