//! Tests of the service's settings from file, environment and command line.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::super::read;
use super::*;
use cli::args::Parsed;
use pfi::record::Level;
use service::net::endpoint::NetSettings;

/// The settings from a text, below a command line and an environment.
fn under(line: &[&str], environ: &[(&str, &str)], text: &str) -> Result<ServiceSettings, Vec<String>> {
    let words = line.iter().map(OsString::from).collect();
    let Ok(Parsed::Run(args)) = Args::parse(&SERVE, words) else { panic!("{line:?}") };
    let environ = |name: &str| environ.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
    let (args, mut wrong) = super::super::with_environment(&args, &environ);
    let (file, faults) = read(text);
    wrong.extend(faults.told("f"));
    let settings = ServiceArgs::new(&args, File { name: "f".to_owned(), ..file }).values(&mut wrong);
    if wrong.is_empty() { Ok(settings) } else { Err(wrong) }
}

fn of(text: &str) -> ServiceSettings {
    under(&[], &[], text).unwrap_or_else(|wrong| panic!("{wrong:#?} of {text}"))
}

fn wrong(text: &str) -> Vec<String> {
    under(&[], &[], text).err().unwrap_or_default()
}

const BOARD: &str = r#"
level = "graph"
sched = true
tokens = 7
duration = "1min"
output = "x"

[service]
directory = "/data/profinfer"
quota = "2GiB"
file-age = "10min"
keep = "7d"
metrics = "/data/node/profinfer.prom"
cpu = "5%"

[[rule]]
name = "server"
exe = "/usr/bin/llama-*"
user = 0
cgroup = "/system.slice/**"
ring = "5min"
ring-size = "8MiB"
trigger-below = "5tok/s"
trigger-p99-above = "200ms"
level = "op"
pmc = ["cycles"]
budget = "2%"

[[rule]]
exe = "llama-bench"
ignore = true

[[rule]]
name = "rest"
sample-one-in = 10
tokens = 100
sched = false
qos = "3tok/s"
"#;

#[test]
fn a_file_has_the_service_and_its_rules() {
    let s = of(BOARD);
    assert_eq!((s.directory.to_str(), s.quota, s.file_size), (Some("/data/profinfer"), 2 << 30, 64 << 20));
    assert_eq!((s.file_age.as_secs(), s.keep.map(|k| k.as_secs())), (600, Some(7 * 86400)));
    assert_eq!((s.cpu, s.max_concurrent, s.warnings.len()), (0.05, 16, 0));
    assert_eq!(s.metrics.as_deref().and_then(Path::to_str), Some("/data/node/profinfer.prom"));
    let [server, bench, rest] = &s.rules[..] else { panic!("{:?}", s.rules) };
    assert_eq!((server.name.as_str(), bench.name.as_str(), rest.name.as_str()), ("server", "rule-2", "rest"));
    assert_eq!((server.ring, server.ring_size), (Some(Duration::from_secs(300)), 8 << 20));
    assert_eq!((server.below, server.p99_above), (Some(5.0), Some(Duration::from_millis(200))));
    assert_eq!((server.record.level, rest.record.level, bench.ignore), (Level::Op, Level::Graph, true));
    assert_eq!(server.record.counters.names, ["cycles"]);
    assert_eq!((server.record.capture.sched, rest.record.capture.sched), (true, false));
    let costs = s.rules.iter().map(|r| r.record.budget.and_then(|b| b.budget)).collect::<Vec<_>>();
    assert_eq!(costs, [Some(0.02), Some(0.01), Some(0.01)]);
    assert_eq!(rest.record.budget.and_then(|b| b.qos), Some(3.0));
    // How a `record` run ends does not apply to rules.
    assert_eq!(
        (rest.sample_one_in, rest.tokens, server.tokens, bench.sample_one_in),
        (10, Some(100), None, 1)
    );
    assert!(s.rules.iter().all(|r| r.record.tokens.is_none() && r.record.duration.is_none()));
}

#[test]
fn the_first_rule_that_is_for_a_process_counts() {
    let s = of(BOARD);
    let slice = Some("/system.slice/llama.service");
    for (exe, uid, cgroup, rule) in [
        ("/usr/bin/llama-cli", 0, slice, 0),
        ("/usr/bin/llama-cli (deleted)", 0, slice, 0),
        ("/usr/bin/llama-cli", 1, slice, 2),
        ("/usr/bin/llama-cli", 0, Some("/user.slice"), 2),
        ("/usr/bin/llama-cli", 0, None, 2),
        ("/opt/llama-bench", 0, None, 1),
        ("/usr/bin/llama-bench", 0, slice, 0),
        ("", 0, None, 2),
    ] {
        assert_eq!(s.rule_for(exe.as_bytes(), uid, cgroup), Some(rule), "{exe} {uid} {cgroup:?}");
    }
    let s = of("[[rule]]\nexe = \"llama-*\"");
    assert_eq!((s.rule_for(b"/bin/llama-x", 5, None), s.rule_for(b"/bin/ggml", 5, None)), (Some(0), None));
}

#[test]
fn without_a_file_one_rule_takes_all() {
    let s = of("");
    assert_eq!(ServiceSettings { rules: Vec::new(), ..s.clone() }, ServiceSettings::default());
    let [rule] = &s.rules[..] else { panic!("{:?}", s.rules) };
    assert_eq!((rule.name.as_str(), s.rule_for(b"/x", 1, None)), ("default", Some(0)));
    assert_eq!((rule.record.level, rule.record.budget.and_then(|b| b.budget)), (Level::Op, Some(0.01)));
}

#[test]
fn what_is_above_is_stronger_than_the_file_rules_and_all() {
    let text = "level = \"token\"\n[service]\nquota = \"1GiB\"\n[[rule]]\nname = \"a\"\nlevel = \"graph\"\n[[rule]]\nexe=\"x\"\n";
    let levels =
        |s: ServiceSettings| (s.rules.iter().map(|r| r.record.level).collect::<Vec<_>>(), s.quota >> 20);
    let go = |line: &[&str], environ: &[(&str, &str)]| levels(under(line, environ, text).expect("right"));
    use Level::{Graph, Op, Token};
    assert_eq!(go(&[], &[]), (vec![Graph, Token], 1024));
    let environ = [("PROFINFER_LEVEL", "op"), ("PROFINFER_QUOTA", "512MiB")];
    assert_eq!(go(&[], &environ), (vec![Op, Op], 512));
    assert_eq!(go(&["--level=token", "--quota", "256MiB"], &environ), (vec![Token, Token], 256));
    assert_eq!(go(&["--no-level", "--no-quota"], &environ), (vec![Op, Op], 512));
    // Environment variables for the end and target of `record` do not apply to the service.
    assert_eq!(go(&[], &[("PROFINFER_TOKENS", "x"), ("PROFINFER_EXE", "/y")]), (vec![Graph, Token], 1024));
    let both =
        under(&["--level=x", "--cpu=0%", "--socket=s"], &[("PROFINFER_KEEP", "y")], "[service]\nquota = 1\n");
    let both = both.expect_err("five mistakes");
    for (told, begin) in
        both.iter().zip(["PROFINFER_KEEP 'y'", "f:2: quota", "--socket 's'", "--cpu '0%'", "--level 'x'"])
    {
        assert!(told.starts_with(begin), "{both:#?}");
    }
    assert_eq!(both.len(), 5, "{both:#?}");
}

#[test]
fn what_values_ask_of_each_other_is_told() {
    for (text, told) in [
        (
            "[[rule]]\nname = \"a\"\n[[rule]]\nexe = \"x\"\nname = \"a\"\n",
            "f:3: rule 'a': the rule in line 1 has the same name",
        ),
        (
            "[[rule]]\nexe=\"x\"\nname = \"rule-2\"\n[[rule]]\n",
            "f:4: rule 'rule-2': the rule in line 1 has the same name",
        ),
        ("[[rule]]\nring-size = \"8MiB\"\n", "f:2: ring-size requires --ring TIME"),
        ("[[rule]]\nring = 5\ntokens = 9\n", "f:2: ring and f:3: tokens cannot be combined"),
        (
            "[service]\nmemory = \"32MiB\"\n[[rule]]\nring = 5\nring-size = \"32MiB\"\n",
            "f:5: the ring does not fit into memory: reduce ring-size",
        ),
        (
            "level = \"token\"\n[[rule]]\nexperts = true\n[[rule]]\nexe = \"x\"\nexperts = true\n",
            "f:3: --experts requires ops and their tensors: omit --no-str, and omit --level or use --level op",
        ),
        ("[[rule]]\npmc-strict = true\n", "f:2: pmc-strict requires --pmc LIST"),
    ] {
        assert_eq!(wrong(text).first().map(String::as_str), Some(told), "{text}");
    }
    let twice = wrong("level = \"token\"\nexperts = true\n[[rule]]\nexe = \"x\"\n[[rule]]\n");
    assert_eq!(twice.len(), 1, "{twice:#?}");
    let list = under(&["--pmc=list"], &[], "").expect_err("no service lists");
    assert_eq!(list, ["--pmc 'list': use it with profinfer record"]);
    let many = wrong(&"[[rule]]\n".repeat(1000));
    assert!(many.iter().any(|m| m == "f:65: more than 64 rules"), "{}", many.len());
}

#[test]
fn what_is_hardly_meant_is_a_warning() {
    let never = |text: &str| of(text).warnings;
    assert_eq!(
        never("[[rule]]\nname = \"all\"\n[[rule]]\nname = \"b\"\nexe = \"x\"\n"),
        ["f:3: rule 'b' is never used: the earlier rule 'all' matches everything it would match"]
    );
    for (first, second, dead) in [
        ("exe = \"*\"", "", true),
        ("exe = \"x\"", "", false),
        ("user = 0", "user = 0\nexe = \"x\"", true),
        ("user = 0", "user = 1", false),
        ("cgroup = \"/a\"", "cgroup = \"/a\"\nuser = 0", true),
        ("cgroup = \"**\"", "exe = \"x\"", false),
        ("exe = \"x\"\nuser = 0", "exe = \"x\"", false),
    ] {
        let text = format!("[[rule]]\n{first}\n[[rule]]\n{second}\n");
        assert_eq!(never(&text).len(), usize::from(dead), "{text}");
    }
    let small = never("[service]\nquota = \"100MiB\"\n[[rule]]\nexe = \"x\"\n[[rule]]\n");
    assert_eq!(
        small,
        [
            "f:2: quota is too small for two files per rule (the full one and the next): recording pauses when there \
             is no room"
        ]
    );
}

#[test]
fn a_quota_smaller_than_one_file_lowers_the_file_size() {
    let ring = "[[rule]]\nring = 5\n";
    for (text, mib) in [
        ("[service]\nquota = \"32MiB\"\n", 16),
        ("[service]\nquota = \"32MiB\"\n[[rule]]\nexe = \"x\"\n[[rule]]\n", 8),
        ("[service]\nfile-size = \"1GiB\"\n", 256),
        ("[service]\nquota = \"1MiB\"\n", 1),
        ("[service]\nquota = 5500000\n", 2),
        (&format!("[service]\nquota = \"4MiB\"\n{ring}"), 4),
        (&format!("[service]\nquota = \"4MiB\"\n[[rule]]\nexe = \"x\"\n{ring}"), 3),
    ] {
        let s = of(text);
        assert_eq!(s.file_size, mib << 20, "{text}");
        let told = format!("f:2: quota is smaller than one file: file-size is reduced to {mib}MiB");
        assert_eq!(s.warnings.first(), Some(&told), "{text}");
    }
    // A quota that holds one file stays as it is, and a ring that does not fit into the rest is still an error.
    assert_eq!(of("[service]\nquota = \"64MiB\"\n").file_size, 64 << 20);
    let told = wrong(&format!("[service]\nquota = \"2MiB\"\n{ring}"));
    assert!(told.len() == 1 && told[0].contains("a ring is written to one file"), "{told:?}");
}

#[test]
fn headers_in_a_file_that_all_can_read_are_a_warning() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.toml");
    std::fs::write(&path, "[otlp]\nendpoint = \"http://a:4318\"\nheaders = [\"key=secret\"]\n")
        .expect("written");
    let warnings = |mode, environ: &[(&str, &str)]| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode).expect("its mode");
        let environ = |name: &str| environ.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let (args, _) = super::super::with_environment(&Args::none(&SERVE), &environ);
        let (file, _) = super::super::file(&path).expect("there");
        ServiceArgs::new(&args, file).values(&mut Vec::new()).warnings
    };
    let said = warnings(0o644, &[]);
    let [warning] = said.as_slice() else { panic!("{said:?}") };
    assert!(warning.contains("a.toml:3: all users of this machine can read the file"), "{warning}");
    assert!(warning.contains("chmod 600") && !warning.contains("secret\""), "{warning}");
    assert_eq!(warnings(0o600, &[]), [""; 0]);
    assert_eq!(warnings(0o640, &[]), [""; 0], "a group of the administrator's choice");
    assert_eq!(
        warnings(0o644, &[("PROFINFER_OTLP_HEADERS", "key=other")]),
        [""; 0],
        "they are not the file's"
    );
}

#[test]
fn names_of_sockets_are_short() {
    let text = |n: usize| format!("[service]\nsocket = \"/{}\"", "s".repeat(n));
    assert!(wrong(&text(106)).is_empty());
    assert_eq!(wrong(&text(107)).len(), 1);
}

#[test]
fn metrics_go_over_the_network_where_it_is_said() {
    let s = of(
        "[metrics]\nlisten = \"localhost:9464\"\nper-process = true\n\n[otlp]\nendpoint = \"http://a:4318\"\n\
                headers = [\"x-a=b, c\", \"x-d = e\"]\nattributes = \"env=lab\"\ninterval = \"5s\"",
    );
    assert_eq!(
        (s.net.listen.map(|a| a.to_string()).as_deref(), s.per_process),
        (Some("127.0.0.1:9464"), true)
    );
    let otlp = s.net.otlp.expect("an endpoint");
    assert_eq!(otlp.endpoint.to_string(), "http://a:4318/v1/metrics");
    let pairs = |all: &[(String, String)]| all.iter().map(|(a, b)| format!("{a}={b}")).collect::<Vec<_>>();
    assert_eq!(
        (pairs(&otlp.headers), pairs(&otlp.attributes)),
        (vec!["x-a=b, c".into(), "x-d=e".into()], vec!["env=lab".into()])
    );
    assert_eq!((otlp.interval.as_secs(), otlp.timeout.as_secs()), (5, 10));
    // Without a receiver the rest says nothing.
    assert_eq!(of("[otlp]\ninterval = \"5s\"").net, NetSettings::default());
    let line = ["--listen", "127.0.0.1:1", "--otlp-endpoint", "http://b:1"];
    let s = under(&line, &[("PROFINFER_OTLP_INTERVAL", "7s")], "[metrics]\nlisten = \"127.0.0.1:2\"")
        .expect("right");
    let otlp = s.net.otlp.expect("an endpoint");
    assert_eq!(
        (s.net.listen.map(|a| a.port()), otlp.endpoint.host.as_str(), otlp.interval.as_secs()),
        (Some(1), "b", 7)
    );
    for address in ["0.0.0.0:9464", "192.0.2.1:9464", "[::]:9464"] {
        let text = format!("[metrics]\nlisten = \"{address}\"\n");
        let said = wrong(&text);
        assert!(
            said.len() == 1 && said[0].starts_with("f:2: listen ") && said[0].contains("listen-remote"),
            "{said:?}"
        );
        assert_eq!(wrong(&format!("{text}listen-remote = true")), Vec::<String>::new());
    }
}

#[test]
fn every_key_has_a_check() {
    for flag in [SERVICE, METRICS, OTLP, OWN].iter().flat_map(|g| g.flags).filter(|f| !f.is_switch()) {
        let bad = match flag.value {
            "PATTERN" => "",
            // A word of a command may be any text.
            "ARG" => "\0",
            _ => "?",
        };
        assert!(flag.diagnose(bad).is_some(), "{}", flag.name);
        assert!(flag.default.is_empty() || flag.diagnose(flag.default).is_none(), "{}", flag.name);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_no_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let go = |name: &str| {
        let word = format!("--conf={}", dir.path().join(name).display());
        let Ok(Parsed::Run(args)) = Args::parse(&SERVE, vec![word.into()]) else { panic!("{name}") };
        settings(&args).map(|s| s.rules.len())
    };
    let there = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
    there("a", "btf = \"/none\"\n");
    there("b", "[[rule]]\n");
    assert_eq!(go("none").err().map(|e| e.len()), Some(1));
    let types = go("a").expect_err("no such types");
    assert!(types.len() == 1 && types[0].contains("a:1: ") && types[0].contains("/none"), "{types:?}");
    assert_eq!(go("b"), Ok(1));
}
