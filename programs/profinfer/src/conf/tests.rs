//! Tests of flag values from a file and from the environment.

use proptest::prelude::*;

use super::*;
use crate::record::flags::{COMMAND, settings as options};
use agent::capture::source::Structure;
use cli::args::Parsed;

/// The settled command line, or its mistakes.
fn settle(line: &[&str], environ: &[(String, String)], file: &str) -> Result<Args, Vec<String>> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.toml");
    std::fs::write(&path, file).expect("written");
    let conf = format!("--conf={}", path.display());
    let words = [conf.as_str()].iter().chain(line).map(OsString::from).collect();
    let Ok(Parsed::Run(args)) = Args::parse(&COMMAND, words) else { panic!("{line:?}") };
    let environ = |name: &str| environ.iter().find(|(n, _)| n == name).map(|(_, v)| OsString::from(v));
    let (all, mistakes) = layered(&args, &environ).expect("a file that can be read");
    let before = format!("{}:", path.display());
    if mistakes.is_empty() {
        Ok(all)
    } else {
        Err(mistakes.into_iter().map(|m| m.replace(&before, "a.toml:")).collect())
    }
}

fn keys() -> impl Iterator<Item = &'static Flag> {
    COMMAND.flags().filter(|f| f.is_key())
}

fn mistakes(file: &str) -> Vec<String> {
    read(file).1.told("f")
}

/// Three valid values of a flag.
fn samples(flag: &Flag) -> [&'static str; 3] {
    let any = [
        "1", "2", "3", "4KiB", "8KiB", "16KiB", "1%", "2%", "3%", "0600", "0640", "0644", "f:1", "f:2", "f:3",
    ];
    let fit: Vec<&str> = flag.choices.names().chain(any).filter(|v| flag.diagnose(v).is_none()).collect();
    fit.first_chunk().copied().unwrap_or_else(|| panic!("--{}: {fit:?}", flag.name))
}

#[test]
fn a_flag_beats_the_environment_and_that_the_file() {
    for flag in keys().filter(|f| !f.is_switch()) {
        let [low, middle, high] = samples(flag);
        let file = format!("{} = \"{low}\"\n", flag.name);
        let environ = [(flag.variable(), middle.to_owned())];
        let line = format!("--{}={high}", flag.name);
        let back = format!("--no-{}", flag.name);
        for (line, environ, wanted) in [
            (vec![line.as_str()], &environ[..], high),
            (vec![], &environ[..], middle),
            (vec![], &environ[..0], low),
            (vec![back.as_str()], &environ[..], flag.default),
        ] {
            let all = settle(&line, environ, &file).expect("right values");
            let text = all.text(flag.name).expect("a value").unwrap_or_default();
            assert_eq!(text, wanted, "{} by {line:?} {environ:?}", flag.name);
        }
    }
}

#[test]
fn switches_go_on_and_off_at_every_level() {
    for flag in keys().filter(|f| f.is_switch()) {
        let said = |on: bool| if on { flag.name.to_owned() } else { format!("no-{}", flag.name) };
        let on = |all: &Args| match COMMAND.opposite(flag) {
            Some(opposite) if opposite.name.starts_with("no-") => !all.flag(opposite.name),
            _ => all.flag(flag.name),
        };
        for bits in 0..8 {
            let [low, middle, high] = [bits & 1 > 0, bits & 2 > 0, bits & 4 > 0];
            let file = format!("{} = {low}\n", flag.name);
            let environ = [(flag.variable(), middle.to_string())];
            let line = match COMMAND.opposite(flag) {
                Some(opposite) if !high => format!("--{}", opposite.name),
                _ => format!("--{}", said(high)),
            };
            for (line, environ, wanted) in [
                (vec![line.as_str()], &environ[..], high),
                (vec![], &environ[..], middle),
                (vec![], &environ[..0], low),
            ] {
                let all = settle(&line, environ, &file).expect("right values");
                assert_eq!(on(&all), wanted, "{} by {line:?} {environ:?}, {low}", flag.name);
            }
        }
    }
}

#[test]
fn of_a_list_the_strongest_counts_alone() {
    let file = "pmc = [\"cycles\", \"instructions\"]";
    let environ = [("PROFINFER_PMC".to_owned(), "branches, branch-misses".to_owned())];
    let all = |line: &[&str], environ: &[(String, String)]| {
        settle(line, environ, file).expect("right").parts("pmc")
    };
    assert_eq!(all(&[], &[]), ["cycles", "instructions"]);
    assert_eq!(all(&[], &environ), ["branches", "branch-misses"]);
    assert_eq!(all(&["--pmc", "r1", "--pmc", "r2"], &environ), ["r1", "r2"]);
    assert_eq!(settle(&[], &[], "pmc = []").expect("right").parts("pmc"), Vec::<String>::new());
}

#[test]
fn what_excludes_another_displaces_it_where_it_is_weaker() {
    let all = settle(&["-p", "1"], &[], "exe = \"x\"").expect("right");
    assert_eq!((all.text("exe").expect("none"), all.check().is_ok()), (None, true));
    let all = settle(&["--str"], &[], "no-str = true").expect("right");
    assert!(!all.flag("no-str"));
    // What a flag needs may be given in another layer.
    let all = settle(&["--pmc-strict"], &[], "pmc = \"cycles\"").expect("right");
    assert!(all.check().is_ok());
    let wrong = settle(&["--no-pmc"], &[], "pmc-strict = true\npmc = \"cycles\"").expect("right values");
    let wrong = wrong.check().expect_err("it needs counters").to_string();
    assert!(wrong.ends_with("a.toml:1: pmc-strict requires --pmc LIST"), "{wrong}");
}

#[test]
fn units_are_those_of_the_flags() {
    let file = "\
buffer-size = \"64MiB\"\nqos = \"5tok/s\"\nbudget = \"1%\"\nduration = \"10min\"\ntokens = 1_000\nagent-cpu = 0x3
sched = true\nstr = false\npmc = [\"cycles\", \"instructions\",\n  'r001b', # three\n]\n";
    let options = options(&settle(&[], &[], file).expect("right values")).expect("they go together");
    assert_eq!((options.capture.buffer_bytes, options.tokens), (64 << 20, Some(1000)));
    assert_eq!(options.duration, Some(std::time::Duration::from_secs(600)));
    assert!(options.budget.is_some_and(|b| b.budget == Some(0.01) && b.qos == Some(5.0)));
    assert!(options.capture.sched && options.capture.structure == Structure::Off);
    assert_eq!(options.counters.names, ["cycles", "instructions", "r001b"]);
    assert_eq!(format!("{:?}", options.agent_cpu), "Cpu(3)");
    let bare = options_of("buffer-size = 65536\nqos = 5.5\nduration = 30\n");
    assert_eq!((bare.capture.buffer_bytes, bare.duration), (65536, Some(std::time::Duration::from_secs(30))));
    assert_eq!(bare.budget.and_then(|b| b.qos), Some(5.5));
}

fn options_of(file: &str) -> agent::recorder::recording::RecordOptions {
    options(&settle(&[], &[], file).expect("right values")).expect("they go together")
}

#[test]
fn all_that_is_wrong_is_told_at_once_and_where() {
    for (file, wrong) in [
        ("level = \"grap\"", "f:1: level 'grap': expected token, graph or op; the nearest is 'graph'"),
        ("\n\nbugdet = \"1%\"", "f:3: unknown key 'bugdet'; the nearest is 'budget'"),
        ("buffer_size = \"1MiB\"", "f:1: unknown key 'buffer_size'; the nearest is 'buffer-size'"),
        ("pmc.strict = true", "f:1: unknown key 'pmc.strict'; the nearest is 'pmc-strict'"),
        ("zzz = 1", "f:1: unknown key 'zzz'; profinfer config --print --default lists all keys"),
        ("site = \"first\"", "f:1: unknown key 'site'; profinfer config --print --default lists all keys"),
        ("pid = 1", "f:1: pid is allowed on the command line only, not in a file"),
        ("conf = \"x\"", "f:1: conf is allowed on the command line only, not in a file"),
        ("budget = 1", "f:1: budget '1': expected a percentage, e.g. 1% or 0.2%"),
        ("budget = 1%", "f:1: 1% must be in quotes: \"1%\""),
        ("buffer-size = 64 MiB", "f:1: 64 MiB must be in quotes: \"64 MiB\""),
        ("level = op", "f:1: op must be in quotes: \"op\""),
        ("level =", "f:1: no value after '='"),
        ("level = op\"", "f:1: op\": quotes must enclose the complete string"),
        ("level = \"\"", "f:1: level '': expected token, graph or op"),
        ("level = true", "f:1: level 'true': expected, in quotes: token, graph or op"),
        ("level = [\"op\"]", "f:1: level takes a single value, not a list"),
        ("level = {a = 1}", "f:1: expected a value, not a table"),
        ("exe = 1979-05-27", "f:1: 1979-05-27 must be in quotes: \"1979-05-27\""),
        ("exe = \"\"", "f:1: exe '': expected PATH"),
        ("sched = \"yes\"", "f:1: sched 'yes': expected true or false"),
        ("sched = [true]", "f:1: sched takes a single value, not a list"),
        ("pmc = [\"cycles\", \"\"]", "f:1: pmc '': expected LIST"),
        ("pmc = [\"a\",\n[\"b\"]]", "f:2: expected a value, not a list"),
        ("pmc = \"list\"", "f:1: pmc 'list': is allowed on the command line only"),
        ("qos = -1", "f:1: qos '-1': expected tokens per second, e.g. 5tok/s or 0.5"),
        ("level = \"op\"\nlevel = \"op\"", "f:2: level is given twice: line 1 already has level"),
        ("str = true\nno-str = true", "f:2: no-str is given twice: line 1 already has str"),
        (
            "[record]\nlevel = \"op\"",
            "f:1: unknown table [record]: use [service], [metrics], [otlp] or [[rule]]",
        ),
        ("[service.x]", "f:1: unknown table [service.x]: use [service], [metrics], [otlp] or [[rule]]"),
        ("[rule]\nlevel = \"op\"", "f:1: [[rule]] must be in double brackets"),
        ("[[service]]", "f:1: [service] must be in single brackets"),
        ("[service]\n[service]", "f:2: [service] is given twice: first in line 1"),
        ("quota = \"1GiB\"", "f:1: quota belongs in [service]"),
        ("ring = \"1min\"", "f:1: ring belongs in a [[rule]]"),
        ("[service]\nqouta = 1", "f:2: unknown key 'qouta'; the nearest is 'quota'"),
        (
            "[service]\nlevel = 1",
            "f:2: level is a recording option: put it above all headings, or in a [[rule]]",
        ),
        ("[service]\ntokens = 1", "f:2: tokens belongs in a [[rule]]"),
        ("[service]\nquota = 64", "f:2: quota '64': must be 1MiB or more"),
        ("[service]\nmemory = \"1MiB\"", "f:2: memory '1MiB': must be 16MiB or more"),
        ("[service]\nkeep = \"9999d\"", "f:2: keep '9999d': must be at most 3650d"),
        ("[service]\ndirectory = \"x\"", "f:2: directory 'x': expected an absolute path"),
        (
            "[service]\nmetrics = \"/x\"",
            "f:2: metrics '/x': the name must end in .prom: node_exporter ignores other files",
        ),
        ("[service]\nmax-concurrent = 0", "f:2: max-concurrent '0': expected an integer from 1 to 1000"),
        ("[service]\nrecorders = 1", "f:2: recorders '1': expected an integer from 4 to 256"),
        ("[service]\nrecorder-timeout = \"1s\"", "f:2: recorder-timeout '1s': expected 2s or more"),
        ("[metrics]\nlsiten = 1", "f:2: unknown key 'lsiten'; the nearest is 'listen'"),
        ("[metrics]\nlisten = \"x\"", "f:2: listen 'x': expected an address and a port, e.g. 127.0.0.1:9464"),
        ("[metrics]\nquota = 1", "f:2: quota belongs in [service]"),
        ("[service]\nper-process = true", "f:2: per-process belongs in [metrics]"),
        ("[[rule]]\nlisten = \"x\"", "f:2: listen applies to all rules: put it in [metrics]"),
        ("[metrics]\n[otlp]\n[metrics]", "f:3: [metrics] is given twice: first in line 1"),
        ("[[otlp]]", "f:1: [otlp] must be in single brackets"),
        ("[otlp]\nendpont = \"x\"", "f:2: unknown key 'endpont'; the nearest is 'endpoint'"),
        (
            "[otlp]\nendpoint = \"x\"",
            "f:2: endpoint 'x': expected http://HOST:PORT, e.g. http://127.0.0.1:4318",
        ),
        ("[otlp]\nheaders = [\"a\"]", "f:2: headers 'a': expected NAME=VALUE"),
        ("[otlp]\ninterval = \"1ms\"", "f:2: interval '1ms': expected a time from 1s to 1d"),
        ("otlp-endpoint = \"x\"", "f:1: otlp-endpoint belongs in [otlp], without 'otlp-'"),
        ("listen = \"x\"", "f:1: listen belongs in [metrics]"),
        ("otlp = {timeout = \"1ms\"}", "f:1: timeout '1ms': expected a time from 100ms to 5min"),
        ("metrics.listen = \"x\"", "f:1: listen 'x': expected an address and a port, e.g. 127.0.0.1:9464"),
        ("[[rule]]\nnmae = \"x\"", "f:2: unknown key 'nmae'; the nearest is 'name'"),
        ("[[rule]]\nname = \"a b\"", "f:2: name 'a b': expected 1 to 40 letters, digits, -, _ and ."),
        ("[[rule]]\nlevle = \"op\"", "f:2: unknown key 'levle'; the nearest is 'level'"),
        ("[[rule]]\nquota = 1", "f:2: quota applies to all rules: put it in [service]"),
        (
            "[[rule]]\nduration = 1",
            "f:2: duration is not allowed in a rule: tokens = N records the beginning of a run, ring = TIME keeps its most recent part",
        ),
        (
            "[[rule]]\noutput = 1",
            "f:2: output is not allowed in a rule: the service chooses file names in the directory set in [service]",
        ),
        (
            "[[rule]]\nquiet = true",
            "f:2: quiet is not allowed in a rule: the service writes its messages to its log",
        ),
        (
            "[[rule]]\nuser = \"no such\"",
            "f:2: user 'no such': no user of this machine (/etc/passwd); give a name or a number",
        ),
        (
            "[[rule]]\ntrigger-below = \"5\u{20ac}\"",
            "f:2: trigger-below '5\u{20ac}': expected tokens per second, e.g. 5tok/s or 0.5",
        ),
        ("[[rule]]\nignore = 1", "f:2: ignore '1': expected true or false"),
        ("level", "f:1: no value: write KEY = VALUE"),
        ("level = \"op\" x", "f:1: unexpected 'x' after a value or heading: the line must end there"),
        ("level = \"op", "f:1: unterminated string: \" is missing"),
        ("level = \"\"\"op\n\n", "f:1: unterminated string: \" is missing"),
        (
            "level = \"\\q\"",
            "f:1: unknown escape in a string: write \\\\ for a backslash, or use single quotes",
        ),
        (
            "level = \"a\u{1}b\"",
            "f:1: control character in a string: in double quotes, write \\u and four digits for it",
        ),
        ("pmc = [\"a\" \"b\"]", "f:1: expected ',' or ']' in a list"),
        ("pmc = [\"a\",\n\"b\"\n", "f:1: expected ',' or ']' in a list"),
        ("pmc = [,]", "f:1: expected a value or ']' in a list"),
        ("a b = 1", "f:1: no value: write KEY = VALUE"),
        ("[rule", "f:1: a table heading must end with ']'"),
        ("[[rule]", "f:1: a table heading must end with ']]'"),
        ("rule = [1]", "f:1: expected a table: write [[rule]]"),
        ("rule = {name = \"a\"}", "f:1: [[rule]] must be in double brackets"),
        ("rule.name = \"a\"", "f:1: [[rule]] must be in double brackets"),
        ("service.quota = \"1GiB\"\n[service]", "f:2: [service] is given twice: first in line 1"),
        ("service = {quota = 64}", "f:1: quota '64': must be 1MiB or more"),
        ("rule = [{name = \"a\"},\n{nmae = \"b\"}]", "f:2: unknown key 'nmae'; the nearest is 'name'"),
    ] {
        assert_eq!(mistakes(file), [wrong], "{file}");
    }
    let several = mistakes("budget = \"x\"\nlevel = op\n[x\nlevle = 1\nqos = \"5t\"\nsched = 1\n");
    let begins: Vec<&str> = several.iter().map(|m| &m[..4]).collect();
    assert_eq!(begins, ["f:1:", "f:2:", "f:3:", "f:4:", "f:5:", "f:6:"], "{several:#?}");
    let lot = mistakes(&"a\n".repeat(1000));
    assert!(
        lot.len() == 100 && lot.last().is_some_and(|l| l.ends_with("; there may be more errors after it"))
    );
}

/// Each of TOML's forms for the same settings.
#[test]
fn all_of_toml_that_fits_is_taken() {
    let told = |text: &str| {
        let (file, faults) = read(text);
        assert_eq!(faults.told("f"), Vec::<String>::new(), "{text}");
        let of = |given: &[Given]| {
            given.iter().map(|g| format!("{}={:?}", g.flag.name, g.value)).collect::<Vec<_>>().join(" ")
        };
        let rules: Vec<String> = file.rules.iter().map(|(_, given)| of(given)).collect();
        (of(&file.record), of(&file.service), rules)
    };
    let plain = "sched = true\nexe = \"/a b\"\ntokens = 3\n[service]\nquota = \"1GiB\"\nkeep = \"7d\"\n\
        [[rule]]\nname = \"a\"\npmc = [\"x\", \"y\"]\n[[rule]]\nname = \"b\"\n";
    for text in [
        "sched=true\nexe='''\n/a b'''\ntokens=0b11\nservice.quota=\"1GiB\"\nservice.keep='7d'\n\
         [[rule]]\nname=\"a\"\npmc=['x',\n'y'\n,]\n[[\"rule\"]]\n'name'=\"b\"",
        "\"sched\" = true\nexe = \"\"\"/a \\\n   b\"\"\"\ntokens = +3\r\nservice = { quota = \"1GiB\", keep = \"7d\" }\n\
         rule = [{ name = \"a\", pmc = [\"x\", \"y\"] }, # the first\n { name = \"\\u0062\" },\n]\n",
    ] {
        assert_eq!(told(text), told(plain), "{text}");
    }
    assert_eq!(told("qos = 5e-1").0, "qos=Some(\"5e-1\")");
}

#[test]
fn the_environment_is_told_by_its_names() {
    let wrong = |name: &str, value: &str| {
        let all = settle(&[], &[(name.to_owned(), value.to_owned())], "tokens = \"x\"");
        all.err().unwrap_or_else(|| panic!("{name} {value}"))
    };
    let file = "a.toml:1: tokens 'x': expected an integer";
    for (name, value, why) in [
        (
            "PROFINFER_LEVEL",
            "grap",
            "PROFINFER_LEVEL 'grap': expected token, graph or op; the nearest is 'graph'",
        ),
        ("PROFINFER_BUFFER_SIZE", "x", "PROFINFER_BUFFER_SIZE 'x': unknown unit 'x': use KiB, MiB or GiB"),
        ("PROFINFER_SCHED", "maybe", "PROFINFER_SCHED 'maybe': expected true or false"),
        ("PROFINFER_PMC", "cycles,list", "PROFINFER_PMC 'list': is allowed on the command line only"),
    ] {
        assert_eq!(wrong(name, value), [why, file]);
    }
    let both = [("PROFINFER_STR", "1"), ("PROFINFER_NO_STR", "1")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let both = settle(&[], &both, "").err().expect("two that are the same");
    assert_eq!(both, ["PROFINFER_NO_STR is the same setting as PROFINFER_STR: unset one of them"]);
    // Empty variables and unknown keys are ignored.
    for (name, value) in [("PROFINFER_LEVEL", ""), ("PROFINFER_PID", "x"), ("PROFINFER_REQUIRE", "1")] {
        assert!(settle(&[], &[(name.to_owned(), value.to_owned())], "").is_ok(), "{name}");
    }
}

#[test]
fn every_key_has_a_check_that_is_the_reader_s() {
    for flag in keys().filter(|f| !f.is_switch()) {
        let path = ["FILE", "FILE[:UNIT]", "PATH"].contains(&flag.value);
        let sure = |value: &str| flag.diagnose(value).is_some();
        assert!(path || flag.many || sure("?"), "--{} takes anything", flag.name);
    }
}

/// Typical values, and others.
fn values() -> impl Strategy<Value = String> {
    let choices: Vec<&str> = COMMAND.flags().flat_map(|f| f.choices.names()).collect();
    prop_oneof![
        2 => "[0-9]{1,4}(|[.][0-9])(|KiB|MiB|M|ms|us|s|min|%| %|tok/s| tok/s|k)",
        1 => proptest::sample::select(choices).prop_map(str::to_owned),
        1 => "[a-z0-9.%/*-]{1,6}",
    ]
}

/// Texts that are partly TOML.
fn texts() -> impl Strategy<Value = String> {
    let all = [&COMMAND, &service::SERVE, &service::RULE].map(Command::flags).into_iter().flatten();
    let names = proptest::sample::select(all.map(|f| f.name).collect::<Vec<_>>());
    let value = prop_oneof![
        values().prop_map(|v| format!("\"{v}\"")),
        values(),
        "[\\[\\]{}\"'=.,#a-z0-9_+-]{0,12}",
        Just("[\"a\", 1, true, [2]]".to_owned()),
        Just("'''\n'''".to_owned()),
    ];
    let line = prop_oneof![
        4 => (names, value).prop_map(|(name, value)| format!("{name} = {value}\n")),
        1 => proptest::sample::select(vec!["[service]\n", "[[rule]]\n", "[rule]\n", "[[service]]\n"]).prop_map(str::to_owned),
        1 => "[\\[\\]{}\"'=.,# a-z0-9_\\\\\n\r\t-]{0,16}\n",
        1 => "\\PC{0,16}\n?",
    ];
    proptest::collection::vec(line, 0..8).prop_map(|lines| lines.concat())
}

proptest! {
    #[test]
    fn no_text_makes_it_panic_and_its_lines_are_told(text in texts()) {
        let (file, faults) = read(&text);
        let lines = text.lines().count() + 1;
        prop_assert!(faults.0.iter().all(|(line, _)| (1..=lines).contains(line)), "{faults:?}");
        let rules = file.rules.iter().flat_map(|(_, given)| given);
        for Given { from, .. } in file.record.iter().chain(&file.service).chain(rules) {
            prop_assert!(matches!(from, ValueOrigin::Line(line) if (1..=lines).contains(line)));
        }
        // Accepted values can be parsed in the end.
        let mut all = Args::none(&COMMAND);
        all.below(file.record.clone());
        let why = options(&all).err().map(|e| e.to_string()).unwrap_or_default();
        prop_assert!(!why.contains('\''), "{why}");
        let mut wrong = Vec::new();
        service::ServiceArgs::new(&Args::none(&service::SERVE), file).values(&mut wrong);
        prop_assert!(wrong.iter().all(|why| !why.contains("wanted")), "{wrong:?}");
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        read(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_value_is_taken_from_a_file_where_it_is_on_the_line(value in values()) {
        for flag in keys().filter(|f| !f.is_switch()) {
            let line = vec![OsString::from(format!("--{}={value}", flag.name))];
            let Ok(Parsed::Run(args)) = Args::parse(&COMMAND, line) else { panic!("--{}={value}", flag.name) };
            prop_assert_eq!(flag.diagnose(&value).is_none(), options(&args).is_ok(), "--{}={}", flag.name, value);
        }
    }
}

#[test]
fn deep_and_long_texts_are_refused_without_harm() {
    for part in
        ["[", "{a=", "a.", "[[", "\"", "'''", "=", "-", "\\", "a = [[", "\u{feff}", "\r", "x = 1_", "a={b=[{"]
    {
        let text = part.repeat(65_536 / part.len());
        assert!(!mistakes(&text).is_empty(), "{part:?}");
        let text = format!("pmc = {text}");
        assert!(!mistakes(&text).is_empty(), "pmc = {part:?}");
    }
}
